"""Dense layers: named contractions with a weight, and feed-forward networks of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import namedmesh as nm
from namedmesh.errors.errors import did_you_mean
from namedmesh.layers.explain import explain_mistakes
from namedmesh.layers.mistakes import Mistake, raise_mistakes
from namedmesh.layers.naming import claim_name

ACTIVATIONS = ("relu", "gelu", "swish")


@explain_mistakes
def get_activation(name: str) -> Callable[[nm.Tensor], nm.Tensor]:
    """Return an activation function by name.

    Args:
        name: `"relu"`, `"gelu"` or `"swish"`.

    Returns:
        The function from a tensor to a tensor of the same shape.

    Raises:
        NamedMeshError: If there is no activation of that name.

    Example:
        >>> get_activation("relu") is nm.relu
        True
    """
    if name not in ACTIVATIONS:
        raise nm.NamedMeshError(
            f"{name!r} is not an activation", fix=did_you_mean(str(name), ACTIVATIONS)
        )
    return getattr(nm, name)


@explain_mistakes
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
        name: The name of the weight; the bias is called `<name>_bias`. By default `w`, which one
            layer of a scope may have.
        bias: Whether to add a bias along `to`.
        init: The weight's initializer; by default normal with variance one over the fan-in.

    Returns:
        A tensor with the other dimensions of x, then `to`.

    Raises:
        NamedMeshError: If `over` or `to` is not a list, x lacks a dimension of `over`, or another
            layer has the default name.

    Example:
        >>> B, M, H = nm.dims("batch=4 model=8 hidden=16")
        >>> nm.trace(lambda x: dense(x, [M], [H]), x=nm.spec([B, M])).outputs[0].shape
        [batch=4, hidden=16]
    """
    _check_dense(x, over, to)
    name = claim_name("dense", "w", named=True) if name is None else name
    weight = nm.param(name, [*over, *to], init or nm.fan_in_init(*over))
    others = [dim for dim in x.shape if dim not in over]
    y = nm.einsum([x, nm.cast(weight, x.dtype)], [*others, *to])
    if bias:
        y = y + nm.cast(nm.param(f"{name}_bias", list(to), nm.constant_init(0.0)), x.dtype)
    return y


@explain_mistakes
def feed_forward(
    x: nm.Tensor,
    model: nm.Dimension,
    hidden: nm.Dimension,
    *,
    activation: str = "relu",
    gated: bool = False,
) -> nm.Tensor:
    """Apply two dense layers with an activation between them.

    Args:
        x: The input, with the model dimension.
        model: The dimension to start from and to return to.
        hidden: The dimension between the two layers.
        activation: The name of the activation function.
        gated: Whether to multiply the activations by a third dense layer of x (GLU and variants).

    Returns:
        A tensor with the dimensions of x, the model dimension last.

    Raises:
        NamedMeshError: If x lacks the model dimension, the activation is unknown, or the scope has
            a feed-forward network already.

    Example:
        >>> B, M, H = nm.dims("batch=4 model=8 hidden=16")
        >>> program = nm.trace(lambda x: feed_forward(x, M, H, gated=True), x=nm.spec([B, M]))
        >>> list(program.parameters)
        ['wi', 'wi_gate', 'wo']
    """
    claim_name("feed_forward", "wi")
    h = get_activation(activation)(dense(x, [model], [hidden], name="wi"))
    if gated:
        h = h * dense(x, [model], [hidden], name="wi_gate")
    return dense(h, [hidden], [model], name="wo")


def _check_dense(x: nm.Tensor, over: Sequence[nm.Dimension], to: Sequence[nm.Dimension]) -> None:
    """Raise unless over and to are lists of dimensions, and x has those of over."""
    mistakes: list[Mistake] = []
    if not isinstance(x, nm.Tensor):
        mistakes.append((f"dense: {x!r} is not a Tensor", "pass the tensor to contract"))
    for dims, role in ((over, "over"), (to, "to")):
        if isinstance(dims, nm.Dimension):
            mistakes.append(
                (f"dense: {role}={dims} is one dimension", f"pass a list: [{dims.name}]")
            )
            continue
        for dim in dims:
            if not isinstance(dim, nm.Dimension):
                fix = "pass dimensions from nm.dims('model=8'), not their names"
                mistakes.append((f"dense: {role} contains {dim!r}, which is not a Dimension", fix))
            elif role == "over" and isinstance(x, nm.Tensor) and dim not in x.shape.dims:
                mistakes.append(_describe_missing(x, dim))
    raise_mistakes("dense", mistakes, *([str(x)] if isinstance(x, nm.Tensor) else []))


def _describe_missing(x: nm.Tensor, dim: nm.Dimension) -> Mistake:
    """Say how a tensor lacks a dimension: it has none of that name, or one of another size."""
    same_name = x.shape.named(dim.name)
    if same_name is None:
        problem = f"dense: {x.label} has no dimension {dim.name}"
        return problem, did_you_mean(dim.name, x.shape.names)
    return f"dense: {x.label} has {same_name}, not {dim}", "pass the dimension at that size"
