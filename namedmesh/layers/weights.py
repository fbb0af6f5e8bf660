"""The weights of layers: how they are made and multiplied, and how experts' rows are sent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

import namedmesh as nm

Dims = Sequence[nm.Dimension]


class Weights:
    """Weights of layers as they are made: float32 parameters, all of them trained.

    A subclass stores them in another way, such as frozen and in 8 bits, adds adapters, or
    multiplies in 8 bits (`Float8`).

    Example:
        >>> class Frozen(Weights):
        ...     def make(self, name, dims, init, over=(), whole=()):
        ...         return nm.param(name, dims, init, "bfloat16", trainable=False)
        >>> B, M, H = nm.dims("batch=2 model=8 hidden=4")
        >>> with use_weights(Frozen()):
        ...     program = nm.trace(lambda x: nm.layers.dense(x, [M], [H]), nm.spec([B, M]))
        >>> program.variables["w"].dtype
        'bfloat16'
    """

    def make(
        self, name: str, dims: Dims, init: nm.Initializer | None, over: Dims = (), whole: Dims = ()
    ) -> nm.Tensor:
        """Return a weight in a floating point dtype.

        Args:
            name, dims, init, whole: As for `nm.param`.
            over: The dimensions that a product with it sums over; none of norms, biases, tables.
        """
        return nm.param(name, dims, init, whole=whole)

    def multiply(self, x: nm.Tensor, weight: nm.Tensor, dims: Dims, name: str) -> nm.Tensor:
        """Return the product of x with a weight, in the dtype of x.

        Args:
            x, weight: What is multiplied; the weight may have another dtype.
            dims: The dimensions of the product.
            name: The name of the weight.
        """
        return nm.einsum([x, nm.cast(weight, x.dtype)], dims)

    def reshard(self, x: nm.Tensor, dim: nm.Dimension) -> nm.Tensor:
        """Return the rows of experts with a dimension's mesh axes moved to it: an AllToAll."""
        return nm.reshard(x, dim)

    def adapt(self, x: nm.Tensor, y: nm.Tensor, name: str, dims: tuple[Dims, Dims]) -> nm.Tensor:
        """Return the product of x with a weight, with what is added to it.

        Args:
            x, y: A dense layer's input, and its product with the weight.
            name: The name of the weight.
            dims: The dimensions that are summed over, and those that take their place.
        """
        return y

    def finish(self) -> None:
        """Check what was made and multiplied, at the end of `use_weights`."""


_current: ContextVar[Weights] = ContextVar("weights", default=Weights())  # noqa: B039


@contextlib.contextmanager
def use_weights(weights: Weights) -> Iterator[None]:
    """Let layers make their weights in another way.

    Args:
        weights: How they make them.

    Example:
        >>> with use_weights(Weights()):
        ...     pass
    """
    before = _current.set(weights)
    try:
        yield
    finally:
        _current.reset(before)
    weights.finish()


def get_weights() -> Weights:
    """Return how layers make their weights here, for layers of your own.

    Example:
        >>> type(get_weights()).__name__
        'Weights'
    """
    return _current.get()
