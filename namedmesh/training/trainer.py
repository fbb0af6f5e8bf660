"""The training loop: steps, logging, evaluation, checkpoints, and an exact continuation."""

from __future__ import annotations

import math
import os
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from namedmesh.display.text import human
from namedmesh.errors.errors import NamedMeshError, join_names, suggest_names
from namedmesh.errors.mistakes import Explained
from namedmesh.errors.source import warn_caller
from namedmesh.files import check_path
from namedmesh.processes.launched import tell_launcher
from namedmesh.processes.processes import current_processes
from namedmesh.runtime import Executable, LostProcess, State
from namedmesh.training.arguments import check_executable, check_metrics
from namedmesh.training.checkpoints import Checkpoints
from namedmesh.training.copies import StateCopies
from namedmesh.training.guards import (
    Divergence,
    UnsoundState,
    check_replicas,
    has_copies,
    repeat_step,
)
from namedmesh.training.metrics import MetricsLog
from namedmesh.training.progress import ProgressBar
from namedmesh.training.record import StepRecorder
from namedmesh.training.restoring import Checkpoint
from namedmesh.training.stopping import SharedStop, StopRequest, graceful_stop
from namedmesh.training.streams import Stream, prefetch
from namedmesh.training.throughput import (
    StepProfiler,
    TraceWindow,
    device_peak_flops,
    model_flops_utilization,
)

WATCHED = ("loss", "grad_norm")  # by default, those of them that the step returns


@dataclass(frozen=True)
class Intervals:
    """The length of a training run, and the intervals of what is done in it.

    Args:
        steps: The last step.
        log_every: Steps between two rows of metrics, each the mean of the steps since the one
            before; a row also ends at each save and copy, before which all results are checked.
        save_every: Steps between two checkpoints.
        evaluate_every: Steps between two evaluations; 0 for none.
        minutes: A time limit, compilation not counted; 0 for none.
        repeat_every: Steps between two that are taken twice, to find devices that compute wrongly;
            0 for none.
        check_every: Steps between two comparisons of all copies of parameters and their slots,
            bit for bit, on the host; 0 for none.
        copy_every: Steps between two copies of the state in the memory of each process and of the
            next one, to go on from without a disk when `namedmesh launch --spares` or `--least`
            has lost a process; 0 for none.

    Example:
        >>> from namedmesh.training import Intervals
        >>> Intervals(1000, evaluate_every=100).save_every
        200
    """

    steps: int
    log_every: int = 10
    save_every: int = 200
    evaluate_every: int = 0
    minutes: float = 0.0
    repeat_every: int = 0
    check_every: int = 0
    copy_every: int = 0

    def __post_init__(self) -> None:
        least = {"steps": 1, "log_every": 1, "save_every": 1}
        problems = [
            f"{name}={one!r}"
            for name, one in vars(self).items()
            if isinstance(one, str) or not one >= least.get(name, 0)
        ]
        if problems:
            raise NamedMeshError(
                f"intervals cannot have {', '.join(problems)}",
                fix="give positive whole numbers; evaluate_every, repeat_every, check_every, "
                "copy_every and minutes may be 0, and minutes may be a fraction",
            )


class Trainer(Explained):
    """The training loop, from the newest checkpoint or from scratch to the last step.

    A run that was interrupted continues bit for bit as if it had not been. SIGTERM and SIGINT stop
    it after the current step, with a checkpoint, in all processes.

    Args:
        executable: The train step: it takes a batch and returns a dict of scalars to log.
        stream: The batches, e.g. `NumberedBatches`.
        intervals: How long to train, and how often to log, save and evaluate.
        checkpoints: The checkpoints to save and to continue from; None for neither.
        metrics: The file of the metrics; None for none.
        summaries: The folder of the TensorBoard summaries; None for none.
        initial: The first state; by default `executable.init(seed)`.
        seed: The seed of that.
        feed: The inputs of a step, from a batch and the number of steps taken before; by default
            the batch itself, whole or with each process's own rows (`executable.rows`).
        count_tokens: The number of tokens in a batch of all processes, to log tokens per second.
        evaluate: Metrics of a state on held-out data, e.g. {"dev_loss": 2.5}.
        watch: The results that must be finite; by default loss and grad_norm, if there are such.
        divergence: The limit of the first of them, as a multiple of its median over 100 steps.
        record: A folder for the record of a step whose watched result is not finite or diverges:
            the state before it and its inputs, for `namedmesh replay`. The inputs of all steps
            since the last checkpoint are kept for it.
        advice: What to do about a result that is not finite or diverges, for the error.
        flops: The FLOPs of a step, to log the model FLOPs utilization.
        peak_flops: The peak of one device for that; by default `device_peak_flops`.
        profile: The steps to trace with the profiler.
        say: A function that prints a message.

    Attributes:
        state: The state after the last step.
        steps_taken: The number of steps taken, those before a resumption included.
        first_step: The number of steps taken before this Trainer was made.
        position: The position in the data.
        tokens: The number of tokens in the steps taken.
        last: The latest row of metrics.
        stop: A StopRequest: true if a signal ended the training.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> import namedmesh as nm
        >>> from namedmesh.training import Checkpoints, Intervals, NumberedBatches, Trainer
        >>> def step(x):
        ...     w = nm.param("w", [], nm.constant_init(0.0))
        ...     loss = nm.square(x * w - 3 * x)
        ...     nm.assign(w, w - nm.grad(loss)["w"] * 0.1)
        ...     return {"loss": loss}
        >>> executable = nm.compile(step, x=nm.spec([]), mesh=nm.Mesh(data=1))
        >>> stream = NumberedBatches(lambda number: {"x": np.float32(1)})
        >>> folder = tempfile.mkdtemp()
        >>> for steps in (20, 40):  # the second trainer continues where the first one ended
        ...     with Checkpoints(folder, keep=2) as saved:
        ...         row = Trainer(executable, stream, Intervals(steps), checkpoints=saved).run()
        resuming from step 20
        >>> row["step"], row["loss"] < 0.1
        (40, True)
    """

    def __init__(
        self,
        executable: Executable,
        stream: Stream,
        intervals: Intervals,
        *,
        checkpoints: Checkpoints | None = None,
        metrics: str | os.PathLike | None = None,
        summaries: str | os.PathLike | None = None,
        initial: State | None = None,
        seed: int = 0,
        feed: Callable[[Any, int], Mapping[str, Any]] | None = None,
        count_tokens: Callable[[Any], int] | None = None,
        evaluate: Callable[[State], Mapping[str, float]] | None = None,
        watch: Sequence[str] | None = None,
        divergence: float | None = None,
        record: str | os.PathLike | None = None,
        advice: str = "fix the data or lower the learning rate, and start again",
        flops: float | None = None,
        peak_flops: float | None = None,
        profile: TraceWindow | None = None,
        say: Callable[[str], None] = print,
    ):
        results = _check_scalar_results(check_executable(executable, "the step to train"))
        _check_options(
            intervals=intervals, checkpoints=checkpoints, initial=initial, profile=profile
        )
        if checkpoints is not None:
            checkpoints.check_writable()
        self.executable, self.stream, self.intervals = executable, _check_stream(stream), intervals
        self._processes = current_processes()
        self._writes = self._processes.first  # the other processes have the same numbers
        say = say if self._writes else lambda _text: None
        self.checkpoints, self._say = checkpoints, say
        self._feed = feed or (lambda batch, _step: _feed_batch(executable, batch))
        self._count_tokens, self._evaluate = count_tokens, evaluate
        self._watch, self._advice = _choose_watched(watch, results, say), advice
        self._divergence = None if divergence is None else Divergence(divergence)
        self._recorder = None
        if record is not None:
            self._recorder = StepRecorder(pathlib.Path(check_path(record, "record=")), executable)
        if intervals.check_every and not has_copies(executable.artifact):
            warn_caller(
                f"check_every={intervals.check_every} compares nothing: every shard is on one "
                f"device of {executable.artifact.mesh}; repeat_every= finds devices that compute "
                "wrongly without copies"
            )
        self._seed, self._initial = seed, initial
        self._flops, self._peak = flops, peak_flops or _find_peak_flops(executable, flops, say)
        self._profiler = None if profile is None else StepProfiler(profile)
        self.steps_taken, self.tokens, self.position = 0, 0, None
        latest = None if checkpoints is None else checkpoints.latest
        self._processes.agree("the data", f"stream {self.stream.digest}")
        self._processes.agree("the settings", f"{intervals}, seed {seed}, watch {self._watch}")
        self._processes.agree("the newest checkpoint", f"step {latest}")
        self._copies = StateCopies(self._processes) if intervals.copy_every else None
        found = self._find_copy(-1 if latest is None else latest)
        if found is not None:
            self.state = self._resume(found, "the copy of step", "memory")
        elif checkpoints is not None and latest is not None:
            found = checkpoints.restore(executable)
            self.state = self._resume(found, "the checkpoint of step", str(checkpoints.folder))
        else:
            self.state = executable.init(seed) if initial is None else initial
        if self._copies is not None:
            size = human(self._copies.memory_bytes(self.state))
            say(f"copies of the state every {intervals.copy_every} steps take at most {size} here")
        if checkpoints is not None:
            checkpoints.reserve(self.state)
        self.first_step = self.steps_taken
        self._log: MetricsLog | None = None
        if metrics is not None and self._writes:
            self._log = MetricsLog(metrics, self.steps_taken, summaries)
        self.last: dict[str, float] = {"step": self.steps_taken}  # the latest row of metrics
        self._pending: list[tuple[int, int, Mapping[str, Any], float | None]] = []
        self._row_step = 0  # the last step of the row that is not yet written; 0 for none
        self._measured: tuple[int, Mapping[str, float]] = (-1, {})  # the latest evaluation
        self._since, self._paused, self._told = time.monotonic(), 0.0, 0.0
        self.stop = StopRequest()

    def _resume(self, found: Checkpoint, kind: str, where: str) -> State:
        """Continue from a checkpoint, or a copy in memory, with the same data."""
        step, state, extra = found
        if not {"stream", "tokens", "position"} <= extra.keys():
            raise NamedMeshError(
                f"{kind} {step} in {where} is not that of a Trainer",
                fix="give another folder of checkpoints, and its state as initial=",
            )
        if extra["stream"] != self.stream.digest:
            raise NamedMeshError(
                f"{kind} {step} in {where} was trained on other data",
                f"its data: {str(extra['stream'])[:200]}",
                f"the data now: {self.stream.digest[:200]}",
                fix="restore the data, or start another run",
            )
        self.steps_taken, self.tokens, self.position = step, extra["tokens"], extra["position"]
        self._say(f"resuming from step {step}" + ", from memory" * (where == "memory"))
        return state

    def run(self) -> dict[str, float]:
        """Train until the last step, the end of the stream, the time limit or a signal; then save.

        Returns:
            The last row of metrics.

        Raises:
            NamedMeshError: If a watched result is not finite, or diverges.
        """
        intervals = self.intervals
        deadline = time.monotonic() + intervals.minutes * 60 if intervals.minutes else math.inf
        with ExitStack() as stack:
            self.stop = stack.enter_context(graceful_stop())
            shared = SharedStop(self.stop, self._processes)
            stack.callback(shared.close)
            if self._copies is not None:
                stack.push(self._copies.__exit__)
            if self._log is not None:
                stack.callback(self._log.close)
            progress = None
            if self._writes:
                progress = ProgressBar(self.steps_taken, intervals.steps, minutes=intervals.minutes)
                stack.callback(progress.close)
            if self._profiler is not None:
                stack.enter_context(self._profiler.open())
            batches = prefetch(self.stream.read_from(self.position))
            stack.callback(batches.close)
            for item in batches:
                if time.monotonic() > deadline:
                    shared.ask()
                if self.steps_taken >= intervals.steps or not shared.allows(self.steps_taken + 1):
                    break
                self._take_step(*_check_item(item))
                self._after_step(progress)
            batches.close()
            self._show_row(progress)
            self._write_row()
            # Skip the evaluation when stopping on a signal: the process may be killed soon.
            if self.steps_taken > self.first_step and not shared.interrupted:
                self._measure()
            self._save()
        if self.stop:
            self._report_stop()
        return self.last

    def _report_stop(self) -> None:
        """Print that a signal ended the training, once everything is saved."""
        outcome = "nothing was saved"
        if self.checkpoints is not None:
            self.checkpoints.wait()
            outcome = "the same command continues from there"
        self._say(f"stopped by {self.stop.name} after step {self.steps_taken}; {outcome}")

    def _take_step(self, batch: Any, position: Any) -> None:
        """Take one step on a batch, and note the position after it."""
        number = self.steps_taken + 1
        inputs = self._feed(batch, self.steps_taken)
        if self._profiler is not None:
            self._profiler.before(number)
        every = self.intervals.repeat_every
        if every and number % every == 0:
            self.state, results = repeat_step(self.executable, self.state, inputs, number)
        else:
            self.state, results = self.executable(self.state, **inputs)
        if self._profiler is not None:
            self._profiler.after(number, results)
        self.steps_taken, self.position = number, position
        if self._recorder is not None:
            self._recorder.keep(number, inputs)
        tokens = 0 if self._count_tokens is None else self._count_tokens(batch)
        # Small steps on CPUs are done when the call returns, which is before the next one runs.
        ready = all(not hasattr(one, "is_ready") or one.is_ready() for one in results.values())
        self._pending.append((number, tokens, results, time.monotonic() if ready else None))

    def _after_step(self, progress: ProgressBar | None) -> None:
        """Log, evaluate and save if their intervals have passed."""
        intervals, step = self.intervals, self.steps_taken
        every = intervals.evaluate_every
        measures = self._evaluate is not None and bool(every) and step % every == 0
        saves = step % intervals.save_every == 0 and step < intervals.steps
        logs = step % intervals.log_every == 0 or step == intervals.steps
        self._show_row(progress)  # of the step before: this one already runs, so devices never wait
        self._row_step = step if logs else 0
        if intervals.check_every and step % intervals.check_every == 0:
            check_replicas(self.state, step)
        copies = intervals.copy_every and step % intervals.copy_every == 0
        if measures or saves or copies:
            self._show_row(progress)
        if copies and step < intervals.steps:
            self._copy()
        if time.monotonic() > self._told + 1:
            self._told = time.monotonic()
            tell_launcher(step=step)
        if measures:
            self._measure()
        if saves:
            self._save()

    def _show_row(self, progress: ProgressBar | None) -> None:
        """Write and show the pending row, if there is one."""
        if self._row_step:
            self._write_row(self._row_step)
            if progress is not None:
                progress.show(self._row_step, self.last)
            self._row_step = 0

    def _write_row(self, last: int | None = None) -> None:
        """Fetch the results of the steps since the last row, check them, and log their means."""
        last = self.steps_taken if last is None else last
        rows = [
            (step, tokens, {name: float(value) for name, value in results.items()})
            for step, tokens, results, _ in self._pending
            if step <= last
        ]
        if not rows:
            return
        now = self._pending[len(rows) - 1][-1] or time.monotonic()
        self._pending = [one for one in self._pending if one[0] > last]
        seconds, self._since, self._paused = now - self._since - self._paused, now, 0.0
        for step, tokens, values in rows:
            self._check_values(step, values)
            self.tokens += tokens
        names = rows[-1][2]
        means = {name: float(np.mean([values[name] for _, _, values in rows])) for name in names}
        row = {"step": last, **means, "seconds_per_step": seconds / len(rows)}
        if self._count_tokens is not None:
            count = sum(tokens for _, tokens, _ in rows)
            row |= {"tokens": self.tokens, "tokens_per_second": count / max(seconds, 1e-9)}
        if self._flops and self._peak:
            devices = self.executable.artifact.mesh.devices
            each = max(seconds, 1e-9) / len(rows)
            row["mfu"] = model_flops_utilization(self._flops, each, devices, self._peak)
        self.last = row
        if self._log is not None:
            self._log.write(row)

    def _check_values(self, step: int, values: Mapping[str, float]) -> None:
        """Stop if a watched result is not finite, or the first of them diverges."""
        wrong = [name for name in self._watch if not math.isfinite(values.get(name, 0.0))]
        if wrong:
            others = [f"so is its {name}: {values[name]}" for name in wrong[1:]]
            problem = f"the {wrong[0]} of step {step} is {values[wrong[0]]}"
            raise self._failure(step, problem, others)
        if self._divergence is None or not self._watch:
            return
        name = self._watch[0]
        median = self._divergence.note(values[name])
        if median is not None:
            problem = f"the {name} of step {step} is {values[name]:.6g}"
            limit = f"that is more than {self._divergence.factor:g} times its median, {median:.6g}"
            raise self._failure(step, problem, [limit])

    def _failure(self, step: int, problem: str, details: Sequence[str]) -> NamedMeshError:
        """Delete the checkpoint that led to a step's wrong results, and make the error for them."""
        good, record = None, []
        if self._recorder is not None:
            try:
                record = [self._recorder.write(step, problem, self._last_state)]
            except LostProcess:
                raise
            except (NamedMeshError, OSError) as error:  # what went wrong matters more
                record = [f"there is no record of step {step}: {error}".partition("\n")[0]]
        if self.checkpoints is not None:
            self.checkpoints.delete(step - 1)
            self.checkpoints.wait()
            good = self.checkpoints.latest
        kept = f"the last good checkpoint, of step {good}, is kept"
        kept = "there is no checkpoint yet" if good is None else kept
        return UnsoundState(problem, *details, kept, *record, fix=self._advice)

    def _last_state(self) -> tuple[int, State]:
        """Return the newest state that can be had again, and how many steps led to it."""
        if self.checkpoints is not None and self.checkpoints.latest is not None:
            step, state, _ = self.checkpoints.restore(self.executable)
            return step, state
        if self.first_step or self._initial is not None:
            return -1, self.state  # it is gone: the first step may have donated it
        return 0, self.executable.init(self._seed)

    def _save(self) -> None:
        """Save a checkpoint, once all results up to it are known to be finite."""
        self._write_row()
        start = time.monotonic()
        if self.checkpoints is not None:
            step, values = self._measured
            metrics = values if step == self.steps_taken else None
            self.checkpoints.save(self.steps_taken, self.state, self._extra(), metrics)
            tell_launcher(step=self.steps_taken)
            if self._recorder is not None:
                self._recorder.forget(self.steps_taken)
        self._paused += time.monotonic() - start

    def _extra(self) -> dict[str, Any]:
        """Return what is needed beside the state to continue."""
        return {"position": self.position, "stream": self.stream.digest, "tokens": self.tokens}

    def _copy(self) -> None:
        """Copy the state to the memory of the next process, once its results are known."""
        self._write_row()
        start = time.monotonic()
        if self._copies is not None:
            self._copies.copy(self.steps_taken, self.state, self._extra())
        self._paused += time.monotonic() - start

    def _find_copy(self, latest: int) -> Checkpoint | None:
        """Return the copy of a state in memory that is newer than the newest checkpoint."""
        step = None if self._copies is None else self._copies.newest()
        if self._copies is None or step is None or step <= latest:
            return None
        try:
            return self._copies.restore(step, self.executable)
        except NamedMeshError as error:  # on all processes
            self._say(f"{error.problem}: {'; '.join(error.details)}")
            return None

    def _measure(self) -> None:
        """Evaluate the state on held-out data, once for each step."""
        start = time.monotonic()
        if self._evaluate is not None and self._measured[0] != self.steps_taken:
            values = check_metrics(self._evaluate(self.state), "what evaluate returned")
            self._measured = self.steps_taken, values
            tokens = {} if self._count_tokens is None else {"tokens": self.tokens}
            if self._log is not None:
                self._log.write({"step": self.steps_taken, **tokens, **values})
        self._paused += time.monotonic() - start


def _check_options(**options: object) -> None:
    """Check the types of a Trainer's options."""
    examples: dict[str, tuple[type, str]] = {
        "intervals": (Intervals, "Intervals(steps)"),
        "checkpoints": (Checkpoints, "Checkpoints(folder, keep=3)"),
        "initial": (State, "step.init(seed) or step.place({name: array})"),
        "profile": (TraceWindow, "TraceWindow(folder)"),
    }
    for name, value in options.items():
        kind, example = examples[name]
        if not isinstance(value, kind) and (value is not None or name == "intervals"):
            raise NamedMeshError(
                f"{name} of a Trainer is a {type(value).__name__}", fix=f"give {name}={example}"
            )


def _check_stream(stream: Stream) -> Stream:
    """Return a stream, or raise if it is something else, e.g. a list or a function."""
    if callable(getattr(stream, "read_from", None)):
        return stream
    raise NamedMeshError(
        f"the stream is a {type(stream).__name__}, not a Stream",
        fix="give an object with read_from(position) and digest, or make one of a list: "
        "NumberedBatches(lambda number: batches[number % len(batches)])",
    )


def _check_item(item: object) -> tuple[Any, Any]:
    """Return a batch and the position after it, or raise if a stream made something else."""
    if isinstance(item, tuple) and len(item) == 2:
        return item
    raise NamedMeshError(
        f"the stream made a {type(item).__name__}, expected a pair of a batch and a position",
        fix="yield (batch, position) in read_from, the position being that after the batch",
    )


def _feed_batch(executable: Executable, batch: object) -> Mapping[str, Any]:
    """Return the inputs of a step from a batch of a stream."""
    if not isinstance(batch, Mapping):
        raise NamedMeshError(
            f"a batch is a {type(batch).__name__}, expected the inputs of the step by name",
            fix="make batches such as {'x': array}, or make inputs of a batch with feed=",
        )
    whole = {name: spec.sizes for name, spec in executable.inputs.items()}
    if {name: getattr(one, "shape", None) for name, one in batch.items()} == whole:
        return batch
    return executable.feed(batch)


def _check_scalar_results(executable: Executable) -> list[str]:
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
        spec = artifact.outputs[leaf] if isinstance(leaf, int) else None
        if spec is None or spec.sizes != ():
            problems.append(f"{name}: {spec.text if spec else f'a {type(leaf).__name__}'}")
    if problems:
        raise NamedMeshError(
            f"the step {artifact.name} has results that are not scalars", *problems, fix=fix
        )
    return list(structure)


def _choose_watched(
    watch: Sequence[str] | None, results: Sequence[str], say: Callable[[str], None]
) -> tuple[str, ...]:
    """Choose the results that must be finite, and report if there are none by default."""
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
            fix=suggest_names(unknown, results),
        )
    return tuple(watch)


def _find_peak_flops(
    executable: Executable, flops: float | None, say: Callable[[str], None]
) -> float | None:
    """Look up the peak of the devices of a step, and report if it is not known."""
    if not flops:
        return None
    try:
        return device_peak_flops(executable.mesh.devices.flat[0])
    except NamedMeshError as error:
        say(f"{error.problem}: no utilization (mfu) is logged (a Trainer may be given peak_flops=)")
        return None
