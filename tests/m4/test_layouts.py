"""One run under several meshes and layouts, and moved from one to another half-way.

Dropout and random routing are on; a second run has everything that makes a mixture learn well.
"""

import shutil

import numpy as np
import pytest

from tests.m4.runs import MIXTURES, checkpoint, copied, good, losses, run, steps

pytestmark = pytest.mark.slow

LAYOUTS = {
    "one axis": {"mesh": "all=4", "layout": "group:all, expert:all"},
    "data and experts": {"mesh": "data=2 expert=2", "layout": "group:data+expert, expert:expert"},
    "data and model": {"mesh": "data=2 model=2", "layout": "group:data, heads:model, hidden:model"},
    "three devices": {
        "mesh": "all=3",
        "layout": "group:all, expert:all",
    },  # neither 8 rows nor 8 experts divide
}


@pytest.fixture(scope="module", params=MIXTURES)
def mixture(request):
    """The name of a mixture of experts."""
    return request.param


@pytest.fixture(scope="module")
def flags(mixture):
    """The flags of its training."""
    return {**MIXTURES[mixture], "log_every": 1, "save_every": 5, "steps": 10}


@pytest.fixture(scope="module")
def prepared(mixture, request, tmp_path_factory):
    """A run that has taken no step, whose copies share what is lowered and compiled."""
    folder = copied(
        request.getfixturevalue(mixture), tmp_path_factory.mktemp("layouts") / "prepared"
    )
    for name in ("artifacts", "compiled"):
        shared = folder.with_name(name)
        (folder / name).rename(shared)
        (folder / name).symlink_to(shared)
    return folder


@pytest.fixture(scope="module")
def whole(prepared, flags, tmp_path_factory):
    """Ten steps under each layout, with a checkpoint half-way."""
    folders = {}
    for name, layout in LAYOUTS.items():
        folder = shutil.copytree(prepared, tmp_path_factory.mktemp("whole") / "run", symlinks=True)
        good(run("train", folder, {**flags, **layout}))
        folders[name] = folder
    return folders


def agree(one: list[tuple[int, float]], other: list[tuple[int, float]]) -> None:
    print(
        "largest relative difference",
        max(abs(a / b - 1) for (_, a), (_, b) in zip(one, other, strict=True)),
    )
    assert [step for step, _ in one] == [step for step, _ in other]
    np.testing.assert_allclose([loss for _, loss in one], [loss for _, loss in other], rtol=1e-4)


@pytest.mark.parametrize("name", list(LAYOUTS)[1:])
def test_every_layout_has_the_same_losses(whole, name):
    wanted = losses(whole["one axis"])
    assert [step for step, _ in wanted] == list(range(1, 11)) and wanted[-1][1] < wanted[0][1] - 0.3
    agree(losses(whole[name]), wanted)


def test_three_devices_keep_experts_padded_at_rest(whole):
    sizes = {name: checkpoint(whole[name], 5) for name in ("one axis", "three devices")}
    differ = [
        name
        for name, value in sizes["one axis"].items()
        if sizes["three devices"][name].shape != value.shape
    ]
    assert differ and all(
        8 in sizes["one axis"][name].shape and 9 in sizes["three devices"][name].shape
        for name in differ
    )


@pytest.mark.parametrize(
    "first, second",
    [
        ("one axis", "data and experts"),
        ("data and experts", "data and model"),
        ("data and model", "one axis"),
        ("one axis", "three devices"),
        ("three devices", "data and model"),
    ],
)
def test_a_run_resumes_under_another_layout(whole, flags, tmp_path, first, second):
    folder = shutil.copytree(whole[first], tmp_path / "run", symlinks=True)
    shutil.rmtree(folder / "checkpoints" / "10")
    assert steps(folder) == [5]
    said = good(run("train", folder, {**flags, **LAYOUTS[second]}, blocked=True))
    assert "resuming from step 5\n" in said
    agree(losses(folder), losses(whole["one axis"]))
    made, wanted = checkpoint(folder, 10), checkpoint(whole[second], 10)
    assert {name: value.shape for name, value in made.items()} == {
        name: value.shape for name, value in wanted.items()
    }


def test_resuming_under_the_same_layout_is_exact(whole, flags, tmp_path):
    folder = shutil.copytree(whole["three devices"], tmp_path / "run", symlinks=True)
    shutil.rmtree(folder / "checkpoints" / "10")
    good(run("train", folder, {**flags, **LAYOUTS["three devices"]}, blocked=True))
    assert losses(folder) == losses(whole["three devices"])
    made, wanted = checkpoint(folder, 10), checkpoint(whole["three devices"], 10)
    assert all(made[name].tobytes() == wanted[name].tobytes() for name in wanted)
