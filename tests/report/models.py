"""A small train step with scopes, a loop and all phases, and plans of it."""

import functools
import warnings

import namedmesh as nm
from benchmarks.tpu_v3 import Case, plan_case

B, M, H, L = nm.dims("batch=32 model=16 hidden=64 layer=3")
MESH = nm.Mesh(data=2, tensor=4)
LAYOUT = "batch:data, hidden:tensor"


def train_step(x, target):
    """A stack of layers as a loop, with weights that gradient descent changes."""

    def layer(y, _):
        with nm.scope("ffn"):
            h = nm.relu(nm.einsum([y, nm.param("wi", [M, H])], [B, H]))
            return y + nm.einsum([h, nm.param("wo", [H, M])], [B, M]), None

    with nm.scope("body"):
        y, _ = nm.scan(layer, x, over=L, stack=True, remat="full")
    with nm.scope("head"):
        loss = nm.mean(nm.square(y - target))  # </script><!-- ends no page
    grads = nm.grad(loss)
    for name, weight in nm.parameters().items():
        nm.assign(weight, weight - grads[name] * 0.5)
    return loss


@functools.cache
def small_program() -> nm.Program:
    """The traced step."""
    return nm.trace(train_step, nm.spec([B, M]), nm.spec([B, M]))


@functools.cache
def small_plan(layout: str = LAYOUT) -> nm.Plan:
    """The step on eight devices."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an empty layout leaves every axis unused
        return nm.plan(small_program(), MESH, layout)


@functools.cache
def largest_plan(params: str = "") -> nm.Plan:
    """The paper's model of 600 billion weights on 2,048 devices."""
    return plan_case(Case(2048, 36, mesh="outer=16, inner=128", params=params))


def unusual_plans() -> dict[str, nm.Plan]:
    """Plans that lack something most have: devices, axes, collectives, gradients, a known loop."""
    one, cube = nm.Mesh(only=1), nm.Mesh(x=2, y=2, z=2)
    turned = nm.Mesh([3, 2, 1, 0], data=4)
    rows = nm.Dimension("rows", 10)

    def scalar(x):
        return nm.sum(x) * 2.0

    def loop(x):
        return nm.while_loop(lambda y: nm.max(y) < 9.0, lambda y: y + nm.sum(y, over=B), x)

    def product(x, w):
        return nm.einsum([x, w], [B, H])

    def blur(x):
        return nm.shift(x, rows, 1) + x

    batch = nm.spec([B, M])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some layouts leave axes unused, which the page tells
        return {
            "one device": nm.plan(small_program(), one),
            "nothing split": nm.plan(nm.trace(scalar, batch), cube),
            "three axes": nm.plan(
                nm.trace(product, batch, nm.spec([M, H])), cube, "batch:x, model:y, hidden:z"
            ),
            "a loop of unknown length": nm.plan(nm.trace(loop, batch), turned, "batch:data"),
            "padding and neighbours": nm.plan(
                nm.trace(blur, nm.spec([rows, M])), turned, "rows:data"
            ),
        }
