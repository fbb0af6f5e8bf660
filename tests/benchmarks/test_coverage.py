"""The table of what ops can do: complete, and told from one that lies."""

import jax.numpy as jnp
import numpy as np
import pytest

import namedmesh as nm
from benchmarks.coverage import run
from benchmarks.coverage.catalogue import make_entries
from benchmarks.coverage.entry import COLUMNS, FIRST, SECOND, Entry
from benchmarks.coverage.kit import Kit
from benchmarks.coverage.names import NOT_OPS, public_names, unlisted
from benchmarks.coverage.run import run_op
from benchmarks.coverage.table import kind_of, markdown

NAMES = list(make_entries(Kit()))
SAMPLE = ["maximum", "sort", "bitwise_xor", "random.uniform", "x[dim, tensor]", "floor"]


def failures_of(row):
    return {column: cell for column, cell in row.items() if kind_of(cell) == "failed"}


def test_every_public_name_is_in_the_table_or_known_not_to_be_an_op():
    assert unlisted(NAMES) == []
    assert set(NOT_OPS) <= set(public_names())
    assert not set(NOT_OPS) & {name.split(" ")[0] for name in NAMES}


def test_a_new_public_name_is_noticed():
    assert unlisted(name for name in NAMES if name != "sort") == ["sort"]
    assert unlisted(name for name in NAMES if name != "random.bits") == ["random.bits"]


@pytest.mark.parametrize("name", SAMPLE)
def test_a_row_is_filled(name):
    row = run_op(name, layouts=2, seed=1)
    assert tuple(row) == COLUMNS
    assert failures_of(row) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_filled(name):
    assert failures_of(run_op(name, layouts=6, seed=2)) == {}


def wrong_entry(monkeypatch, named, reference, **options):
    kit = Kit()
    entry = Entry(named, reference, [kit.real(kit.B, kit.R)], own=[kit.R], **options)
    monkeypatch.setattr(run, "make_entry", lambda name, kit: entry)
    return run_op("wrong", layouts=6, seed=0)


def test_a_wrong_value_is_a_failure(monkeypatch):
    row = wrong_entry(monkeypatch, nm.sin, jnp.cos)
    assert set(failures_of(row)) == set(COLUMNS)
    assert "layout 0" in str(row["split batch"])


def test_a_wrong_derivative_is_a_failure_of_that_column(monkeypatch):
    twice = nm.custom_vjp(lambda x: (nm.sin(x), x), lambda x, dy: nm.cos(x) * dy * 2.0)
    row = wrong_entry(monkeypatch, twice, jnp.sin)
    assert {FIRST, SECOND} <= set(failures_of(row))
    assert row["split batch"] == row["uneven"] == "ok"


def test_a_reason_that_is_not_true_is_a_failure(monkeypatch):
    row = wrong_entry(monkeypatch, nm.sin, jnp.sin, reasons={FIRST: "none", SECOND: "none"})
    assert set(failures_of(row)) == {FIRST, SECOND}


def test_odd_sizes_divide_no_axis_and_numbers_are_distinct_in_bfloat16():
    kit = Kit(uneven=True)
    assert all(dim.size % 2 for dim in (kit.B, kit.R, kit.C))
    even = Kit()
    x = Entry(nm.sin, jnp.sin, [even.distinct(even.B, even.R)]).draw(0)["in0"]
    rows = np.asarray(jnp.asarray(x, "bfloat16"), "float32")
    assert all(len(set(row)) == even.R.size for row in rows)


def test_the_page_numbers_reasons():
    row = dict.fromkeys(COLUMNS, "ok") | {FIRST: {"reason": "none"}}
    counts = {"ok": 5, "reason": 1, "failed": 0}
    result = {"ops": ["f"], "cells": {"f": row}, "filled": 1.0, "counts": counts}
    page = markdown(result | {"layouts": 20, "seed": 0, "seconds": 1.0})
    assert "| `f` | ✓ | ✓ | ✓ | – (1) | ✓ | ✓ |" in page
    assert "\n1. none\n" in page
