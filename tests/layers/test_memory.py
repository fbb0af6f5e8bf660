"""What rematerialization saves, as the compiler reports it for a deep train step."""

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import Sgd, Transformer, batch_of, config


def train_step(remat: str, layers: int) -> nm.Program:
    """Many layers, narrow and long, so that activations outweigh weights."""
    chosen = config("tiny").but(
        layers=layers, experts=2, model=16, hidden=32, heads=2, key=8, remat=remat
    )
    model = Transformer(chosen, group=2, source=256, target=256)

    def step(batch, seed):
        loss, _ = model.loss(batch_of(batch), nm.random.key_from_seed(seed))
        Sgd(learning_rate=0.1).apply(nm.grad(loss))
        return loss

    return nm.trace(step, batch=model.specs(), seed=nm.spec([], "int32"))


def examples() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    fill = {
        "": lambda: rng.integers(2, 64, size=(2, 256)),
        "_segments": lambda: 1,
        "_positions": lambda: np.arange(256),
    }
    sides = [
        (f"{side}{what}", make) for side in ("source", "target") for what, make in fill.items()
    ]
    return {name: np.broadcast_to(make(), (2, 256)).astype(np.int32) for name, make in sides}


@pytest.mark.slow
def test_remat_trades_memory_for_work_and_changes_no_loss():
    bytes_of, losses = {}, {}
    for remat in ("none", "dots", "full"):
        options = {"mesh": nm.Mesh(all=2), "layout": "group:all, expert:all", "strict": True}
        step, deeper = (nm.compile(train_step(remat, layers), **options) for layers in (16, 32))
        # What more layers add, since a program has temporaries that do not depend on them.
        bytes_of[remat] = deeper.report.temporary_bytes - step.report.temporary_bytes
        state = step.init(0)
        for i in range(2):
            state, loss = step(state, **examples(), seed=np.int32(i))
        losses[remat] = float(loss)
    assert bytes_of["full"] < bytes_of["dots"] <= bytes_of["none"], bytes_of
    assert bytes_of["full"] <= 0.5 * bytes_of["none"], bytes_of
    assert max(losses.values()) == pytest.approx(min(losses.values()), rel=1e-5), losses
