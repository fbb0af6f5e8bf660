"""Measures: the time and memory of a candidate's exact plan, on all cores, kept in a journal."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from namedmesh.cost.cost import cost
from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.files import check_path, describe_os_error, read_bytes, write_file
from namedmesh.hardware.hardware import Hardware
from namedmesh.ir.op import every_op, options_of
from namedmesh.ir.program import Program
from namedmesh.ir.tensor import Tensor
from namedmesh.planning.plan_program import plan_cheapest
from namedmesh.records.codec import InvalidRecordError, read_value, write_value
from namedmesh.search.candidates import Candidate
from namedmesh.version import __version__


@dataclass(frozen=True)
class Measure:
    """The time and memory of a step on one device, by the plan."""

    seconds: float = 0.0  # with the overlap that the hardware's schedulers reach
    least_seconds: float = 0.0  # if computation and communication overlap perfectly
    compute_seconds: float = 0.0
    collective_seconds: float = 0.0
    memory_bytes: int = 0  # at the peak
    wire_bytes: int = 0  # that it sends
    host_bytes: int = 0  # that its host sends to other hosts
    refused: str = ""  # why there is no plan; empty where there is one
    conflict: tuple[str, ...] = ()  # the first dimensions on which operands disagree, if any do
    conflicts: str = "error"  # the argument of nm.plan with which there is this plan


def measure_candidate(program: Program, candidate: Candidate, hardware: Hardware) -> Measure:
    """Plan a candidate, conflicts by the cheapest move, and estimate its cost."""
    layout = candidate.mesh, candidate.layout, candidate.params
    try:
        plan, solved = plan_cheapest(program, *layout)
    except NamedMeshError as error:
        return Measure(refused=f"{error.problem} (at {error.source.user})")
    conflict = tuple(sorted(solved[0])) if solved else ()
    conflicts = "cheapest" if solved else "error"
    found = cost(plan, hardware)
    seconds = (found.seconds, found.least_seconds, found.compute_seconds, found.collective_seconds)
    sent = plan.total_wire_bytes(), plan.total_host_bytes()
    return Measure(*seconds, found.memory.peak_bytes, *sent, "", conflict, conflicts)


# What the processes of a pool plan: they are forked, and inherit it.
_shared: tuple[Sequence[Program], Hardware] | None = None


def _start_worker() -> None:
    """Leave Ctrl-C to the parent, and freeze the inherited objects for the collector."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()


def _measure_shared(candidate: Candidate) -> Measure:
    assert _shared is not None, "workers are forked after it is set"
    programs, hardware = _shared
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return measure_candidate(programs[candidate.variant], candidate, hardware)


@contextlib.contextmanager
def measuring(
    programs: Sequence[Program], hardware: Hardware, processes: int
) -> Iterator[Callable[[Sequence[Candidate]], list[Measure]]]:
    """Open a function that measures candidates in several processes."""
    global _shared
    _shared = programs, hardware
    try:
        if processes == 1:
            yield lambda candidates: list(map(_measure_shared, candidates))
            return
        context = multiprocessing.get_context("fork")
        pool = ProcessPoolExecutor(processes, context, _start_worker)
        try:
            yield lambda candidates: _measure_in_pool(pool, candidates)
        finally:
            pool.shutdown(cancel_futures=True)
    finally:
        _shared = None


def _measure_in_pool(pool: ProcessPoolExecutor, candidates: Sequence[Candidate]) -> list[Measure]:
    """Measure candidates in other processes, which the pool forks on first use."""
    try:
        with warnings.catch_warnings():
            # jax, where it runs already, warns of forks; the processes do not use it.
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
            return list(pool.map(_measure_shared, candidates))
    except BrokenProcessPool:
        raise NamedMeshError(
            "search: a process that planned was killed, perhaps for the memory it took",
            fix="give fewer processes (processes=1); with resume= nothing is planned twice",
        ) from None


FORMAT = 2
LARGEST_JOURNAL = 2**30  # bytes


def fingerprint(programs: Iterable[Program], *settings: object) -> str:
    """Return a digest of a search's programs and settings."""
    digest = hashlib.sha256(repr(settings).encode())
    for program in programs:
        for line in _describe_program(program):
            digest.update(repr(line).encode())
    return digest.hexdigest()


def _describe_program(program: Program) -> Iterator[object]:
    """Yield everything in a program that a plan depends on, with tensors as numbers."""
    numbers: dict[Tensor, int] = {}

    def count(tensors: Iterable[Tensor]) -> list[int]:
        return [numbers.setdefault(one, len(numbers)) for one in tensors]

    for name, spec in program.specs.items():
        yield name, sorted(spec.whole), count([program.inputs[name]])
    for name, one in program.variables.items():
        yield name, sorted(one.whole), one.trainable, one.at_rest, one.owner, count([one.tensor])
    for op in every_op(program.ops):
        options = [_describe_option(value) for value in options_of(op).values()]
        shapes = [(str(one.shape), one.dtype) for one in op.outputs]
        yield op.kind, op.phase, options, shapes, count(op.inputs), count(op.outputs)
        for body in op.bodies:
            yield count(body.arguments), count(body.captured), count(body.outputs)
    yield count(program.outputs), [*program.updates], count(program.updates.values())


def _describe_option(value: object) -> object:
    """Return a value whose repr is equal in every process."""
    if isinstance(value, (str, bool, int, float, complex, Dimension, Shape)) or value is None:
        return repr(value)
    if isinstance(value, (tuple, list)):
        return [_describe_option(one) for one in value]
    if isinstance(value, Mapping):
        return [(_describe_option(key), _describe_option(one)) for key, one in value.items()]
    if isinstance(value, (set, frozenset)):
        return sorted(repr(_describe_option(one)) for one in value)
    return type(value).__name__


@dataclass(frozen=True)
class _Document:
    """The contents of a journal."""

    format: int
    version: str
    search: str
    measures: dict[str, Measure]


class Journal:
    """The measures of a search in a file, written whole or not at all."""

    def __init__(self, path: str | os.PathLike | None, identity: str):
        self._path = None if path is None else check_path(path, "the journal of the search")
        self._header = FORMAT, __version__, identity
        self.measures: dict[str, Measure] = {}
        if self._path is not None and os.path.exists(self._path):
            self.measures = self._read(self._path)

    def _read(self, path: str) -> dict[str, Measure]:
        """Read the measures of an earlier run of the same search."""
        try:
            document = read_value(json.loads(read_bytes(path, LARGEST_JOURNAL)), _Document)
        except (OSError, ValueError, RecursionError, InvalidRecordError) as error:
            reason = describe_os_error(error) if isinstance(error, OSError) else "it is not one"
            raise NamedMeshError(
                f"cannot read {path!r} as the journal of a search: {reason}",
                fix="name another file, or remove this one to start anew",
            ) from None
        if (document.format, document.version, document.search) != self._header:
            other = "version of namedmesh" if document.version != __version__ else "search"
            raise NamedMeshError(
                f"the journal {path!r} belongs to another {other}",
                fix="name another file, remove this one to start anew, or give the same program, "
                "devices, target and pin as before",
            )
        return document.measures

    def write(self, measures: Mapping[str, Measure]) -> None:
        """Add measures, and write the file if there is one."""
        self.measures.update(measures)
        if self._path is not None:
            document = write_value(_Document(*self._header, self.measures))
            write_file(self._path, (json.dumps(document, indent=1) + "\n").encode(), "the journal")
