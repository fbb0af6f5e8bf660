"""What a search finds, against every layout there is."""

from __future__ import annotations

import itertools
import math

import pytest

import namedmesh as nm
from namedmesh.jax_internals import find_gpu_compiler
from namedmesh.search.result import find_target
from namedmesh.search.search import search
from tests.search.models import trace_mixture, trace_step, trace_torn

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
FOUR = ({"a": 4}, {"a": 2, "b": 2})


def every_layout(program, meshes, dims, resting):
    """Plans every layout of some dimensions that can be written for some meshes."""
    for axes in meshes:
        mesh = nm.Mesh(None, **axes)
        options = [one for n in range(len(axes) + 1) for one in itertools.permutations(axes, n)]
        for held in itertools.product(options, repeat=len(dims)):
            layout = {name: axes for name, axes in zip(dims, held, strict=True) if axes}
            in_use = {name: layout[name] for name in layout if name in program.resting_dims}
            rests = [{**in_use, name: axes} for name in resting for axes in options[1:]]
            for params in (None, *rests):
                try:
                    yield nm.plan(program, mesh, layout, params)
                except nm.NamedMeshError:
                    continue


@pytest.mark.parametrize("target", ["tpu-v3", "h200", "cpu"])
def test_no_layout_is_better_than_the_front(target):
    program = trace_step()
    found = search(program, 4, target, progress=False, processes=1)
    for plan in every_layout(program, FOUR, ["batch", "hidden", "model"], ["model"]):
        cost = nm.cost(plan, target)
        seconds, size = cost.seconds * (1 + 1e-9), cost.memory.peak_bytes
        assert any(one.seconds <= seconds and one.memory_bytes <= size for one in found.front), plan
        assert found.floor_seconds <= seconds
    assert found.floor_seconds == found.best.seconds and found.gap == 0  # nothing was left open


def test_a_search_says_how_far_its_best_may_be_from_what_none_can_beat():
    program = trace_step()
    few = search(program, 4, "tpu-v3", progress=False, processes=1, plans=2)
    every = search(program, 4, "tpu-v3", progress=False, processes=1)
    assert 0 < few.floor_seconds <= every.best.seconds <= few.best.seconds
    assert every.gap == 0 < few.gap
    assert f"the best is within {few.gap:.1%}" in str(few)


def test_dims_that_are_resharded_into_each_other_share_an_axis():
    program = trace_mixture()
    whole = {"inner": [], "width": [], "token": []}
    found = search(program, 8, "tpu-v3", pin=whole, progress=False, processes=1, axes=1)
    plans = every_layout(program, [{"a": 8}], ["group", "expert"], [])
    fastest = min(nm.cost(plan, "tpu-v3").seconds for plan in plans)
    assert found.best.seconds <= fastest * (1 + 1e-9)
    assert found.best.layout.text == "group:x, expert:x"


def test_entries_take_what_their_plans_take():
    found = search(trace_step(layers=3), 8, "h200", progress=False, processes=1)
    for entry in (found.front[0], found.front[-1]):
        cost = nm.cost(entry.plan(), "h200")
        assert (entry.seconds, entry.least_seconds) == (cost.seconds, cost.least_seconds)
        assert entry.memory_bytes == cost.memory.peak_bytes
        assert entry.wire_bytes == entry.plan().total_wire_bytes()


@pytest.mark.parametrize("make", [trace_step, trace_torn])
def test_every_candidate_is_accounted_for(make):
    found = search(make(), 8, "tpu-v3", progress=False, processes=1)
    assert sum(found.reasons.values()) + len(found.front) == found.enumerated
    assert found.planned <= found.enumerated


def test_a_pinned_part_stays():
    free = search(trace_step(), 8, "tpu-v3", progress=False, processes=1)
    assert all("batch" not in one.layout.rules for one in free.front[:1])
    found = search(trace_step(), 8, "tpu-v3", pin="batch:data", progress=False, processes=1)
    assert found.front
    for one in found.front:
        assert one.layout.axes("batch") == ("data",)
        assert one.mesh.axes["data"] > 1
    assert found.best.seconds > free.best.seconds


def test_a_dimension_can_be_pinned_whole():
    found = search(trace_step(), 4, "tpu-v3", pin={"hidden": []}, progress=False, processes=1)
    assert all(not one.layout.axes("hidden") for one in found.front)


def test_what_fits_only_when_split_is_split():
    program = trace_step(layers=8)
    whole = sum(4 * one.shape.elements for one in program.variables.values())
    free = search(program, 8, "tpu-v3", progress=False, processes=1)
    found = search(program, 8, "tpu-v3", memory=whole // 2, progress=False, processes=1)
    assert found.front
    assert all(one.memory_bytes <= whole // 2 for one in found.front)
    small = [one for one in free.front if one.memory_bytes <= whole // 2]
    assert found.best.seconds == small[0].seconds


def test_nothing_fits():
    found = search(trace_step(), 4, "tpu-v3", memory="1 KiB", progress=False, processes=1)
    assert found.front == ()
    assert "nothing fits" in str(found)
    with pytest.raises(nm.NamedMeshError, match=r"no layout of train on 4 devices fits into 1\.0"):
        _ = found.best


def test_a_function_of_choices():
    found = search(
        lambda remat: trace_step(remat, 8),
        4,
        "tpu-v3",
        pin="batch:data",
        progress=False,
        processes=1,
        remat=["none", "full"],
    )
    alone = [
        search(trace_step(one, 8), 4, "tpu-v3", pin="batch:data", progress=False, processes=1)
        for one in ("none", "full")
    ]
    assert found.best.seconds == min(one.best.seconds for one in alone)
    assert {one.choices["remat"] for one in found.front} <= {"none", "full"}
    assert "remat" in str(found)


def trace_accumulation(microbatches: int) -> nm.Program:
    """A step of a wide layer on 4,096 rows, some of them at a time."""
    rows = nm.Dimension("batch", 4096 // microbatches)
    A, M, H = nm.dims(f"microbatch={microbatches} model=64 hidden=4096")

    def loss_of(total, x):
        wi, wo = nm.param("wi", [M, H]), nm.param("wo", [H, M])
        h = nm.relu(nm.einsum([x, wi], [rows, H]))
        return total + nm.mean(nm.square(nm.einsum([h, wo], [rows, M]) - x)), None

    def step(x):
        loss, _ = nm.scan(loss_of, nm.zeros([]), x, over=A, remat="full")
        grads = nm.grad(loss / A.size)
        for name, weight in nm.parameters().items():
            nm.assign(weight, weight - grads[name])
        return loss

    return nm.trace(step, nm.spec([A, rows, M]))


def test_microbatches_are_chosen_where_memory_asks_for_them():
    def best(memory=None):
        return search(
            trace_accumulation,
            4,
            "tpu-v3",
            pin="batch:data",
            memory=memory,
            axes=1,
            progress=False,
            processes=1,
            microbatches=[1, 2, 8],
        ).best

    fastest = best()
    assert fastest.choices["microbatches"] == 1
    tight = best(fastest.memory_bytes // 3)
    assert tight.choices["microbatches"] == 8
    assert tight.seconds > fastest.seconds


def test_more_candidates_than_plans():
    program = trace_step(layers=2)
    every = search(program, 64, "tpu-v3", progress=False, processes=1, plans=10_000)
    few = search(program, 64, "tpu-v3", progress=False, processes=1, plans=24)
    assert few.planned <= 24 < every.planned
    assert few.reasons["estimated slower, not planned"]
    assert few.best.seconds <= 1.05 * every.best.seconds


def test_the_result_prints_and_goes_to_json():
    found = search(trace_step(), 4, "h200", progress=False, processes=1)
    text, document = str(found), found.to_json()
    assert text.startswith("search of train on 4 devices of h200, 131.3 GiB each: ")
    assert "why not the others" in text and found.best.layout.text in text
    assert document["front"][0]["layout"] == found.best.layout.text
    assert document["front"][0]["verified"] is None
    assert math.isclose(document["front"][0]["seconds"], found.best.seconds)


def test_the_best_is_compiled_and_exact():
    found = search(trace_step(layers=2), 4, "cpu", verify=1, progress=False, processes=1)
    assert found.best.verified is not None
    assert found.best.verified.exact is True
    assert found.best.verified.target == "cpu:4"
    assert found.best.verified.memory_bytes
    assert all(one.verified is None for one in found.front[1:])
    assert "cpu:4: as planned" in str(found)


@pytest.mark.skipif(find_gpu_compiler() is None, reason="XLA's GPU compiler is not here")
def test_the_fastest_are_ranked_again_by_their_schedules():
    found = search(trace_step(layers=2), 8, "h100", verify=3, progress=False, processes=1)
    compiled = [one.verified for one in found.front if one.verified is not None]
    assert len(compiled) == 3 and all(one.exact for one in compiled)
    assert [one.target for one in compiled] == ["h100:1x8"] * 3
    seconds = [one.step_seconds or 0.0 for one in compiled]
    assert all(seconds)
    assert seconds == sorted(seconds) and found.best.verified is compiled[0]
    assert found.floor_seconds <= min(one.seconds for one in found.front)


@pytest.mark.parametrize(
    "hardware, devices, target",
    [
        ("tpu-v3", 8, "tpu-v3:2x2"),
        ("h200", 4, "h200:1x4"),
        ("h200", 24, "h200:3x8"),
        ("gb200:4x18", 72, "gb200:4x18"),
        ("h100", 12, "h100:2x6"),
        ("cpu", 8, "cpu:8"),
    ],
)
def test_what_to_compile_for(hardware, devices, target):
    assert str(find_target(nm.Hardware.parse(hardware), nm.Mesh(all=devices))) == target
