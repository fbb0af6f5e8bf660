"""The error the README shows is the error one gets."""

import pytest

import namedmesh as nm
from tests.test_readme import block


def test_the_readme_shows_the_real_message():
    G, S, E, M, C = nm.dims("group=8 seq=16 expert=8 model=32 capacity=4")

    def model(x, combine):
        sent = nm.reshard(nm.einsum([combine, x], [E, G, C, M]), E)
        y = nm.einsum([combine, sent], [G, S, M])
        return y

    program = nm.trace(model, nm.spec([G, S, M]), nm.spec([G, S, E, C], whole=[E]))
    with pytest.raises(nm.LayoutConflict) as caught:
        nm.plan(program, nm.Mesh(all=8), "group:all, expert:all")
    line = f"{caught.value.source}:"
    assert (
        str(caught.value).replace(line, "model.py:12:")
        == block("text", "line and every fix, the cheapest first:").rstrip()
    )
