"""The data of a page against the plan's own numbers."""

import json
from typing import Any

import pytest

import namedmesh as nm
from namedmesh.ir.op import every_op
from namedmesh.report.page_data import PlanData
from tests.report.models import LAYOUT, small_plan, small_program

PLANS = [LAYOUT, "batch:data+tensor", ""]


@pytest.fixture(params=PLANS)
def plan(request) -> nm.Plan:
    """Plans with and without collectives."""
    return small_plan(request.param)


@pytest.fixture
def data(plan):
    """The data as a page reads it back."""
    return json.loads(json.dumps(PlanData(plan).to_json()))


def place_text(data, number):
    """A place, written as the plan's tables write it."""
    axes = [name for name, _ in data["axes"]]
    dtype, dims, partial = data["places"][number]
    parts = [
        f"{name}={size}" + ("/" + "+".join(axes[i] for i in held) if held else "")
        for name, size, held in dims
    ]
    parts_of_sums = f" parts/{'+'.join(axes[i] for i in partial)}" if partial else ""
    return f"{dtype}[{', '.join(parts)}]{parts_of_sums}"


def line_text(data, place):
    """A line, written as the plan's tables write it."""
    file, line = place
    return f"{data['files'][file]['name']}:{line}"


def test_listed_tensors_are_the_rows_of_the_plan(plan, data):
    tensors, ops, texts = data["tensors"], data["ops"], data["texts"]
    rows = [
        (
            texts[tensors["label"][i]],
            place_text(data, tensors["place"][i]),
            tensors["bytes"][i],
            line_text(data, ops["line"][tensors["op"][i]]),
        )
        for i, listed in enumerate(tensors["listed"])
        if listed
    ]
    expected = [
        (row.tensor, row.place, row.bytes_per_device, str(row.source)) for row in plan.tensor_rows
    ]
    assert rows == expected and len(rows) > 20


def test_padding_and_cotangents_are_the_plans(plan, data):
    every = [tensor for op in every_op(plan.program.ops) for tensor in op.outputs]
    columns = data["tensors"]
    assert {len(column) for column in columns.values()} == {len(every)}
    numbers = {tensor: i for i, tensor in enumerate(every)}
    for i, tensor in enumerate(every):
        if tensor in plan.shardings:
            waste = plan.shardings[tensor].waste(tensor.shape, plan.mesh)
            assert columns["padding"][i] == pytest.approx(waste, abs=1e-4)
        if tensor.primal is not None:  # one that nothing needed is not in the program
            assert columns["primal"][i] == numbers.get(tensor.primal, -1)
    assert any(primal >= 0 for primal in columns["primal"])


def test_ops_are_those_of_the_program_and_its_loops(plan, data):
    every, ops, texts = list(every_op(plan.program.ops)), data["ops"], data["texts"]
    assert [texts[i] for i in ops["kind"]] == [op.kind for op in every]
    assert [data["phases"][i] for i in ops["phase"]] == [op.phase for op in every]
    assert [texts[i] for i in ops["scope"]] == [op.scope.strip("/") for op in every]
    named = [texts[ops["name"][i]] for i, op in enumerate(every) if op in plan.placements.names]
    assert named == [plan.placements.names[op] for op in every if op in plan.placements.names]
    loops = {ops["loop"][i] for i in range(len(every))} - {-1}
    assert {every[i].kind for i in loops} == {"scan"}
    inside = [op for loop in sorted(loops) for body in every[loop].bodies for op in body.ops]
    assert len(inside) == sum(loop >= 0 for loop in ops["loop"])


def test_collectives_add_up_to_the_plans_totals(plan, data):
    columns, phases = data["collectives"], data["phases"]
    rows = range(len(columns["kind"]))
    for number, phase in enumerate(phases):
        inside = [i for i in rows if columns["phase"][i] == number]
        moved = sum(columns["bytes"][i] * columns["times"][i] for i in inside)
        sent = sum(columns["wire"][i] * columns["times"][i] for i in inside)
        assert (moved, sent) == (plan.total_bytes([phase]), plan.total_wire_bytes([phase]))
    for kind in ("AllReduce", "AllGather", "ReduceScatter", "AllToAll"):
        step = phases.index("init")
        of_kind = [i for i in rows if data["texts"][columns["kind"][i]] == kind]
        runs = sum(columns["times"][i] for i in of_kind if columns["phase"][i] != step)
        assert runs == plan.count(kind)


def test_bytes_between_hosts_add_up_to_the_plans_totals():
    plan = nm.plan(small_program(), nm.Mesh(data=2, tensor=4, hosts=4, slices=2), LAYOUT)
    data = PlanData(plan).to_json()
    columns, init = data["collectives"], data["phases"].index("init")
    step = [i for i, phase in enumerate(columns["phase"]) if phase != init]
    host, slice_ = (
        sum(columns[name][i] * columns["times"][i] for i in step) for name in ("host", "slice")
    )
    assert data["blocks"] == {"host": 4, "slice": 2}
    assert (host, slice_) == (plan.total_host_bytes(), plan.total_slice_bytes())
    assert host and slice_ and host != slice_


def test_a_collective_names_its_op_and_its_line(plan, data):
    columns, names = data["collectives"], data["ops"]["name"]
    for i, one in enumerate(plan.collectives):
        assert data["texts"][names[columns["op"][i]]] == one.op
        file, line = columns["line"][i]
        assert data["files"][file]["lines"][line - 1].strip() == one.source.code


def test_moves_end_where_the_plan_says(plan):
    source = PlanData(plan)
    data = source.to_json()
    moves = {}
    for tensor, reader, _kind, _axes, place in data["moves"]:
        moves[tensor, reader] = place_text(data, place)
    expected = {}
    for (op, i), steps in plan.placements.operand_moves.items():
        if steps and op in source.ops:
            tensor = op.inputs[i]
            where = f"{tensor.dtype}{steps[-1].result.text(tensor.shape)}"
            expected[source.tensors[tensor], source.ops[op]] = where
    assert {key: moves[key] for key in expected} == expected


def test_files_that_cannot_be_read_have_no_lines():
    code = "def f(x):\n    return nm.sum(x)\n"
    namespace: dict[str, Any] = {"nm": nm}
    exec(compile(code, "/nowhere/model.py", "exec"), namespace)
    program = nm.trace(namespace["f"], x=nm.spec([nm.Dimension("batch", 8)]))
    files = PlanData(nm.plan(program, nm.Mesh(data=2), "batch:data")).to_json()["files"]
    found = {file["name"]: file["lines"] for file in files}
    assert found["model.py"] == []
    assert any("tests" in name or "nm.trace" in "".join(lines) for name, lines in found.items())
