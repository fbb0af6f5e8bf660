"""Measures: what a candidate takes, from its exact plan; on all cores."""

from __future__ import annotations

import contextlib
import gc
import math
import multiprocessing
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, fields
from typing import Any

from namedmesh.cost.estimate import cost
from namedmesh.errors.errors import NamedMeshError
from namedmesh.hardware.hardware import Hardware
from namedmesh.ir.program import Program
from namedmesh.planning.conflicts import LayoutConflict
from namedmesh.planning.plan_program import plan_step
from namedmesh.search.candidate import Candidate


@dataclass(frozen=True)
class Measure:
    """What one device takes for a step, by the plan.

    Attributes:
        seconds: The time where nothing overlaps.
        least_seconds: The time where computation and communication overlap perfectly.
        compute_seconds: The time of computation alone.
        collective_seconds: The time of communication alone.
        memory_bytes: The peak of its memory.
        wire_bytes: What it sends.
        host_bytes: What its host sends to other hosts.
        refused: Why there is no plan; empty where there is one.
        conflict: The dimensions on which operands disagree, if that is why.
    """

    seconds: float = 0.0
    least_seconds: float = 0.0
    compute_seconds: float = 0.0
    collective_seconds: float = 0.0
    memory_bytes: int = 0
    wire_bytes: int = 0
    host_bytes: int = 0
    refused: str = ""
    conflict: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as values that JSON has."""
        return {**asdict(self), "conflict": list(self.conflict)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Measure:
        """Read what `to_json` returned."""
        found = cls(**{**row, "conflict": tuple(row["conflict"])})
        for field in fields(cls):
            value, default = getattr(found, field.name), field.default
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not isinstance(value, type(default)) and not (isinstance(default, float) and number):
                raise TypeError(f"{field.name} is {value!r}")
            if number and not 0 <= value < math.inf:
                raise ValueError(f"{field.name} is {value!r}")
        return found


def measure_candidate(program: Program, candidate: Candidate, hardware: Hardware) -> Measure:
    """Plan a candidate and estimates what it takes."""
    try:
        plan = plan_step(program, candidate.mesh, candidate.layout, candidate.params)
    except LayoutConflict as error:
        return Measure(refused=error.problem, conflict=tuple(sorted(error.dims)))
    except NamedMeshError as error:
        return Measure(refused=error.problem)
    found = cost(plan, hardware)
    return Measure(
        found.seconds,
        found.least_seconds,
        found.compute_seconds,
        found.collective_seconds,
        found.memory.peak_bytes,
        plan.total_wire_bytes(),
        plan.total_host_bytes(),
    )


# What the processes of a pool plan: they are forked, and inherit it.
_shared: tuple[Sequence[Program], Hardware] | None = None


def _start_worker() -> None:
    """Leave Ctrl-C to the parent, and what was there before to nobody's care."""
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
    """Open a function that measures candidates, in as many processes as are asked for."""
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
    """Measure candidates in other processes; the pool forks them when it is first used."""
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
