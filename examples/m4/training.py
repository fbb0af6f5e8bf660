"""The training loop: needs jax, numpy and orbax, and no TensorFlow."""

from __future__ import annotations

import dataclasses
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from examples.m4.checkpoints import Checkpoints
from examples.m4.input.batches import Batches, Position, prefetched
from examples.m4.metrics import Metrics
from examples.m4.progress import Progress
from examples.m4.run import Run
from examples.m4.settings import Settings
from namedmesh.dims.errors import NamedMeshError
from namedmesh.runtime import Executable, cache_compilations, load
from namedmesh.runtime.state import State


@contextmanager
def polite_signals() -> Iterator[list[int]]:
    """SIGTERM and SIGINT are noted, to be heeded between two steps."""
    heard: list[int] = []
    before = {
        one: signal.signal(one, lambda number, _: heard.append(number))
        for one in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield heard
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def train(run: Run, settings: Settings, say: Callable[[str], None] = print) -> dict[str, float]:
    """Trains from the newest checkpoint (or from scratch) to the last step; returns the last metrics."""
    cache_compilations(run.folder / "compiled")
    step = load(run.artifact("train", settings, say))
    run.keep(settings)
    say(
        f"compiled in {step.report.compile_seconds:.1f} s; {step.report.peak_bytes / 2**20:,.0f} MiB a device; {step.audit}"
    )
    checkpoints = Checkpoints(run.checkpoints, settings.keep)
    loop = Loop(run, settings, step, checkpoints, say)
    try:
        return loop.run()
    finally:
        checkpoints.close()


class Loop:
    """One stretch of training, from where the run stands to its end or to a signal."""

    def __init__(
        self,
        run: Run,
        settings: Settings,
        step: Executable,
        checkpoints: Checkpoints,
        say: Callable[[str], None],
    ):
        self.settings, self.step, self.checkpoints, self.say, self.folder = (
            settings,
            step,
            checkpoints,
            say,
            run,
        )
        count, index = jax.process_count(), jax.process_index()
        stream: dict[str, Any] = {"seed": settings.seed, "temperature": settings.temperature}
        shape = settings.rows, settings.source_length, settings.target_length
        self.batches = Batches(
            run.tokens("train"), *shape, **stream, process=index, processes=count
        )
        self.done, self.tokens = 0, 0
        if checkpoints.latest is None:
            self.state, position = step.init(settings.seed), Position()
        else:
            self.done, self.state, extra = checkpoints.restore(step)
            if extra["stream"] != self.batches.digest:
                raise NamedMeshError(
                    f"the data of {run.folder} is not what its checkpoint was trained on",
                    fix="restore the data, or start another run",
                )
            position, self.tokens = Position(**extra["position"]), extra["tokens"]
            say(f"going on from step {self.done}")
        self.batches.start = self.position = position
        self.first = self.done
        self.evaluate = (
            load(run.artifact("evaluate", settings, say)) if settings.dev_every else None
        )
        self.metrics = Metrics(run.metrics, run.summaries, self.done)
        self.pending: list[tuple[int, int, dict[str, Any]]] = []
        self.last: dict[str, float] = {"step": self.done}
        self.dev = -1, math.nan  # the step that was last measured on dev data, and its loss
        self.since, self.paused = time.monotonic(), 0.0

    def run(self) -> dict[str, float]:
        """Steps until the last, or until told to stop; then saves."""
        settings, progress = (
            self.settings,
            Progress(self.done, self.settings.steps, minutes=self.settings.minutes),
        )
        stream = prefetched(self.batches)
        until = time.monotonic() + settings.minutes * 60 if settings.minutes else math.inf
        with polite_signals() as heard:
            for batch, position in stream:
                if self.done >= settings.steps or heard or time.monotonic() > until:
                    break
                self._step(batch, position)
                if self.done % settings.log_every == 0 or self.done == settings.steps:
                    self._look()
                    progress.show(self.done, self.last)
                if self.evaluate is not None and self.done % settings.dev_every == 0:
                    self._dev()
                if self.done % settings.save_every == 0 and self.done < settings.steps:
                    self._save()
            stream.close()
            self._look()
            if (
                self.evaluate is not None and self.done > self.first and not heard
            ):  # who sends a signal is in a hurry
                self._dev()
            self._save()
        progress.end()
        self.metrics.close()
        if heard:
            self.checkpoints.close()
            self.say(
                f"stopped by {signal.Signals(heard[0]).name} after step {self.done}; the same command goes on from there"
            )
            raise SystemExit(128 + heard[0])
        return self.last

    def _step(self, batch: dict[str, np.ndarray], position: Position) -> None:
        seed = (self.settings.seed * 1_000_003 + self.done) % 2**31
        tokens = int((batch["source_segments"] > 0).sum() + (batch["target_segments"] > 0).sum())
        self.state, made = self.step(self.state, **self._placed(batch), seed=np.int32(seed))
        self.done, self.position = self.done + 1, position
        self.pending.append((self.done, tokens, made))

    def _placed(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        """The batch as the step takes it; of several processes each has its own rows."""
        if jax.process_count() == 1:
            return batch
        place = lambda name: jax.make_array_from_process_local_data(
            self.step.sharding(self.step.inputs[name]), batch[name]
        )
        return {name: place(name) for name in batch}

    def _look(self) -> None:
        """Fetches the metrics of the steps since the last look; stops when a loss or a gradient is no number."""
        if not self.pending:
            return
        rows = [
            (step, tokens, {name: float(value) for name, value in made.items()})
            for step, tokens, made in self.pending
        ]
        self.pending = []
        now = time.monotonic()
        seconds, self.since, self.paused = now - self.since - self.paused, now, 0.0
        for step, tokens, values in rows:
            wrong = next(
                (
                    name
                    for name in ("loss", "grad_norm")
                    if not math.isfinite(values.get(name, 0.0))
                ),
                None,
            )
            if wrong:
                self.checkpoints.forget(step - 1)  # it is what led to this
                self.checkpoints.close()
                kept = self.checkpoints.latest
                raise NamedMeshError(
                    f"the {wrong} of step {step} is {values[wrong]}",
                    f"the last good checkpoint, of step {kept}, is kept"
                    if kept
                    else "there is no checkpoint yet",
                    fix="lower --learning_rate or lengthen --warmup, and go on from the checkpoint with the same command",
                )
            self.tokens += tokens
        mean = {
            name: float(np.mean([values[name] for _, _, values in rows])) for name in rows[-1][2]
        }
        rate = sum(tokens for _, tokens, _ in rows) / max(seconds, 1e-9)
        self.last = {"step": self.done, "tokens": self.tokens, **mean, "tokens_per_second": rate}
        self.metrics.write(self.last)

    def _save(self) -> None:
        begun = time.monotonic()
        self._look()
        extra = {
            "position": dataclasses.asdict(self.position),
            "stream": self.batches.digest,
            "tokens": self.tokens,
        }
        step, loss = self.dev
        self.checkpoints.save(self.done, self.state, extra, loss if step == self.done else None)
        self.paused += time.monotonic() - begun

    def _dev(self) -> None:
        """The loss on what the model is not trained on, measured once a step."""
        begun = time.monotonic()
        assert self.evaluate is not None
        if self.dev[0] != self.done:
            self.dev = self.done, dev_loss(self.evaluate, self.state, self.folder, self.settings)
            self.metrics.write({"step": self.done, "tokens": self.tokens, "dev_loss": self.dev[1]})
        self.paused += time.monotonic() - begun


def dev_loss(evaluate: Executable, state: State, run: Run, settings: Settings) -> float:
    """The mean cross entropy of the first packed rows of the dev set, drawn as in training."""
    shape = settings.rows, settings.source_length, settings.target_length
    batches = iter(Batches(run.tokens("dev"), *shape, seed=0, temperature=settings.temperature))
    state = evaluate.place({name: state[name] for name in evaluate.variables})
    made = [
        evaluate(state, **next(batches)[0])[1]["cross_entropy"] for _ in range(settings.dev_batches)
    ]
    return float(np.mean([float(one) for one in made]))
