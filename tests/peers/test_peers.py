"""The own tests of Haliax, Penzai and Mesh TensorFlow: translated, or answered in words.

`tests.txt` lists them (Haliax f41e7d40, Penzai aac7808a, Mesh TensorFlow da907937). Each is
translated here and compared with numpy, has a test of ours, or a reason why there is none.
"""

import fnmatch
import pathlib
from typing import Any, cast

import numpy as np
import pytest
import scipy.special

import namedmesh as nm

H, W, D, K = nm.dims("height=2 width=3 depth=4 k=2")
HEIGHT, WIDTH, DEPTH = cast(Any, ("height", "width", "depth"))  # names stand for dimensions
RNG = np.random.default_rng(0)
X = RNG.uniform(0.1, 1, (2, 3, 4)).astype("float32")
Y = RNG.uniform(0.1, 1, (2, 3)).astype("float32")
WHOLE = RNG.integers(0, 5, (2, 3, 4)).astype("int32")
XS, YS = ([H, W, D], X), ([H, W], Y)
INDEX = ([K], np.array([2, 0], "int32"))
NAN = np.where(X > 0.8, np.nan, X).astype("float32")
CORE, OPS = "haliax/core_test.py::test_", "haliax/test_ops.py::test_"
HOF, INTO = "haliax/test_hof.py::test_", "haliax/test_scatter_gather.py::test_"
PENZAI, MESH = "penzai/core/named_axes_test.py::test_", "mesh/ops_test.py::test"
MANY = nm.Dimension("sample", 4000)


def draw(name, *parameters, **options):
    return lambda: getattr(nm.random, name)(nm.random.key(1), [MANY], *parameters, **options)


def moments(function):
    return lambda: (nm.mean(x := nm.cast(function(), "float32")), nm.std(x))


def add_up(total, row):
    return total + row, total * row


def scanned(x):
    total = np.zeros((3, 4), "float32")
    rows = []
    for row in x:
        rows.append(total * row)
        total = total + row
    return total, np.stack(rows)


def placed(x):
    x = x.copy()
    x[0, [2, 0]] += 1.0
    return x


def replaced(x, rows):
    x = x.copy()
    x[:, [2, 0]] = rows
    return x


# Name of theirs: a function of tensors, its arrays with their dimensions, and what numpy makes.
TRANSLATED = {
    CORE + "unary_np_functions": (
        lambda x: [nm.log(x), nm.sin(x), nm.floor(x), nm.lgamma(x)], [XS],
        [np.log(X), np.sin(X), np.floor(X), scipy.special.gammaln(X)]),
    CORE + "reduction_functions": (
        lambda x: [nm.sum(x, W), nm.max(x, [H, D]), nm.var(x), nm.argmin(x, D)], [XS],
        [X.sum(1), X.max((0, 2)), X.var(), X.argmin(2)]),
    CORE + "reduction_functions_with_where": (
        lambda x: [nm.sum(x, W, where=x > 0.5), nm.max(x, W, where=x > 0.0)], [XS],
        [np.where(X > 0.5, X, 0).sum(1), X.max(1)]),
    CORE + "split": (
        lambda x: [nm.slice(x, D, 0, 1), nm.slice(x, D, 1, 3)], [XS], np.split(X, [1], 2)),
    CORE + "take": (lambda x, i: nm.take(x, W, i), [XS, INDEX], X[:, [2, 0]]),
    CORE + "take_overlapping_names": (
        lambda x, i: nm.transpose(nm.gather(x, i, W), [H, D]),
        [XS, ([H], np.array([2, 1], "int32"))], X[[0, 1], [2, 1]]),
    CORE + "take_overlapping_2": (
        lambda x, i: x[D, i], [XS, ([D], np.array([3, 2, 1, 0], "int32"))], X[..., ::-1]),
    CORE + "cumsum_etc": (
        lambda x: [nm.cumsum(x, W), nm.cumprod(x, D), nm.argsort(x, W)], [XS],
        [X.cumsum(1), X.cumprod(2), X.argsort(1)]),
    CORE + "searchsorted": (
        lambda x, v: nm.searchsorted(x, v, D, "right"),
        [([D], np.arange(4.0, dtype="f")), ([K], np.array([1.0, 9], "f"))], [2, 4]),
    CORE + "rearrange": (lambda x: nm.transpose(x, [D, ...]), [XS], X.transpose(2, 0, 1)),
    CORE + "rearrange_unused_ellipsis": (
        lambda x: nm.transpose(x, [D, W, H, ...]), [XS], X.transpose(2, 1, 0)),
    CORE + "arange": (lambda: nm.range(D, start=1, step=2), [], np.arange(1, 9, 2)),
    CORE + "stack": (lambda x, y: nm.stack([y, y * 2.0], K), [XS, YS], np.stack([Y, Y * 2])),
    CORE + "concatenate": (
        lambda x: nm.concat([x, x + 1.0], W), [XS], np.concatenate([X, X + 1], 1)),
    CORE + "repeat": (lambda x: nm.repeat(x, W, 2), [XS], X.repeat(2, 1)),
    CORE + "tile": (lambda x: nm.tile(x, W, 2), [XS], np.tile(X, (1, 2, 1))),
    CORE + "unflatten_axis": (
        lambda x: nm.reshape(x, D, nm.dims("a=2 b=2")), [XS], X.reshape(2, 3, 2, 2)),
    CORE + "ravel": (
        lambda x: nm.reshape(x, [H, W, D], nm.Dimension("all", 24)), [XS], X.ravel()),
    CORE + "rename": (lambda x: nm.rename(x, {H: K}), [XS], X),
    CORE + "index": (lambda x: [x[H, 1], x[W, 0:2, D, 3], x["width", -1]], [XS],
                     [X[1], X[:, 0:2, 3], X[:, -1]]),
    CORE + "index_with_tracer": (
        lambda x, i: x[W, i], [XS, ([], np.int32(2))], X[:, 2]),
    CORE + "index_with_numpy_integer_scalars": (
        lambda x: x[H, np.int64(1), W, np.int32(0)], [XS], X[1, 0]),
    CORE + "index_array_slices": (lambda x, i: x[{H: 1, W: i}], [XS, INDEX], X[1][[2, 0]]),
    CORE + "slice_nd_shorthand_syntax": (
        lambda x: x["height", 0, "depth", 1:3], [XS], X[0, :, 1:3]),
    CORE + "slice_nd_dslice": (
        lambda x, i: nm.dynamic_slice(x, i, D, 2), [XS, ([], np.int32(1))], X[..., 1:3]),
    CORE + "slice_nd_array_present_dims": (
        lambda x, i: x[W, i], [XS, ([H], np.array([0, 2], "int32"))], X[[0, 1], [0, 2]]),
    CORE + "broadcast_to": (
        lambda y: nm.broadcast(y, [D, H, W]), [YS], np.broadcast_to(Y, (4, 2, 3))),
    CORE + "at_set": (lambda x: x.at[W, 1].set(0.0), [XS], np.where(
        np.arange(3)[:, None] == 1, 0, X)),
    CORE + "scalar_updated_slice": (
        lambda x: x.at[D, 1:3].set(7.0), [XS],
        np.where((np.arange(4) > 0) & (np.arange(4) < 3), 7, X)),
    OPS + "trace": (
        lambda x: nm.einsum([x], over=H, same={K: H}), [([H, K], X[:, :2, 0])],
        np.trace(X[:, :2, 0])),
    OPS + "add": (lambda x: x + x, [XS], X + X),
    OPS + "add_broadcasting": (lambda x, y: x + y, [XS, YS], X + Y[..., None]),
    OPS + "add_scalar": (lambda x: 1.0 + x, [XS], X + 1),
    OPS + "add_no_overlap": (
        lambda y, z: nm.transpose(y + z, [H, W, D]), [YS, ([D], X[0, 0])],
        Y[..., None] + X[0, 0]),
    OPS + "where": (lambda x: nm.where(x > 0.5, x, 0.0), [XS], np.where(X > 0.5, X, 0)),
    OPS + "nonzero": (
        lambda x: nm.nonzero(x, D, K, fill=-1), [([D], np.array([0, 3, 0, 0], "int32"))], [1, -1]),
    OPS + "clip": (lambda x: nm.clip(x, 0.3, 0.6), [XS], X.clip(0.3, 0.6)),
    OPS + "tril_triu": (
        lambda y: [nm.tril(y, H, W, -1), nm.triu(y, H, W, 1)], [YS],
        [np.tril(Y, -1), np.triu(Y, 1)]),
    OPS + "mean_respects_where": (
        lambda x: nm.mean(x, where=x > 0.5), [XS], X[X > 0.5].mean()),
    OPS + "reductions_produce_scalar_named_arrays_when_None_axis": (nm.sum, [XS], X.sum()),
    OPS + "pad": (lambda x: nm.pad(x, W, 1, 2, mode="reflect"), [XS],
                  np.pad(X, ((0, 0), (1, 2), (0, 0)), mode="reflect")),
    OPS + "unique": (
        lambda x: nm.unique(x, D, K), [([D], np.array([3, 1, 3, 3], "int32"))], [[1, 3], [1, 3]]),
    OPS + "bincount": (
        lambda x: nm.bincount(x, D), [([W], np.array([3, 1, 3], "int32"))], [0, 1, 0, 2]),
    OPS + "allclose_array_equal_equiv": (
        lambda x: [nm.allclose(x, x + 1e-7), nm.all(nm.equal(x, x))], [XS], [True, True]),
    OPS + "roll_scalar_named_shift": (
        lambda x, i: nm.roll(x, W, i), [XS, ([], np.int32(2))], np.roll(X, 2, 1)),
    "haliax/test_nan_reductions.py::test_nan_reductions": (
        lambda x: [nm.nansum(x, W), nm.nanmean(x), nm.nanmax(x, [H, D]), nm.nanstd(x)],
        [([H, W, D], NAN)],
        [np.nansum(NAN, 1), np.nanmean(NAN), np.nanmax(NAN, (0, 2)), np.nanstd(NAN)]),
    "haliax/test_nan_reductions.py::test_amin_alias": (nm.min, [XS], X.min()),
    "haliax/test_bitwise_ops.py::test_bitwise_shift": (
        lambda x: [nm.shift_left(x, 1), nm.shift_right(x, 1), nm.bitwise_xor(x, 3)],
        [([H, W, D], WHOLE)], [WHOLE << 1, WHOLE >> 1, WHOLE ^ 3]),
    "haliax/test_dot.py::test_dot": (
        lambda x, y: nm.einsum([x, y], over=[H, W]), [XS, YS], np.einsum("hwd,hw->d", X, Y)),
    "haliax/test_dot.py::test_dot_string_selection": (
        lambda x, y: nm.einsum([x, y], over=WIDTH), [XS, YS], np.einsum("hwd,hw->hd", X, Y)),
    "haliax/test_dot.py::test_dot_with_output_axes": (
        lambda x, y: nm.einsum([x, y], [D, H]), [XS, YS], np.einsum("hwd,hw->dh", X, Y)),
    "haliax/test_einsum.py::test_einsum_basic_named": (
        lambda x, y: nm.einsum([x, y], DEPTH), [XS, YS], np.einsum("hwd,hw->d", X, Y)),
    "haliax/test_fft.py::test_fft_axis_options": (
        lambda x: [nm.fft(x, W), nm.ifft(x, D), nm.rfft(x, D, nm.Dimension("half", 3))], [XS],
        [np.fft.fft(X, axis=1), np.fft.ifft(X, axis=2), np.fft.rfft(X, axis=2)]),
    "haliax/test_fft.py::test_fft_multi_axis": (
        lambda x: nm.fft(nm.fft(x, W), D), [XS], np.fft.fft2(X)),
    "haliax/test_specialized_fns.py::test_top_k": (
        lambda x: nm.top_k(x, D, K), [XS],
        [-np.sort(-X, 2)[..., :2], np.argsort(-X, 2)[..., :2]]),
    "haliax/test_int8.py::test_int8_is_reasonable": (
        lambda x: nm.einsum([x, x], [H], preferred="int32"),
        [([H, W], (100 * Y).astype("int8"))], ((100 * Y).astype("int8").astype(int) ** 2).sum(1)),
    HOF + "scan": (
        lambda x: nm.scan(add_up, nm.zeros([W, D]), x, over=H), [XS], scanned(X)),
    HOF + "scan_not_0th_axis": (
        lambda x: nm.scan(add_up, nm.zeros([W, D]), x, over=H),
        [([W, H, D], X.swapaxes(0, 1))], scanned(X)),
    HOF + "scan_str_arg": (
        lambda x: nm.scan(add_up, nm.zeros([W, D]), x, over=HEIGHT), [XS], scanned(X)),
    HOF + "fold": (
        lambda x: nm.scan(lambda t, row: (t + row, None), nm.zeros([W, D]), x, over=H)[0], [XS],
        X.sum(0)),
    HOF + "vmap_mapped_args": (
        lambda x, y: nm.vmap(lambda x, y: nm.einsum([x, y], [D]), over=H)(x, y), [XS, YS],
        np.einsum("hwd,hw->hd", X, Y)),
    HOF + "vmap_unmapped_args": (
        lambda x, z: nm.vmap(lambda x, z: nm.einsum([x, z], [W]), over=H)(x, z),
        [XS, ([D], X[0, 0])], X @ X[0, 0]),
    HOF + "vmap_mapped_kwarg": (
        lambda x, y: nm.vmap(lambda x, *, y: x * y, over=H)(x, y=y), [XS, YS], X * Y[..., None]),
    HOF + "vmap_multiple_axes": (
        lambda x: nm.vmap(nm.vmap(lambda x: nm.einsum([x, x], []), over=W), over=H)(x), [XS],
        (X * X).sum(2)),
    INTO + "single_batched_selector": (lambda x, i: x[W, i], [XS, INDEX], X[:, [2, 0]]),
    INTO + "selector_adds_new_axis": (
        lambda x, i: x[H, 0, W, i], [XS, INDEX], X[0][[2, 0]]),
    INTO + "two_contiguous_selectors": (
        lambda x, i: x[{W: i, D: i}], [XS, INDEX], X[:, [2, 0], [2, 0]]),
    INTO + "noncontig_selectors": (
        lambda x, i: nm.transpose(x[{H: i - i, D: i}], [K, W]), [XS, INDEX],
        X[[0, 0], :, [2, 0]]),
    INTO + "mixed_int_and_selector": (
        lambda x, i: x[{H: 1, D: i}], [XS, INDEX], X[1][:, [2, 0]]),
    INTO + "dslice_with_selector": (
        lambda x, i: x[{W: i, D: slice(1, 3)}], [XS, INDEX], X[:, [2, 0], 1:3]),
    INTO + "scalar_eliminates_axis": (lambda x: x[D, 2], [XS], X[..., 2]),
    INTO + "plain_ndarray_selector": (
        lambda x: x[W, np.array([2, 0])], [XS], X[:, [2, 0]]),
    INTO + "multiselector_broadcast": (
        lambda x, i, j: x[{W: i, D: j}],
        [XS, INDEX, ([nm.Dimension("j", 3)], np.array([1, 3, 0], "int32"))],
        X[:, [2, 0]][..., [1, 3, 0]]),
    INTO + "scatter_add": (
        lambda x, i: x.at[H, 0, W, i].add(1.0), [XS, INDEX], placed(X)),
    INTO + "scatter_set": (
        lambda x, i, y: x.at[W, i].set(y),
        [XS, INDEX, ([H, K, D], X[:, :2] * 3)], replaced(X, X[:, :2] * 3)),
    "haliax/test_rearrange.py::test_rearrange_with_flattening": (
        lambda x: nm.reshape(nm.transpose(x, [D, H, W]), [H, W], nm.Dimension("hw", 6)), [XS],
        X.transpose(2, 0, 1).reshape(4, 6)),
    "haliax/test_pool.py::test_maxpool1d": (
        lambda y: nm.pool(y, {W: 2}, stride=1), [YS], np.maximum(Y[:, :-1], Y[:, 1:])),
    "haliax/test_pool.py::test_mean_pool_1d": (
        lambda x: nm.pool(x, {D: 2}, "mean"), [XS], X.reshape(2, 3, 2, 2).mean(3)),
    "haliax/test_nn.py::test_one_hot": (
        lambda i: nm.one_hot(i, W), [INDEX], np.eye(3)[[2, 0]]),
    "haliax/test_nn.py::test_one_hot_out_of_bound": (
        lambda i: nm.one_hot(i + 2, W), [INDEX], [[0, 0, 0], [0, 0, 1]]),
    "haliax/test_nn.py::test_layer_norm": (
        lambda x: nm.layers.layer_norm(x, D, epsilon=1e-5), [XS],
        (X - X.mean(2, keepdims=True)) / np.sqrt(X.var(2, keepdims=True) + 1e-5)),
    PENZAI + "order_like": (
        lambda x, y: nm.transpose(x, [W, H, D]), [XS, YS], X.swapaxes(0, 1)),
    PENZAI + "broadcast_to": (
        lambda y: nm.broadcast(y, [H, W, D]), [YS], np.broadcast_to(Y[..., None], X.shape)),
    PENZAI + "binop_lifts": (lambda x, y: x * 2.0 - y, [XS, YS], X * 2 - Y[..., None]),
    PENZAI + "nmap": (
        lambda x: nm.vmap(lambda row: nm.cumsum(row, D), over=H)(x), [XS], X.cumsum(2)),
    PENZAI + "indexing_by_dict": (lambda x: x[{"width": 1, D: -1}], [XS], X[:, 1, -1]),
    PENZAI + "indexing_batched": (
        lambda x, i: x[W, i], [XS, ([H], np.array([0, 2], "int32"))], X[[0, 1], [0, 2]]),
    PENZAI + "indexed_update_at": (
        lambda x, i: x.at[H, 0, W, i].add(1.0), [XS, INDEX], placed(X)),
    PENZAI + "scan": (
        lambda x: nm.scan(add_up, nm.zeros([W, D]), x, over=H), [XS], scanned(X)),
    PENZAI + "convenience_constructors": (
        lambda: [nm.zeros([H]), nm.ones([W]), nm.full([K], 3.0), nm.range(W)], [],
        [np.zeros(2), np.ones(3), np.full(2, 3), np.arange(3)]),
    "penzai/nn/linear_and_affine_test.py::test_einsum_renaming_diagonalizing": (
        lambda x: nm.einsum([x], [H], same={K: H}), [([H, K], X[:, :2, 0])],
        np.diagonal(X[:, :2, 0])),
    "penzai/nn/standardization_test.py::test_standardize_multi": (
        lambda x: (x - nm.mean(x, [W, D])) * nm.rsqrt(nm.var(x, [W, D]) + 1e-5), [XS],
        (X - X.mean((1, 2), keepdims=True)) / np.sqrt(X.var((1, 2), keepdims=True) + 1e-5)),
    MESH + "BinaryOpWithBroadcasting": (
        lambda x, y: nm.transpose(x - y, [H, W, D]), [XS, YS], X - Y[..., None]),
    MESH + "BroadcastOperation": (
        lambda y: nm.broadcast(y, [D, H, W]), [YS], np.broadcast_to(Y, (4, 2, 3))),
    MESH + "ReduceOperation": (lambda x: nm.sum(x, [H, D]), [XS], X.sum((0, 2))),
    MESH + "ReduceFirst": (lambda x: x[W, 0], [XS], X[:, 0]),
    MESH + "ConcatOperation": (
        lambda x: nm.concat([x, x], W), [XS], np.concatenate([X, X], 1)),
    MESH + "StackOperation": (lambda y: nm.stack([y, y], K), [YS], np.stack([Y, Y])),
    MESH + "UnstackOperation": (lambda y: nm.unstack(y, W), [YS], list(Y.T)),
    MESH + "SplitOperation": (
        lambda x: [nm.slice(x, D, 0, 2), nm.slice(x, D, 2, 2)], [XS], np.split(X, 2, 2)),
    MESH + "EinsumOperation": (
        lambda x, y: nm.einsum([x, y], [D, W]), [XS, YS], np.einsum("hwd,hw->dw", X, Y)),
    MESH + "ShiftOperation": (
        lambda x: [nm.shift(x, W, 1), nm.roll(x, W, 1)], [XS],
        [np.pad(X, ((0, 0), (1, 0), (0, 0)))[:, :3], np.roll(X, 1, 1)]),
    MESH + "SliceOperation": (lambda x: nm.slice(x, D, 1, 2), [XS], X[..., 1:3]),
    MESH + "PadOperation": (
        lambda x: nm.pad(x, W, 1, 2), [XS], np.pad(X, ((0, 0), (1, 2), (0, 0)))),
    MESH + "OneHotOperation": (lambda i: nm.one_hot(i, W), [INDEX], np.eye(3)[[2, 0]]),
    MESH + "StrideTensor1d": (lambda x: x[D, ::2], [XS], X[..., ::2]),
    MESH + "PoolTensor1d": (lambda x: nm.pool(x, {D: 2}), [XS], X.reshape(2, 3, 2, 2).max(3)),
    MESH + "PoolOperation": (
        lambda x: nm.pool(x, {D: 2}, "mean"), [XS], X.reshape(2, 3, 2, 2).mean(3)),
    MESH + "StopGradient": (
        lambda x: nm.grad(nm.sum(x * nm.stop_gradient(x)), x), [XS], X),
    MESH + "ReshapeOperation": (
        lambda x: nm.reshape(x, [H, W], nm.Dimension("hw", 6)), [XS], X.reshape(6, 4)),
    MESH + "WhileLoopOperation": (
        lambda x: nm.while_loop(lambda x: nm.sum(x) < 100.0, lambda x: x * 2.0, x),
        [([H], np.array([1, 2], "float32"))], [64, 128]),
    MESH + "NthLargest": (
        lambda x: nm.top_k(x, D, K)[0][K, 1], [XS], np.sort(X, 2)[..., -2]),
    MESH + "NthSmallestReduceSecondDim": (
        lambda x: nm.sort(x, W)[W, 1], [XS], np.sort(X, 1)[:, 1]),
    MESH + "TopK": (
        lambda x: nm.top_k(x, D, K), [XS],
        [-np.sort(-X, 2)[..., :2], np.argsort(-X, 2)[..., :2]]),
    MESH + "RecomputeGrad": (
        lambda x: nm.grad(nm.sum(nm.checkpoint(nm.exp)(x)), x), [XS], np.exp(X)),
    MESH + "ScalarMultiplyOperationandScalarAddOperation": (
        lambda x: x * 3.0 + 4.0, [XS], X * 3 + 4),
    MESH + "Constant": (lambda: nm.full([H], 5.0), [], [5, 5]),
}  # fmt: skip
DISTRIBUTIONS = {  # drawn: mean and standard deviation
    "uniform_with_bounds_scalar": (draw("uniform", 1.0, 3.0), 2, 2 / 12**0.5),
    "normal": (draw("normal"), 0, 1),
    "randint": (draw("randint", 0, 7), 3, 2),
    "bernoulli": (draw("bernoulli", 0.25), 0.25, 0.433),
    "poisson": (draw("poisson", 3.0), 3, 3**0.5),
    "laplace": (draw("laplace"), 0, 2**0.5),
    "exponential": (draw("exponential"), 1, 1),
    "gamma": (draw("gamma", 4.0), 4, 2),
    "gumbel": (draw("gumbel"), 0.5772, 1.2825),
    "beta": (draw("beta", 1.0, 3.0), 0.25, 0.19365),
    "rademacher": (draw("rademacher"), 0, 1),
    "logistic": (draw("logistic"), 0, 1.8138),
    "truncated_normal": (draw("truncated_normal"), 0, 0.8796),
    "t": (draw("student_t", 9.0), 0, (9 / 7) ** 0.5),
}
# Patterns of their names, the first that fits: a test of ours that states it, or why there is none.
_SCAN = "nm.scan and nm.vmap close over what they do not loop over: there are no static arguments"
_TREES = "models are functions here: there are no modules, pytrees or selectors to edit"
_POSITIONS = "every dimension has a name: there are no positional axes"
_TYPES = "shapes are checked while tracing, with the line; there are no annotations of shapes"
_ATTENTION = "tests/layers/test_attention.py"
ANSWERED = {
    "haliax/core_test.py::test_dslice_oob*": "different, as documented: a known start is an error, "
    "another one is clamped as by jax (tests/ops/test_dynamic.py)",
    "haliax/core_test.py::test_update_overflow_error": "tests/ops/test_dynamic.py",
    "haliax/core_test.py::test_ragged*": "nm.layers.Cache: tests/layers/test_decoding.py",
    "haliax/test_attention.py::test_fcm*": "a mask of nm.random.bernoulli beside the causal one",
    "haliax/test_attention.py*": _ATTENTION,
    "haliax/test_axis.py*": "an order of dimensions is a list; nm.transpose(x, [..., D]) has an "
    "ellipsis: tests/ops/test_structure.py",
    "haliax/test_bitwise_ops.py*": "missing: nm.call_jax(jnp.packbits), or shifts and masks",
    "haliax/test_conv.py*": "tests/ops/test_conv.py",
    "haliax/test_debug.py*": _TREES,
    "haliax/test_dot.py::test_dot_errors*": "tests/ops/test_einsum.py",
    "haliax/test_dtype_typing.py*": _TYPES,
    "haliax/test_namedarray_typing.py*": _TYPES,
    "haliax/test_einsum.py::*positional*": _POSITIONS,
    "haliax/test_einsum.py*": "dimensions are listed, or named in a string; there "
    "are no letters for them: tests/ops/test_einsum.py",
    "haliax/test_fft.py*freq*": "nm.range(F) / size, and nm.roll",
    "haliax/test_field.py*": _TREES,
    "haliax/test_fp8.py*": "missing: no dtype of 8 bits but integers",
    "haliax/test_hof.py*report*": "nm.scan names what lacks the dimension: tests/ops/test_scan.py",
    "haliax/test_hof.py*vmap_str*": "tests/ops/test_by_text.py",
    "haliax/test_hof.py*fold_str*": "tests/ops/test_by_text.py",
    "haliax/test_hof.py*scalars": "what has no dimension is captured by the body, and not a row",
    "haliax/test_hof.py*": _SCAN,
    "haliax/test_moe_linear.py*": "tests/layers/test_dropless.py",
    "haliax/test_nn.py*function_leaves*": _TREES,
    "haliax/test_nn.py*": "tests/layers/test_basic.py",
    "haliax/test_ops.py*unique_shortcuts": "nm.unique returns values and counts; the inverse is "
    "nm.searchsorted of them",
    "haliax/test_ops.py*roll_bad*": "tests/ops/test_slices.py",
    "haliax/test_parsing.py*": "nm.dims alone reads text; rearrangements are nm.reshape and "
    "nm.transpose of dimensions",
    "haliax/test_partitioning.py*": "layouts are arguments of nm.compile and never of arrays: "
    "tests/planning",
    "haliax/test_poly_ops.py*": "numpy's polynomials; a value is a Horner loop of * and +",
    "haliax/test_pool.py*": "tests/ops/test_pool.py",
    "haliax/test_random.py::test_uniform_with_bounds*": "tests/ops/test_distributions.py",
    "haliax/test_random.py::test_*cauchy": "no mean: tests/ops/test_distributions.py",
    "haliax/test_random.py::test_categorical*": "tests/ops/test_random.py",
    "haliax/test_random.py::test_permutation": "tests/ops/test_random.py",
    "haliax/test_random.py::test_choice": "x[D, nm.random.randint(key, [K], 0, D.size)], or "
    "nm.random.categorical with weights",
    "haliax/test_random.py::test_empty_shape": "no dimensions: tests/ops/test_random.py",
    "haliax/test_random.py::test_ball": "missing: normal numbers over their norm",
    "haliax/test_random.py*": "missing: a power or a logarithm of nm.random.exponential or gamma",
    "haliax/test_rearrange.py*": "nm.transpose and nm.reshape: tests/ops/test_structure.py",
    "haliax/test_scan.py*checkpoint*": "remat= of nm.scan: tests/ops/test_loop_storage.py",
    "haliax/test_scan.py*": "nm.scan(stack=True) and nm.vmap(stack=True) stack layers: "
    "tests/ops/test_stacked.py",
    "haliax/test_state_dict.py*": "nm.WeightRule, nm.load_weights and nm.save_weights",
    "haliax/test_tree_util.py*": _TREES,
    "haliax/test_visualize_sharding.py*": "print(plan), nm.report",
    "penzai/core/auto_order_types_test.py*": _TREES,
    "penzai/core/misc_util_test.py*": _TREES,
    "penzai/core/named_axes_test.py*order*": "nm.transpose: tests/ops/test_structure.py",
    "penzai/core/named_axes_test.py*equality*": "nm.equal, and x == y is an error that says so",
    "penzai/core/named_axes_test.py*dict*": "tests/ops/test_index.py",
    "penzai/core/named_axes_test.py*captured*": "tests/ops/test_index.py",
    "penzai/core/named_axes_test.py*": _POSITIONS,
    "penzai/core/shapecheck_test.py*": _TYPES,
    "penzai/core/*": _TREES,
    "penzai/deprecated/*": "deprecated there, and replaced by what the other tests show",
    "penzai/models/transformer_consistency*": "tests/examples, against transformers' models",
    "penzai/models/*": "nm.layers.Transformer: tests/layers/test_transformer.py",
    "penzai/nn/*": "functions of layers: tests/layers/test_basic.py",
    "penzai/toolshed/gradient_checkpointing*": "nm.checkpoint: tests/ops/test_offload.py",
    "penzai/toolshed/auto_nmap*": "ops broadcast by name: tests/ops/test_vmap.py",
    "penzai/toolshed/*": _TREES,
    "penzai/treescope/*": "tensors and plans have an HTML form in notebooks; trees have none",
    "mesh/auto_mtf/*": "nm.search: another algorithm, with tests/search",
    "mesh/experimental/data_aug*": "nm.reverse: tests/ops/test_order.py",
    "mesh/experimental/input_reader*": "tests/training/test_iterator_batches.py",
    "mesh/import_test.py*": "tests/test_public_names.py",
    "mesh/layers_test.py*Attention*": _ATTENTION,
    "mesh/layers_test.py*Pool": "tests/ops/test_pool.py",
    "mesh/layers_test.py*onv1d*": "tests/ops/test_conv.py",
    "mesh/layers_test.py*": "tests/layers/test_basic.py",
    "mesh/ops_test.py::test*Convert*": "names are dimensions: tests/ops/test_by_text.py",
    "mesh/ops_test.py::testConv2d*": "tests/ops/test_conv.py",
    "mesh/ops_test.py::testRandom*": "tests/ops/test_random.py",
    "mesh/ops_test.py::testVariable*": "tests/ops/test_state.py",
    "mesh/ops_test.py::testPrint*": "tests/runtime/test_print.py",
    "mesh/ops_test.py::testImport*": "inputs of a step are arrays: tests/runtime/test_arrays.py",
    "mesh/ops_test.py*": "graphs, meshes and lowering are other objects here: tests/planning",
    "mesh/simd_mesh_impl_test.py*": "nm.Mesh and its order of devices: tests/dims",
    "mesh/test_utils_test.py*": "nm.evaluate",
    "mesh/transformer/adaptive_softmax*": "missing: a vocabulary in clusters",
    "mesh/transformer/vocab_embeddings*": "one table: nm.layers.embedding and vocabulary_logits; "
    "mixtures of softmaxes and factored tables are a few lines of nm.einsum",
    "mesh/transformer/funnel*": "nm.pool between two stacks of layers; no layer of its own",
    "mesh/transformer/memory_layers*": "missing: nm.top_k and nm.gather of product keys",
    "mesh/transformer/transformer_layers*": "tests/ops/test_conv.py; states of convolutions while "
    "decoding are missing",
    "mesh/transformer/dataset*": "rows are packed by the examples, beside the data",
    "mesh/transformer/*": "tests/layers, and the examples",
    "mesh/utils_test.py*": "weights have no devices but those of the layout",
}
ROOT = pathlib.Path(__file__).parent
NAMES = (ROOT / "tests.txt").read_text().split()
DRAWN = {f"haliax/test_random.py::test_{name}" for name in DISTRIBUTIONS}
INTRODUCTION = """# The tests of Mesh TensorFlow, Haliax and Penzai

All {count} tests of the three libraries: translated and run by `test_peers.py`, which compares with
numpy, or answered: by a test of namedmesh that states the same, by what is written instead, or by
what is missing. None makes other numbers without a word here. Written by `python -m tests.peers`.

| library | tests | translated | answered | of these missing |
|---|---|---|---|---|
"""


def find_pattern(name):
    return next((pattern for pattern in ANSWERED if fnmatch.fnmatch(name, pattern)), None)


def write_table():
    """Return the table as Markdown."""
    answers = {
        name: "translated"
        if name in {*TRANSLATED, *DRAWN}
        else ANSWERED.get(find_pattern(name) or "", "")
        for name in NAMES
    }
    lines = [INTRODUCTION.format(count=len(NAMES)).rstrip()]
    for library in ("haliax", "penzai", "mesh"):
        own = [answer for name, answer in answers.items() if name.startswith(f"{library}/")]
        translated = own.count("translated")
        missing = sum("missing" in answer for answer in own)
        lines.append(
            f"| {library} | {len(own)} | {translated} | {len(own) - translated} | {missing} |"
        )
    rows = {}  # tests of a file that have one answer
    for name, answer in answers.items():
        path, _, test = name.partition("::")
        rows.setdefault((path, answer), []).append(f"`{test}`")
    before = None
    for (path, answer), tests in sorted(rows.items()):
        if path != before:
            lines += ["", f"## {path}", "", "| tests | here |", "|---|---|"]
        lines.append(f"| {', '.join(tests)} | {answer} |")
        before = path
    return "\n".join(lines) + "\n"


def compare(function, arrays, expected):
    names = [f"x{i}" for i in range(len(arrays))]
    specs = {
        name: nm.spec(dims, np.asarray(array).dtype.name)
        for name, (dims, array) in zip(names, arrays, strict=True)
    }
    program = nm.trace(lambda **given: function(*given.values()), **specs)
    state = program.initial_state(0) if program.variables else {}
    given = {name: array for name, (_, array) in zip(names, arrays, strict=True)}
    found = program.evaluate(state, **given)[1]
    if not isinstance(found, (list, tuple)):
        found, expected = [found], [expected]
    for one, other in zip(found, expected, strict=True):
        assert np.shape(one) == np.shape(other)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", TRANSLATED)
def test_translations_make_the_same_numbers(name):
    compare(*TRANSLATED[name])


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions_have_their_moments(name):
    function, mean, deviation = DISTRIBUTIONS[name]
    found = nm.evaluate(moments(function))
    np.testing.assert_allclose(found, (mean, deviation), atol=0.06 * max(deviation, 1))


def test_every_test_of_theirs_has_an_answer():
    translated = {*TRANSLATED, *DRAWN}
    assert translated <= {*NAMES}
    used = {name: find_pattern(name) for name in NAMES if name not in translated}
    assert [name for name, pattern in used.items() if pattern is None] == []
    assert {*ANSWERED} == {*used.values()}, "answers to nothing"


def test_the_tests_that_answers_name_exist():
    words = " ".join(ANSWERED.values()).replace(",", " ").replace(";", " ").split()
    paths = [ROOT.parent.parent / word for word in words if word.startswith("tests/")]
    assert [path.name for path in paths if not path.exists()] == []


def test_the_table_is_what_is_tested():
    assert (ROOT / "README.md").read_text() == write_table(), "run python -m tests.peers"
