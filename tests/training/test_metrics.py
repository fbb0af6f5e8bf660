"""The log of a run: what a resumed run keeps of it, and what a crash leaves behind."""

import json
import struct

import pytest

from namedmesh.training import MetricsLog, read_metrics

ROWS = [{"step": step, "tokens": 100 * step, "loss": 5.0 / step} for step in (1, 2, 3, 4)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def write(path, step: int, rows) -> None:
    metrics = MetricsLog(path, step, path.with_name("summaries"))
    for row in rows:
        metrics.write(row)
    metrics.close()


def test_rows_are_lines_of_json(path):
    write(path, 0, ROWS)
    assert [json.loads(line) for line in path.read_text().splitlines()] == ROWS
    assert read_metrics(path) == ROWS


def test_rows_are_there_before_the_file_is_closed(path):
    metrics = MetricsLog(path, 0, path.with_name("summaries"))
    metrics.write(ROWS[0])
    assert json.loads(path.read_text()) == ROWS[0]
    metrics.close()


def test_a_resumed_run_cuts_rows_beyond_its_step(path):
    write(path, 0, ROWS)
    write(path, 2, [{"step": 3, "loss": 9.0}])
    assert read_metrics(path) == [*ROWS[:2], {"step": 3, "loss": 9.0}]


def test_several_rows_of_the_step_it_resumes_from_are_kept(path):
    write(path, 0, [*ROWS[:2], {"step": 2, "dev_loss": 4.0}, ROWS[2]])
    write(path, 2, [])
    assert read_metrics(path) == [*ROWS[:2], {"step": 2, "dev_loss": 4.0}]


@pytest.mark.parametrize("cut", [1, 10, 25])
def test_a_half_written_last_line_does_not_count(path, cut):
    write(path, 0, ROWS)
    path.write_bytes(path.read_bytes()[:-cut])
    rows = ROWS if cut == 1 else ROWS[:3]  # without its newline alone a row is whole
    assert read_metrics(path) == rows
    write(path, 4, [{"step": 5, "loss": 1.0}])
    assert read_metrics(path) == [*rows, {"step": 5, "loss": 1.0}]


def test_a_run_without_a_log_has_no_rows(path):
    assert read_metrics(path) == []


def test_summaries_hold_the_same_numbers(path):
    events = pytest.importorskip("tensorboardX.proto.event_pb2")
    write(path, 0, ROWS)
    (file,) = path.with_name("summaries").iterdir()
    data, found = file.read_bytes(), []
    while data:  # a record is its length, a checksum of that, the event, and a checksum of it
        (length,) = struct.unpack("<Q", data[:8])
        event, data = events.Event.FromString(data[12 : 12 + length]), data[16 + length :]
        found += [
            (event.step, value.simple_value) for value in event.summary.value if value.tag == "loss"
        ]
    assert found == [(row["step"], pytest.approx(row["loss"])) for row in ROWS]
