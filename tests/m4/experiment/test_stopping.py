"""An experiment that is told to stop: its training stops first, and it says how to go on."""

import pathlib
import signal
import subprocess
import sys
import time

import pytest

from tests.m4.runs import ROOT

CODE = """
import pathlib, sys
from unittest import mock
from absl import app
from examples.m4.experiment import __main__ as experiment
out = pathlib.Path(sys.argv[-1].removeprefix("--out="))
child = "import signal, sys, time\\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(open("
child += repr(str(out / "ended")) + ", 'w').write('yes') and 3))\\n"
child += "open(" + repr(str(out / "begun")) + ", 'w').close()\\ntime.sleep(60)\\n"
(out / "child.py").write_text(child)
with mock.patch.object(sys, "executable", str(out / "python")):
    app.run(experiment.main, [sys.argv[0], "run", *sys.argv[1:]])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_training_and_says_how_to_go_on(number, tmp_path: pathlib.Path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{tmp_path}/child.py"\n')
    python.chmod(0o755)
    for cell in ("dense", "moe4"):
        (tmp_path / "cells" / cell).mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, "--preset=tiny", "--grid_experts=4", f"--out={tmp_path}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    until = time.monotonic() + 120
    while not (tmp_path / "begun").exists():
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.1)
    process.send_signal(number)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "stopped; the same command goes on from there" in said and "Traceback" not in said
    assert (tmp_path / "ended").read_text() == "yes"
