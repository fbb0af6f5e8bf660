"""Whether a step, a stream and the results to watch are what a Trainer can work with."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from namedmesh.errors.errors import NamedMeshError, join_names, suggest_names
from namedmesh.runtime import Executable, State
from namedmesh.training.checkpoints import Checkpoints
from namedmesh.training.intervals import Intervals
from namedmesh.training.profiling import TraceWindow
from namedmesh.training.streams import Stream
from namedmesh.training.throughput import device_peak_flops

WATCHED = ("loss", "grad_norm")  # by default, those of them that the step returns


def check_options(
    intervals: object, checkpoints: object, initial: object, metrics: object, profile: object
) -> None:
    """Check the types of a Trainer's options, and that its checkpoints can be saved.

    >>> from namedmesh.training import Intervals
    >>> check_options(Intervals(10), None, None, "run/metrics.jsonl", None)
    """
    expected = (
        ("intervals", intervals, Intervals, "Intervals(steps)"),
        ("checkpoints", checkpoints, Checkpoints, "Checkpoints(folder, keep=3)"),
        ("initial", initial, State, "step.init(seed) or step.place({name: array})"),
        ("metrics", metrics, str | os.PathLike, "the path of a file"),
        ("profile", profile, TraceWindow, "TraceWindow(folder)"),
    )
    problems, fixes = [], []
    for name, value, kind, example in expected:
        optional = value is None and name != "intervals"
        if not optional and not isinstance(value, kind):
            problems.append(f"{name} is a {type(value).__name__}")
            fixes.append(f"{name}={example}")
    if problems:
        raise NamedMeshError(
            f"a Trainer cannot work with these options: {join_names(problems)}",
            fix=f"give {join_names(fixes)}",
        )
    if isinstance(checkpoints, Checkpoints):
        checkpoints.check_writable()


def check_stream(stream: object) -> Stream:
    """Return a stream, or raise if it is something else, e.g. a list or a function.

    >>> from namedmesh.training import NumberedBatches
    >>> check_stream(NumberedBatches(lambda number: {"x": number}, "numbers")).digest
    'numbers'
    """
    if not callable(getattr(stream, "read_from", None)):
        fix = "give an object with read_from(position) and digest, e.g. NumberedBatches(make_batch)"
        if isinstance(stream, Sequence):
            fix = "wrap it: NumberedBatches(lambda number: batches[number % len(batches)])"
        elif callable(stream):
            fix = "wrap it: NumberedBatches(function), where function makes the batch of a number"
        raise NamedMeshError(f"the stream is a {type(stream).__name__}, not a Stream", fix=fix)
    digest = getattr(stream, "digest", None)
    if not isinstance(digest, str):
        raise NamedMeshError(
            f"the digest of the stream is {digest!r}, not a string",
            fix="name the data in a string, so that a run continues with the same data only",
        )
    return stream  # pyright: ignore[reportReturnType] - it has the members of the protocol


def check_item(item: object) -> tuple[Any, Any]:
    """Return a batch and the position after it, or raise if a stream made something else.

    >>> check_item(({"x": 1}, 5))
    ({'x': 1}, 5)
    """
    if isinstance(item, tuple) and len(item) == 2:
        return item
    raise NamedMeshError(
        f"the stream made a {type(item).__name__}, expected a pair of a batch and a position",
        fix="yield (batch, position) in read_from, the position being that after the batch",
    )


def check_batch(batch: object) -> Mapping[str, Any]:
    """Return a batch that is a dict of inputs, or raise.

    >>> check_batch({"x": 1})
    {'x': 1}
    """
    if isinstance(batch, Mapping):
        return batch
    raise NamedMeshError(
        f"a batch is a {type(batch).__name__}, expected the inputs of the step by name",
        fix="make batches such as {'x': array}, or make inputs of a batch with feed=",
    )


def feed_batch(executable: Executable, batch: object) -> Mapping[str, Any]:
    """The inputs of a step from a batch of a stream."""
    arrays = check_batch(batch)
    whole = {name: spec.sizes for name, spec in executable.inputs.items()}
    if {name: getattr(one, "shape", None) for name, one in arrays.items()} == whole:
        return arrays
    return executable.feed(arrays)


def check_scalar_results(executable: Executable) -> list[str]:
    """Return the names of the results of a step, or raise if they are not a dict of scalars."""
    artifact, structure = executable.artifact, executable.artifact.structure
    fix = "return a dict of scalars, e.g. {'loss': loss}"
    if not isinstance(structure, dict):
        returned = ", ".join(spec.text for spec in artifact.outputs) or "nothing"
        raise NamedMeshError(
            f"the step {artifact.name} does not return a dict", f"it returns {returned}", fix=fix
        )
    problems = []
    for name, leaf in structure.items():
        if not isinstance(leaf, int):
            problems.append(f"{name}: a {type(leaf).__name__}")
        elif artifact.outputs[leaf].sizes != ():
            problems.append(f"{name}: {artifact.outputs[leaf].text}")
    if problems:
        raise NamedMeshError(
            f"the step {artifact.name} has results that are not scalars", *problems, fix=fix
        )
    return list(structure)


def choose_watched(
    watch: Sequence[str] | None, results: Sequence[str], say: Callable[[str], None]
) -> tuple[str, ...]:
    """Choose the results that must be finite, and say if there are none by default.

    >>> choose_watched(None, ["loss", "accuracy"], print)
    ('loss',)
    """
    if watch is None:
        watched = tuple(name for name in WATCHED if name in results)
        if not watched:
            say(f"no result is named {' or '.join(WATCHED)}: none is checked to be finite")
        return watched
    if isinstance(watch, str):
        raise NamedMeshError(f"watch={watch!r} is a string", fix=f"give a list: [{watch!r}]")
    unknown = [name for name in watch if name not in results]
    if unknown:
        raise NamedMeshError(
            f"watch= names {join_names([repr(name) for name in unknown])}, "
            "which the step does not return",
            f"it returns: {', '.join(results)}",
            fix=suggest_names([str(name) for name in unknown], results),
        )
    return tuple(watch)


def find_peak_flops(
    executable: Executable, flops: float | None, say: Callable[[str], None]
) -> float | None:
    """Look up the peak of the devices of a step, and say so if it is not known."""
    if not flops:
        return None
    device = executable.mesh.devices.flat[0]
    try:
        return device_peak_flops(device)
    except NamedMeshError as error:
        say(f"{error.problem}: no utilization (mfu) is logged (a Trainer may be given peak_flops=)")
        return None
