"""Conversions between shardings, compared with a simulation that moves numbered elements."""

import itertools

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.dims.sharding import Sharding, conversion

MESH = nm.Mesh(a=2, b=4)
CHOICES = ((), ("a",), ("b",), ("a", "b"), ("b", "a"))
SHARDINGS = [
    Sharding.of({"x": p, "y": q}) for p, q in itertools.product(CHOICES, CHOICES) if not {*p} & {*q}
]


def shards(shape: nm.Shape, sharding: Sharding) -> list[frozenset[int]]:
    """The numbers of the elements each device has, device by device in mesh order."""
    numbers = np.arange(shape.elements).reshape(shape.sizes)
    result = []
    for place in itertools.product(*(range(size) for size in MESH.axes.values())):
        at = dict(zip(MESH.axes, place, strict=True))
        shard = numbers
        for i, dim in enumerate(shape):
            axes = sharding.axes(dim.name)
            ways, index = MESH.size(axes), 0
            for axis in axes:
                index = index * MESH.axes[axis] + at[axis]
            local = -(-dim.size // ways)
            shard = shard.take(
                range(min(index * local, dim.size), min((index + 1) * local, dim.size)), axis=i
            )
        result.append(frozenset(shard.ravel().tolist()))
    return result


def groups(axes: tuple[str, ...]) -> list[list[int]]:
    """The devices that talk to each other when a collective runs along some axes."""
    numbers = np.arange(MESH.devices).reshape(tuple(MESH.axes.values()))
    inner = [list(MESH.axes).index(axis) for axis in axes]
    outer = [i for i in range(numbers.ndim) if i not in inner]
    return numbers.transpose(outer + inner).reshape(-1, MESH.size(axes)).tolist()


@pytest.mark.parametrize("sizes", ["x=16 y=8", "x=8 y=24", "x=10 y=8", "x=3 y=5", "x=2 y=16"])
def test_every_conversion_arrives_with_one_collective_a_step(sizes):
    shape = nm.Shape(nm.dims(sizes))
    for source, target in itertools.product(SHARDINGS, SHARDINGS):
        steps = conversion(shape, MESH, source, target)
        assert (steps[-1].result if steps else source) == target
        have = shards(shape, source)
        for step in steps:
            want = shards(shape, step.result)
            for group in (
                groups(step.axes)
                if step.kind != "Slice"
                else [[device] for device in range(MESH.devices)]
            ):
                reachable = frozenset().union(*(have[device] for device in group))
                if step.kind == "CollectivePermute":
                    reachable = frozenset().union(*have)
                for device in group:
                    assert want[device] <= reachable, (source, target, step)
            have = want


@pytest.mark.parametrize("sizes", ["x=16 y=8", "x=8 y=4", "x=4 y=4", "x=4 y=8", "x=24 y=4"])
def test_no_step_pads_what_neither_end_pads(sizes):
    """A swap of two axes used to pass through a dimension split into more shards than it has."""
    shape = nm.Shape(nm.dims(sizes))
    even = [place for place in SHARDINGS if not place.waste(shape, MESH)]
    assert len(even) > 5
    for source, target in itertools.product(even, even):
        for step in conversion(shape, MESH, source, target):
            assert not step.result.waste(shape, MESH), (source, target, step)


def test_axes_of_equal_size_are_swapped_in_one_exchange():
    shape, mesh = nm.Shape(nm.dims("x=4 y=4")), nm.Mesh(a=4, b=4)
    (swap,) = conversion(
        shape, mesh, Sharding.of({"x": "a", "y": "b"}), Sharding.of({"x": "b", "y": "a"})
    )
    assert (swap.kind, swap.elements) == ("CollectivePermute", 1)


def test_slices_are_free_and_moves_are_single():
    shape = nm.Shape(nm.dims("x=16 y=8"))
    kinds = lambda p, q: [
        step.kind for step in conversion(shape, MESH, Sharding.of(p), Sharding.of(q))
    ]
    assert kinds({}, {"x": "ab"}) == ["Slice"]
    assert kinds({"x": "ab"}, {"x": "a"}) == ["AllGather"]
    assert kinds({"x": "ab"}, {"x": "a", "y": "b"}) == ["AllToAll"]
    assert kinds({"x": "ab"}, {"x": "b", "y": "a"}) == ["CollectivePermute", "AllToAll"]
    assert kinds({"x": "ab"}, {"y": "ab"}) == ["AllToAll"]
    assert kinds({"x": "a"}, {"x": "a"}) == []


def test_bytes_of_a_move_are_those_of_one_device():
    shape = nm.Shape(nm.dims("x=16 y=8"))
    (gather,) = conversion(shape, MESH, Sharding.of({"x": ("b",)}), Sharding())
    assert gather.elements == 16 * 8
    (move,) = conversion(shape, MESH, Sharding.of({"x": ("b",)}), Sharding.of({"y": ("b",)}))
    assert move.elements == 16 * 8 // 4
    uneven = nm.Shape(nm.dims("x=10 y=5"))
    (gather,) = conversion(uneven, MESH, Sharding.of({"x": ("b",)}), Sharding())
    assert gather.elements == 12 * 5, "the padding of ten over four devices travels too"


def test_waste_is_the_share_of_padding():
    shape = nm.Shape(nm.dims("x=10"))
    assert Sharding.of({"x": ("b",)}).waste(shape, MESH) == pytest.approx(1 - 10 / 12)
    assert Sharding().waste(shape, MESH) == 0
