"""The longest sequences: the model's forms against each other, the search, rows and results."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

import namedmesh as nm
from benchmarks import long_sequence_cases as cases
from benchmarks import long_sequences
from benchmarks.long_sequence_cases import CELLS, Cell
from namedmesh.aot import compilation
from namedmesh.artifacts.artifact import Artifact

ROW = {
    "target": "tpu-v3:2x2", "mesh": "", "cores": 8, "weights": 1, "error": None, "hbm_bytes": 100,
    "memory": None, "collectives_match_plan": True, "collectives": [], "problems": [], "rules": {},
    "compile_seconds": 1.0,
}  # fmt: skip


@pytest.fixture
def small(monkeypatch):
    """The same model, small enough to run."""
    monkeypatch.setattr(cases, "BLOCK", 8)
    for name, size in (("M", 16), ("F", 32), ("K", 4), ("V", 32), ("L", 2), ("S", 8), ("N", 4)):
        monkeypatch.setattr(cases, name, getattr(cases, name).resized(size))


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(long_sequences, "RESULTS", tmp_path)
    return tmp_path


def test_forms_of_attention_train_alike(small):
    tokens = np.random.default_rng(0).integers(0, 32, (1, 64)).astype("int32")
    states = {}
    for form in ("plain", "ring", "ulysses"):
        cell = Cell(form, 8)
        step = nm.compile(cell.trace(64), mesh=cell.mesh, layout=cell.layout, strict=True)
        state, results = step(step.init(1), tokens=tokens, targets=tokens[:, ::-1])
        states[form] = float(results["loss"]), np.asarray(state["adam/wq/first"])
    for form in ("ring", "ulysses"):
        loss, moment = states[form]
        np.testing.assert_allclose(loss, states["plain"][0], rtol=1e-3)
        close = np.abs(moment - states["plain"][1]).max()
        assert close < 0.05 * np.abs(moment).max()  # bfloat16


def test_what_a_core_holds_does_not_grow_with_the_axis():
    """Positions in proportion to the axis: the same estimate; layers by stage likewise."""
    for form, size in (("ring", 65536), ("ulysses", 65536), ("pipeline", 16)):
        found = [
            cases.estimate_bytes(nm.plan(cell.trace(size * axis), cell.mesh, cell.layout))
            for axis in (2, 8)
            for cell in [Cell(form, axis)]
        ]
        assert found[0] == pytest.approx(found[1], rel=0.01), form
    plain, ring = (
        cases.estimate_bytes(nm.plan(cell.trace(65536 * 8), cell.mesh, cell.layout))
        for cell in (CELLS["plain_1"], CELLS["ring_8"])
    )
    assert plain > 5 * ring


def test_sizes_around_the_estimate_divide_into_blocks_and_heads_limit_ulysses():
    cell = CELLS["ring_16"]
    sizes = cell.sizes_to_try(around=1)
    assert len(sizes) == 3 and all(size % (16 * cases.BLOCK) == 0 for size in sizes)
    assert sizes[2] / sizes[1] <= 1.25
    assert "ulysses_8" in CELLS and "ulysses_16" not in CELLS


@pytest.mark.parametrize("limit, compiled", [(450, [4, 6, 5]), (350, [4, 2, 3]), (950, [4, 6, 7])])
def test_the_search_stops_between_what_fits_and_what_does_not(
    limit, compiled, results, monkeypatch
):
    for size in range(1, 8):
        (results / f"ring_8_{size}.nmesh").touch()
    tried = []

    def compile_for(artifact, target, name):
        size = int(name.rpartition("_")[2])
        tried.append(size)
        fits = 100 * size <= limit
        row = {**ROW, "fits": fits, "peak_bytes": 100 * size}
        return SimpleNamespace(fits=fits, row=lambda: row)

    monkeypatch.setattr(compilation, "compile_for", compile_for)
    monkeypatch.setattr(Artifact, "load", staticmethod(lambda path: None))
    long_sequences.find_largest(CELLS["ring_8"], results, "tpu")
    assert tried == compiled
    long_sequences.find_largest(CELLS["ring_8"], results, "tpu")
    assert tried == compiled  # nothing is compiled twice


def test_rows_name_the_largest_that_fits_and_the_next(results, capsys):
    sizes = CELLS["ring_8"].sizes
    for form, axis, size, fits in (
        ("ring", 1, sizes[4] // 8, True),
        ("ring", 8, sizes[4], True),
        ("ring", 8, sizes[3], True),
        ("ring", 8, sizes[5], False),
        ("pipeline", 4, 16, True),
    ):
        cell = Cell(form, axis)
        stated = {"cell": cell.name, "form": form, "axis": axis, "size": size, "fits": fits}
        row = {**ROW, **stated, "layout": cell.layout, "peak_bytes": size}
        long_sequences.record(row, "tpu")
    assert [row["size"] for row in long_sequences.read("tpu")][1:4] == sizes[3:6]
    long_sequences.main(["--json", str(results / "rows.json")])
    one, eight, pipeline = json.loads((results / "rows.json").read_text())
    assert (eight["largest"], eight["too_large"], eight["grows"]) == (sizes[4], sizes[5], 8)
    assert one["too_large"] is None and one["grows"] == 1
    assert pipeline["idle"] == 3 / 19
    assert "| pipeline | 4 | 16 layers | 1.00 |" in capsys.readouterr().out
    long_sequences.main(["draw"])
    assert (results / "tpu.png").exists()


def test_a_cell_or_artifact_that_is_not_there_is_named(tmp_path, results):
    with pytest.raises(nm.NamedMeshError, match="there is no cell 'rin_8'"):
        long_sequences.main(["export", str(tmp_path), "rin_8"])
    with pytest.raises(nm.NamedMeshError, match=r"no step of ring_8\n[\s\S]*export .* ring_8"):
        long_sequences.main(["compile", str(tmp_path), "ring_8"])


def test_recorded_sequences_grow_with_the_axis():
    found = {(row["form"], row["axis"]): row for row in long_sequences.find_rows("cpu")}
    for axis in (2, 4, 8, 16):
        assert found["ring", axis]["largest"] == axis * found["ring", 1]["largest"]
    assert found["ulysses", 8]["largest"] >= 4 * found["ulysses", 2]["largest"]
    assert all(row["too_large"] and row["as_planned"] for row in found.values())
