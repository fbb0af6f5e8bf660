"""Which devices communicate, in HLO's three notations."""

import numpy as np
import pytest

from namedmesh.audit.hlo.array_types import UnreadableHlo
from namedmesh.audit.hlo.groups import parse_groups, parse_pairs

GRID = np.arange(24).reshape(2, 3, 4)


def rows(array: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, array.tolist()))


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{}", ()),
        ("{{0,1},{2,3}}", ((0, 1), (2, 3))),
        ("{ {0, 2}, {1, 3} }", ((0, 2), (1, 3))),
        ("{{0},{1,2,3}}", ((0,), (1, 2, 3))),
        ("[2,4]<=[8]", rows(np.arange(8).reshape(2, 4))),
        ("[4,2]<=[2,4]T(1,0)", rows(np.arange(8).reshape(2, 4).T)),
        ("[6,4]<=[2,3,4]T(1,0,2)", rows(GRID.transpose(1, 0, 2).reshape(6, 4))),
        ("mesh['a'=2,'b'=3,'c'=4] {'c'}", rows(GRID.reshape(6, 4))),
        ("mesh['a'=2,'b'=3,'c'=4] {'a'}", rows(GRID.transpose(1, 2, 0).reshape(12, 2))),
        ("mesh['a'=2,'b'=3,'c'=4] {'a','c'}", rows(GRID.transpose(1, 0, 2).reshape(3, 8))),
        ("mesh['a'=2,'b'=3,'c'=4] {'c','a'}", rows(GRID.transpose(1, 2, 0).reshape(3, 8))),
        ("mesh['x'=4], device_ids=([2,2]T(1,0)) {'x'}", ((0, 2, 1, 3),)),
        ("mesh['x'=8] {'x':(1)2}", rows(np.arange(8).reshape(2, 4).T)),
        ("mesh['x'=8] {'x':(2)4}", rows(np.arange(8).reshape(2, 4))),
    ],
)
def test_every_notation_is_read(text, groups):
    assert parse_groups(text) == groups


@pytest.mark.parametrize("text", ["", "0,1", "{0,1}", "[2,4]<=[9]", "mesh[] 'a'", "{{0,x}}"])
def test_other_text_is_refused(text):
    with pytest.raises(UnreadableHlo, match="replica_groups="):
        parse_groups(text)


def test_pairs_are_pairs():
    assert parse_pairs("{{0,4},{4,0}}") == ((0, 4), (4, 0))
    with pytest.raises(UnreadableHlo, match="are not pairs"):
        parse_pairs("{{0,4,1}}")
