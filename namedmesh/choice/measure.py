"""Measures: what a candidate takes, from its exact plan; on all cores."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from namedmesh.choice.candidate import Candidate
from namedmesh.dims.errors import NamedMeshError
from namedmesh.estimates.estimate import cost
from namedmesh.estimates.hardware import Hardware
from namedmesh.ir.program import Program
from namedmesh.lowering.conflicts import LayoutConflict
from namedmesh.lowering.planning import plan_step


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
        refused: Why there is no plan; empty where there is one.
        conflict: The dimensions on which operands disagree, if that is why.
    """

    seconds: float = 0.0
    least_seconds: float = 0.0
    compute_seconds: float = 0.0
    collective_seconds: float = 0.0
    memory_bytes: int = 0
    wire_bytes: int = 0
    refused: str = ""
    conflict: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns it as values that JSON has."""
        return {**asdict(self), "conflict": list(self.conflict)}


def measure_candidate(program: Program, candidate: Candidate, hardware: Hardware) -> Measure:
    """Plans a candidate and estimates what it takes.

    Args:
        program: The candidate's program.
        candidate: The mesh and layouts.
        hardware: The devices.

    Returns:
        What it takes, or why it is refused.
    """
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
    )


# What the processes of a pool plan: they are forked, and inherit it.
_shared: tuple[Sequence[Program], Hardware] | None = None


def _start_worker() -> None:
    """Leaves Ctrl-C to the parent, and what was there before to nobody's care."""
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
    """Opens a function that measures candidates, in as many processes as are asked for.

    Args:
        programs: The variants of the program.
        hardware: The devices.
        processes: How many; 1 for this one alone.

    Yields:
        The function: from candidates to what they take, in the same order.
    """
    global _shared
    _shared = programs, hardware
    try:
        if processes == 1:
            yield lambda candidates: list(map(_measure_shared, candidates))
            return
        context = multiprocessing.get_context("fork")
        with warnings.catch_warnings():
            # jax, where it runs already, warns of forks; the processes do not use it.
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
            pool = context.Pool(processes, _start_worker)
        with pool:
            yield lambda candidates: pool.map(_measure_shared, candidates, chunksize=1)
    finally:
        _shared = None
