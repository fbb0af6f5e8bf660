"""A graceful stop: signals are noted, and handlers are put back."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from namedmesh.training import StopRequest, graceful_stop

PROGRAM = """
import time
from namedmesh.training.stopping import graceful_stop
with graceful_stop() as stop:
    print("ready", flush=True)
    steps = 0
    while not stop:
        time.sleep(0.01)
        steps += 1
print(f"saved after {stop.name}", flush=True)
raise SystemExit(stop.exit_status)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_ends_after_its_step(number):
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.stdout.read() == f"saved after {number.name}\n"
    assert process.wait(60) == 128 + number


def test_the_handlers_are_put_back_even_after_an_error():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyError):
        with graceful_stop():
            assert signal.getsignal(signal.SIGTERM) is not before[0]
            raise KeyError
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_the_first_of_several_signals_counts():
    with graceful_stop([signal.SIGUSR1, signal.SIGUSR2]) as stop:
        assert not stop
        os.kill(os.getpid(), signal.SIGUSR2)
        os.kill(os.getpid(), signal.SIGUSR1)
    assert stop and stop.name == "SIGUSR2" and stop.exit_status == 128 + signal.SIGUSR2


def test_a_second_interrupt_does_not_wait_for_the_step():
    with pytest.raises(KeyboardInterrupt):
        with graceful_stop() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.name == "SIGINT"
            os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("it went on")


def test_in_another_thread_nothing_is_noted():
    requests = []

    def work():
        with graceful_stop() as stop:
            requests.append(stop)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(requests) == 1 and not requests[0]


def test_no_signal_is_no_exit_status():
    assert (StopRequest().name, StopRequest().exit_status) == ("", 0)
