"""Repetition: what passes know of an op that repeats its body along a dimension."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from namedmesh.dims.dimension import Dimension
from namedmesh.ir.op import Body, Op
from namedmesh.ir.tensor import Tensor


class Repetition(Op):
    """An op that repeats its body along a dimension.

    Its iterations may be written out one after the other (`iterations`): all of them, or those of a
    round, of which there are several.
    """

    @property
    @abstractmethod
    def iteration_dim(self) -> Dimension:
        """The dimension that the loop runs along."""

    @property
    @abstractmethod
    def rounds(self) -> Dimension:
        """The dimension that it runs along where a round of iterations is written out."""

    @abstractmethod
    def take_iteration(self, x: Tensor, iteration: int) -> Tensor:
        """Return what an unrolled iteration reads of a tensor, or of a round's row of it."""

    @abstractmethod
    def join_iterations(self, values: Sequence[Tensor]) -> Tensor:
        """Stack what the iterations that are written out made, in the order of their numbers."""

    @abstractmethod
    def split_rounds(self, x: Tensor) -> Tensor:
        """Split the loop's dimension of a tensor into rounds and the iterations of a round."""

    @abstractmethod
    def join_rounds(self, x: Tensor) -> Tensor:
        """Undoes `split_rounds`."""

    @abstractmethod
    def repeat_rounds(self, inputs: Sequence[Tensor], body: Body) -> Repetition:
        """Record the loop along `rounds` with another body and its operands."""
