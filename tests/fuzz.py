"""Random programs under random layouts: every one planned, compiled strictly, run and compared.

    python -m tests.fuzz --seed 1 --cases 10000 --out build/fuzz

It goes on where it was stopped: finished cases stand in `OUT/SEED.jsonl`, a line each, and a case
is made from seed and number alone. A case that ends the process is found and noted too.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass

import numpy as np

import namedmesh as nm
from namedmesh.runtime import use_cpu_devices
from tests.checks import assert_all_near, plan_anyway
from tests.programs import Case, make_case

TOLERANCE = 2e-4
BATCH = 100  # cases of one process: compiled programs stay in its memory


@dataclass(frozen=True)
class Result:
    """What came of a case."""

    number: int
    outcome: str  # exact, or what went wrong
    shared: bool  # whether names of the layout may share an axis
    rejected: bool = False  # whether the layout was a conflict; its cheapest fix was then taken
    collectives: int = 0
    details: str = ""


def plan_case(case: Case, program: nm.Program) -> tuple[nm.Plan, bool]:
    """Plans a case; where operands disagree, by the cheapest fix. Returns whether they did."""
    return plan_anyway(program, case.mesh, case.layout, case.params)


def check(case: Case) -> Result:
    """Runs a case and compares it with one device; raises where anything is not as it should be."""
    program = nm.trace(case.function, **case.specs)
    plan, rejected = plan_case(case, program)
    step = nm.Step(plan, strict=True)  # by the partitioner of NAMEDMESH_PARTITIONER
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.normal(size=spec.shape.sizes).astype(np.float32)
        for name, spec in case.specs.items()
    }
    state = {
        name: rng.normal(size=variable.shape.sizes).astype(np.float32)
        for name, variable in program.variables.items()
    }
    wanted = program.evaluate(state, **inputs)
    got = step(step.place(state), **inputs)
    assert_all_near(got, wanted, TOLERANCE)
    number = int(case.name.partition("/")[2])
    return Result(number, "exact", case.shared, rejected, len(plan.collectives))


def try_case(seed: int, number: int) -> Result:
    """Runs a case; whatever goes wrong is a result too."""
    case = make_case(seed, number)
    try:
        return check(case)
    except AssertionError as error:
        outcome, text = "wrong", str(error)
    except nm.NamedMeshError as error:
        outcome, text = "refused", str(error)
    except Exception:
        outcome, text = "raised", traceback.format_exc()
    return Result(number, outcome, case.shared, details=f"{case}\n{text}"[-6000:])


def run_here(seed: int, numbers: list[int], path: pathlib.Path) -> None:
    """Runs cases in this process; notes which one is running, should it end the process."""
    use_cpu_devices(8)
    running = path.with_suffix(".running")
    with open(path, "a", encoding="utf-8") as file:
        for number in numbers:
            running.write_text(str(number))
            file.write(json.dumps(asdict(try_case(seed, number))) + "\n")
            file.flush()
    running.unlink(missing_ok=True)


def read_results(path: pathlib.Path) -> dict[int, Result]:
    """Reads the finished cases."""
    if not path.exists():
        return {}
    results = (Result(**json.loads(line)) for line in path.read_text().splitlines())
    return {one.number: one for one in results}


def run_all(seed: int, cases: int, path: pathlib.Path) -> dict[int, Result]:
    """Runs all cases that are not finished, some in each process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    start, before = time.monotonic(), len(read_results(path))
    while True:
        done = read_results(path)
        left = [number for number in range(cases) if number not in done]
        if done:
            print(_summary(done, time.monotonic() - start, len(done) - before), flush=True)
        if not left:
            return done
        numbers = ",".join(map(str, left[:BATCH]))
        arguments = ["--seed", str(seed), "--out", str(path.parent), "--numbers", numbers]
        process = subprocess.run([sys.executable, "-m", "tests.fuzz", *arguments], check=False)
        running = path.with_suffix(".running")
        if process.returncode and running.exists():
            number = int(running.read_text())
            crashed = Result(number, "crashed", make_case(seed, number).shared)
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(crashed)) + "\n")
            running.unlink()
        elif process.returncode:
            raise SystemExit(process.returncode)


def _summary(results: dict[int, Result], seconds: float, fresh: int) -> str:
    """One line about the finished cases."""
    outcomes = Counter(one.outcome for one in results.values())
    shared = [one for one in results.values() if one.shared]
    rejected = sum(one.rejected for one in shared) / max(1, len(shared))
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    pace = f", {seconds / fresh:.2f} s a case" if fresh else ""
    collectives = sum(one.collectives for one in results.values())
    return (
        f"{len(results)} cases: {counts}; {collectives} collectives; of {len(shared)} layouts "
        f"whose names share axes {rejected:.1%} were conflicts{pace}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="which cases")
    parser.add_argument("--cases", type=int, default=10_000, help="how many")
    parser.add_argument("--out", default="build/fuzz", help="the folder of results")
    parser.add_argument("--numbers", default="", help="these cases alone, as 3,17")
    arguments = parser.parse_args()
    path = pathlib.Path(arguments.out) / f"{arguments.seed}.jsonl"
    if arguments.numbers:
        path.parent.mkdir(parents=True, exist_ok=True)
        run_here(arguments.seed, [int(one) for one in arguments.numbers.split(",")], path)
        return
    results = run_all(arguments.seed, arguments.cases, path)
    failed = [one for one in results.values() if one.outcome != "exact"]
    for one in failed:
        print(f"\n{arguments.seed}/{one.number}: {one.outcome}\n{one.details}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
