import numpy as np
import pytest
import tensorflow as tf

import namedmesh as nm
from tests.checks import (
    MESH,
    Case,
    assert_same,
    assert_sharded_same,
    evaluated,
    expected_of,
    function_of,
    uniform,
)

B, S, M, H = nm.dims("batch=8 seq=3 model=10 hidden=6")

clipped = nm.custom_vjp(
    lambda x: (x * 1.0, None),
    lambda _, dy: nm.clip(dy, -0.5, 0.5),
)
"""The identity, whose gradient is kept between two bounds."""

sine = nm.custom_vjp(lambda x: (nm.sin(x), nm.cos(x)), lambda saved, dy: dy * saved)

product = nm.custom_vjp(
    lambda a, b: ({"y": a * b, "z": a + b}, (a, b)),
    lambda saved, dy: (dy["y"] * saved[1] + dy["z"], dy["y"] * saved[0] + dy["z"]),
)

turned = nm.custom_vjp(lambda x: (x * x, x), lambda x, dy: nm.transpose(dy * x * 2.0, [M, S, B]))


def both_results(x, y):
    results = product(x, y)
    return results["y"] + results["z"]


def product_and_exponential(x, n):
    product, exponential = nm.call_tf(
        lambda x, n: (x * tf.cast(n, x.dtype), tf.exp(x)),
        x,
        n,
        result=[nm.spec([B, S, M]), nm.spec([B, S, M])],
        batch=[B, M],
    )
    return product + exponential


def loop_body(x):
    return nm.scan(lambda c, _: (sine(c) + x, None), x, None, over=nm.Dimension("times", 3))[0]


def loop_reference(x):
    c = x
    for _ in range(3):
        c = np.sin(c) + x
    return c


def dense(x, w):
    return tf.tanh(tf.einsum("bsm,mh->bsh", x, w))


CASES = {
    "sine": Case(lambda x: nm.square(sine(x * 2.0)), lambda x: np.sin(2 * x) ** 2),
    "product": Case(both_results, lambda x, y: x * y + x + y, ("x", "y")),
    "product_of_one": Case(lambda x: product(x, x)["y"], lambda x: x * x),
    "turned": Case(lambda x: turned(x) * 2.0, lambda x: 2 * x * x),
    "in_a_loop": Case(loop_body, loop_reference),
    "call_tf": Case(
        lambda x: nm.call_tf(lambda x: tf.linalg.norm(x, axis=2), x, result=nm.spec([B, S])),
        lambda x: np.sqrt((x**2).sum(2)),
    ),
    "call_tf_batch": Case(
        lambda x: nm.call_tf(lambda x: tf.sort(x, axis=2), x, result=nm.spec([B, S, M]), batch=[B]),
        lambda x: np.sort(x, 2),
    ),
    "call_tf_weight": Case(
        lambda x, w: nm.call_tf(dense, x, w, result=nm.spec([B, S, H]), batch=[B]),
        lambda x, w: np.tanh(x @ w),
        ("x", "w"),
    ),
    "call_tf_weight_two_batch": Case(
        lambda x, w: nm.call_tf(dense, x, w, result=nm.spec([B, S, H]), batch=[B, S]),
        lambda x, w: np.tanh(x @ w),
        ("x", "w"),
    ),
    "call_tf_several": Case(
        product_and_exponential,
        lambda x, n: x * n + np.exp(x),
        ("x", "n"),
        "x",
    ),
}
SPECS = {
    "x": nm.spec([B, S, M]),
    "y": nm.spec([B, S, M]),
    "w": nm.spec([M, H]),
    "n": nm.spec([], "int32"),
}
ARRAYS = {
    "x": uniform(1, 8, 3, 10),
    "y": uniform(2, 8, 3, 10),
    "w": uniform(3, 10, 6) / 4,
    "n": np.int32(3),
}


def test_values_and_gradients():
    program = nm.trace(function_of(CASES), **SPECS)
    assert_same(evaluated(program, ARRAYS), expected_of(CASES, ARRAYS), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("layout", ["batch:a+b", "batch:a, model:b", "batch:b, hidden:a"])
def test_sharded(layout):
    assert_sharded_same(function_of(CASES), SPECS, ARRAYS, layout)


def test_the_users_own_derivative_is_the_one_used():
    def loss(x):
        return nm.grad(nm.sum(nm.square(clipped(x))), x)

    x = uniform(4, 8)
    found = evaluated(nm.trace(loss, x=nm.spec([B])), {"x": x})
    np.testing.assert_allclose(found, np.clip(2 * x, -0.5, 0.5), rtol=1e-6)


def test_a_weight_gradient_of_call_tf_is_one_sum():
    def loss(x, w):
        return nm.grad(nm.sum(nm.call_tf(dense, x, w, result=nm.spec([B, S, H]), batch=[B])), w)

    plan = nm.plan(nm.trace(loss, x=SPECS["x"], w=SPECS["w"]), MESH, "batch:b")
    assert plan.count("AllReduce") == 1 and plan.total_bytes() == 10 * 6 * 4


@pytest.mark.parametrize(
    "wrong, message",
    [
        (
            lambda x: nm.call_tf(lambda x: tf.reduce_sum(x, 0), x, result=nm.spec([M]), batch=[B]),
            "lacks the batch dimension",
        ),
        (lambda x: nm.custom_vjp(lambda x: x, lambda saved, dy: dy)(x), "forward did not return"),
        (
            lambda x: nm.grad(
                nm.sum(nm.custom_vjp(lambda x: (x * 1.0, None), lambda s, dy: (dy, dy))(x)), x
            ),
            "2 cotangents for 1",
        ),
        (
            lambda x: nm.grad(
                nm.sum(nm.custom_vjp(lambda x: (x * 1.0, None), lambda s, dy: nm.sum(dy))(x)), x
            ),
            "cotangent of x",
        ),
    ],
)
def test_misuse_is_explained(wrong, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(wrong, x=nm.spec([B, M]))


def test_a_function_that_makes_something_else_than_it_said():
    program = nm.trace(
        lambda x: nm.call_tf(lambda x: tf.reduce_sum(x, 1), x, result=nm.spec([M])),
        x=nm.spec([B, M]),
    )
    with pytest.raises(nm.NamedMeshError, match="the function made"):
        evaluated(program, {"x": uniform(5, 8, 10)})


FAILING = {
    "its lowering failed: ValueError: no such thing": lambda v: _raise(ValueError("no such thing")),
    "made None of type NoneType, not float32": lambda v: None,
    r"made string\[2\], not float32\[2\]": lambda v: tf.strings.as_string(v),
}


def _raise(error):
    raise error


@pytest.mark.parametrize("problem", FAILING)
@pytest.mark.parametrize("differentiated", [False, True])
def test_a_function_that_fails_is_named_with_the_users_line(problem, differentiated):
    P = nm.Dimension("pair", 2)

    def program(x):
        y = nm.call_tf(FAILING[problem], x, result=nm.spec([P]))
        return nm.grad(nm.sum(y), x) if differentiated else y

    with pytest.raises(nm.NamedMeshError, match=problem) as caught:
        nm.evaluate(program, x=([P], [1.0, 2.0]))
    assert "y = nm.call_tf(FAILING[problem]" in str(caught.value)


def test_a_function_that_xla_cannot_compile_is_named_with_the_users_line():
    P = nm.Dimension("pair", 2)
    length = lambda v: tf.cast(tf.strings.length(tf.strings.as_string(v)), tf.float32)

    def program(x):
        return nm.call_tf(length, x, result=nm.spec([P]))

    with pytest.raises(nm.NamedMeshError, match="call_tf: XLA cannot compile it") as caught:
        nm.compile(program, mesh=nm.Mesh(a=1), layout="", x=nm.spec([P]))
    assert "return nm.call_tf(length" in str(caught.value)
