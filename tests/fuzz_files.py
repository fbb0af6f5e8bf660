"""Changed files of Artifacts, checkpoints and settings: an error of ours or the right values.

    python -m tests.fuzz_files --seed 1 --cases 10000 --out build/fuzz_files --json FILE.json

Each case changes one file at random. Reading it must end within seconds, in the same process, with
a NamedMeshError that has a fix, or with exactly what was saved; memory may not grow beyond a bound,
and beside the files that are read or saved nothing is written, changed or deleted.
Finished cases stand in `OUT/SEED.jsonl`, a line each; the same command goes on with the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import namedmesh as nm
from namedmesh.artifacts.container import pack_members, seal_file
from namedmesh.hardware.hardware import EXAMPLE
from namedmesh.runtime import Artifact, Executable, load, use_cpu_devices
from namedmesh.training import Checkpoints
from tests.artifacts.files import read_members, replace_manifest
from tests.changes import VALUES, change_bytes, change_field

BATCH = 500  # cases of one process
SECONDS = 2.0  # of one case at most, of this process's own time: others may use the machine
HANGING = 60.0  # seconds of a case after which it counts as hanging
MEMORY = 200 * 2**20  # bytes that a process may grow by after its first cases
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
    other = nm.trace(lambda x, y: x * nm.param("v", [F]) + y, nm.spec([D, F]), nm.spec([F]))
    nm.export(other, nm.Mesh(data=2), "wide:data").save(folder / "other.nmesh")
    (folder / "victim").mkdir()
    (folder / "victim" / "file").write_text("of somebody else")
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
        self.others = (folder / "other.nmesh").read_bytes()
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
            ("zip directory", self.zip_directory),
            ("long lists", self.long_lists),
            ("links and special files", self.special_files),
            ("links where it is saved", self.saving),
            ("arrays of another checkpoint", self.other_arrays),
            ("members of another Artifact", self.other_members),
            ("YAML", self.yaml),
        ]
        return kinds[number % len(kinds)]

    def zip_directory(self, rng: random.Random) -> str:
        """Fields of the zip file's own headers changed, and sealed again."""
        data = bytearray(self.contents)
        for _ in range(rng.choice([1, 1, 2, 4])):
            mark, size = rng.choice([(b"PK\1\2", 46), (b"PK\3\4", 30), (b"PK\5\6", 22)])
            places = [one.start() for one in re.finditer(re.escape(mark), data)]
            at = rng.choice(places) + rng.randrange(4, size, 2)
            width = rng.choice([2, 4])
            value = rng.choice([0, 1, 8, 12, 14, 2**16 - 1, 2**31, 2**32 - 1, rng.randrange(2**32)])
            data[at : at + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")
        changed = seal_file(bytes(data))
        read = Artifact.from_bytes(changed)
        assert read == self.artifact
        return "harmless"

    def long_lists(self, rng: random.Random) -> str:
        """A list or an object of the manifest with thousands of entries, wrong or right."""
        manifest = copy.deepcopy(self.artifact.manifest())
        places: list[tuple] = []
        pending: list[Any] = [manifest]
        while pending:
            value = pending.pop()
            inner = value.items() if isinstance(value, dict) else enumerate(value)
            for key, one in list(inner):
                if isinstance(one, (dict, list)):
                    places.append((value, key))
                    pending.append(one)
        parent, key = rng.choice(places)
        entries, count = parent[key], rng.choice([100, 3000, 30_000])
        known = list(entries.values() if isinstance(entries, dict) else entries)
        value = rng.choice([*known, *VALUES])
        count = min(count, 2_000_000 // len(json.dumps(value)))  # repetitions pack well
        parent[key] = [value] * count
        if isinstance(entries, dict):
            parent[key] = {f"{rng.choice(['n', ''])}{number}": value for number in range(count)}
        Artifact.from_bytes(replace_manifest(self.artifact, manifest))
        return "harmless"

    def other_members(self, rng: random.Random) -> str:
        """A member of another program, or another member of this one, sealed again."""
        names = ["manifest.json", "step.mlir", "init.mlir"]
        members, others = read_members(self.contents), read_members(self.others)
        for name in rng.sample(names, rng.choice([1, 1, 2])):
            members[name] = rng.choice([others[name], members[rng.choice(names)], b"", b"{}"])
        step = Executable(Artifact.from_bytes(pack_members(members)), strict=False)
        state = step.init(0)
        inputs = {name: np.ones(one.sizes, one.dtype) for name, one in step.inputs.items()}
        step(state, **inputs)
        return "harmless"

    def yaml(self, rng: random.Random) -> str:
        """A layout or hardware, of lines that belong in it and of what makes parsers slow."""
        pieces = [
            *EXAMPLE.splitlines(), "batch: data", "group: [data, expert]", "[" * 3000, "{a: " * 500,
            "a: &a [x, x]", "b: [*a, *a]", "<<: *a", "9" * 5000, "vector_flops: " + "9" * 400,
            "? [1, 2]", "!!python/name:os.system", "x: !!binary =", "2001-99-99", "\t- x",
            "- " * 500, "name: \x1b[2J", "k" * 5000 + ": 1", "start: .inf", "start: .nan",
            "'", '"', "|", ">", "memory_bytes: 1e308", "%YAML 9.9", "---", "...", "\ud800",
            "1:" * 3000, "a: " * 30,
        ]  # fmt: skip
        lines = rng.choices(pieces, k=rng.choice([1, 3, 10]))
        if rng.random() < 0.5:
            lines = [*EXAMPLE.splitlines(), *lines[:1]]
        path = self.folder / "changed.yaml"
        text = "\n".join(lines).encode("utf-8", "surrogatepass")
        path.write_bytes(change_bytes(text, rng) if rng.random() < 0.5 else text)
        if rng.random() < 0.5:
            nm.Layout.from_yaml(path)
        else:
            hardware = nm.Hardware.parse(path)
            program = nm.trace(lambda x: nm.sum(x), nm.spec([D]))
            nm.cost(nm.plan(program, nm.Mesh(data=4), "wide:data"), hardware)
        return "harmless"

    def put_in_place(self, path: pathlib.Path, rng: random.Random) -> None:
        """Put a link or a special file in the place of a file or folder."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        way = rng.randrange(8)
        targets = {
            0: self.folder / "victim" / "file", 1: self.folder / "victim", 2: path,
            3: pathlib.Path("/dev/zero"), 4: pathlib.Path("/dev/full"), 5: self.folder / "nowhere",
        }  # fmt: skip
        if way in targets:
            path.symlink_to(targets[way])
        elif way == 6:
            os.mkfifo(path)
        else:
            with socket.socket(socket.AF_UNIX) as one:
                here = os.getcwd()
                os.chdir(path.parent)  # the path of a socket is short
                try:
                    one.bind(path.name)
                finally:
                    os.chdir(here)

    def special_files(self, rng: random.Random) -> str:
        """A link, a pipe, a socket or a device in the place of a file or folder of a checkpoint."""
        folder = self.copied("whole")
        places = sorted((folder / str(NEW)).rglob("*"))
        self.put_in_place(rng.choice(places), rng)
        return self.restore(folder)

    def saving(self, rng: random.Random) -> str:
        """Such files where a checkpoint is about to be written; what is not ours stays."""
        folder = self.copied("whole")
        own = folder / str(NEW) / "notes.txt"
        own.write_text("of the user")
        names = ["30", "30.part", "30.part/arrays", "30.part/namedmesh", "writer.lock", "10/arrays",
                 "10.deleted", "10.deleted/arrays", ".30.part-0123456789abcdef", "20/record.json",
                 "10/namedmesh", "10"]  # fmt: skip
        path = folder / rng.choice(names)
        path.parent.mkdir(exist_ok=True)
        self.put_in_place(path, rng)
        try:
            with Checkpoints(folder, keep=1) as checkpoints:
                checkpoints.save(30, self.step.place(values(30)), {"position": [30]})
                checkpoints.wait()
            with Checkpoints(folder) as checkpoints:
                saved = checkpoints.restore(self.step)
            for name, value in values(saved.step).items():
                np.testing.assert_array_equal(np.asarray(saved.state[name]), value)
        finally:
            kept = [one for one in folder.rglob("notes.txt")]
            assert kept and kept[0].read_text() == "of the user"
        return "restored"

    def other_arrays(self, rng: random.Random) -> str:
        """Arrays, or some of their files, of the older checkpoint in the newer."""
        folder = self.copied("whole")
        old, new = folder / str(OLD) / "arrays", folder / str(NEW) / "arrays"
        way = rng.randrange(3)
        if way == 0:
            shutil.rmtree(new)
            shutil.copytree(old, new)
        elif way == 1:
            shutil.copytree(old, new, dirs_exist_ok=True)
        else:
            (new / "manifest.ocdbt").write_bytes((old / "manifest.ocdbt").read_bytes())
        if rng.random() < 0.5:
            shutil.copy(folder / str(OLD) / "record.json", folder / str(NEW) / "record.json")
        return self.restore(folder)

    def snapshot(self) -> dict[str, tuple[int, ...]]:
        """What is in the folder, besides what a case may change."""
        found = {}
        for path in sorted(self.folder.rglob("*")):
            if path.relative_to(self.folder).parts[0] not in ("changed", "changed.yaml"):
                status = path.lstat()
                found[str(path)] = (status.st_size, status.st_mtime_ns, status.st_ino)
        return found

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
    before = cases.snapshot()
    with contextlib.suppress(OSError):  # the most that was taken is counted from here on
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    least = least and memory()
    start, details = time.process_time(), ""
    try:
        outcome = run(random.Random(f"{seed}/{number}"))
    except nm.NamedMeshError as error:
        outcome = "refused" if error.fix else "without a fix"
    except AssertionError:
        outcome, details = "wrong", traceback.format_exc()
    except Exception:
        outcome, details = "raised", traceback.format_exc()
    seconds, grown = time.process_time() - start, memory() - least if least else 0
    if cases.snapshot() != before:
        outcome = "touched what is not its own"
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
    for number in range(14):  # one of each kind, so that everything is imported and compiled
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
            command, stdout=subprocess.PIPE, text=True, timeout=HANGING * 2 + len(numbers) * 2
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
    parser.add_argument("--json", help="write what came of the cases to this file")
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
    if arguments.json:
        document = {
            "command": f"python -m tests.fuzz_files --seed {arguments.seed} "
            f"--cases {arguments.cases}",
            "cases": len(results),
            "failures": len(failures(results)),
            "slowest_seconds": max(one.seconds for one in results),
            "grown_bytes": max(one.grown for one in results),
            "outcomes": {f"{kind}: {outcome}": n for (kind, outcome), n in sorted(by_kind.items())},
        }
        pathlib.Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    for one in failures(results):
        print(f"\n{arguments.seed}/{one.number}: {one.kind}, {one.outcome}\n{one.details}")
    sys.exit(bool(failures(results)))


if __name__ == "__main__":
    main()
