"""Convolutions with a weight of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import namedmesh as nm
from namedmesh.layers.explain import explain_mistakes
from namedmesh.layers.naming import claim_name


@explain_mistakes
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
    """Slide a learned window along some dimensions, from some channels to others.

    Args:
        x: The input. The result has its dtype; the weight is float32 and is cast.
        windows: The size of the window along each dimension that it slides along.
        over: The channels of x to sum over.
        to: The channels that the weight adds.
        name: The name of the weight; the bias is called `<name>_bias`. By default `w`, which one
            layer of a scope may have.
        stride: The distance between two positions, for all dimensions or by dimension.
        dilation: The distance between two elements of the window, likewise.
        padding: `"same"` or `"valid"`.
        keep: Channels of x of which each has a window of its own: groups, or all of them for a
            depthwise convolution, with `over=[]`.
        transposed: Whether to slide back (`nm.conv_transpose`), as decoders do.
        bias: Whether to add a bias along `keep` and `to`.
        init: The weight's initializer; by default normal with variance one over the fan-in.

    Returns:
        A tensor with the other dimensions of x, then `to`.

    Raises:
        NamedMeshError: If x lacks a dimension, or a window does not fit.

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
    slide = nm.conv_transpose if transposed else nm.conv
    y = slide(
        x,
        nm.cast(weight, x.dtype),
        pairs,
        stride=stride,
        dilation=dilation,
        padding=padding,
        keep=list(keep),
    )
    if bias:
        dims = [*keep, *to]
        y = y + nm.cast(nm.param(f"{name}_bias", dims, nm.constant_init(0.0)), x.dtype)
    return y
