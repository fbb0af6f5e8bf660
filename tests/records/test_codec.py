"""The codec: records to JSON values and back, and every wrong value with its path."""

import json

import pytest

import namedmesh as nm
from namedmesh.dims.hop import Hop
from namedmesh.errors.source import Source
from namedmesh.records.codec import InvalidRecordError, parse_document, read_value, write_value
from namedmesh.records.collective import Collective
from namedmesh.records.tensor import TensorRecord

SUM = Collective(
    *("AllReduce", ("data",), 4, "float32", 16, 3, "y", "sum.2", "forward"),
    Source("model.py", 7, function="step"),
    devices=2,
    hop=Hop(-1, 1, 1, axes=("data",)),
)
TENSOR = TensorRecord("x", "float32[batch=8/data]", 16, 0.25, Source("model.py", 0), "forward", "a")


@pytest.mark.parametrize("record", [SUM, TENSOR])
def test_a_record_survives_json(record):
    again = read_value(json.loads(json.dumps(write_value(record))), type(record))
    assert again == record and again.function == record.function


def test_bytes_on_the_wire_are_written_and_kept_where_they_were_counted():
    written = write_value(SUM)
    assert written["wire_bytes"] == SUM.wire_bytes == 16
    assert read_value(written, Collective).measured_wire_bytes is None
    assert read_value(written | {"wire_bytes": 5}, Collective).wire_bytes == 5


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"axes": "data"}, '[1].axes is "data", expected a list'),
        ({"axes": ["data", 3]}, "[1].axes[1] is 3, expected text"),
        ({"times": -1}, "[1].times is -1, expected a non-negative whole number"),
        ({"times": True}, "[1].times is true, expected a non-negative whole number"),
        ({"open_ended": 1}, "[1].open_ended is 1, expected true or false"),
        ({"hop": 3}, "[1].hop is 3, expected a hop, such as '1-3 from -1 along space'"),
        ({"source": None}, "[1].source is null, expected file:line"),
    ],
)
def test_a_wrong_value_is_named_with_its_path(changes, problem):
    written = json.loads(json.dumps(write_value(SUM)))
    with pytest.raises(InvalidRecordError) as error:
        read_value([written, written | changes], tuple[Collective, ...], "collectives")
    assert error.value.problems == ["collectives" + problem]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, -1.5, "1", None])
def test_numbers_are_finite_and_not_negative(value):
    with pytest.raises(InvalidRecordError):
        read_value(value, float)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "3", '{"format": "other"}', "9" * 5000])
def test_another_format_is_refused(text):
    with pytest.raises(nm.NamedMeshError, match="'file' is not a plan"):
        parse_document(text, "file", "a plan", ("plan", 1), "write it again")


def test_another_version_is_refused():
    with pytest.raises(nm.NamedMeshError, match="reads version 1"):
        parse_document('{"format": "plan", "version": 2}', "file", "a plan", ("plan", 1), "again")
