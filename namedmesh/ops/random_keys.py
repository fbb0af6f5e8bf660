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
    """Makes a random key from a seed known while tracing.

    The seed is part of the program, so that every step draws the same numbers; take the seed as an
    input and use `nm.random.key_from_seed` to draw anew each step.

    Args:
        seed: A whole number.

    Returns:
        A key: a uint32 tensor of two words.

    Raises:
        NamedMeshError: The seed is not a whole number that int32 holds.

    Example:
        >>> import namedmesh as nm
        >>> nm.trace(lambda: nm.random.key(0)).outputs[0].shape
        [key_word=2]
    """
    return key_from_seed(fill(Shape(), check_number("random.key", seed, "int32"), "int32"))


def key_from_seed(seed: Tensor) -> Tensor:
    """Makes a random key from a seed that is given when the step runs.

    Args:
        seed: An int32 scalar, such as an input that counts the steps.

    Returns:
        A key: a uint32 tensor of two words.

    Raises:
        NamedMeshError: The seed is not an int32 scalar.

    Example:
        >>> import namedmesh as nm
        >>> B = nm.Dimension("batch", 2)
        >>> def draw(seed):
        ...     return nm.random.uniform(nm.random.key_from_seed(seed), [B])
        >>> first, second = nm.evaluate(draw, seed=([], 1)), nm.evaluate(draw, seed=([], 2))
        >>> bool((first == second).any())
        False
    """
    if len(check_tensor("random.key_from_seed", seed).shape) or seed.dtype != "int32":
        raise NamedMeshError(
            "random.key: the seed is not an int32 scalar",
            str(seed),
            fix="declare it as nm.spec([], 'int32')",
        )
    return FoldIn((zeros([KEY], "uint32"), seed)).output


def fold_in(key: Tensor, number: Operand) -> Tensor:
    """Makes a new key from a key and a whole number: that of a step, a layer, a head.

    Keys folded with different numbers draw independent numbers.

    Args:
        key: A random key, from `nm.random.key` or `nm.random.fold_in`.
        number: A whole number, or an int32 scalar.

    Returns:
        A key: a uint32 tensor of two words.

    Raises:
        NamedMeshError: `key` is not a random key, or the number is not an int32 scalar.

    Example:
        >>> import namedmesh as nm
        >>> B = nm.Dimension("batch", 1)
        >>> def draw():
        ...     key = nm.random.key(0)
        ...     first = nm.random.bits(nm.random.fold_in(key, 1), [B])
        ...     return nm.equal(first, nm.random.bits(nm.random.fold_in(key, 2), [B]))
        >>> nm.evaluate(draw)
        array([False])
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
    """Makes a new key from a key and a name.

    Args:
        key: A random key, from `nm.random.key` or `nm.random.fold_in`.
        name: Any string.

    Returns:
        A key: a uint32 tensor of two words.

    Raises:
        NamedMeshError: `key` is not a random key.

    Example:
        >>> import namedmesh as nm
        >>> nm.trace(lambda: nm.random.fold_in_name(nm.random.key(0), "dropout")).outputs[0].dtype
        'uint32'
    """
    text = check_text(name, "random.fold_in_name: a name", "dropout")
    return fold_in(key, zlib.crc32(text.encode()) & 0x7FFFFFFF)


def bits(key: Tensor, dims: Sequence[Dimension]) -> Tensor:
    """Draws 32 random bits for each element.

    Every element is drawn from the key and its own index along the named dimensions, so that every
    layout draws the same bits, without communication.

    Args:
        key: A random key, from `nm.random.key` or `nm.random.fold_in`.
        dims: The dimensions of the result, in order.

    Returns:
        A uint32 tensor. It carries no gradient.

    Raises:
        NamedMeshError: `key` is not a random key.

    Example:
        >>> import namedmesh as nm
        >>> B = nm.Dimension("batch", 2)
        >>> nm.evaluate(lambda: nm.random.bits(nm.random.key(0), [B]))
        array([399334838, 631368804], dtype=uint32)
    """
    return draw_bits("random.bits", key, dims)
