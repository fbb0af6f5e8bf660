"""What crosses hosts, against every message of the algorithms, device by device."""

import itertools
from collections import Counter

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.dims.hop import Hop, list_groups
from namedmesh.dims.sharding import Sharding, conversion
from namedmesh.records.collective import count_wire_bytes
from namedmesh.records.crossing import count_crossing_bytes

MESHES = [
    nm.Mesh(a=2, b=4, hosts=2),
    nm.Mesh(a=2, b=4, hosts=4),
    nm.Mesh(a=4, b=2, hosts=2),
    nm.Mesh(a=2, b=3, c=4, hosts=6),
    nm.Mesh(a=2, b=6, c=2, hosts=4),
    nm.Mesh(a=3, b=2, c=2, hosts=12),
]
SHARD = 24  # bytes of the smallest part that is sent


def ring_messages(members: list[int], held: int) -> Counter:
    """A ring: in every iteration each device hands on what it got last, until all have all."""
    messages: Counter = Counter()
    holding = [{i} for i in range(len(members))]
    last = [i for i in range(len(members))]
    for _ in range(len(members) - 1):
        for i, member in enumerate(members):
            messages[member, members[(i + 1) % len(members)]] += held
        last = [last[i - 1] for i in range(len(members))]
        for i, part in enumerate(last):
            holding[i].add(part)
    assert all(len(parts) == len(members) for parts in holding)
    return messages


def gather_messages(group: list[int], mesh: nm.Mesh) -> tuple[Counter, int]:
    """An AllGather in rings across hosts, then inside; the messages and the bytes of the result."""
    inside = mesh.devices // mesh.hosts
    hosts = [list(some) for _, some in itertools.groupby(group, lambda device: device // inside)]
    messages: Counter = Counter()
    for column in zip(*hosts, strict=True):
        messages += ring_messages([*column], SHARD)
    for members in hosts:
        messages += ring_messages(members, SHARD * len(hosts))
    return messages, SHARD * len(group)


def exchange_messages(group: list[int]) -> tuple[Counter, int]:
    """An AllToAll: a shard from every device to every other."""
    pairs = itertools.permutations(group, 2)
    return Counter(dict.fromkeys(pairs, SHARD)), SHARD * len(group)


def leaving(messages: Counter, mesh: nm.Mesh) -> Counter:
    """The bytes that leave each host."""
    inside = mesh.devices // mesh.hosts
    sent: Counter = Counter()
    for (sender, receiver), size in messages.items():
        if sender // inside != receiver // inside:
            sent[sender // inside] += size
    return sent


def subsets(mesh: nm.Mesh) -> list[tuple[str, ...]]:
    names = list(mesh.axes)
    return [some for n in range(1, len(names) + 1) for some in itertools.combinations(names, n)]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("kind", ["AllGather", "ReduceScatter", "AllReduce", "AllToAll"])
def test_what_leaves_a_host_is_what_its_messages_add_up_to(mesh, kind):
    for axes in subsets(mesh):
        messages: Counter = Counter()
        size = 0
        for group in np.sort(list_groups(axes, mesh)).tolist():
            more, size = (
                exchange_messages(group) if kind == "AllToAll" else gather_messages(group, mesh)
            )
            messages += more
        passes = 2 if kind == "AllReduce" else 1
        found = {passes * leaving(messages, mesh)[host] for host in range(mesh.hosts)}
        assert found == {count_crossing_bytes(kind, size, axes, mesh, mesh.hosts)}
        sent: Counter = Counter()
        for (sender, _), some in messages.items():
            sent[sender] += passes * some
        assert {sent[device] for device in range(mesh.devices)} == {
            count_wire_bytes(kind, size, mesh.size(axes))
        }, "two rings send as much as one"


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_hops_between_hosts_are_counted_pair_by_pair(mesh):
    for axes in subsets(mesh):
        ways = mesh.size(axes)
        for hop in (
            Hop(-1, 1, ways - 1, axes=axes),
            Hop(1, 0, ways - 1, cyclic=True, axes=axes),
            Hop(ways - 1, 0, ways - 1, mirrored=True, axes=axes),
            Hop(axes=axes, sources=tuple(range(ways))),
        ):
            sent = leaving(Counter(dict.fromkeys(hop.pairs(mesh), 7)), mesh)
            most = max(sent.values(), default=0)
            assert most == count_crossing_bytes("CollectivePermute", 7, axes, mesh, mesh.hosts, hop)


def shards(shape: nm.Shape, sharding: Sharding, mesh: nm.Mesh) -> list[frozenset[int]]:
    """The numbers of the elements that each device has."""
    numbers, result = np.arange(shape.elements).reshape(shape.sizes), []
    for place in itertools.product(*map(range, mesh.axes.values())):
        at, shard = dict(zip(mesh.axes, place, strict=True)), numbers
        for i, dim in enumerate(shape):
            index = 0
            for axis in sharding.axes(dim.name):
                index = index * mesh.axes[axis] + at[axis]
            local = dim.size // mesh.size(sharding.axes(dim.name))
            shard = shard.take(range(index * local, (index + 1) * local), axis=i)
        result.append(frozenset(shard.ravel().tolist()))
    return result


@pytest.mark.parametrize("mesh", [nm.Mesh(a=2, b=2, c=2, hosts=2), nm.Mesh(a=2, b=2, c=2, hosts=4)])
def test_exchanged_shards_are_counted_where_they_go(mesh):
    shape = nm.Shape(nm.dims("x=16 y=8"))
    choices = [order for n in range(4) for order in itertools.permutations("abc", n)]
    places = [
        Sharding.of({"x": p, "y": q})
        for p, q in itertools.product(choices, choices)
        if not {*p} & {*q}
    ]
    inside, seen = mesh.devices // mesh.hosts, set()
    for source, target in itertools.product(places, places):
        for step in conversion(shape, mesh, source, target):
            if step.kind != "CollectivePermute":
                continue
            have, want = shards(shape, step.source, mesh), shards(shape, step.result, mesh)
            sent: Counter = Counter()
            for device, shard in enumerate(want):
                owners = [other for other, own in enumerate(have) if own == shard]
                # Of copies, that of the device which differs along the moved axes alone.
                (owner,) = [other for other in owners if _alike(mesh, device, other, step.axes)]
                if owner // inside != device // inside:
                    sent[owner // inside] += 1
            most = max(sent.values(), default=0)
            way = (step.source, step.result)
            axes = tuple(axis for axis in mesh.axes if axis in step.axes)
            found = count_crossing_bytes("CollectivePermute", 1, axes, mesh, mesh.hosts, way)
            assert found == most
            seen.add(found)
    assert len(seen) > 1


def _alike(mesh: nm.Mesh, device: int, other: int, axes: tuple[str, ...]) -> bool:
    sizes = tuple(mesh.axes.values())
    one, two = np.unravel_index(device, sizes), np.unravel_index(other, sizes)
    return all(a == b for axis, a, b in zip(mesh.axes, one, two, strict=True) if axis not in axes)


def test_a_plan_says_what_crosses_hosts_and_slices():
    B, M, H = nm.dims("batch=8 model=16 hidden=32")

    def train(x):
        w = nm.param("w", [M, H])
        loss = nm.mean(nm.square(nm.einsum([x, w], [B, H])))
        nm.assign(w, w - nm.grad(loss, w))

    program = nm.trace(train, x=nm.spec([B, M]))
    mesh = nm.Mesh(data=4, model=2, hosts=4, slices=2)
    plan = nm.plan(program, mesh, "batch:data, hidden:model")
    (gradient,) = [one for one in plan.collectives if one.bytes == 4 * 16 * 16]
    # Each of 4 hosts has a device of both groups, and hands on 2 * 3/4 of each buffer.
    assert gradient.host_bytes == 2 * 2 * 1024 * 3 // 4
    # A slice has two devices of both groups, and each half of the buffer crosses twice.
    assert gradient.slice_bytes == 2 * 2 * 1024 // 2
    artifact = nm.Artifact.from_bytes(
        nm.export(program, mesh, "batch:data, hidden:model").to_bytes()
    )
    assert [(one.host_bytes, one.slice_bytes) for one in artifact.collectives] == [
        (one.host_bytes, one.slice_bytes) for one in plan.collectives
    ]
    inside = nm.plan(program, nm.Mesh(data=4, model=2), "batch:data, hidden:model")
    assert not any(one.host_bytes or one.slice_bytes for one in inside.collectives)
