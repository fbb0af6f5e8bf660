"""The faults: what is done to a running attempt, or between two."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.chaos.attempt import LONGEST, SLOW, Attempt, Run, is_worker

DISK = 24 * 2**20  # bytes of the file system of a run's checkpoints
FILE = 96 * 2**10  # bytes of a file in a quota's stead: the arrays have more, all else less
PAUSED = 10.0  # seconds of SIGSTOP, less than the launcher waits

Fault = Callable[[Attempt, random.Random], dict[str, Any]]


def kill(attempt: Attempt, rng: random.Random) -> dict[str, Any]:
    """SIGKILL of one process at a random moment."""
    attempt.wait_for_steps(rng.randint(1, 7))
    time.sleep(rng.uniform(0, 0.1))
    attempt.send(rng, signal.SIGKILL)
    return {}


def kill_while_starting(attempt: Attempt, rng: random.Random) -> dict[str, Any]:
    """SIGKILL of one process after they have met, before or during the first steps."""
    attempt.wait_for(lambda: len(attempt.pids()) == attempt.place.processes)
    time.sleep(rng.uniform(0, 3.0))
    attempt.send(rng, signal.SIGKILL)
    return {}


def kill_while_saving(attempt: Attempt, rng: random.Random) -> dict[str, Any]:
    """SIGKILL of one process while a checkpoint is being written."""
    attempt.wait_for_steps(rng.randint(1, 3))
    attempt.wait_for(attempt.run.is_saving)
    time.sleep(rng.uniform(0, 4 * SLOW))
    saving = attempt.run.is_saving()
    attempt.send(rng, signal.SIGKILL)
    return {"saving": saving}


def kill_all(attempt: Attempt, rng: random.Random) -> dict[str, Any]:
    """SIGKILL of the launcher, whose guard kills all processes: a machine that goes out."""
    attempt.wait_for_steps(rng.randint(1, 5))
    if rng.random() < 0.5:
        attempt.wait_for(attempt.run.is_saving)
        time.sleep(rng.uniform(0, 4 * SLOW))
    saving = attempt.run.is_saving()
    attempt.process.send_signal(signal.SIGKILL)
    return {"saving": saving}


def kill_while_copying(attempt: Attempt, rng: random.Random) -> dict[str, Any]:
    """SIGKILL of one process while a copy of the state goes to a neighbour."""
    attempt.wait_for_steps(rng.randint(1, 3))

    def is_copying() -> bool:
        marks = attempt.run.folder.glob("copying-*")
        return any(is_worker(int(one.name.partition("-")[2])) for one in marks)

    attempt.wait_for(is_copying)
    time.sleep(rng.uniform(0, 4 * SLOW))
    copying = is_copying()
    attempt.send(rng, signal.SIGKILL)
    return {"copying": copying}


def kill_two(attempt: Attempt, rng: random.Random) -> dict[str, Any]:
    """SIGKILL of two processes at once, neighbours or not."""
    attempt.wait_for_steps(rng.randint(1, 7))
    pids = attempt.pids()
    for pid in rng.sample(pids, min(2, len(pids))):
        attempt.send_to(pid, signal.SIGKILL)
    return {"bound": "checkpoint"}


def kill_while_recovering(attempt: Attempt, rng: random.Random) -> dict[str, Any]:
    """SIGKILL of one process, and of another one while the group is about to go on."""
    attempt.wait_for_steps(rng.randint(1, 7))
    attempt.send(rng, signal.SIGKILL)
    time.sleep(rng.uniform(0.2, 5.0))
    attempt.send(rng, signal.SIGKILL)
    return {"bound": "checkpoint"}


def kill_spare(attempt: Attempt, rng: random.Random) -> dict[str, Any]:
    """SIGKILL of the process that waits, and of one that works."""
    attempt.wait_for_steps(rng.randint(1, 7))

    def spares() -> list[int]:
        return sorted(set(attempt.children("wait_and_run")) - set(attempt.pids()))

    attempt.wait_for(lambda: bool(spares()))
    found = spares()
    for pid in found:
        attempt.send_to(pid, signal.SIGKILL)
    attempt.send(rng, signal.SIGKILL)
    return {"spares": len(found)}


def kill_service(attempt: Attempt, rng: random.Random) -> dict[str, Any]:
    """SIGKILL of the process with jax's service, with which all others end."""
    attempt.wait_for_steps(rng.randint(1, 7))
    for pid in attempt.children("keep_services"):
        os.kill(pid, signal.SIGKILL)
    return {"bound": "checkpoint"}


def suspend(attempt: Attempt, rng: random.Random) -> dict[str, Any]:
    """SIGSTOP of one process for good: the launcher kills it."""
    attempt.wait_for_steps(rng.randint(1, 7))
    attempt.send(rng, signal.SIGSTOP)
    return {}


def flip_replica(attempt: Attempt, rng: random.Random) -> dict[str, Any]:
    """A bit of one process's copy of a variable flips in the memory of its device."""
    attempt.wait_for_steps(rng.randint(1, 7))
    index = rng.randrange(len(attempt.pids()) or 1)
    flip = attempt.run.folder / f"flip-{index}"
    flip.touch()
    attempt.wait_for(lambda: not flip.exists())
    flip.unlink(missing_ok=True)
    place = f"process {index}" if attempt.place.processes > 1 else "devices"
    return {"bound": "checkpoint", "says": ["copies of a shard of", place]}


def terminate(attempt: Attempt, rng: random.Random) -> dict[str, Any]:
    """SIGTERM to one process: all save after the same step, and stop."""
    attempt.wait_for_steps(rng.randint(1, 7))
    time.sleep(rng.uniform(0, 0.1))
    attempt.send(rng, signal.SIGTERM)
    return {"expected": 143}


def pause(attempt: Attempt, rng: random.Random) -> dict[str, Any]:
    """SIGSTOP of one process for a while: the others wait for it, or give it up."""
    attempt.wait_for_steps(rng.randint(1, 7))
    index = attempt.send(rng, signal.SIGSTOP)
    time.sleep(PAUSED)
    if index is not None:
        attempt.send_to(index, signal.SIGCONT)
    return {}


def fill_disk(attempt: Attempt, rng: random.Random) -> dict[str, Any]:
    """A disk that is full for some steps, or a limit on files: checkpoints cannot be written."""
    attempt.wait_for_steps(rng.randint(1, 4))
    mounted = os.path.ismount(attempt.run.disk) and rng.random() < 0.5
    before = attempt.run.last_step()
    with _full(attempt.run.disk) if mounted else _limited(attempt):
        attempt.wait_for_steps(12)
    by = "file system" if mounted else "limit"
    return {"by": by, "steps_with_full_disk": attempt.run.last_step() - before}


@contextlib.contextmanager
def _full(disk: pathlib.Path) -> Iterator[None]:
    """A file system without space."""
    ballast = disk / "ballast"
    with open(ballast, "wb") as file:
        left = os.statvfs(disk)
        with contextlib.suppress(OSError):  # if others take a part meanwhile, little is left
            os.posix_fallocate(file.fileno(), 0, left.f_bavail * left.f_frsize)
    try:
        yield
    finally:
        ballast.unlink()


@contextlib.contextmanager
def _limited(attempt: Attempt) -> Iterator[None]:
    """Processes that may write small files only."""

    def allow(most: int) -> None:
        for pid in attempt.pids():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))

    allow(FILE)
    try:
        yield
    finally:
        allow(resource.RLIM_INFINITY)


def damage(how: str) -> Fault:
    """A file of the newest checkpoint is damaged, with no process running."""

    def apply(attempt: Attempt, rng: random.Random) -> dict[str, Any]:
        attempt.wait_for_steps(rng.randint(1, 7))
        attempt.wait_for(lambda: len(attempt.run.complete_steps()) >= 2)
        attempt.end()
        steps = attempt.run.complete_steps()
        if len(steps) < 2:
            return {"skipped": "fewer than two checkpoints"}
        newest = attempt.run.checkpoints / str(steps[-1])
        files = sorted(one for one in newest.rglob("*") if one.is_file() and one.stat().st_size)
        sizes = [one.stat().st_size for one in files]
        (target,) = rng.choices(files, sizes)  # as a bad block of a disk would hit them
        DAMAGES[how](target, rng)
        return {"damaged": steps[-1], "file": str(target.relative_to(newest))}

    return apply


def flip_bit(path: pathlib.Path, rng: random.Random) -> None:
    """One bit of a file is another."""
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def truncate(path: pathlib.Path, rng: random.Random) -> None:
    """A file ends too early."""
    os.truncate(path, rng.randrange(path.stat().st_size))


def tear(path: pathlib.Path, rng: random.Random) -> None:
    """Of a file only some blocks were written; the others are zeros."""
    data = bytearray(path.read_bytes())
    start = rng.randrange(len(data))
    data[start:] = bytes(len(data) - start)
    path.write_bytes(data)


DAMAGES = {"bit flipped": flip_bit, "truncated": truncate, "torn": tear}


def mount_disk(run: Run) -> None:
    """Gives a run's checkpoints a small file system of their own, if that is allowed."""
    run.disk.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "chaos", str(run.disk)]
    subprocess.run(command, capture_output=True)


def unmount_disk(run: Run) -> None:
    """Takes the small file system away."""
    end = time.monotonic() + LONGEST
    while os.path.ismount(run.disk) and time.monotonic() < end:
        if subprocess.run(["umount", str(run.disk)], capture_output=True).returncode:
            time.sleep(0.2)


ENDING: dict[str, Fault] = {
    "SIGKILL": kill,
    "SIGKILL while starting": kill_while_starting,
    "SIGKILL while saving": kill_while_saving,
    "SIGKILL of all": kill_all,
    "SIGTERM": terminate,
    "SIGSTOP for 10 s": pause,
    "disk full": fill_disk,
    "bit flipped in a replica": flip_replica,
    **{f"file {how}": damage(how) for how in DAMAGES},
}
WRONG_PEERS = ("data", "settings", "layout", "version")
REPLACED: dict[str, Fault] = {
    "SIGKILL": kill,
    "SIGKILL while saving": kill_while_saving,
    "SIGKILL while copying": kill_while_copying,
    "SIGKILL while recovering": kill_while_recovering,
    "SIGKILL of two": kill_two,
    "SIGKILL of the spare and one": kill_spare,
    "SIGKILL of jax's service": kill_service,
    "SIGSTOP for 10 s": pause,
    "SIGSTOP until killed": suspend,
    "bit flipped in a replica": flip_replica,
}
SHRINKING: dict[str, Fault] = {
    name: REPLACED[name]
    for name in (
        "SIGKILL", "SIGKILL while saving", "SIGKILL while copying", "SIGSTOP until killed"
    )
}  # fmt: skip
FAULTS: dict[str, Fault] = ENDING | REPLACED
REFUSED = tuple(f"wrong peer: {what}" for what in WRONG_PEERS)
# What follows a fault: whoever launched the run starts it again, a spare takes the place of who is
# gone, or fewer go on.
ENDS, SPARE, FEWER = "started again", "replaced", "fewer go on"
KINDS = {ENDS: (*ENDING, *REFUSED), SPARE: (*REPLACED,), FEWER: (*SHRINKING,)}
LEAST = 2  # processes that go on
