"""Space split over devices: a U-Net and a ResNet equal to one device, with halos by the formula."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

import namedmesh as nm
from examples.unet.cells import make_batch
from examples.unet.model import UNet
from namedmesh.layers import binary_cross_entropy, weighted_mean
from namedmesh.runtime import Executable
from tests.checks import assert_same, uniform
from tests.examples.by_jax import resnet_loss, unet_loss
from tests.examples.halos import Convolution, halve, pooling_sent, resizing_sent, same
from tests.examples.resnet import ResNet

UNET = UNet(batch=4, rows=16, columns=16, width=4, levels=2, groups=2)
RESNET = ResNet()
# a mesh, a layout, and the rows, columns and levels where they differ
LAYOUTS: dict[str, tuple[nm.Mesh, str, dict[str, int]]] = {
    "rows": (nm.Mesh(space=4), "rows:space", {"levels": 3}),
    "rows and columns": (nm.Mesh(a=2, b=4), "rows:a, columns:b", {}),
    "batch and rows": (nm.Mesh(data=2, space=4), "batch:data, rows:space", {}),
    "channels": (nm.Mesh(model=2), "hidden:model", {}),
    "channels and rows": (nm.Mesh(model=2, space=2), "hidden:model, rows:space", {}),
    "20 rows in eight": (nm.Mesh(space=8), "rows:space", {"rows": 20}),
    "20 rows in three": (nm.Mesh(space=3), "rows:space", {"rows": 20, "levels": 3}),
    "13 x 20 in three and two": (
        nm.Mesh(a=3, b=2), "rows:a, columns:b", {"rows": 13, "columns": 20}
    ),
}  # fmt: skip
PARTITIONERS = ("gspmd", "shardy")
FAST = (
    ("unet", "rows and columns"), ("unet", "channels and rows"),
    ("resnet", "batch and rows"), ("resnet", "20 rows in three"),
)  # fmt: skip


def make_model(kind: str, sizes: dict[str, int]) -> Any:
    if kind == "unet":
        return dataclasses.replace(UNET, **sizes)
    sizes = {name: size * 2 for name, size in sizes.items() if name != "levels"}
    return dataclasses.replace(RESNET, **{"rows": 32, "columns": 32} | sizes)


def trace(model: Any) -> nm.Program:
    """The loss, and what one step of descent makes of every weight."""

    def step(**inputs):
        if isinstance(model, UNet):
            scores = model(inputs["image"])
            loss = weighted_mean(binary_cross_entropy(scores, inputs["truth"]), inputs["weight"])
        else:
            loss = model.loss(**inputs)
        grads = nm.grad(loss)
        for name, weight in nm.parameters().items():
            nm.assign(weight, weight - grads[name] * 0.1)
        return {"loss": loss, **{f"d_{name}": grad for name, grad in grads.items()}}

    return nm.trace(step, **model.specs())


def make_inputs(model: Any) -> dict[str, np.ndarray]:
    if isinstance(model, UNet):
        return make_batch(5, model.batch, model.rows, model.columns)
    image = uniform(6, model.batch, model.rows, model.columns, 3)
    return {"image": image, "label": np.arange(model.batch, dtype=np.int32) % model.classes}


@dataclasses.dataclass(frozen=True)
class OneDevice:
    """A program, its weights and inputs, and what one device makes of them."""

    model: Any
    program: nm.Program
    state: dict[str, np.ndarray]
    inputs: dict[str, np.ndarray]
    results: dict[str, Any]


@cache
def run_on_one_device(kind: str, sizes: tuple[tuple[str, int], ...]) -> OneDevice:
    model = make_model(kind, dict(sizes))
    program, inputs = trace(model), make_inputs(model)
    state = {name: np.asarray(value) for name, value in program.initial_state(3).items()}
    updated, results = program.evaluate(state, **inputs)
    return OneDevice(model, program, state, inputs, {**results, **updated})


def of(kind: str, layout: str) -> OneDevice:
    return run_on_one_device(kind, tuple(sorted(LAYOUTS[layout][2].items())))


def assert_near(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Equal to 1e-5 of the largest number in each, and of the largest gradient in gradients.

    Those before a norm are small differences of such numbers.
    """
    scale = {name: np.abs(np.asarray(value)).max() for name, value in wanted.items()}
    steepest = max(size for name, size in scale.items() if name.startswith("d_"))
    scale = {
        name: steepest if name.startswith("d_") else max(size, 1e-3) for name, size in scale.items()
    }
    assert_same(
        {name: np.asarray(found[name]) / scale[name] for name in wanted},
        {name: np.asarray(value) / scale[name] for name, value in wanted.items()},
        rtol=0, atol=1e-5,
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*is padded to")
@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        pytest.param(kind, layout, marks=[] if (kind, layout) in FAST else pytest.mark.slow)
        for kind in ("unet", "resnet")
        for layout in LAYOUTS
    ],
)
def test_equal_to_one_device_under_both_partitioners(kind, layout):
    one, (mesh, places, _) = of(kind, layout), LAYOUTS[layout]
    artifact = nm.export(one.program, mesh, places)
    for partitioner in PARTITIONERS:
        step = Executable(artifact, strict=True, partitioner=partitioner)
        assert step.audit.exact, f"{partitioner}: {step.audit}"
        state, results = step(step.place(one.state), **one.inputs)
        assert_near({**results, **{name: state[name] for name in step.variables}}, one.results)


@pytest.mark.parametrize("kind", ["unet", "resnet"])
def test_equal_to_jax(kind):
    one = of(kind, "20 rows in three")
    widen = lambda array: array.astype(np.float64) if array.dtype == np.float32 else array
    weights = {name: widen(one.state[name]) for name in one.program.parameters}
    inputs = {name: widen(array) for name, array in one.inputs.items()}
    if kind == "unet":
        loss = lambda weights: unet_loss(weights, one.model.levels, one.model.groups, **inputs)
    else:
        loss = lambda weights: resnet_loss(weights, **inputs)
    with jax.enable_x64(True):
        value, grads = jax.value_and_grad(loss)(weights)
    wanted = {"loss": value, **{f"d_{name}": grad for name, grad in grads.items()}}
    assert_near({name: one.results[name] for name in wanted}, wanted)


def convolutions_of(model: Any) -> list[Convolution]:
    """Every convolution of a model, listed from its sizes alone."""
    if isinstance(model, UNet):
        found = []
        down = [(level, 1 if level == 0 else model.width << level - 1)
                for level in range(model.levels)]  # fmt: skip
        up = [(level, (model.width << level) * 3) for level in range(model.levels - 1)]
        for level, before in down + up:
            sizes = halve(model.rows, level), halve(model.columns, level), 3, 1
            width, name = model.width << level, "colours" if before == 1 else "features"
            inside = ("hidden", width)
            found.append(Convolution(*sizes, (name, before), inside, first=before == 1))
            found.append(Convolution(*sizes, inside, ("features", width)))
        return found
    sizes = [(halve(model.rows, times), halve(model.columns, times)) for times in range(3)]
    narrow, wide = model.width, 2 * model.width
    return [
        Convolution(*sizes[0], 5, 2, ("colours", 3), ("features", narrow), first=True),
        Convolution(*sizes[1], 3, 1, ("features", narrow), ("hidden", narrow)),
        Convolution(*sizes[1], 3, 1, ("hidden", narrow), ("features", narrow)),
        Convolution(*sizes[1], 3, 2, ("features", narrow), ("hidden", wide)),
        Convolution(*sizes[2], 3, 1, ("hidden", wide), ("features", wide)),
        Convolution(*sizes[1], 1, 2, ("before", narrow), ("features", wide)),
    ]


def expected_bytes(model: Any, ways: dict[str, int]) -> int:
    """What neighbours send in a step, in bytes per device."""
    total = sum(one.sent(model.batch, ways) for one in convolutions_of(model))
    if isinstance(model, UNet):
        images = -(-model.batch // ways.get("batch", 1))
        for level in range(model.levels - 1):
            sizes = [
                (name, halve(size, level + 1), halve(size, level))
                for name, size in (("rows", model.rows), ("columns", model.columns))
            ]
            (_, _, rows), (_, _, columns) = sizes
            total += pooling_sent(rows, columns, images * (model.width << level), ways)
            total += resizing_sent(sizes, images * (model.width << level + 1), ways)
    return 4 * total


@pytest.mark.filterwarnings("ignore:.*is padded to")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["unet", "resnet"])
def test_halos_have_the_bytes_of_the_formula_and_no_activation_is_gathered(kind, layout):
    mesh, places, sizes = LAYOUTS[layout]
    model = make_model(kind, sizes)
    plan = nm.plan(trace(model), mesh, places)
    ways = {
        name: mesh.axes[axis] for name, axis in (pair.split(":") for pair in places.split(", "))
    }
    permutes = [one for one in plan.collectives if one.kind == "CollectivePermute"]
    assert sum(one.total_bytes for one in permutes) == expected_bytes(model, ways)
    assert {one.kind for one in plan.collectives} <= {"CollectivePermute", "AllReduce"}


@pytest.mark.parametrize(("window", "stride"), [(3, 1), (5, 1), (3, 2), (5, 2), (7, 2), (2, 2)])
def test_the_enumeration_is_the_formula_of_the_paper(window, stride):
    """Where sizes divide, windows reach `low` rows before a shard and the rest after it."""
    along = same(32, window, stride)
    low = (window - stride) // 2
    halos = [low, window - stride - low]
    assert sorted(along.halos(4)) == sorted(rows for rows in halos if rows)
    assert len(along.reads(4)[0]) == (8 // stride - 1) * stride + window
