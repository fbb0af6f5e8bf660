"""Random programs under random layouts: every one planned, compiled strictly, run and compared.

    python -m tests.fuzz --seed 1 --cases 10000 --out build/fuzz --partitioner both

It goes on where it was stopped: finished cases stand in `OUT/SEED.jsonl`, a line each, and a case
is made from seed and number alone. A case that ends the process is found and noted too. At the end
it says what share of the layouts was refused, and why.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass

import numpy as np

import namedmesh as nm
from namedmesh.runtime import use_cpu_devices
from namedmesh.runtime.partitioner import PARTITIONERS
from tests.checks import assert_all_near, plan_anyway
from tests.programs import Case, make_case
from tests.wide_programs import make_wide_case

GENERATORS = {"plain": make_case, "wide": make_wide_case}
BATCH = 100  # cases of one process: compiled programs stay in its memory


@dataclass(frozen=True)
class Result:
    """What came of a case."""

    number: int
    outcome: str  # exact, or what went wrong
    shared: bool  # whether names of the layout may share an axis
    reason: str = ""  # why the layout was refused; of a conflict, the cheapest fix was taken
    collectives: int = 0
    details: str = ""


class Refusal(Exception):
    """A layout that cannot be planned, not even by the cheapest fix of its conflicts."""


def plan_case(case: Case, program: nm.Program) -> tuple[nm.Plan, nm.NamedMeshError | None]:
    """Plans a case; where operands disagree, by the cheapest fix. Returns the conflict too."""
    return plan_anyway(program, case.mesh, case.layout, case.params)


def check(case: Case, partitioners: Sequence[str | None] = (None,)) -> Result:
    """Runs a case and compares it with one device; raises where anything is not as it should be."""
    program = nm.trace(case.function, **case.specs)
    try:
        plan, conflict = plan_case(case, program)
    except nm.NamedMeshError as error:
        raise Refusal(error) from error
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
    for partitioner in partitioners:  # None follows NAMEDMESH_PARTITIONER
        try:
            step = nm.Step(plan, strict=True, partitioner=partitioner)
            got = step(step.place(state), **inputs)
            assert_all_near(got, wanted, case.tolerance)
        except Exception as error:
            error.add_note(f"by {partitioner}")
            raise
    number = int(case.name.partition("/")[2])
    reason = "" if conflict is None else describe_reason(conflict)
    return Result(number, "exact", case.shared, reason, len(plan.collectives))


def describe_reason(error: nm.NamedMeshError) -> str:
    """Describes why a layout was refused, without the names of this case."""
    op, _, problem = error.problem.partition(": ")
    words = re.sub(r"dimension \w+( in \S+)?", "a dimension", problem)
    words = re.sub(r"'[^']*'| in \S+$|\d+", "..", words)
    return f"{op}: {words}"


def try_case(seed: int, number: int, generator: str, partitioners: Sequence[str | None]) -> Result:
    """Runs a case; whatever goes wrong is a result too."""
    case = GENERATORS[generator](seed, number)
    reason = ""
    try:
        return check(case, partitioners)
    except AssertionError as error:
        outcome, text = "wrong", str(error) + str(getattr(error, "__notes__", ""))
    except Refusal as error:
        (cause,) = error.args
        outcome, reason, text = "refused", describe_reason(cause), str(cause)
    except nm.NamedMeshError as error:
        planned = error.problem.startswith("the compiler ")
        outcome, text = "not as planned" if planned else "failed", traceback.format_exc()
    except Exception:
        outcome, text = "raised", traceback.format_exc()
    return Result(number, outcome, case.shared, reason, details=f"{case}\n{text}"[-6000:])


def run_here(options: argparse.Namespace, numbers: Sequence[int], path: pathlib.Path) -> None:
    """Runs cases in this process; notes which one is running, should it end the process."""
    both = options.partitioner == "both"
    partitioners = PARTITIONERS if both else (options.partitioner or None,)
    use_cpu_devices(8)
    running = path.with_suffix(".running")
    with open(path, "a", encoding="utf-8") as file:
        for number in numbers:
            running.write_text(str(number))
            result = try_case(options.seed, number, options.generator, partitioners)
            file.write(json.dumps(asdict(result)) + "\n")
            file.flush()
    running.unlink(missing_ok=True)


def read_results(path: pathlib.Path) -> dict[int, Result]:
    """Reads the finished cases."""
    if not path.exists():
        return {}
    results = (Result(**json.loads(line)) for line in path.read_text().splitlines())
    return {one.number: one for one in results}


def run_all(options: argparse.Namespace, path: pathlib.Path) -> dict[int, Result]:
    """Runs all cases that are not finished, some in each process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    start, before = time.monotonic(), len(read_results(path))
    while True:
        done = read_results(path)
        left = [number for number in range(options.cases) if number not in done]
        if done:
            print(_summary(done, time.monotonic() - start, len(done) - before), flush=True)
        if not left:
            return done
        numbers = ",".join(map(str, left[:BATCH]))
        arguments = ["--seed", str(options.seed), "--out", str(path.parent), "--numbers", numbers]
        arguments += ["--generator", options.generator, "--partitioner", options.partitioner]
        process = subprocess.run([sys.executable, "-m", "tests.fuzz", *arguments], check=False)
        running = path.with_suffix(".running")
        if process.returncode and running.exists():
            number = int(running.read_text())
            crashed = Result(
                number, "crashed", GENERATORS[options.generator](options.seed, number).shared
            )
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(crashed)) + "\n")
            running.unlink()
        elif process.returncode:
            raise SystemExit(process.returncode)


def _summary(results: dict[int, Result], seconds: float, fresh: int) -> str:
    """One line about the finished cases."""
    outcomes = Counter(one.outcome for one in results.values())
    shared = [one for one in results.values() if one.shared]
    rejected = sum(bool(one.reason) for one in shared) / max(1, len(shared))
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    pace = f", {seconds / fresh:.2f} s a case" if fresh else ""
    collectives = sum(one.collectives for one in results.values())
    return (
        f"{len(results)} cases: {counts}; {collectives} collectives; of {len(shared)} layouts "
        f"whose names share axes {rejected:.1%} were conflicts{pace}"
    )


def _reasons(results: Collection[Result]) -> str:
    """The share of layouts that were refused, by reason, those with a fix that was taken first."""
    lines = []
    for outcome, text in (("exact", "refused with a fix that works"), ("refused", "refused")):
        reasons = Counter(one.reason for one in results if one.outcome == outcome and one.reason)
        lines.append(f"{sum(reasons.values()) / max(1, len(results)):.1%} of layouts {text}")
        lines += [f"  {count / len(results):.1%} {why}" for why, count in reasons.most_common(20)]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="which cases")
    parser.add_argument("--cases", type=int, default=10_000, help="how many")
    parser.add_argument("--out", default="build/fuzz", help="the folder of results")
    parser.add_argument("--numbers", default="", help="these cases alone, as 3,17")
    parser.add_argument("--generator", default="wide", choices=GENERATORS, help="of programs")
    parser.add_argument(
        "--partitioner", default="", choices=["", "both", *PARTITIONERS],
        help="who splits them; NAMEDMESH_PARTITIONER by default",
    )  # fmt: skip
    arguments = parser.parse_args()
    path = pathlib.Path(arguments.out) / f"{arguments.seed}.jsonl"
    if arguments.numbers:
        path.parent.mkdir(parents=True, exist_ok=True)
        run_here(arguments, [int(one) for one in arguments.numbers.split(",")], path)
        return
    results = run_all(arguments, path)
    print(_reasons(results.values()))
    failed = [one for one in results.values() if one.outcome not in ("exact", "refused")]
    for one in failed:
        print(f"\n{arguments.seed}/{one.number}: {one.outcome}\n{one.details}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
