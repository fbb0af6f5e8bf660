"""Changed files of Artifacts and checkpoints: an error of ours or the right values, nothing else.

    python -m tests.fuzz_files --seed 1 --cases 10000 --out build/fuzz_files

Each case changes one file at random. Reading it must end within seconds, in the same process, with
a NamedMeshError that has a fix, or with exactly what was saved; memory may not grow beyond a bound.
Finished cases stand in `OUT/SEED.jsonl`, a line each; the same command goes on with the rest.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import pathlib
import random
import shutil
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

import namedmesh as nm
from namedmesh.runtime import Artifact, Executable, load, use_cpu_devices
from namedmesh.training import Checkpoints
from tests.artifacts.files import replace_manifest
from tests.changes import change_bytes, change_field

BATCH = 500  # cases of one process
SECONDS = 60.0  # of one case at most
MEMORY = 256 * 2**20  # bytes that a process may grow by after its first cases
OLD, NEW = 10, 20  # the checkpoints' steps; the files of the newer are changed
D, F = nm.dims("wide=64 tall=48")


@dataclass(frozen=True)
class Result:
    """What came of a case."""

    number: int
    kind: str
    outcome: str  # refused, restored, older or harmless; otherwise what went wrong
    seconds: float = 0.0
    grown: int = 0  # bytes that the process grew by
    details: str = ""


def program(x: nm.Tensor) -> nm.Tensor:
    """A program with a weight of several chunks and a scalar."""
    return nm.einsum([x, nm.param("w", [D, F])], [F]) * nm.param("scale", [])


def values(step: int) -> dict[str, np.ndarray]:
    """The weights of a checkpoint."""
    random = np.random.default_rng(step)
    whole = {"w": random.normal(size=(64, 48)), "scale": random.normal(size=())}
    return {name: np.asarray(value, np.float32) for name, value in whole.items()}


def prepare(folder: pathlib.Path) -> None:
    """Write the files that cases change."""
    artifact = nm.export(nm.trace(program, nm.spec([D])), nm.Mesh(data=4), "wide:data")
    artifact.save(folder / "program.nmesh")
    step = Executable(artifact)
    with Checkpoints(folder / "whole", keep=2) as checkpoints:
        for number in (OLD, NEW):
            checkpoints.save(number, step.place(values(number)), {"position": [number]})


class Cases:
    """The kinds of cases, in the places that their numbers give them.

    Args:
        folder: Where `prepare` wrote.
    """

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.contents = (folder / "program.nmesh").read_bytes()
        self.artifact = Artifact.from_bytes(self.contents)
        self.step = load(str(folder / "program.nmesh"), strict=False)

    def kind(self, number: int) -> tuple[str, Callable[[random.Random], str]]:
        """The kind of a case."""
        kinds = [
            ("bytes of an Artifact", self.artifact_bytes),
            ("bytes of a checkpoint", self.checkpoint_bytes),
            ("fields of an Artifact", self.artifact_fields),
            ("bytes of a checkpoint", self.checkpoint_bytes),
            ("fields of a checkpoint", self.checkpoint_fields),
            ("bytes of an Artifact", self.artifact_bytes),
            ("files of a checkpoint", self.checkpoint_files),
        ]
        return kinds[number % len(kinds)]

    def artifact_bytes(self, rng: random.Random) -> str:
        """Bytes changed somewhere."""
        changed = change_bytes(self.contents, rng)
        read = Artifact.from_bytes(changed)
        assert changed == self.contents or read.to_bytes() == self.contents
        return "harmless"

    def artifact_fields(self, rng: random.Random) -> str:
        """Fields of the manifest changed, with a checksum that fits."""
        manifest = copy.deepcopy(self.artifact.manifest())
        change_field(manifest, rng)
        Artifact.from_bytes(replace_manifest(self.artifact, manifest))
        return "harmless"

    def copied(self, name: str) -> pathlib.Path:
        """Checkpoints to change."""
        folder = self.folder / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder / name, folder)
        return folder

    def restore(self, folder: pathlib.Path, exact: bool = True) -> str:
        """Restores the newest checkpoint that verifies, and compares it with what was saved."""
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            with Checkpoints(folder) as checkpoints:
                step, state, extra = checkpoints.restore(self.step)
        assert bool(warned) == (step == OLD), [str(one.message) for one in warned]
        if exact or step == OLD:
            assert extra == {"position": [step]}
            for name, value in values(step).items():
                np.testing.assert_array_equal(np.asarray(state[name]), value)
        return "older" if step == OLD else "restored"

    def pick(self, folder: pathlib.Path, rng: random.Random) -> pathlib.Path:
        """A file of the newer checkpoint."""
        files = (path for path in (folder / str(NEW)).rglob("*") if path.is_file())
        return rng.choice(sorted(files))

    def checkpoint_bytes(self, rng: random.Random) -> str:
        """Bytes of a file changed somewhere."""
        folder = self.copied("whole")
        file = self.pick(folder, rng)
        content = file.read_bytes()
        file.write_bytes(change_bytes(content, rng))
        return self.restore(folder)

    def checkpoint_files(self, rng: random.Random) -> str:
        """A file taken away, cut, emptied, exchanged, made huge, or a folder instead."""
        folder = self.copied("whole")
        file, other = self.pick(folder, rng), self.pick(folder, rng)
        content, way = file.read_bytes(), rng.randrange(7)
        if way == 6:
            with open(file, "r+b") as opened:
                opened.truncate(rng.choice([2**32, 2**40]))  # sparse: it takes no space
            return self.restore(folder)
        file.unlink()
        if way == 1:
            file.write_bytes(content[: rng.randrange(len(content))])
        elif way == 2:
            file.touch()
        elif way == 3:
            file.write_bytes(other.read_bytes() if other.exists() else content)
        elif way == 4:
            file.mkdir()
        elif way == 5:
            start = rng.randrange(len(content))
            file.write_bytes(content[:start] + bytes(len(content) - start))
        return self.restore(folder)

    def checkpoint_fields(self, rng: random.Random) -> str:
        """Fields of the record changed, with a checksum that fits."""
        folder = self.copied("whole")
        path = folder / str(NEW) / "record.json"
        record = json.loads(path.read_text())["record"]
        change_field(record, rng)
        body = json.dumps(record).encode()
        digest = hashlib.sha256(body).hexdigest().encode()
        path.write_bytes(b'{"sha256": "' + digest + b'", "record": ' + body + b"}")
        return self.restore(folder, exact=False)


def try_case(cases: Cases, seed: int, number: int, least: int) -> Result:
    """Runs a case; whatever goes wrong is a result too."""
    kind, run = cases.kind(number)
    start, details = time.monotonic(), ""
    try:
        outcome = run(random.Random(f"{seed}/{number}"))
    except nm.NamedMeshError as error:
        outcome = "refused" if error.fix else "without a fix"
    except AssertionError:
        outcome, details = "wrong", traceback.format_exc()
    except Exception:
        outcome, details = "raised", traceback.format_exc()
    seconds, grown = time.monotonic() - start, memory() - least if least else 0
    if grown > MEMORY:
        outcome = "too much memory"
    return Result(number, kind, outcome, seconds, grown, details[-3000:])


def memory() -> int:
    """The most bytes that this process has taken; the system's count is that of its parent too."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def run_here(seed: int, numbers: list[int], folder: pathlib.Path) -> None:
    """Runs cases in this process, and prints a line for each."""
    use_cpu_devices(4)
    cases, least = Cases(folder), 0
    for number in range(7):  # one of each kind, so that everything is imported and compiled
        try_case(cases, -1, number, 0)
    least = memory()
    for number in numbers:
        print(json.dumps({"running": number}), flush=True)
        print(json.dumps(asdict(try_case(cases, seed, number, least))), flush=True)


def run_batch(seed: int, numbers: list[int], folder: pathlib.Path) -> list[Result]:
    """Runs cases in a process of their own; one that ends or hangs it is a result too."""
    command = [sys.executable, "-m", "tests.fuzz_files", "--seed", str(seed)]
    command += ["--folder", str(folder), "--numbers", ",".join(map(str, numbers))]
    results: list[Result] = []
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=SECONDS * 2 + len(numbers) * 0.5
        )
        output, ended = done.stdout, "" if done.returncode == 0 else "crashed"
    except subprocess.TimeoutExpired as error:
        output, ended = (error.stdout or b"").decode(), "hung"
    running = None
    for line in output.splitlines():
        row = json.loads(line)
        if "running" in row:
            running = row["running"]
        else:
            results.append(Result(**row))
    if ended and running is not None and all(one.number != running for one in results):
        results.append(Result(running, "unknown", ended))
    elif ended:
        raise SystemExit(f"the process of cases {numbers[0]} to {numbers[-1]} {ended}")
    return results


def run_all(seed: int, count: int, out: pathlib.Path) -> list[Result]:
    """Runs all cases that are not finished."""
    out.mkdir(parents=True, exist_ok=True)
    path, folder = out / f"{seed}.jsonl", out / "files"
    lines = path.read_text().splitlines() if path.exists() else []
    results = {row["number"]: Result(**row) for row in map(json.loads, lines)}
    if not (folder / "whole").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        use_cpu_devices(4)
        prepare(folder.resolve())
    while left := [number for number in range(count) if number not in results]:
        fresh = run_batch(seed, left[:BATCH], folder.resolve())
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(one)) + "\n" for one in fresh)
        results |= {one.number: one for one in fresh}
        print(summarize(list(results.values())), flush=True)
    return list(results.values())


def summarize(results: list[Result]) -> str:
    """One line about the finished cases."""
    outcomes = Counter(one.outcome for one in results)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    slowest = max(one.seconds for one in results)
    grown = max(one.grown for one in results) / 2**20
    return f"{len(results)} files: {counts}; slowest {slowest:.2f} s, grown by {grown:.0f} MiB"


def failures(results: list[Result]) -> list[Result]:
    """The results that are not as they should be."""
    good = ("refused", "restored", "older", "harmless")
    return [one for one in results if one.outcome not in good or one.seconds > SECONDS]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="which cases")
    parser.add_argument("--cases", type=int, default=10_000, help="how many")
    parser.add_argument("--out", default="build/fuzz_files", help="the folder of results")
    parser.add_argument("--folder", help="the files to change, with --numbers")
    parser.add_argument("--numbers", default="", help="these cases alone, as 3,17")
    arguments = parser.parse_args()
    if arguments.numbers:
        numbers = [int(one) for one in arguments.numbers.split(",")]
        run_here(arguments.seed, numbers, pathlib.Path(arguments.folder))
        return
    results = run_all(arguments.seed, arguments.cases, pathlib.Path(arguments.out))
    by_kind = Counter((one.kind, one.outcome) for one in results)
    for (kind, outcome), count in sorted(by_kind.items()):
        print(f"{kind}: {count} {outcome}")
    for one in failures(results):
        print(f"\n{arguments.seed}/{one.number}: {one.kind}, {one.outcome}\n{one.details}")
    sys.exit(bool(failures(results)))


if __name__ == "__main__":
    main()
