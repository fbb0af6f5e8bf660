"""Axes read back from HLO's text of a sharding, which jax writes here."""

import itertools

import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import namedmesh as nm
from namedmesh.artifacts.stablehlo.shardy import read_axes

MESHES = (
    {"x": 8},
    {"x": 2, "y": 4},
    {"x": 4, "y": 2},
    {"x": 2, "y": 2, "z": 2},
    {"x": 2, "y": 1, "z": 3},
    {"x": 1},
)


def assignments(axes: list[str], rank: int):
    """Every way to put some axes, in any order, on dimensions."""
    for count in range(len(axes) + 1):
        for order in itertools.permutations(axes, count):
            for dims in itertools.product(range(rank), repeat=count):
                yield tuple(
                    tuple(axis for axis, dim in zip(order, dims, strict=True) if dim == i)
                    for i in range(rank)
                )


@pytest.mark.parametrize("axes", MESHES, ids=str)
def test_axes_are_read_back(axes):
    mesh = nm.Mesh(**axes)
    abstract = AbstractMesh(tuple(axes.values()), tuple(axes))
    checked = 0
    for rank in (1, 2, 3):
        for on in assignments(list(axes), rank):
            sharding = NamedSharding(abstract, PartitionSpec(*(one or None for one in on)))
            text = str(sharding._to_xla_hlo_sharding(rank))
            several = tuple(tuple(axis for axis in one if axes[axis] > 1) for one in on)
            assert read_axes(text, rank, mesh) == several, text
            checked += 1
    assert checked >= 6


def test_devices_may_be_listed():
    mesh = nm.Mesh(x=2, y=2)
    listed = "{devices=[2,1,2]0,2,1,3 last_tile_dim_replicate}"
    assert read_axes(listed, 2, mesh) == (("y",), ())


@pytest.mark.parametrize(
    "text",
    [
        "{devices=[2,2]<=[4] last_tile_dim_replicate}",  # half of the axis
        "{devices=[4]0,2,1,3}",  # no order of axes
        "{devices=[4,1]<=[4]}",  # of another rank
        "{devices=[8]<=[8]}",  # of another mesh
        "{manual}",
    ],
)
def test_what_is_not_on_whole_axes_is_an_error(text):
    with pytest.raises(nm.NamedMeshError) as raised:
        read_axes(text, 1, nm.Mesh(x=4))
    assert raised.value.problem == f"cannot read the sharding {text} as axes of the mesh"
