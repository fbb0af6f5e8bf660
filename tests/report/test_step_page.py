"""The page of a compiled step of JAX, in a browser."""

import namedmesh as nm
from tests.inspect import steps


def test_the_page_of_a_step_of_jax_shows_what_the_step_has(tmp_path, open_page):
    seen = nm.inspect(steps.train, *steps.arguments(steps.make_mesh(data=2, model=4)))
    path = tmp_path / "step.html"
    seen.report(path, target="h100:1x8")
    page = open_page(path)
    head, lines = page.text_content("header.top"), page.text_content("#code")
    assert "train as compiled" in head
    assert "layout" in head
    rows = page.locator("#collectives tbody tr").all_text_contents()
    assert len(rows) == len(seen.collectives)
    for row, one in zip(rows, seen.collectives, strict=True):
        assert one.kind in row
        assert str(one.source) in row
    assert "hidden = jnp.tanh(x @ weights" in lines
    page.click("#program >> text=params['wi']")
    assert "4 different shards" in page.text_content("#tensor")
    assert "no gradient" not in page.text_content("#tensor")
    assert "waits for collectives" in page.text_content("#schedule")
    assert "temporaries" in page.text_content("#memory")
