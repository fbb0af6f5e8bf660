"""Random programs under random layouts: every one planned, compiled strictly, run and compared.

    python -m tests.fuzz --seed 1 --cases 10000 --out build/fuzz --partitioner both --jobs 16
    python -m tests.fuzz --seed 1 --cases 300 --out build/fuzz_gpu --target h100

With a target every program is compiled for one node of such chips and audited; none is run. It
goes on where it was stopped: finished cases are lines of `OUT/SEED.jsonl`, and a case is made from
seed and number alone. A case that ends its process, or never ends, is found and noted too. At
the end it says what share of the layouts was refused, and why, writes that to `OUT/SEED.json`, and
exits with 1 if a case failed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import pathlib
import re
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import namedmesh as nm
from namedmesh.aot import compile_for
from namedmesh.lowering.export import export_planned
from namedmesh.runtime import use_cpu_devices
from namedmesh.runtime.partitioner import PARTITIONERS
from namedmesh.signature.nest import flatten
from tests.broad_programs import make_broad_case
from tests.checks import assert_all_near, plan_anyway
from tests.deep_programs import make_deep_case
from tests.programs import Case, make_case
from tests.wide_programs import make_wide_case

GENERATORS = {
    "plain": make_case, "wide": make_wide_case, "deep": make_deep_case, "broad": make_broad_case,
}  # fmt: skip
BATCH = 50  # cases of one process: compiled programs stay in its memory
FINE = ("exact", "refused")
PATIENCE = 180  # seconds for one case; one that takes longer hangs


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
    """A program that cannot be traced, or planned even by the cheapest fix of its conflicts."""


def plan_case(case: Case, program: nm.Program) -> tuple[nm.Plan, nm.NamedMeshError | None]:
    """Plans a case; where operands disagree, by the cheapest fix. Returns the conflict too."""
    return plan_anyway(program, case.mesh, case.layout, case.params)


def check(case: Case, partitioners: Sequence[str | None] = (None,), target: str = "") -> Result:
    """Runs a case and compares it with one device; raises where anything is not as it should be."""
    try:
        program = nm.trace(case.function, **case.specs)
        plan, conflict = plan_case(case, program)
    except nm.NamedMeshError as error:
        raise Refusal(error) from error
    (compile_case if target else run_case)(case, plan, partitioners, target)
    number = int(case.name.partition("/")[2])
    reason = "" if conflict is None else describe_reason(conflict)
    return Result(number, "exact", case.shared, reason, len(plan.collectives))


def compile_case(
    case: Case, plan: nm.Plan, partitioners: Sequence[str | None], target: str
) -> None:
    """Compiles a case for devices that are not here, and audits it."""
    artifact = export_planned(plan)
    for partitioner in partitioners:
        report = compile_for(artifact, f"{target}:{plan.mesh.devices}", partitioner=partitioner)
        assert report.audit is not None, "there is no module"
        report.audit.enforce(strict=True)


def run_case(case: Case, plan: nm.Plan, partitioners: Sequence[str | None], _: str) -> None:
    """Runs a case and compares it with one device."""
    program = plan.program
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.normal(size=spec.shape.sizes).astype(np.float32)
        for name, spec in case.specs.items()
    }
    state = {}
    for name, variable in program.variables.items():
        state[name] = rng.normal(size=variable.shape.sizes).astype(np.float32)
        if name not in program.parameters:  # slots are no less than zero
            state[name] = np.abs(state[name])
        if variable.dtype != "float32":  # first steps of optimizers divide noise by noise
            state[name] = np.full(variable.shape.sizes, 5, variable.dtype)
    wanted = program.evaluate(state, **inputs)
    artifact = None
    for partitioner in partitioners:  # None follows NAMEDMESH_PARTITIONER
        try:
            if artifact is None:
                step = nm.Step(plan, strict=True, partitioner=partitioner)
                artifact = step.artifact  # is lowered once for all partitioners
            else:
                step = nm.runtime.Executable(artifact, strict=True, partitioner=partitioner)
            got = step(step.place(state), **inputs)
            try:
                assert_all_near(got, wanted, case.tolerance)
            except AssertionError:
                if case.exact is None:
                    raise
                check_rounding(case, program, state, inputs, got)
        except Exception as error:
            error.add_note(f"by {partitioner}")
            raise


def check_rounding(
    case: Case, program: nm.Program, state: dict[str, Any], inputs: dict[str, Any], got: Any
) -> None:
    """Check that results are as near to those in float32 as other roundings to bfloat16 are."""
    # Where rounding is magnified, two orders of the same sums differ by more than any fixed number,
    # and XLA keeps digits that `evaluate` rounds: one device, compiled, is a reference, too.
    one = nm.Step(nm.plan(program, nm.Mesh(x=1), ""))
    references = [program.evaluate(state, **inputs), one(one.place(state), **inputs)]
    assert case.exact is not None
    exact = flatten_numbers(nm.trace(case.exact, **case.specs).evaluate(state, **inputs))
    for leaves in zip(exact, flatten_numbers(got), *map(flatten_numbers, references), strict=True):
        errors = [float(np.max(np.abs(one - leaves[0]), initial=0)) for one in leaves[1:]]
        scale = max(1.0, float(np.max(np.abs(leaves[0]), initial=0)))
        allowed = max(case.tolerance * scale, 2 * max(errors[1:]))
        assert errors[0] <= allowed, (
            f"off by {errors[0]:.3g} from float32; on one device {max(errors[1:]):.3g}"
        )


def flatten_numbers(results: tuple[Any, Any]) -> list[np.ndarray]:
    """Return the arrays of a state and of results in float64, those of the state by name."""
    leaves = flatten([dict(sorted(results[0].items())), results[1]])
    return [np.asarray(one).astype(np.float64) for one in leaves]


def describe_reason(error: nm.NamedMeshError) -> str:
    """Describes why a layout was refused, without the names of this case."""
    op, _, problem = error.problem.partition(": ")
    words = re.sub(r"dimension \w+( in \S+)?", "a dimension", problem)
    words = re.sub(r"'[^']*'| in \S+$|\d+", "..", words)
    return f"{op}: {words}"


def try_case(
    options: argparse.Namespace, number: int, partitioners: Sequence[str | None]
) -> Result:
    """Runs a case; whatever goes wrong is a result too."""
    case = GENERATORS[options.generator](options.seed, number)
    reason = ""
    try:
        return check(case, partitioners, options.target)
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


def append(path: pathlib.Path, result: Result) -> None:
    """Append a result in one write: other processes append to the same file."""
    line = json.dumps(asdict(result)) + "\n"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def run_here(options: argparse.Namespace, numbers: Sequence[int], path: pathlib.Path) -> None:
    """Runs cases in this process; notes which one is running, should it end the process."""
    both = options.partitioner == "both"
    partitioners = PARTITIONERS if both else (options.partitioner or None,)
    use_cpu_devices(8)
    warnings.simplefilter("ignore")  # of plans, thousands of times
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    running = pathlib.Path(options.running or path.with_suffix(".running"))
    for number in numbers:
        running.write_text(str(number))
        append(path, try_case(options, number, partitioners))
    running.unlink(missing_ok=True)


def read_results(path: pathlib.Path) -> dict[int, Result]:
    """Reads the finished cases."""
    if not path.exists():
        return {}
    results = (Result(**json.loads(line)) for line in path.read_text().splitlines())
    return {one.number: one for one in results}


class Fleet:
    """Processes that run cases side by side, and append their results to one file."""

    def __init__(self, options: argparse.Namespace, path: pathlib.Path):
        self.options, self.path = options, path
        self.start, self.before = time.monotonic(), len(read_results(path))

    def run(self) -> dict[int, Result]:
        """Runs all cases that are not finished; returns the finished ones."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        done = read_results(self.path)
        left = [number for number in range(self.options.cases) if number not in done]
        size = min(BATCH, max(1, -(-len(left) // self.options.jobs)))
        batches = [left[i : i + size] for i in range(0, len(left), size)]
        with ThreadPoolExecutor(self.options.jobs) as pool:
            list(pool.map(self.run_batch, batches))
        done = read_results(self.path)
        self.report(done)
        return done

    def report(self, done: dict[int, Result]) -> None:
        """Prints a line about the finished cases."""
        seconds = time.monotonic() - self.start
        print(_summary(done, seconds, len(done) - self.before), flush=True)

    def seconds_left(self) -> float:
        """Returns how long cases may still run."""
        limit = self.options.seconds or float("inf")
        return limit - (time.monotonic() - self.start)

    def run_batch(self, numbers: list[int]) -> None:
        """Runs some cases in a process of their own, and those after a crash in another one."""
        running = self.path.with_suffix(f".{numbers[0]}.running")
        options = self.options
        while numbers and self.seconds_left() > 0:
            arguments = ["--seed", str(options.seed), "--out", str(self.path.parent)]
            arguments += ["--generator", options.generator, "--partitioner", options.partitioner]
            arguments += ["--target", options.target]
            arguments += ["--numbers", ",".join(map(str, numbers)), "--running", str(running)]
            process = subprocess.Popen([sys.executable, "-m", "tests.fuzz", *arguments])
            reason = self.wait(process, running)
            if running.exists():
                number = int(running.read_text() or numbers[0])
                running.unlink()
                if reason:
                    case = GENERATORS[options.generator](options.seed, number)
                    text = f"{case}\nexit status {process.returncode}"
                    append(self.path, Result(number, reason, case.shared, details=text))
                numbers = numbers[numbers.index(number) + 1 :]
            elif process.returncode:
                raise SystemExit(f"a process ended with {process.returncode} before its first case")
            else:
                numbers = []
        self.report(read_results(self.path))

    def wait(self, process: subprocess.Popen[bytes], running: pathlib.Path) -> str:
        """Waits for a process; returns what went wrong, "" also if there is no time left."""
        while process.poll() is None:
            time.sleep(0.2)
            try:
                hangs = time.time() - running.stat().st_mtime > PATIENCE
            except FileNotFoundError:  # not yet, or not any more
                hangs = False
            if hangs or self.seconds_left() <= 0:
                process.kill()
                process.wait()
                return "hung" if hangs else ""
        return "crashed" if process.returncode else ""


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


def summarize(results: Collection[Result], options: argparse.Namespace) -> dict[str, Any]:
    """What came of all cases: outcomes, failures, and which share of layouts was refused, and why.

    A layout is refused with a fix if it is a conflict: the case ran by the cheapest fix.
    """
    shares = {}
    for outcome, text in (("exact", "refused with a fix that works"), ("refused", "refused")):
        reasons = Counter(one.reason for one in results if one.outcome == outcome and one.reason)
        shares[text] = {why: count / len(results) for why, count in reasons.most_common()}
    outcomes = Counter(one.outcome for one in results)
    return {
        "seed": options.seed,
        "generator": options.generator,
        "partitioner": options.partitioner,
        "target": options.target,
        "cases": len(results),
        "outcomes": dict(sorted(outcomes.items())),
        "collectives": sum(one.collectives for one in results),
        "failed": sorted(one.number for one in results if one.outcome not in FINE),
        "share of layouts": {text: sum(reasons.values()) for text, reasons in shares.items()},
        "reasons": shares,
    }


def _reasons(summary: dict[str, Any]) -> str:
    """The share of layouts that were refused, by reason, those with a fix that was taken first."""
    lines = []
    for text, reasons in summary["reasons"].items():
        lines.append(f"{sum(reasons.values()):.1%} of layouts {text}")
        lines += [f"  {share:.1%} {why}" for why, share in [*reasons.items()][:20]]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="which cases")
    parser.add_argument("--cases", type=int, default=10_000, help="how many")
    parser.add_argument("--out", default="build/fuzz", help="the folder of results")
    parser.add_argument("--numbers", default="", help="these cases alone, as 3,17")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--seconds", type=float, default=0, help="stop after so long")
    parser.add_argument("--json", default="", help="the summary; OUT/SEED.json by default")
    parser.add_argument("--running", default="", help="the file that names the running case")
    parser.add_argument("--generator", default="broad", choices=GENERATORS, help="of programs")
    parser.add_argument(
        "--partitioner", default="", choices=["", "both", *PARTITIONERS],
        help="who splits them; NAMEDMESH_PARTITIONER by default",
    )  # fmt: skip
    target = "compile for chips of this name, such as h100, and run nothing"
    parser.add_argument("--target", default="", help=target)
    arguments = parser.parse_args()
    path = pathlib.Path(arguments.out) / f"{arguments.seed}.jsonl"
    if arguments.numbers:
        path.parent.mkdir(parents=True, exist_ok=True)
        run_here(arguments, [int(one) for one in arguments.numbers.split(",")], path)
        return
    results = Fleet(arguments, path).run()
    summary = summarize(results.values(), arguments)
    print(_reasons(summary))
    written = pathlib.Path(arguments.json or path.with_suffix(".json"))
    written.write_text(json.dumps(summary, indent=2) + "\n")
    failed = [results[number] for number in summary["failed"]]
    for one in failed:
        print(f"\n{arguments.seed}/{one.number}: {one.outcome}\n{one.details}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
