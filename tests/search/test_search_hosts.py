"""Searches over hosts: the axis with the least traffic goes across them."""

import itertools

import pytest

import namedmesh as nm
from namedmesh.planning.plan_program import plan_step
from namedmesh.search.bounds import Bounds
from namedmesh.search.candidates import make_candidate
from namedmesh.search.facts import find_facts
from namedmesh.search.space import enumerate_space, find_fitting_orders
from tests.search.models import trace_mixture, trace_step


def trace_large() -> nm.Program:
    """A step of training in which bytes take the time, not latencies."""
    B, M, H = nm.dims("batch=16384 model=4096 hidden=16384")

    def train(x: nm.Tensor) -> None:
        wi, wo = nm.param("wi", [M, H]), nm.param("wo", [H, M])
        h = nm.relu(nm.einsum([x, wi], [B, H]))
        loss = nm.mean(nm.square(x + nm.einsum([h, wo], [B, M])))
        grads = nm.grad(loss)
        for name, weight in nm.parameters().items():
            nm.assign(weight, weight - grads[name] * 0.1)

    return nm.trace(train, nm.spec([B, M]))


@pytest.mark.parametrize(("target", "hosts", "slices"), [("h100", 4, 1), ("tpu-v5e", 1, 2)])
def test_the_axis_across_hosts_is_the_one_that_takes_least_time(target, hosts, slices):
    program, blocks = trace_large(), {"hosts": hosts, "slices": slices}
    found = nm.search(program, 16, target, axes=2, progress=False, processes=1, plans=64, **blocks)
    assert all((one.mesh.hosts, one.mesh.slices) in ((4, 1), (2, 2)) for one in found.front)
    assert any(len(one.mesh.axes) == 2 for one in found.front)
    for one in found.front:
        costs = []
        for order in itertools.permutations(one.mesh.axes.items()):
            try:
                mesh = nm.Mesh(None, **dict(order), **blocks)
            except nm.NamedMeshError:
                continue
            plan = nm.plan(program, mesh, one.layout, one.params)
            costs.append(nm.cost(plan, target).seconds)
        assert one.seconds == pytest.approx(min(costs))
    assert found.best.host_bytes == found.best.plan().total_host_bytes()
    assert "leaves a host" in str(found)
    assert found.best.to_json()["mesh"] == found.best.mesh.to_json()


@pytest.mark.parametrize(
    ("target", "blocks"),
    [("h200", {"hosts": 2}), ("tpu-v3", {"slices": 2}), ("cpu", {"hosts": 4})],
)
@pytest.mark.parametrize("trace", [trace_step, trace_mixture])
def test_no_plan_takes_less_than_its_floors(trace, target, blocks):
    program, hardware = trace(), nm.Hardware.parse(target)
    facts = find_facts(nm.cost(plan_step(program, nm.Mesh(one=1)), target))
    bounds = Bounds(facts, hardware, 8, blocks)
    space = enumerate_space([(facts, bounds)], 8, nm.Layout(""), 3, blocks)
    planned = 0
    for one in range(0, len(space.family), 7):
        family = space.families[space.family[one]]
        candidate = make_candidate(
            facts, family, space.sizes_of(one), nm.Layout(""), blocks, hardware
        )
        try:
            plan = plan_step(program, candidate.mesh, candidate.layout, candidate.params)
        except nm.NamedMeshError:
            continue
        assert nm.cost(plan, hardware).seconds >= space.least_seconds[one] * (1 - 1e-9)
        planned += 1
    assert planned > 3


def test_hosts_change_what_is_best():
    program = trace_large()
    seconds = [
        nm.search(program, 16, "h100", hosts=hosts, progress=False, processes=1, plans=48).best
        for hosts in (1, 8)
    ]
    assert seconds[0].seconds < seconds[1].seconds


@pytest.mark.parametrize("hosts", [1, 2, 3, 4, 6, 12])
def test_orders_fit_where_a_mesh_can_be_made(hosts):
    for sizes in [(12,), (3, 4), (4, 3), (2, 6), (2, 2, 3), (3, 2, 2)]:
        fitting = []
        for order in itertools.permutations(range(len(sizes))):
            try:
                nm.Mesh(None, **{f"axis{i}": sizes[i] for i in order}, hosts=hosts)
                fitting.append(list(order))
            except nm.NamedMeshError:
                pass
        found = find_fitting_orders(sizes, range(len(sizes)), {"hosts": hosts})
        assert list(found) == fitting


def test_hosts_that_do_not_divide_are_refused():
    with pytest.raises(nm.NamedMeshError, match="16 devices do not divide among 3 hosts"):
        nm.search(trace_step(), 16, "h100", hosts=3, progress=False)
