"""Dense layers, feed-forward networks, embeddings and convolutions: contractions with a weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import namedmesh as nm
from namedmesh.errors.errors import did_you_mean
from namedmesh.layers.mistakes import Mistake, claim_name, raise_mistakes
from namedmesh.layers.weights import get_weights

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "swish")


def get_activation(name: str) -> Callable[[nm.Tensor], nm.Tensor]:
    """Return an activation function by name: `"relu"`, `"gelu"`, `"gelu_tanh"` or `"swish"`.

    Example:
        >>> get_activation("relu") is nm.relu
        True
    """
    if name not in ACTIVATIONS:
        raise nm.NamedMeshError(
            f"{name!r} is not an activation", fix=did_you_mean(str(name), ACTIVATIONS)
        )
    return _gelu_tanh if name == "gelu_tanh" else getattr(nm, name)


def _gelu_tanh(x: nm.Tensor) -> nm.Tensor:
    """Approximate `nm.gelu` by a tanh, as Gemma does."""
    return x * 0.5 * (nm.tanh((x + x * x * x * 0.044715) * math.sqrt(2.0 / math.pi)) + 1.0)


def dense(
    x: nm.Tensor,
    over: Sequence[nm.Dimension],
    to: Sequence[nm.Dimension],
    *,
    name: str | None = None,
    bias: bool = False,
    init: Callable[[nm.Tensor, nm.Shape, str], nm.Tensor] | None = None,
) -> nm.Tensor:
    """Contract x with a weight over some dimensions, which are replaced by new ones.

    Args:
        x: The input. The result has its dtype; the weight is float32 and is cast.
        over: The dimensions of x to sum over.
        to: The dimensions that the weight adds.
        name: The name of the weight; the bias is `<name>_bias`; `w` for one layer of a scope.
        bias: Whether to add a bias along `to`.
        init: The weight's initializer; by default normal with variance one over the fan-in.

    Returns:
        A tensor with the other dimensions of x, then `to`.

    Example:
        >>> B, M, H = nm.dims("batch=4 model=8 hidden=16")
        >>> nm.trace(lambda x: dense(x, [M], [H]), x=nm.spec([B, M])).outputs[0].shape
        [batch=4, hidden=16]
    """
    _check_dense(x, over, to)
    name = claim_name("dense", "w", named=True) if name is None else name
    weights = get_weights()
    weight = weights.make(name, [*over, *to], init or nm.fan_in_init(*over), over)
    others = [dim for dim in x.shape if dim not in over]
    y = weights.multiply(x, weight, [*others, *to], name)
    y = weights.adapt(x, y, name, (over, to))
    if bias:
        y = y + nm.cast(weights.make(f"{name}_bias", to, nm.constant_init(0.0)), x.dtype)
    return y


def feed_forward(
    x: nm.Tensor,
    model: nm.Dimension,
    hidden: nm.Dimension,
    *,
    activation: str = "relu",
    gated: bool = False,
    bias: bool = False,
) -> nm.Tensor:
    """Apply two dense layers with an activation between them; the model dimension comes last.

    Args:
        x: The input, with the model dimension.
        model: The dimension to start from and to return to.
        hidden: The dimension between the two layers.
        activation: The name of the activation function.
        gated: Whether to multiply the activations by a third dense layer of x (GLU and variants).
        bias: Whether each of these layers has one.

    Example:
        >>> B, M, H = nm.dims("batch=4 model=8 hidden=16")
        >>> program = nm.trace(lambda x: feed_forward(x, M, H, gated=True), x=nm.spec([B, M]))
        >>> list(program.parameters)
        ['wi', 'wi_gate', 'wo']
    """
    claim_name("feed_forward", "wi")
    h = get_activation(activation)(dense(x, [model], [hidden], name="wi", bias=bias))
    if gated:
        h = h * dense(x, [model], [hidden], name="wi_gate", bias=bias)
    return dense(h, [hidden], [model], name="wo", bias=bias)


def _check_dense(x: nm.Tensor, over: Sequence[nm.Dimension], to: Sequence[nm.Dimension]) -> None:
    """Raise unless over and to are lists of dimensions, and x has those of over."""
    mistakes: list[Mistake] = []
    for dims, role in ((over, "over"), (to, "to")):
        if isinstance(dims, nm.Dimension):
            problem = f"dense: {role}={dims} is one dimension"
            mistakes.append((problem, f"pass a list: [{dims.name}]"))
            continue
        for dim in dims:
            if not isinstance(dim, nm.Dimension):
                fix = "pass dimensions from nm.dims('model=8'), not their names"
                mistakes.append((f"dense: {role} contains {dim!r}, which is not a Dimension", fix))
            elif role == "over" and dim not in x.shape.dims:
                same_name = x.shape.named(dim.name)
                problem, fix = f"has {same_name}, not {dim}", "pass the dimension at that size"
                if same_name is None:
                    fix = did_you_mean(dim.name, x.shape.names)
                    problem = f"has no dimension {dim.name}"
                mistakes.append((f"dense: {x.label} {problem}", fix))
    raise_mistakes("dense", mistakes, str(x))


def embedding(
    tokens: nm.Tensor,
    vocab: nm.Dimension,
    model: nm.Dimension,
    *,
    name: str = "embedding",
    dtype: str = "float32",
    scale: float | None = None,
) -> nm.Tensor:
    """Look up the rows of a learned table, multiplied by the square root of the model dimension.

    Args:
        tokens: Integers that index the vocabulary.
        vocab: The vocabulary's dimension.
        model: The dimension of a row.
        name: The name of the table; `vocabulary_logits` of the same name shares it.
        dtype: The dtype of the result.
        scale: Another factor than that square root, e.g. 1.0.

    Example:
        >>> B, V, M = nm.dims("batch=4 vocab=100 model=8")
        >>> nm.trace(lambda t: embedding(t, V, M), t=nm.spec([B], "int32")).outputs[0].shape
        [batch=4, model=8]
    """
    model = nm.Shape([vocab, model])[1]  # sizes in place of dimensions are refused
    table = get_weights().make(name, [vocab, model], nm.normal_init(1.0 / math.sqrt(model.size)))
    rows = nm.gather(nm.cast(table, dtype), tokens, vocab)
    return rows if scale == 1.0 else rows * (math.sqrt(model.size) if scale is None else scale)


def vocabulary_logits(
    x: nm.Tensor, vocab: nm.Dimension, model: nm.Dimension, *, name: str = "embedding"
) -> nm.Tensor:
    """Score every token of a vocabulary, which replaces the model dimension.

    Args:
        x: Representations, with the model dimension.
        vocab: The vocabulary's dimension.
        model: The dimension to contract.
        name: The name of the table; the name of an embedding ties the two.

    Example:
        >>> B, V, M = nm.dims("batch=4 vocab=100 model=8")
        >>> nm.trace(lambda x: vocabulary_logits(x, V, M), x=nm.spec([B, M])).outputs[0].shape
        [batch=4, vocab=100]
    """
    table = get_weights().make(name, [vocab, model], nm.normal_init(1.0 / math.sqrt(model.size)))
    others = [dim for dim in x.shape if dim != model]
    return nm.einsum([x, nm.cast(table, x.dtype)], [*others, vocab])


def convolution(
    x: nm.Tensor,
    windows: Mapping[nm.Dimension, int],
    over: Sequence[nm.Dimension],
    to: Sequence[nm.Dimension],
    *,
    name: str | None = None,
    stride: int | Mapping[nm.Dimension, int] = 1,
    dilation: int | Mapping[nm.Dimension, int] = 1,
    padding: str = "same",
    keep: Sequence[nm.Dimension] = (),
    transposed: bool = False,
    bias: bool = False,
    init: nm.Initializer | None = None,
) -> nm.Tensor:
    """Slide a learned window along some dimensions, from the channels `over` to the channels `to`.

    Args:
        x: The input.
        windows: The size of the window along each dimension that it slides along.
        over: The channels of x to sum over.
        to: The channels that the weight adds.
        name: The name of the weight, as in `dense`.
        stride, dilation: The distances between positions and between elements of the window, for
            all dimensions or by dimension.
        padding: `"same"` or `"valid"`.
        keep: Channels of x with a window each: groups, or, with `over=[]`, depthwise.
        transposed: Whether to slide back (`nm.conv_transpose`), as decoders do.
        bias: Whether to add a bias along `keep` and `to`.
        init: The weight's initializer, as in `dense`.

    Example:
        >>> B, R, C, P, F = nm.dims("batch=2 rows=8 columns=8 colours=3 filter=16")
        >>> layer = lambda x: convolution(x, {R: 3, C: 3}, [P], [F], stride=2)
        >>> nm.trace(layer, nm.spec([B, R, C, P])).outputs[0].shape
        [batch=2, rows=4, columns=4, filter=16]
    """
    name = claim_name("convolution", "w", named=True) if name is None else name
    pairs = {dim: nm.Dimension(f"{dim.name}_window", size) for dim, size in windows.items()}
    fan_in = [*pairs.values(), *over]
    weight = nm.param(name, [*pairs.values(), *keep, *over, *to], init or nm.fan_in_init(*fan_in))
    weight, slide = nm.cast(weight, x.dtype), nm.conv_transpose if transposed else nm.conv
    y = slide(x, weight, pairs, stride=stride, dilation=dilation, padding=padding, keep=list(keep))
    if bias:
        y = y + nm.cast(nm.param(f"{name}_bias", [*keep, *to], nm.constant_init(0.0)), x.dtype)
    return y
