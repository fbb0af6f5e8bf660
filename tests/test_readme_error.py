"""The error the README shows is the error one gets."""

import pytest

import namedmesh as nm
from tests.test_readme import block


def test_the_readme_shows_the_real_message():
    G, S, E, M = nm.dims("group=8 seq=16 expert=8 model=32")

    def model(x):
        wg = nm.param("wg", [M, E])
        gates = nm.softmax(nm.einsum([x, wg], [G, S, E]), over=E)
        return gates

    with pytest.raises(nm.NamedMeshError) as caught:
        nm.plan(nm.trace(model, nm.spec([G, S, M])), nm.Mesh(all=8), "group:all, expert:all")
    line = f"{caught.value.source}:"
    assert (
        str(caught.value).replace(line, "model.py:12:")
        == block("text", "Where operands disagree, that is an error").rstrip()
    )
