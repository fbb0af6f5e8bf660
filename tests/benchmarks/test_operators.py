"""The scaling of operators: costs, exponents and links against formulas, rows and results."""

import json
import math

import numpy as np
import pytest

import namedmesh as nm
from benchmarks import collectives, operators, scaling
from benchmarks.operator_cases import CASES
from benchmarks.scaling import fit_exponent
from benchmarks.torus_links import estimate_link_bytes, slice_of

KEYS = {"operator", "split", "partitions", "flops", "bytes_moved", "memory", "exponent", "paper"}
FLOAT = 4


def exponents(name: str) -> dict[str, float | None]:
    rows = [
        {"partitions": count, **operators.measure_plan(CASES[name], count)}
        for count in (16, 64, 256, 1024)
    ]
    return operators.fit_exponents(rows)


def test_a_power_is_found_and_zero_has_none():
    assert fit_exponent({count: 3 * count**0.5 for count in (16, 64, 512)}) == 0.5
    assert fit_exponent({count: 7.0 for count in (16, 64)}) == 0.0
    assert fit_exponent({count: 0.0 for count in (16, 64)}) is None
    assert fit_exponent({1: 5.0, 8: 900.0, 16: 2.0, 32: 4.0, 64: None}) == 1.0
    assert fit_exponent({16: 2.0}) is None


def test_costs_of_a_product_are_the_formulas():
    """Matmul([A]B,[B]C->[A]C) with a = c = 128 and b = 16 for each of D partitions."""
    for count in (2, 8, 64):
        costs = operators.measure_plan(CASES["matmul_rows_and_sum"], count)
        whole = 16 * count
        assert costs["flops"] == 2 * 128 * whole * 128
        assert costs["bytes_moved"] == (count - 1) * 16 * 128 * FLOAT
        shards = 128 * whole + 16 * 128 + whole * 128 + 128 * 128
        assert costs["memory"] == FLOAT * shards
        assert costs["collectives"] == {"AllGather": 1}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.source == "table"])
def test_exponents_of_the_plan_are_the_papers(name):
    case, found = CASES[name], exponents(name)
    assert found["flops"] == pytest.approx({"O(1)": 0, "O(D)": 1}[case.compute], abs=0.01)
    order, _, kind = case.communication.partition(" ")
    if order == "0":
        assert found["bytes_moved"] is None and found["link_bytes"] is None
        return
    # The bytes that a partition sends in an AllToAll are the same; their ways grow longer.
    sent = {"O(1)": 0, "O(D)": 1, "O(sqrt(D))": 0}[order]
    assert found["bytes_moved"] == pytest.approx(sent, abs=0.02)
    assert set(operators.measure_plan(case, 64)["collectives"]) == {kind}


def test_links_of_square_slices_scale_as_the_paper_says():
    for kind, grows, order in (
        ("AllReduce", False, 0.0),
        ("AllGather", True, 1.0),
        ("AllToAll", False, 0.5),
        ("CollectivePermute", False, 0.0),
    ):
        loads = {
            count: estimate_link_bytes(kind, 1024 * (count if grows else 1), count)
            for count in (32, 128, 512)
        }
        assert fit_exponent(loads) == pytest.approx(order, abs=0.03), kind


def test_the_busiest_link_of_an_exchange_is_that_of_every_message_routed():
    """Every core sends a byte to every other, along the first dimension and then the second."""
    for partitions in (8, 16, 32, 64):
        width, length = slice_of(partitions).shape
        loads = dict.fromkeys(
            [(axis, x, y, step) for axis in (0, 1) for x in range(width) for y in range(length)
             for step in (1, -1)], 0)  # fmt: skip
        chips = [(x, y) for x in range(width) for y in range(length)]
        for x, y in chips:
            for goal_x, goal_y in chips:
                for here in range(x, goal_x, 1 if goal_x > x else -1):
                    loads[0, here, y, 1 if goal_x > x else -1] += 4
                for here in range(y, goal_y, 1 if goal_y > y else -1):
                    loads[1, goal_x, here, 1 if goal_y > y else -1] += 4
        each = estimate_link_bytes("AllToAll", partitions, partitions)
        assert each == pytest.approx(max(loads.values()))


def test_links_of_rings_carry_half_and_those_of_a_chip_nothing():
    """But for AllToAlls, which grew from 512 to 2,048 cores as the paper measured them."""
    assert slice_of(2048).shape == (32, 32) and all(slice_of(2048).rings)
    assert estimate_link_bytes("AllToAll", 1, 2048) == 2 * estimate_link_bytes("AllToAll", 1, 512)
    gathered = {count: estimate_link_bytes("AllGather", 1, count) for count in (512, 2048)}
    assert gathered[2048] / gathered[512] == pytest.approx(0.5, abs=0.01)
    assert estimate_link_bytes("AllReduce", 1024, 2) == 0


@pytest.mark.parametrize("kind", ["rows_and_sum", "rows_and_columns"])
def test_products_in_a_loop_equal_numpy(kind):
    case, count = CASES[f"matmul_{kind}_loop"], 4
    step = nm.compile(case.trace(count), mesh=nm.Mesh(all=count), layout=case.layout, strict=True)
    random = np.random.default_rng(0)
    x, y = (random.standard_normal(spec.sizes, np.float32) for spec in step.artifact.inputs)
    if kind == "rows_and_sum":  # x[p, a, k, b], y[k, b, c]
        expected = np.einsum("pakb,kbc->pac", x, y)
    else:  # x[k, a, b], y[p, b, c]
        expected = np.einsum("kab,pbc->kapc", x, y)
    np.testing.assert_allclose(step(None, x, y)[1], expected, rtol=1e-4, atol=1e-4)
    assert step.audit.exact and step.plan.count("CollectivePermute") == count


@pytest.fixture
def results(tmp_path, monkeypatch):
    for folder in ("RESULTS", "IMAGES"):
        monkeypatch.setattr(scaling, folder, tmp_path)
    return tmp_path


def test_rows_have_the_keys_and_the_command_writes_them(results, monkeypatch, capsys):
    made = {"case": "add", "partitions": 32, "flops": 9.0, "bytes_moved": 0, "memory": 5}
    operators.record({**made, "link_bytes": 0, "target": "tpu-v3:4x4"})
    operators.record({**made, "link_bytes": 0, "target": "tpu-v3:4x4", "flops": 8.0})
    rows = operators.find_rows([1, 16, 32])
    assert all(row.keys() >= KEYS for row in rows)
    assert [row["flops"] for row in rows if row["source"] == "compiler"] == [8.0]
    assert len(rows) == 3 * len(CASES) + 1
    monkeypatch.setattr(operators, "PARTITIONS", (1, 16, 32))
    operators.main(["--json", str(results / "operators.json")])
    assert "| Einsum | `[G]SEC,[G]SM->[E]GCM` | G,E | 0.00 |" in capsys.readouterr().out
    operators.main(["draw"])
    assert (results / "operators.png").exists()


def test_an_operator_or_artifact_that_is_not_there_is_named(tmp_path):
    with pytest.raises(nm.NamedMeshError, match="there is no operator 'ad'"):
        operators.main(["export", str(tmp_path), "ad"])
    with pytest.raises(nm.NamedMeshError, match=r"is not there\n[\s\S]*export .* add"):
        operators.main(["compile", str(tmp_path), "add"])


def test_collectives_are_right_and_timed(results):
    rows = collectives.time_collectives(devices=(4, 8), sizes=(4096,), rounds=1)
    assert len(rows) == 2 * len(collectives.TRACES)
    assert all(row["seconds"] > 0 and row["ratio"] > 0 for row in rows)
    assert {row["bytes"] for row in rows} == {4096, 512}
    assert {row["ratio"] for row in rows if row["partitions"] == 4} == {1.0}
    result = {"rows": [*rows, *collectives.estimate_collectives()]}
    collectives.draw(result)
    assert (results / "collectives.png").exists()
    fits = collectives.fit_rows(result["rows"])
    (exchange,) = (
        row for row in fits if row["collective"] == "AllToAll" and row["bytes"] == 8 * 2**20
    )
    assert exchange["exponent_of_squares"] == 0.5
    assert "| AllToAll | TPU v3 links | 8 MiB |" in collectives.table(fits)


def test_recorded_results_have_every_operator_up_to_2048_partitions():
    rows = json.loads((scaling.RESULTS / "operators.json").read_text())
    assert all(row.keys() >= KEYS for row in rows)
    planned = {(row["case"], row["partitions"]) for row in rows if row["source"] == "plan"}
    assert planned == {(name, count) for name in CASES for count in operators.PARTITIONS}
    compiled = {row["case"] for row in rows if row["source"] == "compiler"}
    assert compiled == set(CASES)
    assert all(math.isfinite(row["memory"]) and row["memory"] > 0 for row in rows)
