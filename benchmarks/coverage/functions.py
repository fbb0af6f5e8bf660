"""Functions of functions: control flow, transforms, regions, and functions of TensorFlow."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import namedmesh as nm
from benchmarks.coverage.entry import FIRST, SECOND, Entry
from benchmarks.coverage.kit import Kit

ITERATIONS = (
    "the number of iterations is known only when the step runs, so nothing can be stored for it"
)


def entries(kit: Kit) -> dict[str, Entry]:
    """Control flow and transforms; their own dimension is that which the function works along."""
    return _control(kit) | _transforms(kit)


def _control(kit: Kit) -> dict[str, Entry]:
    B, R, C = kit.B, kit.R, kit.C
    stage, micro = kit.dim("stage", 4, 3), kit.dim("micro", 8, 5)
    real, row = kit.real(B, R, C), kit.real(B, C)

    def choose(x, y):
        return nm.cond(nm.mean(y) > 0.0, lambda: nm.softmax(x, over=R), lambda: nm.cumsum(x, R))

    def chosen(x, y):
        return jnp.where(jnp.mean(y) > 0, jax.nn.softmax(x, 1), jnp.cumsum(x, 1))

    def double(x):
        return nm.while_loop(lambda x: nm.max(nm.absolute(x)) < 50.0, lambda x: x * 2.0, x)

    def doubled(x):
        return jax.lax.while_loop(lambda x: jnp.max(jnp.abs(x)) < 50, lambda x: x * 2, x)

    def body(carry, x):
        following = nm.tanh(carry * 0.5 + x)
        return following, following * x

    def jax_body(carry, x):
        following = jnp.tanh(carry * 0.5 + x)
        return following, following * x

    def scanned(start, x, **options):
        last, rows = jax.lax.scan(jax_body, start, jnp.moveaxis(x, 1, 0), **options)
        return last, rows

    def pair(first, second):
        (a, b), (c, d) = first, second
        return a * c, b * c + d

    def states(a, b):
        found, h = [], jnp.zeros_like(b[:, 0])
        for i in range(R.size):
            h = a[:, i] * h + b[:, i]
            found.append(h)
        return jnp.stack(found, 1)

    def stages(x):
        step = lambda x: nm.tanh(x * nm.param("w", [C], dtype=kit.dtype))
        return nm.pipeline(step, x, stages=stage, batches=micro)

    def staged(x, weights):
        for i in range(stage.size):
            x = jnp.tanh(x * weights["w"][i])
        return x

    return {
        "cond": Entry(choose, chosen, [real, row], [R], roundings=8),
        "switch": Entry(
            lambda i, x: nm.switch(i, [nm.sin, lambda x: nm.cumsum(x, R), nm.cos], x),
            lambda i, x: jax.lax.switch(i, [jnp.sin, lambda x: jnp.cumsum(x, 1), jnp.cos], x),
            [kit.whole(low=-1, below=4), real],
            [R],
            roundings=8,
        ),
        "map": Entry(
            lambda x: nm.map(lambda x: nm.softmax(x, over=C), x, over=R),
            lambda x: jnp.moveaxis(jax.nn.softmax(x, 2), 1, 0),
            [real],
            [R],
        ),
        "while_loop": Entry(
            double, doubled, [real], [B, R], {FIRST: ITERATIONS, SECOND: ITERATIONS}
        ),
        "scan": Entry(
            lambda start, x: nm.scan(body, start, x, over=R),
            scanned,
            [row, real],
            [R],
            roundings=8,
        ),
        "scan (reverse, remat)": Entry(
            lambda start, x: nm.scan(body, start, x, over=R, reverse=True, remat="full"),
            lambda start, x: scanned(start, x, reverse=True),
            [row, real],
            [R],
            roundings=8,
        ),
        "associative_scan": Entry(
            lambda a, b: nm.associative_scan(pair, (a, b), R)[1],
            states,
            [kit.unit(B, R, C), real],
            [R],
            roundings=8,
        ),
        "pipeline": Entry(stages, staged, [kit.real(micro, B, C)], [stage, micro], roundings=8),
    }


def _transforms(kit: Kit) -> dict[str, Entry]:
    B, R, C = kit.B, kit.R, kit.C
    H = kit.dim("hidden", 8, 5)
    real = kit.real(B, R, C)

    def along(named, reference, *inputs, **options):
        return Entry(named, reference, inputs or (real,), own=[R], **options)

    def curve(x):
        return nm.sin(x) * nm.softmax(x, over=R)

    def jax_curve(x):
        return jnp.sin(x) * jax.nn.softmax(x, 1)

    def jax_reversible(x):
        y = x
        for function in (jax_curve, jnp.sin) * 2:
            x, y = y, x + function(y)
        return y

    def loss(x):
        return nm.sum(curve(x) * x)

    def jax_loss(x):
        return jnp.sum(jax_curve(x) * x)

    sine = nm.custom_vjp(
        lambda x: (nm.cumsum(nm.sin(x), R), x),
        lambda x, dy: nm.cos(x) * nm.cumsum(dy, R, reverse=True),
    )

    def running(x):
        import tensorflow as tf

        spec = nm.spec([B, R, C], kit.dtype)
        return nm.call_tf(lambda x: tf.cumsum(tf.sin(x), 1), x, result=spec, batch=[B])

    def each(x, y):
        return nm.cumsum(nm.sin(x) * y, C)

    def jax_each(x, y):
        return jnp.cumsum(jnp.sin(x) * y, -1)

    def inside(x):
        return nm.cumsum(nm.sin(x), R)

    return {
        "grad": along(lambda x: nm.grad(loss(x), x), jax.grad(jax_loss), roundings=8),
        "value_and_grad": along(
            lambda x: nm.value_and_grad(loss, wrt=0)(x),
            jax.value_and_grad(jax_loss),
            roundings=16,
        ),
        "jvp": along(
            lambda x, v: nm.jvp(curve, (x,), (v,)),
            lambda x, v: jax.jvp(jax_curve, (x,), (v,)),
            real,
            real,
            roundings=8,
        ),
        "hvp": along(
            lambda x, v: nm.hvp(loss, (x,), (v,))[0],
            lambda x, v: jax.jvp(jax.grad(jax_loss), (x,), (v,))[1],
            real,
            real,
            roundings=32,
        ),
        "jacobian": Entry(
            lambda x: nm.jacobian(lambda x: nm.sin(x) * nm.softmax(x, over=C), x),
            jax.jacobian(lambda x: jnp.sin(x) * jax.nn.softmax(x, 1)),
            [kit.real(R, C)],
            own=[R, C],
            roundings=16,
        ),
        "vmap": Entry(
            lambda x, y: nm.vmap(each, over=R)(x, y),
            lambda x, y: jnp.swapaxes(jax_each(x, y[:, None]), 0, 1),
            [real, kit.real(B, C)],
            own=[R],
            roundings=8,
        ),
        "checkpoint": along(nm.checkpoint(curve), jax_curve),
        "reversible": along(
            lambda x: nm.reversible([curve, nm.sin], x, x, over=nm.Dimension("layer", 2))[1],
            jax_reversible,
            roundings=16,
        ),
        "custom_vjp": along(sine, lambda x: jnp.cumsum(jnp.sin(x), 1), roundings=8),
        "call_tf": Entry(
            running,
            lambda x: jnp.cumsum(jnp.sin(x), 1),
            [real],
            own=[R, C],
            roundings=8,
        ),
        "manual": Entry(
            lambda x: nm.manual(inside, x, over=B),
            lambda x: jnp.cumsum(jnp.sin(x), 1),
            [real],
            own=[R],
            roundings=8,
        ),
        "param": Entry(
            lambda x: nm.einsum([x, nm.param("w", [C, H], dtype=kit.dtype)], [B, R, H]),
            lambda x, weights: x @ weights["w"],
            [real],
            own=[C, H],
        ),
    }
