"""The line that training shows."""

import io

import pytest

from examples.m4 import progress
from examples.m4.progress import Progress, duration

METRICS = {"loss": 4.3214, "tokens_per_second": 12345.6, "dropped": 0.1234}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


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
def test_durations_are_said_as_people_say_them(seconds, text):
    assert duration(seconds) == text


def test_a_line_has_step_loss_speed_dropped_share_and_time_left(clock):
    out = io.StringIO()
    shown = Progress(100, 500, out)
    clock[0] += 50.0
    shown.show(200, METRICS)  # 100 steps took 50 s, so that 300 take 150 s
    assert (
        out.getvalue()
        == f"{'█' * 9}{'░' * 15} step 200/500  loss 4.321  12,346 tokens/s  dropped 12.3%  ETA 2:30\n"
    )


def test_a_dense_model_drops_nothing(clock):
    out = io.StringIO()
    Progress(0, 10, out).show(5, {"loss": 1.0, "tokens_per_second": 10.0})
    assert "dropped" not in out.getvalue() and "loss 1.000" in out.getvalue()


def test_elsewhere_than_on_a_terminal_a_line_comes_now_and_then_and_at_the_end(clock):
    out = io.StringIO()
    shown = Progress(0, 100, out, every=10.0)
    for step in range(1, 101):
        clock[0] += 1.0
        shown.show(step, METRICS)
    shown.end()
    lines = out.getvalue().splitlines()
    assert [line.split("step ")[1].split("/")[0] for line in lines] == [
        *map(str, range(1, 100, 10)),
        "100",
    ]
    assert "\r" not in out.getvalue()


def test_on_a_terminal_one_line_renews_itself(clock):
    out = Terminal()
    shown = Progress(0, 3, out)
    for step in (1, 2, 3):
        clock[0] += 1.0
        shown.show(step, METRICS)
    shown.end()
    assert out.getvalue().count("\r") == 3
    assert out.getvalue().count("\n") == 1 and out.getvalue().endswith("\n")


def test_a_terminal_that_was_shown_nothing_gets_no_line(clock):
    out = Terminal()
    Progress(5, 5, out).end()
    assert out.getvalue() == ""


def test_a_limit_in_minutes_is_what_is_left(clock):
    out = io.StringIO()
    shown = Progress(0, 1000, out, minutes=1.0)
    clock[0] += 30.0
    shown.show(10, METRICS)
    assert "ETA 0:30" in out.getvalue() and out.getvalue().count("█") == 12
