"""Optimizers against optax, and their slices against separate tensors."""

import functools
from typing import Any

import jax
import numpy as np
import optax
import pytest

import namedmesh as nm
from namedmesh.layers import Adafactor, Adam, Sgd, clip_by_global_norm, inverse_square_root
from tests.layers.updates import FEW, SHAPES, gradients, start_values, traced


def run(program, values, grads):
    """The parameters after each step, and the last metrics."""
    state = {
        name: np.zeros(found.shape.sizes, found.dtype) for name, found in program.variables.items()
    } | values
    history, metrics = [], {}
    for given in grads:
        updates, metrics = program.evaluate(
            state, **{f"d_{name}": value for name, value in given.items()}
        )
        state |= {name: np.asarray(value) for name, value in updates.items()}
        history.append({name: state[name] for name in values})
    return history, metrics


def run_optax(transformation, values, grads):
    """The same with optax."""

    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def step(values, state, given):
        updates, state = transformation.update(given, state, values)
        return optax.apply_updates(values, updates), state

    state = transformation.init(values)
    for given in grads:
        values, state = step(values, state, given)
        yield {name: np.asarray(value) for name, value in values.items()}


def assert_same_history(found, expected, rtol=1e-5, atol=2e-6):
    for number, (got, want) in enumerate(zip(found, expected, strict=True)):
        for name, value in want.items():
            np.testing.assert_allclose(
                got[name], value, rtol=rtol, atol=atol, err_msg=f"{name} at step {number}"
            )


def capped_factored_rms(cap):
    return optax.chain(
        optax.scale_by_factored_rms(
            decay_rate_fn=lambda i, power: jax.numpy.minimum(1.0 - (i + 1.0) ** -power, cap)
        ),
        optax.clip_by_block_rms(1.0),
        optax.scale(-0.1),
        optax.scale_by_param_block_rms(),
    )


PAIRS = {
    "adafactor": (Adafactor(learning_rate=0.1), lambda: optax.adafactor(0.1)),
    "adafactor absolute": (
        Adafactor(learning_rate=0.1, multiply_by_parameter_scale=False),
        lambda: optax.adafactor(0.1, multiply_by_parameter_scale=False),
    ),
    "adafactor unclipped, first moment": (
        Adafactor(learning_rate=0.1, clipping_threshold=None, beta1=0.9),
        lambda: optax.adafactor(0.1, clipping_threshold=None, momentum=0.9),
    ),
    "adafactor other thresholds": (
        Adafactor(
            learning_rate=0.1,
            clipping_threshold=0.5,
            min_dim_size_to_factor=16,
            epsilon=1e-3,
            beta2_exponent=0.5,
        ),
        lambda: optax.adafactor(
            0.1, clipping_threshold=0.5, min_dim_size_to_factor=16, eps=1e-3, decay_rate=0.5
        ),
    ),
    "adafactor capped decay": (
        Adafactor(learning_rate=0.1, beta2=0.5),
        lambda: capped_factored_rms(0.5),
    ),
    "adafactor with the paper's schedule": (
        Adafactor(),
        lambda: optax.adafactor(lambda step: 1.0 / np.sqrt(10_000.0)),
    ),
    "adafactor decaying": (
        Adafactor(learning_rate=inverse_square_root(0.3, after=3)),
        lambda: optax.adafactor(lambda step: 0.3 / jax.numpy.sqrt(jax.numpy.maximum(step, 3.0))),
    ),
    "adam": (Adam(learning_rate=0.1), lambda: optax.adam(0.1)),
    "adam other betas": (
        Adam(learning_rate=0.1, beta1=0.5, beta2=0.9, epsilon=1e-2),
        lambda: optax.adam(0.1, 0.5, 0.9, 1e-2),
    ),
    "adamw": (
        Adam(learning_rate=0.1, weight_decay=0.1),
        lambda: optax.adamw(0.1, weight_decay=0.1),
    ),
    "adamw with a mask": (
        Adam(learning_rate=0.1, weight_decay=0.1, undecayed=["v*", "scal?r"]),
        lambda: optax.adamw(
            0.1,
            weight_decay=0.1,
            mask={name: name not in ("scalar", "vector") for name in FEW},
        ),
    ),
    "sgd": (Sgd(learning_rate=0.1), lambda: optax.sgd(0.1)),
    "momentum": (Sgd(learning_rate=0.1, momentum=0.9), lambda: optax.sgd(0.1, momentum=0.9)),
    "nesterov": (
        Sgd(learning_rate=0.1, momentum=0.9, nesterov=True),
        lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    ),
    "clipped": (
        Sgd(learning_rate=0.1, clip_norm=2.0),
        lambda: optax.chain(optax.clip_by_global_norm(2.0), optax.sgd(0.1)),
    ),
}


EVERY_SHAPE = ("adafactor", "adafactor other thresholds", "adamw", "nesterov")


@pytest.mark.parametrize("label", PAIRS)
def test_ten_steps_are_those_of_optax(label):
    ours, theirs = PAIRS[label]
    shapes = SHAPES if label in EVERY_SHAPE else FEW
    values = start_values(shapes)
    found, metrics = run(traced(ours, shapes), values, gradients(values))
    assert_same_history(found, run_optax(theirs(), values, gradients(values)))
    assert set(metrics) == {"learning_rate"} | ({"grad_norm"} if label == "clipped" else set())


@pytest.mark.parametrize("limit", [1e-3, 1e6])
def test_clipping_is_that_of_optax_in_each_dtype(limit):
    A, B = nm.dims("a=5 b=7")
    rng = np.random.default_rng(0)
    given = {
        "v": rng.normal(size=5).astype(np.float32),
        "w": rng.normal(size=(5, 7)).astype(np.float32),
    }

    def clip(v, w):
        clipped, norm = clip_by_global_norm({"v": v, "w": w}, limit)
        half, _ = clip_by_global_norm({"v": nm.cast(v, "bfloat16"), "w": w}, limit)
        assert {name: grad.dtype for name, grad in half.items()} == {
            "v": "bfloat16",
            "w": "float32",
        }
        return clipped, norm

    clipped, norm = nm.trace(clip, nm.spec([A]), nm.spec([A, B])).evaluate({}, **given)[1]
    expected, _ = optax.clip_by_global_norm(limit).update(given, optax.EmptyState())
    for name, value in untyped(expected).items():
        np.testing.assert_allclose(clipped[name], value, rtol=1e-6)
    np.testing.assert_allclose(norm, optax.global_norm(given), rtol=1e-6)


L, E, M, H = nm.dims("layer=3 expert=2 model=128 hidden=130")


def stacked_step(optimizer):
    """A step on parameters that a scan stacked; gradients are the inputs."""

    def step(d_expert, d_bias, d_gain):
        def body(total, given):
            made = (
                nm.param("expert", [E, M, H]),
                nm.param("bias", [H]),
                nm.param("gain", [], nm.constant_init(0.0)),
            )
            return sum(
                (nm.sum(weight * g) for weight, g in zip(made, given, strict=True)), start=total
            ), None

        total, _ = nm.scan(body, nm.full([], 0.0), (d_expert, d_bias, d_gain), over=L, stack=True)
        return optimizer.apply(nm.grad(total))

    return nm.trace(step, nm.spec([L, E, M, H]), nm.spec([L, H]), nm.spec([L]))


def test_every_slice_of_a_stack_and_of_the_experts_is_a_tensor_of_its_own():
    rng = np.random.default_rng(0)
    sizes = {
        "expert": (L.size, E.size, M.size, H.size),
        "bias": (L.size, H.size),
        "gain": (L.size,),
    }
    values = {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    values["expert"] *= np.array([[1, 10], [0.1, 3], [30, 0.01]], np.float32)[:, :, None, None]
    grads = list(gradients(values, 5))
    program = stacked_step(Adafactor(learning_rate=0.1, beta1=0.9, unfactored=[E]))

    def alone(tree):
        slices = {
            f"expert {i} {j}": tree["expert"][i, j] for i in range(L.size) for j in range(E.size)
        }
        return slices | {
            f"{name} {i}": tree[name][i] for name in ("bias", "gain") for i in range(L.size)
        }

    found, _ = run(program, values, grads)
    expected = run_optax(optax.adafactor(0.1, momentum=0.9), alone(values), map(alone, grads))
    assert_same_history(map(alone, found), expected)


def test_stacked_variables_know_their_stack_and_factored_slots_keep_it():
    program = stacked_step(Adafactor(unfactored=[E]))
    assert {name: found.stack for name, found in program.parameters.items()} == {
        name: ("layer",) for name in ("expert", "bias", "gain")
    }
    assert {
        name: found.shape.names for name, found in program.variables.items() if not found.trainable
    } == {
        "adafactor/step": (),
        "adafactor/expert/row": ("layer", "expert", "model"),
        "adafactor/expert/column": ("layer", "expert", "hidden"),
        "adafactor/bias/second": ("layer", "hidden"),
        "adafactor/gain/second": ("layer",),
    }


def test_two_thousand_experts_are_never_averaged_and_the_update_moves_nothing():
    B, E, M, H = nm.dims("batch=2048 expert=2048 model=1024 hidden=8192")

    def step(x):
        wi = nm.param("wi", [E, M, H])
        wo = nm.param("wo", [E, H, M])
        h = nm.einsum([nm.reshard(x, E), wi], [E, B, H])
        loss = nm.mean(nm.square(nm.einsum([h, wo], [E, B, M])))
        return Adafactor(unfactored=[E]).apply(nm.grad(loss))

    program = nm.trace(step, nm.spec([E, B, M]))
    slots = [
        found
        for name, found in program.variables.items()
        if not found.trainable and found.shape.dims
    ]
    assert len(slots) == 4 and all(
        "expert" in slot.shape.names and len(slot.shape) == 2 for slot in slots
    )
    assert nm.plan(program, nm.Mesh(all=2048), "expert:all").of_phase("update") == []


def test_gradients_in_bfloat16_are_cast():
    A = nm.Dimension("a", 6)
    given = np.linspace(-1, 1, 6, dtype=np.float32)

    def step(g):
        weight = nm.param("w", [A], nm.constant_init(1.0))
        grads = nm.grad(nm.sum(weight * g))
        Adam(learning_rate=0.1, epsilon=1.0).apply({"w": nm.cast(grads["w"], "bfloat16")})

    program = nm.trace(step, nm.spec([A]))
    assert {found.dtype for name, found in program.variables.items() if name != "adam/step"} == {
        "float32"
    }
    updates, _ = program.evaluate(program.initial_state(), g=given)
    rounded = np.asarray(jax.numpy.asarray(given, "bfloat16"), np.float32)
    np.testing.assert_allclose(
        updates["w"], 1.0 - 0.1 * rounded / (np.abs(rounded) + 1.0), rtol=1e-4
    )


def test_parameters_without_a_gradient_stay_and_two_optimizers_share_a_step():
    A = nm.Dimension("a", 4)

    def step():
        u, v, w = (nm.param(name, [A], nm.constant_init(1.0)) for name in "uvw")
        grads = nm.grad(nm.sum(u * v * w))
        Sgd(learning_rate=0.5).apply({"u": grads["u"]})
        Sgd(learning_rate=0.25, name="slow").apply({"v": grads["v"]})

    program = nm.trace(step)
    updates, _ = program.evaluate(program.initial_state())
    means = {name: float(np.mean(value)) for name, value in updates.items()}
    assert means == {"u": 0.5, "v": 0.75, "w": 1.0, "sgd/step": 1, "slow/step": 1}


def untyped(value: Any) -> Any:
    """Hides a wrong value from the type checker."""
    return value


MISTAKES = {
    "two optimizers named sgd are applied in one step": lambda w, g: [
        Sgd(learning_rate=1.0).apply({"w": g}) for _ in range(2)
    ],
    "sgd: ww is not a parameter": lambda w, g: Sgd(learning_rate=1.0).apply({"ww": g}),
    "sgd: parameter w is [a=4], its gradient []": lambda w, g: Sgd(learning_rate=1.0).apply(
        {"w": nm.sum(g)}
    ),
    "sgd: parameter half is bfloat16, in which small updates are lost": lambda w, g: Sgd(
        learning_rate=1.0
    ).apply({"half": nm.param("half", w.shape, dtype="bfloat16")}),
    "adafactor: unfactored='b' is not a dimension of any parameter": lambda w, g: Adafactor(
        unfactored=[nm.Dimension("b", 4)]
    ).apply({"w": g}),
    "Sgd: learning_rate='fast' is not a positive number or a schedule": lambda w, g: Sgd(
        learning_rate=untyped("fast")
    ).apply({"w": g}),
    "sgd: the schedule returned 3, not a floating point scalar": lambda w, g: Sgd(
        learning_rate=untyped(lambda step: 3)
    ).apply({"w": g}),
    "Sgd: clip_norm=0 is not a positive number or None": lambda w, g: Sgd(
        learning_rate=1.0, clip_norm=0
    ).apply({"w": g}),
}


@pytest.mark.parametrize("problem", MISTAKES)
def test_mistakes_are_named(problem):
    def step():
        w = nm.param("w", nm.dims("a=4"))
        MISTAKES[problem](w, nm.grad(nm.sum(w * w))["w"])

    with pytest.raises(nm.NamedMeshError) as caught:
        nm.trace(step)
    assert caught.value.problem == problem
    assert caught.value.fix


def test_a_pattern_that_matches_no_parameter_is_named():
    def step(x):
        loss = nm.sum(nm.param("dense/bias", x.shape) * x)
        return Adam(0.1, weight_decay=0.1, undecayed=["*bais"]).apply(nm.grad(loss))

    with pytest.raises(nm.NamedMeshError, match=r"'\*bais' matches no parameter"):
        nm.trace(step, nm.spec(nm.dims("a=4")))
