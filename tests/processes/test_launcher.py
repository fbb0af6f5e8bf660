"""`namedmesh launch`: lines, statuses, signals and restarts of real processes, and no orphans."""

from __future__ import annotations

import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

import pytest

from namedmesh.errors.errors import NamedMeshError
from namedmesh.processes.launched import CHANNEL, tell_launcher
from namedmesh.processes.launcher import Launch, _Services

ROOT = pathlib.Path(__file__).parent.parent.parent
SLEEP = "import time; time.sleep(600)"
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: print("SIGTERM noted", flush=True))
print("ready", flush=True)
if os.environ["JAX_PROCESS_ID"] == "1":
    sys.exit(7)
while True:
    time.sleep(0.05)
"""


def start(*options: str, program: str, arguments: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """The launcher in a process of its own, with a short program."""
    return call(*options, "--", sys.executable, "-S", "-c", program, *arguments)


def call(*words: str) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "namedmesh", "launch", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, list[str], list[str]]:
    """The status of a launcher and the lines it wrote."""
    out, err = process.communicate(timeout=120)
    return process.returncode, out.splitlines(), err.splitlines()


def ended(pid: int, seconds: float = 10.0) -> bool:
    """Whether a process ends within some seconds; one that waits for its parent has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_each_process_knows_its_place_and_its_lines_say_whose_they_are():
    names = "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "NAMEDMESH_DEVICES", "JAX_COORDINATOR_ADDRESS"
    program = f"""
import os, sys
print(*(os.environ[name] for name in {names}))
sys.stderr.write("a warning\\nand no end of line")
"""
    status, out, err = finish(start("-n", "3", "--devices", "2", program=program))
    assert status == 0
    address = out[0].split()[-1]
    assert sorted(out) == [f"[{index}] 3 {index} 2 {address}" for index in range(3)]
    assert address.startswith("127.0.0.1:")
    assert sorted(err) == sorted(
        f"[{index}] {line}" for index in range(3) for line in ("a warning", "and no end of line")
    )


def test_without_devices_the_program_decides(monkeypatch):
    monkeypatch.delenv("NAMEDMESH_DEVICES", raising=False)
    assert "NAMEDMESH_DEVICES" not in Launch(["true"], 2).place(0, 2, 1, "", "")


def test_the_status_is_that_of_the_first_failure_and_the_others_are_ended():
    status, out, err = finish(start("-n", "3", "--grace", "0.5", program=STUBBORN))
    assert status == 7
    assert sorted(out) == [
        "[0] SIGTERM noted",
        "[0] ready",
        "[1] ready",
        "[2] SIGTERM noted",
        "[2] ready",
    ]
    assert err == [
        "[launch] process 1 ended with status 7",
        "[launch] processes still running: 0, 2; SIGTERM sent",
        "[launch] processes still running: 0, 2; SIGKILL sent",
    ]


def test_those_that_stop_by_themselves_get_no_signal():
    program = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: print("SIGTERM noted", flush=True))
if os.environ["JAX_PROCESS_ID"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(1)
sys.exit(3)
"""
    status, out, err = finish(start("-n", "2", "--grace", "20", program=program))
    assert (status, out) == (137, [])
    assert err == ["[launch] process 1 ended with status 137 (SIGKILL)"]


COUNTING = """
import os, pathlib, sys
tries = pathlib.Path(sys.argv[1]) / os.environ["JAX_PROCESS_ID"]
number = len(tries.read_text()) if tries.exists() else 0
tries.write_text("x" * (number + 1))
print(f"try {number}", flush=True)
sys.exit(0 if number == 2 else 5)
"""


def test_all_processes_start_again_until_they_succeed(tmp_path):
    options = "-n", "2", "--restarts", "5", "--grace", "5"
    status, out, err = finish(start(*options, program=COUNTING, arguments=(str(tmp_path),)))
    assert status == 0
    assert sorted(out) == [f"[{index}] try {number}" for index in range(2) for number in range(3)]
    assert [line for line in err if "again" in line] == [
        "[launch] starting again, 1 of 5",
        "[launch] starting again, 2 of 5",
    ]


def test_the_number_of_restarts_is_limited(tmp_path):
    options = "-n", "1", "--restarts", "1"
    status, out, _ = finish(start(*options, program=COUNTING, arguments=(str(tmp_path),)))
    assert status == 5 and out == ["[0] try 0", "[0] try 1"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_passed_on_to_all_and_nothing_starts_again(number):
    program = f"""
import signal, sys, time
def stop(*_):
    print("saved", flush=True)
    sys.exit({128 + number})
signal.signal({int(number)}, stop)
print("ready", flush=True)
time.sleep(600)
"""
    process = start("-n", "3", "--restarts", "9", program=program)
    assert process.stdout is not None
    ready = sorted(process.stdout.readline() for _ in range(3))
    assert ready == [f"[{index}] ready\n" for index in range(3)]
    process.send_signal(number)
    status, out, _ = finish(process)
    assert status == 128 + number
    assert sorted(out) == [f"[{index}] saved" for index in range(3)]


def test_processes_that_have_met_and_do_not_train_are_ended_by_a_signal():
    program = """
import time
from namedmesh.runtime import start_processes
print(start_processes().index, flush=True)
time.sleep(600)
"""
    process = call("-n", "2", "--", sys.executable, "-c", program)
    assert process.stdout is not None
    assert sorted(process.stdout.readline() for _ in range(2)) == ["[0] 0\n", "[1] 1\n"]
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 143


def test_a_second_interrupt_kills():
    program = """
import signal, time
signal.signal(signal.SIGINT, lambda *_: print("noted", flush=True))
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""
    process = start("-n", "1", program=program)
    assert process.stdout is not None and process.stdout.readline() == "[0] ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "[0] noted\n"
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 137


FAMILY = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", {SLEEP!r}])
print(os.getpid(), child.pid, flush=True)
time.sleep(float(sys.argv[1]))
"""


def read_family(process: subprocess.Popen[str], count: int) -> list[int]:
    """The ids of processes and of those they have started."""
    assert process.stdout is not None
    lines = [process.stdout.readline().split() for _ in range(count)]
    return [int(word) for line in lines for word in line[1:]]


def test_what_the_processes_leave_behind_is_killed():
    process = start("-n", "2", program=FAMILY, arguments=("0",))
    family = read_family(process, 2)
    assert process.wait(30) == 0
    assert len(family) == 4 and all(ended(pid) for pid in family)


def test_a_launcher_that_is_killed_leaves_no_orphan():
    process = start("-n", "2", program=FAMILY, arguments=("600",))
    family = read_family(process, 2)
    assert not any(ended(pid, seconds=0.2) for pid in family)
    process.kill()
    assert all(ended(pid) for pid in family)


def test_a_launcher_that_is_killed_while_it_starts_leaves_no_orphan():
    before = set(os.listdir("/proc"))
    for pause in (0.05, 0.1, 0.15, 0.2, 0.25, 0.3):
        process = start("-n", "6", program="import time; marker = 'of a launcher'; time.sleep(600)")
        time.sleep(pause)
        process.kill()
        process.wait()
    time.sleep(0.5)
    fresh = (int(name) for name in set(os.listdir("/proc")) - before if name.isdecimal())
    assert [pid for pid in fresh if b"of a launcher" in command_of(pid) and not ended(pid)] == []


def command_of(pid: int) -> bytes:
    """The command line of a process; empty if it has ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_lines_without_an_end_are_passed_on_before_memory_is_full():
    program = "import sys; sys.stdout.write('x' * 300_000); sys.stdout.flush()"
    status, out, _ = finish(start("-n", "1", program=program))
    assert status == 0 and len(out) > 1
    assert "".join(line.removeprefix("[0] ") for line in out) == "x" * 300_000


def test_processes_are_asked_to_stop_when_nobody_reads_their_lines():
    program = """
import time
while True:
    print("a line", flush=True)
    time.sleep(0.02)
"""
    process = start("-n", "2", program=program)
    assert process.stdout is not None and process.stdout.readline().endswith("a line\n")
    process.stdout.close()
    assert process.wait(30) == 143


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (["-n", "0", "--", "true"], "processes=0"),
        (["-n", "100000", "--", "true"], "processes=100000"),
        (["-n", "2", "--devices", "0", "--", "true"], "devices=0"),
        (["-n", "2", "--restarts", "-1", "--", "true"], "restarts=-1"),
        (["-n", "2", "--grace", "-1", "--", "true"], "grace=-1.0"),
        (["-n", "2", "--grace", "nan", "--", "true"], "grace=nan"),
        (["-n", "2"], "there is no command to launch"),
        (["-n", "2", "--"], "there is no command to launch"),
        (["-n", "2", "--", "no-such-program"], "cannot run 'no-such-program': No such file"),
        (["-n", "2", "--", "/"], "cannot run '/': Permission denied"),
        (
            ["-n", "2", "--spares", "--", "python", "a.py"],
            "--spares and --least do nothing without",
        ),
        (
            ["-n", "2", "--spares", "--restarts", "1", "--", "true"],
            "only Python programs can go on",
        ),
    ],
)
def test_mistakes_are_said_with_a_fix(arguments, problem):
    status, out, err = finish(call(*arguments))
    assert (status, out) == (2, [])
    assert err[0].startswith(f"error: {problem}") and err[-1].startswith("  fix: ")


def test_a_command_is_a_list_of_words():
    with pytest.raises(NamedMeshError, match="no command"):
        Launch("python train.py", 2)


def test_options_of_the_program_are_its_own():
    words = sys.executable, "-S", "-c", "import sys; sys.exit(int(sys.argv[2]))", "-n", "4"
    assert finish(call("-n", "1", *words))[0] == 4


def test_who_is_suspended_is_killed_when_another_has_failed():
    program = """
import os, signal, sys, time
if os.environ["JAX_PROCESS_ID"] == "1":
    time.sleep(0.5)
    sys.exit(7)
os.kill(os.getpid(), signal.SIGSTOP)
"""
    begin = time.monotonic()
    status, _, err = finish(start("-n", "2", "--grace", "30", program=program))
    assert status == 7 and time.monotonic() - begin < 25
    assert any("process 0 was suspended" in line and "SIGKILL sent" in line for line in err)


def test_the_others_are_not_waited_for_when_one_was_killed_and_a_restart_follows(tmp_path):
    program = """
import os, pathlib, signal, sys, time
tries = pathlib.Path(sys.argv[1]) / os.environ["JAX_PROCESS_ID"]
if tries.exists():
    sys.exit(0)
tries.write_text("x")
time.sleep(0.5)
if os.environ["JAX_PROCESS_ID"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
"""
    options = "-n", "3", "--restarts", "1", "--grace", "100"
    begin = time.monotonic()
    status, _, err = finish(start(*options, program=program, arguments=(str(tmp_path),)))
    assert status == 0 and time.monotonic() - begin < 25
    assert err[0] == "[launch] process 1 ended with status 137 (SIGKILL)"


@pytest.mark.slow
def test_a_spare_takes_the_place_of_one_and_the_others_run_again_in_the_same_python(tmp_path):
    program = """
import os, pathlib, signal, sys, time
index = os.environ["JAX_PROCESS_ID"]
print("jax" in sys.modules, index, sys.argv[2:], __name__, os.getpid(), flush=True)
tries = pathlib.Path(sys.argv[1]) / index
if not tries.exists():
    tries.write_text("x")
    time.sleep(1 if index == "1" else 600)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    script = tmp_path / "program.py"
    script.write_text(program)
    options = "-n", "3", "--restarts", "1", "--spares", "--", sys.executable, str(script)
    status, out, err = finish(call(*options, str(tmp_path), "a b"))
    assert status == 0
    told = [line.rpartition(" ") for line in out]
    assert sorted(line for line, _, _ in told) == sorted(
        2 * [f"[{index}] True {index} ['a b'] __main__" for index in range(3)]
    )
    ids = {
        index: {pid for line, _, pid in told if line.startswith(f"[{index}]")} for index in "012"
    }
    assert [len(ids[index]) for index in "012"] == [1, 2, 1]
    lost = "[launch] lost process 1 (status 137 (SIGKILL)); a spare takes its place, 0 more times"
    assert err == [lost]


@pytest.mark.slow
def test_a_program_that_catches_everything_is_left_all_the_same(tmp_path):
    program = f"""
import os, pathlib, signal, sys, time
tries = pathlib.Path({str(tmp_path)!r}) / os.environ["JAX_PROCESS_ID"]
if not tries.exists():
    tries.write_text("x")
    while True:
        try:
            time.sleep(0.2)
            begun = all((tries.parent / one).exists() for one in "012")
            if os.environ["JAX_PROCESS_ID"] == "1" and begun:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600 * begun)
        except BaseException:
            if os.environ["JAX_PROCESS_ID"] == "2":
                raise
if os.environ["JAX_NUM_PROCESSES"] != "1":
    time.sleep(600)
print("again", os.environ["JAX_PROCESS_ID"])
"""
    options = "-n", "3", "--restarts", "3", "--least", "1", "--", sys.executable, "-c", program
    status, out, err = finish(call(*options))
    assert status == 0 and out == ["[0] again 0"]
    assert err == [
        "[launch] lost process 1 (status 137 (SIGKILL)); going on with 2, 2 more times",
        "[launch] process 0 does not go on; SIGKILL sent",
        "[launch] lost process 0 (status 137 (SIGKILL)); going on with 1, 1 more times",
    ]


def test_spares_are_for_python_programs():
    with pytest.raises(NamedMeshError, match="Python programs"):
        Launch(["true"], 2, spares=True)
    for words in (
        ["python", "a.py"],
        ["/usr/bin/python3", "-u", "-m", "a"],
        ["python3.11", "-c", ""],
    ):
        assert Launch(words, 2, restarts=1, spares=True).spares


@pytest.mark.slow
def test_who_notices_and_ends_by_itself_goes_on_too(tmp_path):
    program = """
import os, pathlib, signal, sys, time
index = os.environ["JAX_PROCESS_ID"]
print(index, os.getpid(), flush=True)
tries = pathlib.Path(sys.argv[1]) / index
if not tries.exists():
    tries.write_text("x")
    time.sleep({"0": 600, "1": 2.0, "2": 1.5}[index])
    if index == "2":
        sys.exit("process 1 is gone")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    script = tmp_path / "program.py"
    script.write_text(program)
    options = "-n", "3", "--restarts", "1", "--spares", "--", sys.executable, str(script)
    status, out, err = finish(call(*options, str(tmp_path)))
    assert status == 0, err
    ids = {
        index: {line.split()[2] for line in out if line.startswith(f"[{index}]")} for index in "012"
    }
    assert [len(ids[index]) for index in "012"] == [1, 2, 1]


@pytest.mark.slow
def test_all_start_again_when_the_service_was_killed(tmp_path):
    program = """
import os, pathlib, signal, sys, time
from namedmesh.runtime import start_processes
processes = start_processes()
print("met", processes.index, flush=True)
tries = pathlib.Path(sys.argv[1]) / str(processes.index)
if not tries.exists():
    tries.write_text("x")
    time.sleep(2)
    launcher = os.getppid()
    for name in pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        command = pathlib.Path(f"/proc/{name}/cmdline").read_text()
        if processes.first and "keep_services" in command and "wait_and_run" not in command:
            os.kill(int(name), signal.SIGKILL)
    time.sleep(600)
"""
    options = "-n", "2", "--restarts", "2", "--spares", "--", sys.executable, "-c", program
    status, out, err = finish(call(*options, str(tmp_path)))
    assert status == 0, err
    assert sorted(out) == ["[0] met 0", "[0] met 0", "[1] met 1", "[1] met 1"]


@pytest.mark.slow
def test_others_go_on_when_the_first_has_come_to_its_end():
    program = """
import time
from namedmesh.runtime import start_processes
index = start_processes().index
time.sleep(20 * index)
print("end of", index, flush=True)
"""
    options = "-n", "2", "--restarts", "1", "--spares", "--", sys.executable, "-c", program
    status, out, err = finish(call(*options))
    assert (status, out) == (0, ["[0] end of 0", "[1] end of 1"]), err


def test_what_a_process_starts_does_not_write_to_its_own_files(tmp_path, monkeypatch):
    reader, writer = os.pipe()
    monkeypatch.setenv(CHANNEL, f"{writer}:{os.fstat(writer).st_ino}")
    tell_launcher(step=3)
    assert os.read(reader, 100) == b'{"step": 3}\n'
    with open(tmp_path / "file", "wb") as file:
        os.dup2(file.fileno(), writer)  # another file has the number now
        tell_launcher(step=4)
    assert (tmp_path / "file").read_bytes() == b""
    os.close(reader)
    os.close(writer)


def test_the_service_starts_where_many_files_are_open():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= before[1] < 1500:
        pytest.skip("the machine allows too few files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1500, before[1]))
    with open(os.devnull) as file:
        copies = [os.dup(file.fileno()) for _ in range(1100)]  # select takes numbers below 1024
    try:
        with _Services() as services:
            assert services.start(1).startswith("127.0.0.1:")
    finally:
        for one in copies:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
