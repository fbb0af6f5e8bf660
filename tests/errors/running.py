"""The compiled programs that the tables of wrong runs and wrong files misuse, made once."""

import functools

import numpy as np

import namedmesh as nm

B, M, H = nm.dims("batch=8 model=6 hidden=4")
MESH = nm.Mesh(data=4, model=2)
LAYOUT = "batch:data, hidden:model"
X = np.linspace(-1, 1, 48, dtype=np.float32).reshape(8, 6)


def train(x, rate):
    w = nm.param("w", [M, H])
    count = nm.state("count", [], dtype="int32")
    loss = nm.mean(nm.square(nm.einsum([x, w], [B, H])))
    nm.assign(w, w - nm.grad(loss, w) * rate)
    nm.assign(count, count + 1)
    return loss


def total(x):
    return nm.sum(x, over=B), nm.param("v", [M, H]) * 2.0


@functools.cache
def compiled() -> dict[str, nm.Step]:
    """The programs the rows misuse, compiled once."""
    x, rate = nm.spec([B, M]), nm.spec([])
    return {
        "step": nm.compile(train, x, rate, mesh=MESH, layout=LAYOUT),
        "elsewhere": nm.compile(train, x, rate, mesh=nm.Mesh(data=8), layout="batch:data"),
        "other": nm.compile(total, x, mesh=MESH, layout=LAYOUT),
    }


def given() -> dict[str, object]:
    """What a row may ask for by name: programs, a fresh state, an artifact and its file."""
    step = compiled()["step"]
    return {
        **compiled(),
        "state": step.init(0),
        "artifact": step.artifact,
        "contents": step.artifact.to_bytes(),
    }


@functools.cache
def expected() -> float:
    """Returns the loss of a second step from the first state, of an unharmed program."""
    step = compiled()["elsewhere"]
    state, _ = step(step.init(0), X, 0.1)
    return float(step(state, X, 0.1)[1])


def assert_nothing_has_changed(step: nm.Step, state: nm.runtime.State) -> None:
    """A state that a wrong call was given still takes two correct steps."""
    state, _ = step(state, x=X, rate=0.1)
    state, loss = step(state, X, 0.1)
    np.testing.assert_allclose(float(loss), expected(), rtol=1e-6)
    assert int(state["count"]) == 2
