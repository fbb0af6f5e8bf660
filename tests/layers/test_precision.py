"""bfloat16 activations with float32 weights: what stays float32, the loss, and what is sent."""

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.ir.op import every_op
from namedmesh.layers import Adam, Transformer, batch_of, config
from namedmesh.ops.einsum import Einsum

LAYOUT = "group:all, expert:all"


def train_step(dtype: str, **changes) -> nm.Program:
    model = Transformer(config("tiny").but(dtype=dtype, **changes), group=8, source=16, target=16)

    def step(batch, seed):
        loss, _ = model.loss(batch_of(batch), nm.random.key_from_seed(seed))
        grads = nm.grad(loss)
        Adam(learning_rate=3e-3).apply(grads)
        return loss, grads

    return nm.trace(step, batch=model.specs(), seed=nm.spec([], "int32"))


def examples() -> dict[str, np.ndarray]:
    """One example a row; the target is the source backwards."""
    tokens = np.random.default_rng(0).integers(2, 64, size=(8, 16)).astype(np.int32)
    each = {
        "_segments": np.ones_like(tokens),
        "_positions": np.tile(np.arange(16, dtype=np.int32), (8, 1)),
    }
    batch = {
        f"{side}{what}": array for side in ("source", "target") for what, array in each.items()
    }
    return {"source": tokens, "target": tokens[:, ::-1].copy(), **batch}


def test_weights_slots_and_gradients_are_float32_and_activations_are_not():
    program = train_step("bfloat16")
    assert {name: v.dtype for name, v in program.variables.items() if v.dtype != "float32"} == {
        "adam/step": "int32"
    }
    loss, grads = program.structure
    assert {loss.dtype, *(grad.dtype for grad in grads.values())} == {"float32"}
    forward = [
        op for op in every_op(program.ops) if isinstance(op, Einsum) and op.phase == "forward"
    ]
    wide = {op.output.shape.names for op in forward if op.output.dtype == "float32"}
    assert wide == {("group", "source", "expert"), ("group", "target", "expert")}, (
        "only the router's"
    )
    assert len(forward) > 40


@pytest.mark.parametrize(
    "changes",
    [{}, {"dispatch": "einsum"}, {"router": "expert_choice", "gated": True, "jitter": 0.01}],
)
def test_loss_and_gradients_agree_to_the_accuracy_of_bfloat16(changes):
    wide, half = (train_step(dtype, **changes) for dtype in ("float32", "bfloat16"))
    state = {name: np.asarray(value) for name, value in wide.initial_state(0).items()}
    (wanted, truth), (found, grads) = (
        one.evaluate(state, **examples(), seed=np.int32(1))[1] for one in (wide, half)
    )
    assert float(found) == pytest.approx(float(wanted), rel=0.02)
    assert float(found) != float(wanted)
    whole, other = (
        np.concatenate([np.asarray(of[name]).ravel() for name in truth]) for of in (truth, grads)
    )
    assert np.linalg.norm(other - whole) < 0.1 * np.linalg.norm(whole)


@pytest.mark.parametrize("remat", ["none", "full"])
@pytest.mark.parametrize("dispatch", ["gather", "einsum"])
def test_all_to_alls_send_half_the_bytes(dispatch, remat):
    def sent(dtype: str) -> list[tuple[str, int, int]]:
        plan = nm.plan(train_step(dtype, dispatch=dispatch, remat=remat), nm.Mesh(all=8), LAYOUT)
        return [
            (one.phase, one.times, one.bytes) for one in plan.collectives if one.kind == "AllToAll"
        ]

    wide, half = sent("float32"), sent("bfloat16")
    assert len(wide) == (8 if remat == "none" else 12)
    assert half == [(phase, times, size // 2) for phase, times, size in wide]


@pytest.mark.slow
def test_training_in_bfloat16_goes_as_in_float32():
    ends = {}
    for dtype in ("float32", "bfloat16"):
        step = nm.compile(train_step(dtype), mesh=nm.Mesh(all=8), layout=LAYOUT, strict=True)
        assert step.audit.exact, str(step.audit)
        state, losses = step.init(0), []
        for i in range(30):
            state, (loss, _) = step(state, **examples(), seed=np.int32(i))
            losses.append(float(loss))
        ends[dtype] = losses
        assert {str(state[name].dtype) for name in step.program.parameters} == {"float32"}
    wide, half = (np.array(ends[dtype]) for dtype in ("float32", "bfloat16"))
    assert half[-1] < 0.7 * half[0], ends
    np.testing.assert_allclose(half, wide, rtol=0.05, err_msg=str(ends))
