"""Runs under attack: each with its own plan of faults and places, compared with calm runs."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
import random
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from benchmarks.chaos.attempt import LONGEST, Attempt, Run
from benchmarks.chaos.faults import (
    ENDS,
    FAULTS,
    FEWER,
    KINDS,
    LEAST,
    SPARE,
    mount_disk,
    unmount_disk,
)
from benchmarks.chaos.training import COPY_EVERY, PLACES, Place, export_places
from benchmarks.chaos.training import FEWER as PLACE_OF_FEWER

MOST_IN_VAIN = 3  # attempts that end without a fault before a run is given up
WAYS = (SPARE, ENDS, SPARE, FEWER)  # of runs, one after another
OPTIONS = {
    ENDS: (),
    SPARE: ("--restarts", "1000", "--spares"),
    FEWER: ("--restarts", "1000", "--least", str(LEAST)),
}
PAUSE = "SIGSTOP for 10 s"
ALL = ("SIGKILL of jax's service", "bit flipped in a replica")  # after which all start again
LOST = 2 * COPY_EVERY + 2  # steps at most: the newest copy may be on its way
TOLERANCE = 1e-6  # of the largest number of a variable, where the mesh changes


@dataclass(frozen=True)
class Plan:
    """The events of a run: faults, and the place of each attempt; the last one is calm."""

    number: int
    same: bool  # whether all attempts are in one place
    kinds: tuple[str, ...]
    places: tuple[Place, ...]
    way: str = ENDS  # what follows a fault


@dataclass
class FaultRow:
    """One fault and what came of it."""

    kind: str
    place: str
    step: int = 0  # the last step before it ended
    status: int | None = None  # of the launcher; None if training went on
    seconds: float = 0.0  # from the fault to the end of all processes, or to the next new step
    resumed: int | None = None  # the step that the next attempt went on from
    newest: int = 0  # the newest checkpoint that nobody had damaged
    problems: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)


@dataclass
class RunRow:
    """One run, and how its last state compares with that of a calm one."""

    number: int
    same: bool
    seconds: float
    attempts: int
    equal: bool  # bit for bit
    difference: float  # relative to the largest number of each variable
    faults: list[dict[str, Any]]
    problems: list[str]


def plan_run(
    seed: int, number: int, count: int, kinds: Mapping[str, Sequence[str]] = KINDS
) -> Plan:
    """Return the plan of a run, which follows from the seed and its number.

    Of the faults that one thing follows, all kinds come once before any comes again: runs deal
    from shuffled packs of kinds.
    """
    ways = [way for way in WAYS if kinds.get(way)]
    way = ways[number % len(ways)]
    earlier = [ways[one % len(ways)] for one in range(number)].count(way)

    def deal() -> Iterator[str]:
        for pack in itertools.count():
            shuffled = list(kinds[way])
            random.Random(f"{seed}/{way}/{pack}").shuffle(shuffled)
            yield from shuffled

    dealt = list(itertools.islice(deal(), earlier * count, (earlier + 1) * count))
    rng = random.Random(f"{seed}/places/{number}")
    same = way == SPARE or (way == ENDS and earlier % 2 == 0)
    places = [rng.choice(PLACES) for _ in range(count + 1)]
    if same:
        several = [place for place in PLACES if place.processes > (2 if way == SPARE else 1)]
        places = [several[earlier % len(several)]] * (count + 1)
    if way == FEWER:
        places = [PLACE_OF_FEWER] * (count + 1)
    return Plan(number, same, tuple(dealt), tuple(places), way)


class Campaign:
    """Runs in a folder: those that are finished stand in a file, and are not repeated."""

    def __init__(
        self,
        folder: pathlib.Path,
        seed: int = 1,
        *,
        faults: int = 10,
        steps: int = 120,
        pause: float = 0.1,
        kinds: Mapping[str, Sequence[str]] = KINDS,
    ):
        self.folder, self.seed, self.faults, self.kinds = folder.resolve(), seed, faults, kinds
        self.steps, self.pause = steps, pause
        self.path = self.folder / f"{seed}.jsonl"
        self.artifacts = self.folder / "artifacts"

    def finished(self) -> list[RunRow]:
        """Return the runs that are finished."""
        if not self.path.exists():
            return []
        return [RunRow(**json.loads(line)) for line in self.path.read_text().splitlines()]

    def prepare(self) -> None:
        """Make the programs."""
        export_places(self.artifacts)

    def run_next(self) -> RunRow:
        """Make the next run, and note it."""
        plan = plan_run(self.seed, len(self.finished()), self.faults, self.kinds)
        row = self._run(plan)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")
        return row

    def reference(self, place: Place) -> dict[str, np.ndarray]:
        """Return the last state of a calm run in a place, made once."""
        name = f"calm-{self.steps}-{PLACES.index(place)}"
        kept = self.folder / f"{name}.safetensors"
        if not kept.exists():
            run = self._open(name, pause=0.0)
            attempt = Attempt(run, place, 0)
            attempt.process.wait(600)
            if attempt.process.returncode:
                raise RuntimeError(f"a calm run failed:\n{attempt.text[-3000:]}")
            (run.folder / "final.safetensors").rename(kept)
            shutil.rmtree(run.folder)
        return load_file(kept)

    def _open(self, name: str, pause: float, way: str = ENDS) -> Run:
        """Return an empty folder for a run."""
        run = Run(self.folder / name, self.artifacts, self.steps, pause, OPTIONS[way])
        unmount_disk(run)
        shutil.rmtree(run.folder, ignore_errors=True)
        run.disk.mkdir(parents=True)
        return run

    def _run(self, plan: Plan) -> RunRow:
        """Attack one run until it has taken its last step."""
        run = self._open(f"run-{plan.number}", self.pause, plan.way)
        expected = self.reference(plan.places[0] if plan.same else PLACES[0])
        start, rows, problems = time.monotonic(), [], []
        mount_disk(run)
        try:
            attempts = Attacks(run, plan, rows).make()
            final = run.folder / "final.safetensors"
            if not final.exists():
                problems.append("the run did not reach its last step")
        finally:
            unmount_disk(run)
        difference, equal = float("inf"), False
        if final.exists():
            state = load_file(final)
            equal = all(np.array_equal(state[name], expected[name]) for name in expected)
            difference = max(map(_relative, state.values(), expected.values()))
            if not (equal if plan.same else difference <= TOLERANCE):
                problems.append(f"the last state differs by {difference:.2g}")
        for row in rows:
            problems += [f"{row.kind}: {problem}" for problem in row.problems]
        if not problems:
            shutil.rmtree(run.folder)
        seconds = time.monotonic() - start
        faults = [asdict(row) for row in rows]
        return RunRow(
            plan.number, plan.same, seconds, attempts, equal, difference, faults, problems
        )


def _relative(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest difference of two variables, relative to the largest number in them."""
    left, right = one.astype(np.float64), other.astype(np.float64)
    return float(np.max(np.abs(left - right)) / np.max(np.abs(right)))


class Attacks:
    """The attempts of one run, one after another."""

    def __init__(self, run: Run, plan: Plan, rows: list[FaultRow]):
        self.run, self.plan, self.rows = run, plan, rows
        self.rng = random.Random(f"{plan}")
        self.left = list(plan.kinds)
        self.places = list(plan.places)
        self.newest = 0  # the newest checkpoint that must not be lost
        self.damaged: set[int] = set()  # the folders, by number, that have a damaged file
        self.pending: FaultRow | None = None  # the fault after which the next attempt goes on
        self.since = 0.0  # when that was
        self.attacked: Attempt | None = None  # the attempt that may end because of a fault
        self.vain = 0  # attempts in a row that ended without a fault

    def make(self) -> int:
        """Make attempts until one has taken the last step; return how many there were."""
        number = 0
        while not self._is_done() and self.vain < MOST_IN_VAIN:
            kind = self.left[0] if self.left else ""
            if kind.startswith("wrong peer"):
                self._refuse(number, kind.partition(": ")[2])
            else:
                self._attempt(number)
            number += 1
        return number

    def _place(self) -> Place:
        """Return the place of the next attempt."""
        return self.places.pop(0) if len(self.places) > 1 else self.places[0]

    def _attempt(self, number: int) -> None:
        """Start the processes, and attack them until they have ended."""
        attempt = Attempt(self.run, self._place(), number)
        try:
            while not attempt.ended():
                kind = self.left[0] if self.left else ""
                if kind.startswith("wrong peer"):
                    break  # it survived the last fault, and ends for the next one
                if kind:
                    self._attack(attempt, kind)
                elif attempt.wait_for_steps(1):
                    self._check_resumed(attempt)
                else:
                    self._note_hang(attempt, "")
            if attempt is not self.attacked:
                self._check_resumed(attempt)
            self.vain = 0 if attempt is self.attacked else self.vain + 1
            if attempt.process.returncode and attempt is not self.attacked:
                row = FaultRow("none", str(attempt.place), self.run.last_step())
                row.problems.append(f"ended by itself: {attempt.last_lines()}")
                self.rows.append(row)
        finally:
            attempt.end()

    def _attack(self, attempt: Attempt, kind: str) -> None:
        """Make one fault and wait until the processes have ended, or go on."""
        if kind != "SIGKILL while starting" and not attempt.wait_for_steps(1):
            self._note_hang(attempt, kind)
            return
        self._check_resumed(attempt)
        if attempt.ended():
            return
        self.left.pop(0)
        row = FaultRow(kind, str(attempt.place), details={"way": self._way(attempt, kind)})
        row.details |= FAULTS[kind](attempt, self.rng)
        starts, replaced = len(attempt.starts()), self.plan.way != ENDS and kind != PAUSE
        self.since, step = time.monotonic(), self.run.last_step()
        self._note_newest(row)

        def goes_on() -> bool:
            survives = replaced or kind in (PAUSE, "disk full")
            new = survives and self.run.last_step() > step
            return new and (not replaced or len(attempt.starts()) > starts)

        if not attempt.wait_for(goes_on):
            row.problems.append(f"hung: neither an end nor a step within {LONGEST:.0f} s")
            attempt.end()
        row.seconds, row.step = time.monotonic() - self.since, self.run.last_step()
        row.status = attempt.process.poll()
        if row.status is not None:
            self._note_newest(row)
        self._check_status(row, attempt)
        if replaced and len(attempt.starts()) > starts:
            self._check_lost(row, step, attempt.starts()[-1])
        if replaced and row.status:
            row.problems.append(f"nothing goes on, with status {row.status}")
        missing = [one for one in row.details.get("says", ()) if one not in attempt.text]
        row.problems += [f"does not say {one!r}" for one in missing]
        self.rows.append(row)
        self.attacked = attempt
        if attempt.ended():
            self.pending = row

    def _way(self, attempt: Attempt, kind: str) -> str:
        """Return what is to follow a fault of an attempt."""
        if kind in (PAUSE, "disk full"):
            return "goes on"
        few = self.plan.way == FEWER and len(attempt.pids()) <= LEAST
        return ENDS if few or kind in ALL else self.plan.way

    def _check_lost(self, row: FaultRow, step: int, resumed: int) -> None:
        """Note how many steps were lost; a copy in memory saves what no checkpoint has."""
        row.resumed, row.details["lost"] = resumed, max(0, step - resumed)
        if resumed < row.newest:
            row.problems.append(f"lost checkpoint {row.newest}: went on from {resumed}")
        if (
            row.details["way"] in (SPARE, FEWER)
            and "bound" not in row.details
            and step - resumed > LOST
        ):
            row.problems.append(f"lost {step - resumed} steps: went on from {resumed}")

    def _check_status(self, row: FaultRow, attempt: Attempt) -> None:
        """Note a status that a fault must not lead to."""
        expected = row.details.get("expected")
        if row.status == 0 and not self._is_done():
            row.problems.append("the status is 0, though steps are left")
        elif expected is not None and row.status not in (expected, 0):
            row.problems.append(f"the status is {row.status}, expected {expected}")
        elif expected is not None and row.status and row.newest != row.step:
            row.problems.append(f"step {row.step} was not saved: the newest is {row.newest}")

    def _is_done(self) -> bool:
        """Return whether the last step was taken."""
        return (self.run.folder / "final.safetensors").exists()

    def _note_newest(self, row: FaultRow) -> None:
        """Note the newest checkpoint that is good."""
        damaged = row.details.get("damaged")
        if damaged is not None:
            self.damaged.add(self.run.folder_of(damaged))
        folders = {step: self.run.folder_of(step) for step in self.run.complete_steps()}
        good = [step for step, folder in folders.items() if folder not in self.damaged]
        # Damage is the one reason to go on from an older checkpoint.
        self.newest = max(good, default=0) if damaged else max([self.newest, *good])
        row.newest = self.newest

    def _check_resumed(self, attempt: Attempt) -> None:
        """Compare where an attempt went on with the newest good checkpoint of before."""
        row, starts = self.pending, attempt.starts()
        if row is None or not starts:
            return
        self.pending = None
        row.details["next_step"] = time.monotonic() - self.since
        row.details["bound"] = "checkpoint"
        self._check_lost(row, row.step, starts[0])

    def _note_hang(self, attempt: Attempt, kind: str) -> None:
        """Note an attempt that takes no step though nothing was done to it."""
        row = FaultRow(kind or "none", str(attempt.place), self.run.last_step())
        row.problems.append(f"hung: no step within {LONGEST:.0f} s\n{attempt.last_lines()}")
        self.rows.append(row)
        attempt.end()

    def _refuse(self, number: int, wrong: str) -> None:
        """Start processes of which one does not fit; all of them must refuse to train."""
        self.left.pop(0)
        place = self._place()
        while place.processes == 1:
            place = self.rng.choice(PLACES)
        other = next(one for one in PLACES if one.artifact != place.artifact)
        peer = self.rng.randrange(place.processes)
        extra = ["--wrong", wrong, "--peer", str(peer)]
        extra += ["--other_artifact", str(self.run.artifacts / other.artifact)]
        before = self.run.last_step()
        run = dataclasses.replace(self.run, options=())
        attempt = Attempt(run, place, number, extra)
        details = {"peer": peer, "way": ENDS}
        row = FaultRow(f"wrong peer: {wrong}", str(place), before, details=details)
        if not attempt.wait_for(attempt.ended):
            row.problems.append(f"hung: no end within {LONGEST:.0f} s")
        attempt.end()
        row.seconds, row.status = time.monotonic() - attempt.start, attempt.process.returncode
        self._note_newest(row)
        if not row.status:
            row.problems.append("it was not refused")
        if self.run.last_step() > before:
            row.problems.append("it took steps")
        lines = [line for line in attempt.text.splitlines() if "processes do not agree" in line]
        told = len({line.partition("]")[0] for line in lines})
        # Of other versions those are told who come before the processes part.
        if told < (2 if wrong == "version" else place.processes):
            row.problems.append(f"{told} of {place.processes} processes said why they stop")
        self.rows.append(row)
