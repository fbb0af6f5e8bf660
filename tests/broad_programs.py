"""Yet more random steps: memory of the host, reversible layers, derivatives of many kinds."""

from __future__ import annotations

import functools
import random as python_random

import namedmesh as nm
from namedmesh.layers import Adam, Sgd
from tests.deep_programs import DEEP, DEEP_STEPS, EPSILON, combine
from tests.ir import my_custom
from tests.programs import (
    ITERATIONS,
    LAYERS,
    Case,
    Generator,
    make_case,
    pick_dim,
    pick_new_dim,
    random_numbers,
)
from tests.wide_programs import REMAT, SMOOTH_STEPS, chain_steps, fits, has, take_steps, weight


def pick_remat(picks, name="h"):
    """What a loop stores: a word, a share, or a tensor by its name."""
    return [*REMAT, 0.5, [name]][next(picks) % 5]


def offloaded(x, y, dims, picks):
    """Layers whose activations wait in the host's memory."""
    dim = pick_dim(x, picks)
    if dim is None or has(x, "layer", "hidden"):
        return nm.tanh(x)
    hidden, first, remat = nm.Dimension("hidden", 4), next(picks), pick_remat(picks)
    unroll = (False, True)[next(picks) % 2]

    def layer(carry, _=None):
        here = iter(range(first, first + 10))
        up, down = (weight(here, [dim, hidden], x) for _ in range(2))
        h = nm.einsum([carry, up], [*(d for d in carry.shape if d != dim), hidden])
        return carry + nm.einsum([nm.tanh(h), down], carry.shape) * 0.3, None

    if next(picks) % 3 == 0:
        policy = ["dots", ["h"]][next(picks) % 2]
        return nm.checkpoint(lambda x: layer(x)[0], policy, offload=True)(x)
    stack = bool(next(picks) % 2)
    return nm.scan(
        layer, x, over=LAYERS, remat=remat, stack=stack, offload=True, unroll=unroll
    )[0]  # fmt: skip


def reversed_layers(x, y, dims, picks):
    """Residual layers that store nothing, with weights of their own and shared ones."""
    dim = pick_dim(x, picks)
    if dim is None or has(x, "layer", "hidden"):
        return nm.sin(x)
    hidden, first, kinds = nm.Dimension("hidden", 4), next(picks), [next(picks) % 5 for _ in "fg"]
    shared = weight(picks, [dim], x)
    outer = nm.tanh(y) if fits(x, y) and {*y.shape} <= {*x.shape} else shared

    def mixed(z, number):
        here = iter(range(first + 20 * number, first + 20 * number + 10))
        w = weight(here, [dim, hidden], x)
        wide = nm.tanh(nm.einsum([z * shared, w], [*(d for d in z.shape if d != dim), hidden]))
        return nm.einsum([wide, w], z.shape) * 0.2

    def make(number):
        return [
            lambda z: mixed(z, number),
            lambda z: nm.softmax(z * shared, over=dim) * 0.3,
            lambda z: nm.transpose(nm.sin(z) * outer, z.shape) * 0.3,
            lambda z: nm.checkpoint(lambda z: mixed(z, number))(z),
            lambda z: nm.cumsum(z, dim) * weight(iter([first + 20 * number]), [dim], x) * 0.1,
        ][kinds[number]]

    a, b = nm.reversible([make(0), make(1)], nm.tanh(x), nm.sin(x), over=LAYERS)
    return [a, b, a * b][next(picks) % 3]


def pulled_back(x, y, dims, picks):
    """Derivatives as values: of several results, along directions, of second order."""
    dim = pick_dim(x, picks)
    if dim is None:
        return nm.cos(x)
    kind, w = next(picks) % 5, nm.tanh(combine(y, picks)) if fits(x, y) else nm.sin(x)

    def function(x):
        return nm.tanh(nm.softmax(x, over=dim) * 2.0 + nm.mean(w))

    if kind == 0:
        made = [function(x), nm.sum(nm.sin(x), dim)]
        found = nm.grad(made, x, cotangent=[nm.cos(x), nm.tanh(made[1])])
        return found * 0.5
    if kind == 1:
        return nm.jvp(function, (x,), (nm.sin(x),))[1]
    if kind == 2:
        return nm.hvp(lambda x: nm.sum(nm.square(function(x))), (x,), (nm.cos(x),))[0] * 0.5
    if kind == 3:
        slope_of = nm.value_and_grad(lambda x: nm.mean(nm.square(function(x))), wrt=0)
        value, slope = slope_of(x)
        return slope + value
    row = nm.sum(x, [d for d in x.shape if d != dim])
    jacobian = nm.jacobian(lambda v: nm.softmax(v, over=dim) * nm.sin(v), row)
    other = next(d for d in jacobian.shape if d != dim)
    return x * nm.sum(jacobian, other)


def segmented(x, y, dims, picks):
    """Elements put together by the segments that they are of."""
    dim, target = pick_dim(x, picks), pick_new_dim(x, dims, picks)
    if dim is None or target is None:
        return nm.relu(x)
    segments = nm.remainder(nm.range(dim) * 5, target.size + next(picks) % 2)
    function = [
        nm.segment_sum, nm.segment_mean, nm.segment_max, nm.segment_min, nm.segment_softmax,
    ][next(picks) % 5]  # fmt: skip
    if function in (nm.segment_max, nm.segment_min):  # infinite where there is no element
        segments = nm.remainder(nm.range(dim), min(target.size, dim.size))
        found = function(x, segments, target)
        return nm.where(nm.is_finite(found), found, 0.0)
    return function(x, segments, target)


def transformed(x, y, dims, picks):
    """There and back by Fourier, with a filter in between."""
    dim = pick_dim(x, picks)
    if dim is None or has(x, "frequency") or x.dtype != "float32":
        return nm.tanh(x)
    kind, half = next(picks) % 4, nm.Dimension("frequency", dim.size // 2 + 1)
    low = nm.range(dim, "float32") * 0.1 + 0.5
    if kind == 0:
        return nm.real(nm.ifft(nm.fft(x, dim) * nm.complex(low, low * 0.3), dim))
    if kind == 1:
        spectrum = nm.rfft(x, dim, half)
        weights = nm.cast(nm.range(half, "float32") * 0.2 + 0.5, "complex64")
        return nm.irfft(spectrum * weights, half, dim)
    spectrum = nm.fft(x, dim)
    power = nm.square(nm.real(spectrum)) + nm.square(nm.imag(spectrum))
    return power * (0.1 / dim.size) if kind == 2 else nm.imag(spectrum) * 0.3


def solved(x, y, dims, picks):
    """Equations, factors and determinants of well-conditioned matrices."""
    dim = pick_dim(x, picks)
    if dim is None or dim.size > 6 or has(x, "twin", "basis") or x.dtype != "float32":
        return nm.sigmoid(x)
    twin, basis = nm.Dimension("twin", dim.size), nm.Dimension("basis", dim.size)
    batch = [d for d in x.shape if d != dim]
    other = nm.rename(nm.sin(x), dim, twin)
    matrix = nm.einsum([nm.sin(x), other], [*batch[: next(picks) % 2 + 1], dim, twin])
    matrix = matrix * (1.0 / max(1, x.shape.elements)) + nm.eye(dim, twin) * 2.0
    kind = next(picks) % 6
    if kind == 0:
        return nm.rename(nm.solve(matrix, x, dim, twin), twin, dim)
    if kind == 1:
        return nm.rename(nm.sum(nm.inv(matrix, dim, twin), dim), twin, dim) * x
    if kind == 2:
        factor = nm.cholesky(matrix, dim, twin)
        return nm.rename(nm.triangular_solve(factor, x, dim, twin), twin, dim)
    if kind == 3:
        return x * nm.log(nm.det(matrix, dim, twin))
    if kind == 4:
        return x * nm.slogdet(matrix, dim, twin)[1] * 0.3
    q, r = nm.qr(matrix, dim, twin, basis)
    return nm.sum(nm.einsum([q, r], [*(d for d in matrix.shape)]), twin) * x * 0.3


def counted(x, y, dims, picks):
    """Statistics and counts along a dimension."""
    dim = pick_dim(x, picks)
    if dim is None:
        return nm.softplus(x)
    share = (0.25, 0.5, 0.9)[next(picks) % 3]
    bins = nm.Dimension("bins", 4)
    steps = nm.cast(nm.sigmoid(nm.stop_gradient(x)) * 3.7, "int32")
    return [
        lambda: x - nm.quantile(x, share, dim),
        lambda: x * nm.median(x, dim),
        lambda: x / (1.0 + nm.norm(x, dim)),
        lambda: x / (1.0 + nm.norm(x, dim, order=1)),
        lambda: x - nm.nanmean(nm.where(x > 0.0, x, float("nan")), dim)
        if x.dtype == "float32" and dim.size > 100 else x - nm.nansum(x, dim) * 0.1,
        lambda: x * nm.cast(nm.count_nonzero(steps, dim), x.dtype) * 0.2,
        lambda: x * nm.cast(nm.sum(nm.square(nm.bincount(steps, bins))), x.dtype) * 0.01,
        lambda: nm.std(x, dim) * nm.sin(x) if hasattr(nm, "std") else nm.sin(x),
    ][next(picks) % 8]()  # fmt: skip


def chosen(x, y, dims, picks):
    """One of several functions, one element after the other, and loops with a bound."""
    dim = pick_dim(x, picks)
    if dim is None:
        return x * 0.5
    kind, remat = next(picks) % 4, REMAT[next(picks) % 3]
    if kind == 0:
        index = nm.cast(nm.sigmoid(nm.stop_gradient(nm.mean(y))) * 2.9, "int32")
        heavy = combine(x, picks)
        branches = [nm.tanh, lambda x: x + nm.mean(heavy), lambda x: nm.softmax(x, over=dim)]
        return nm.switch(index, branches, x)
    if kind == 1:
        w = weight(picks, [d for d in x.shape if d != dim], x)
        return nm.map(lambda row: nm.tanh(row * w) + nm.mean(row), x, over=dim, remat=remat)
    shrink = lambda c: {"x": nm.tanh(c["x"]) * 0.9, "i": c["i"] + 1}
    start = {"x": x, "i": nm.zeros([], "int32")}
    steps = 2 if kind == 2 else nm.cast(nm.sigmoid(nm.stop_gradient(nm.mean(y))) * 2.9, "int32")
    return nm.while_loop(lambda c: c["i"] < steps, shrink, start, most=3)["x"]


def indexed(x, y, dims, picks):
    """Elements read and changed by number, from the end too."""
    dim, target = pick_dim(x, picks), pick_new_dim(x, dims, picks)
    if dim is None:
        return nm.sin(x)
    at, size = next(picks) % dim.size, dim.size
    many = dim if target is None else target
    index = nm.remainder(nm.range(many) * 3, 2 * size) - size
    updates = nm.cast(nm.range(many, "float32") * 0.1 + 0.5, x.dtype)
    function = ("add", "max", "min", "multiply")[next(picks) % 4]
    return [
        lambda: x.at[dim, -1 - at].multiply(0.5),
        lambda: x.at[dim, at].set(0.3),
        lambda: nm.gather(x, index, dim),
        lambda: nm.scatter(x, updates, index, dim, function),
        lambda: nm.einsum([x, nm.cos(x)], x.shape, slices=True),
        lambda: x[dim, ::-1] * 0.9,
        lambda: nm.cast(nm.nonzero(nm.stop_gradient(x) > 0.0, dim, dim), x.dtype) * x * 0.1
        if len(x.shape) == 1 and x.dtype == "float32" else x * 1.1,
    ][next(picks) % 7]()  # fmt: skip


def sliced(x, y, dims, picks):
    """A product whose operands go round the devices."""
    dim, out = pick_dim(x, picks), pick_new_dim(x, dims, picks)
    if dim is None or out is None or len(x.shape) > 3:
        return nm.tanh(x)
    w = weight(picks, [dim, out], x)
    product = nm.einsum([x, w], [*(d for d in x.shape if d != dim), out], slices=True)
    return nm.tanh(product) * 0.5


def others_in_bodies(x, y, dims, picks):
    """Functions of TensorFlow and jax, and ops by position, in regions, loops and remat."""
    dim = pick_dim(x, picks)
    rest = [d for d in x.shape if d != dim]
    if dim is None or not rest or has(x):
        return nm.tanh(x)
    kind, where = next(picks) % 5, next(picks) % 5
    call = nm.call_tf if next(picks) % 2 else nm.call_jax

    def inside(z):
        if kind == 0:
            return my_custom.LastFlip((z,)).output + my_custom.FirstSoftmax((z,)).output
        if kind == 1:
            return my_custom.Cube((z * 0.3,)).output
        batch = [dim] if kind == 2 and dim in z.shape else []
        made = call(lambda a: a * a * 0.3 + a, z, result=nm.spec(z.shape, z.dtype), batch=batch)
        return made if kind < 4 else made + nm.mean(made, rest[0])

    if where == 0:
        return nm.manual(inside, x, over=dim)
    if where == 1:
        return nm.vmap(inside, dim)(x)
    if where == 2:
        mapped = lambda c, _: (nm.transpose(nm.vmap(inside, dim)(c), x.shape), None)
        return nm.scan(mapped, nm.tanh(x), over=LAYERS, remat=REMAT[next(picks) % 3])[0]
    if where == 3:
        return nm.checkpoint(lambda x: nm.vmap(inside, dim)(nm.tanh(x)))(x)
    body = lambda c, row: (nm.tanh(c + inside(row)), c)
    start = nm.zeros(rest, x.dtype)
    return nm.scan(body, start, x, over=dim, remat=REMAT[next(picks) % 3])[1]


BROAD_STEPS = [
    *DEEP_STEPS, offloaded, offloaded, offloaded, reversed_layers, reversed_layers,
    reversed_layers, pulled_back, pulled_back, pulled_back, segmented, segmented, transformed,
    transformed, solved, solved, counted, counted, chosen, chosen, indexed, indexed, sliced,
    sliced, others_in_bodies, others_in_bodies, others_in_bodies,
]  # fmt: skip


def accumulate_with_frozen(inputs, dims, picks, count, take, dtype="bfloat16"):
    """An optimizer after gradients of bfloat16 layers, in loops over layers in microbatches."""
    shape = [d for d in inputs[1].shape if d != ITERATIONS]
    main = nm.param("weight", shape, nm.constant_init(1.0))
    frozen = nm.param("table", shape, nm.constant_init(3), dtype="int8", trainable=False)
    steps, first = [*SMOOTH_STEPS, offloaded, reversed_layers], next(picks)
    kind = next(picks)

    def loss_of(batch):
        here = random_numbers(python_random.Random(first))
        pool = [nm.tanh(nm.cast(one, dtype)) for one in batch]
        pool.append(pool[1] * nm.cast(main, dtype) * (nm.cast(frozen, dtype) * 0.3))
        chain_steps(steps, pool, dims, here, count)
        last, start = (nm.cast(one, "float32") for one in (pool[-1], pool[3]))
        return nm.mean(nm.square(last + 0.5)) + nm.mean(start * start)

    loss_of([one[ITERATIONS, 0] for one in inputs])  # makes the parameters, and is not read
    parameters = nm.parameters()

    def iteration(total, batch):
        loss = loss_of(batch)
        grads = nm.grad(loss, parameters)
        return ({name: total[0][name] + grads[name] for name in grads}, total[1] + loss), None

    start = {name: nm.zeros(one.shape) for name, one in parameters.items()}
    (grads, loss), _ = nm.scan(iteration, (start, 0.0), inputs, over=ITERATIONS)
    if kind % 2:
        Sgd(0.1, momentum=0.9).apply(grads)
    else:
        for name, parameter in parameters.items():
            nm.assign(parameter, parameter - grads[name] * 0.1)
    return {"loss": loss, "grad": grads["weight"]}


def optimize_more(inputs, dims, picks, count, take):
    """One step of further optimizers, of all parameters."""
    main = nm.param("weight", inputs[1].shape, nm.constant_init(1.0))
    _, _, loss = take(inputs, main, dims, picks, count)
    Adam(0.1, epsilon=EPSILON, weight_decay=0.01).apply(nm.grad(loss))
    return {"loss": loss}


def pull_back(inputs, dims, picks, count, take):
    """The derivative of all results along cotangents."""
    main = nm.param("weight", inputs[1].shape, nm.constant_init(1.0))
    last, before, loss = take(inputs, main, dims, picks, count)
    slopes = nm.grad(
        [last, before, loss], [*inputs, main],
        cotangent=[nm.sin(last) * 0.1, before * 0.1, nm.ones([])],
    )  # fmt: skip
    return {"loss": loss, "slopes": slopes}


BROAD = Generator(
    functools.partial(take_steps, BROAD_STEPS),
    {
        **DEEP.endings,
        "bfloat16 accumulation beside frozen weights": accumulate_with_frozen,
        "decayed optimizer": optimize_more,
        "cotangents": pull_back,
    },
    most=4,
    ranks=DEEP.ranks,
    extra=(*DEEP.extra, "frequency", "twin"),
    rounded={**DEEP.rounded, "bfloat16 accumulation beside frozen weights": 5e-2},
)


def make_broad_case(seed: int, number: int) -> Case:
    """Makes a case of all steps and endings."""
    return make_case(seed, number, BROAD)
