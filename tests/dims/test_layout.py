"""Layouts and meshes mean the same however they are written."""

import itertools

import pytest

import namedmesh as nm


@pytest.mark.parametrize(
    "rules",
    [
        "group:data+expert, expert:expert",
        "group : data + expert ; expert:expert",
        "group:expert+data,expert:expert,",
        {"group": "data+expert", "expert": "expert"},
        {"group": ["expert", "data"], "expert": ("expert",)},
    ],
)
def test_every_spelling_gives_one_layout(rules):
    layout = nm.Layout(rules)
    assert layout == nm.Layout("group:data+expert, expert:expert")
    assert layout.axes("group") == ("data", "expert"), "the axis that expert shares comes last"
    assert nm.Layout(layout.text) == layout


def test_yaml_text_and_files(tmp_path):
    text = "group: [data, expert]\nexpert: expert\nmodel:\n"
    (tmp_path / "layout.yaml").write_text(text)
    assert nm.Layout.from_yaml(text) == nm.Layout.from_yaml(tmp_path / "layout.yaml")
    assert nm.Layout.from_yaml(text).axes("model") == ()
    assert nm.Layout.from_yaml("").text == ""


def test_restricting_a_layout():
    layout = nm.Layout("group:data, hidden:model")
    assert layout.only(["hidden", "other"]).text == "hidden:model"


def test_meshes_from_text():
    assert nm.Mesh.parse("data=2, expert=4") == nm.Mesh(data=2, expert=4)
    assert nm.Mesh.parse("data:2 expert:4").devices == 8
    assert nm.Mesh(a=2, b=2, device_assignment=[3, 2, 1, 0]) != nm.Mesh(a=2, b=2)


def test_dims_keep_their_order():
    G, S = nm.dims("group=64, seq=128")
    assert [str(dim) for dim in (G, S)] == ["group=64", "seq=128"]
    assert {*itertools.permutations((G, S))} == {(G, S), (S, G)}
