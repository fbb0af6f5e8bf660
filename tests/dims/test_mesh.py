"""Hosts and slices of a mesh: which devices lie on which, and what is kept of it."""

import itertools
import json

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.dims.hop import list_groups
from namedmesh.records.codec import InvalidRecordError, read_value, write_value

SIZES = [(8,), (2, 4), (4, 2), (3, 4), (2, 3, 4), (6, 2), (1, 8), (4, 1, 6)]


def count_inside(mesh: nm.Mesh, axes: list[str], blocks: int) -> set[int]:
    """How many devices of a group share a block, counted device by device."""
    inside = mesh.devices // blocks
    return {
        count
        for group in list_groups(axes, mesh)
        for count in np.unique(group // inside, return_counts=True)[1].tolist()
    }


@pytest.mark.parametrize("sizes", SIZES)
def test_groups_lie_on_hosts_in_equal_shares_or_the_mesh_is_refused(sizes):
    axes = dict(zip("abc", sizes, strict=False))
    count = int(np.prod(sizes))
    for hosts in range(1, count + 1):
        try:
            mesh = nm.Mesh(**axes, hosts=hosts)
        except nm.NamedMeshError as error:
            plain = nm.Mesh(**axes)
            uneven = count % hosts != 0 or any(
                len(count_inside(plain, [*some], hosts)) > 1
                for n in range(1, len(axes) + 1)
                for some in itertools.combinations(axes, n)
            )
            assert uneven, error
            continue
        for n in range(len(axes) + 1):
            for some in map(list, itertools.combinations(axes, n)):
                assert count_inside(mesh, some, hosts) == {mesh.members_of_block(some, hosts)}


@pytest.mark.parametrize(
    "mesh",
    [
        nm.Mesh(data=2, expert=4, hosts=2),
        nm.Mesh(data=8, expert=4, hosts=8, slices=2),
        nm.Mesh(data=8, slices=4),
        nm.Mesh(device_assignment=[3, 2, 1, 0], data=4, hosts=2),
    ],
)
def test_hosts_are_kept_in_text_and_json(mesh):
    plain = nm.Mesh(mesh.device_assignment, **mesh.axes)
    written = str(mesh).removeprefix("Mesh(").removesuffix(")")
    assert nm.Mesh.parse(written) == nm.Mesh(**mesh.to_json())
    assert mesh != plain and hash(mesh) == hash(nm.Mesh(mesh.device_assignment, **mesh.to_json()))
    assert read_value(json.loads(json.dumps(write_value(mesh))), nm.Mesh) == mesh
    assert read_value(write_value(plain), nm.Mesh) == plain


def test_slices_are_hosts_unless_more_are_given():
    assert nm.Mesh(data=8, slices=2).hosts == 2
    assert nm.Mesh(data=8, slices=2, hosts=4).hosts == 4
    assert str(nm.Mesh(data=8, slices=2, hosts=4)) == "Mesh(data=8, hosts=4, slices=2)"


def document(**changes) -> dict:
    return {"axes": {"data": 8}, "device_assignment": None, "hosts": 1, "slices": 1} | changes


def test_an_axis_of_an_artifact_is_not_called_hosts():
    with pytest.raises(InvalidRecordError) as error:
        read_value(document(axes={"hosts": 4}), nm.Mesh)
    assert error.value.problems == [".axes: hosts is not the name of an axis"]


@pytest.mark.parametrize("hosts", [0, "two", 3, 10**17])
def test_wrong_hosts_of_an_artifact_are_named(hosts):
    with pytest.raises(InvalidRecordError) as error:
        read_value(document(hosts=hosts), nm.Mesh)
    assert len(error.value.problems) == 1
