"""Progress: a bar on a pseudo-terminal, lines of text in a file."""

import io
import os
import pty
import re
import subprocess
import sys

import pytest

from namedmesh.training import ProgressBar, format_duration, progress, render_table

METRICS = {"loss": 4.3214, "tokens_per_second": 12345.6, "no_room": 0.1234, "other": 1.0}
PROGRAM = """
import sys
from namedmesh.training.progress import ProgressBar
bar = ProgressBar(0, 4)
for step in range(1, 5):
    bar.show(step, {"loss": 4.0 / step, "tokens_per_second": 1000.0})
bar.close()
print("done")
"""


@pytest.fixture
def clock(monkeypatch):
    """Time as the test sets it."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "0:00"),
        (7.4, "0:07"),
        (59.6, "1:00"),
        (187, "3:07"),
        (3599, "59:59"),
        (3720, "1:02:00"),
        (-3, "0:00"),
    ],
)
def test_durations(seconds, text):
    assert format_duration(seconds) == text


def test_a_line_has_the_step_the_metrics_and_the_time_left(clock):
    out = io.StringIO()
    bar = ProgressBar(100, 500, out=out)
    clock[0] += 50.0
    bar.show(200, METRICS)  # 100 steps took 50 s, so that 300 take 150 s
    line = "step 200/500  loss 4.321  12,346 tokens/s  no room 12.3%  ETA 2:30\n"
    assert out.getvalue() == line


def test_metrics_are_shown_by_their_formats(clock):
    out = io.StringIO()
    ProgressBar(0, 10, out=out, formats={"other": "other={:.2f}"}).show(5, METRICS)
    assert out.getvalue() == "step 5/10  other=1.00  ETA 0:00\n"


def test_without_a_terminal_a_line_comes_from_time_to_time_and_at_the_end(clock):
    out = io.StringIO()
    bar = ProgressBar(0, 100, out=out, every=10.0)
    for step in range(1, 101):
        clock[0] += 1.0
        bar.show(step, METRICS)
    bar.close()
    steps = [line.split("/")[0] for line in out.getvalue().splitlines()]
    assert steps == [f"step {step}" for step in (*range(1, 100, 10), 100)]
    assert "\r" not in out.getvalue() and "\x1b" not in out.getvalue()


def test_a_time_limit_is_the_time_left(clock):
    out = io.StringIO()
    bar = ProgressBar(0, 1000, out=out, minutes=1.0)
    clock[0] += 30.0
    bar.show(10, METRICS)
    assert "ETA 0:30" in out.getvalue()


def run_on_terminal(program: str) -> str:
    """What a program writes to a pseudo-terminal."""
    controller, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=terminal, stderr=terminal, env=environment
    )
    os.close(terminal)
    written = b""
    while True:
        try:
            part = os.read(controller, 65536)
        except OSError:  # Linux reports the end of a pseudo-terminal as an error
            part = b""
        if not part:
            break
        written += part
    os.close(controller)
    assert process.wait(60) == 0, written
    return written.decode()


def test_on_a_terminal_a_bar_is_redrawn_in_place():
    text = run_on_terminal(PROGRAM)
    assert "\x1b[2K" in text  # a line is erased to be drawn again
    assert text.count("\n") <= 3  # the bar stays on its line: it ends once, and "done" once
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    drawn = re.findall(r"step (\d)/4  loss ([\d.]+)  1,000 tokens/s  ETA \d+:\d\d", plain)
    assert {step for step, _ in drawn} == {"1", "2", "3", "4"} and drawn[-1] == ("4", "1.000")
    assert "━" in plain
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor is shown again


def test_in_a_pipe_the_same_program_writes_plain_lines():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.stdout == "done\n"
    lines = done.stderr.splitlines()
    assert [line.split("  ")[:2] for line in lines] == [
        ["step 1/4", "loss 4.000"],
        ["step 4/4", "loss 1.000"],
    ]


def test_a_terminal_that_was_shown_nothing_gets_nothing():
    text = run_on_terminal(
        "from namedmesh.training.progress import ProgressBar; ProgressBar(5, 5).close()"
    )
    assert text == ""


def test_tables_are_plain_text_with_aligned_columns():
    rows = [["aa", "9.0"], ["[bold]b[/bold]", "10.0", "note"], ["c"]]
    lines = render_table(["name", "score", "more"], rows, right=["score"], title="T").splitlines()
    assert lines == [
        "T",
        "name            score  more",
        "aa                9.0",
        "[bold]b[/bold]   10.0  note",
        "c",
    ]


def test_wide_tables_are_not_cut():
    lines = render_table(["name", "text"], [["a", "x" * 500]]).splitlines()
    assert lines[1] == "a     " + "x" * 500
