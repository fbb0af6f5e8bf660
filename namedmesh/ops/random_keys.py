"""Keys of random numbers: what is drawn with one is a function of it alone."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError, check_text
from namedmesh.ir.literal import as_tensor, check_number, fill
from namedmesh.ir.operands import check_tensor
from namedmesh.ir.tensor import Operand, Tensor
from namedmesh.ops.constants import zeros
from namedmesh.ops.random_bits import KEY, FoldIn, check_key, draw_bits


def key(seed: int) -> Tensor:
    """Make a random key from a seed known while tracing.

    The seed is part of the program, so that every step draws the same numbers; take the seed as an
    input and use `nm.random.key_from_seed` to draw anew each step.
    """
    return key_from_seed(fill(Shape(), check_number("random.key", seed, "int32"), "int32"))


def key_from_seed(seed: Tensor) -> Tensor:
    """Make a random key from a seed that is given when the step runs."""
    if len(check_tensor("random.key_from_seed", seed).shape) or seed.dtype != "int32":
        raise NamedMeshError(
            "random.key: the seed is not an int32 scalar",
            str(seed),
            fix="declare it as nm.spec([], 'int32')",
        )
    return FoldIn((zeros([KEY], "uint32"), seed)).output


def fold_in(key: Tensor, number: Operand) -> Tensor:
    """Make a new key from a key and a whole number: that of a step, a layer, a head.

    Keys folded with different numbers draw independent numbers.
    """
    check_key("random.fold_in", key)
    number = as_tensor("random.fold_in", number)
    if len(number.shape) or number.dtype not in ("int32", "uint32"):
        raise NamedMeshError(
            "random.fold_in: the number is not an int32 scalar",
            str(number),
            fix="use nm.cast(number, 'int32')",
        )
    return FoldIn((key, number)).output


def fold_in_name(key: Tensor, name: str) -> Tensor:
    """Make a new key from a key and a name."""
    text = check_text(name, "random.fold_in_name: a name", "dropout")
    return fold_in(key, zlib.crc32(text.encode()) & 0x7FFFFFFF)


def bits(key: Tensor, dims: Sequence[Dimension]) -> Tensor:
    """Draw 32 random bits for each element.

    Every element is drawn from the key and its own index along the named dimensions, so that every
    layout draws the same bits, without communication.
    """
    return draw_bits("random.bits", key, dims)
