"""Where variables are in the files of other libraries: in layers, transposed, and fused."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from namedmesh.errors.errors import NamedMeshError

_INDEX = re.compile(r"\{(\w+)(?:\+(\d+))?\}")  # {layer}, or {layer+3}
_AXIS = re.compile(r"\(([^()]*)\)|([^()\s]+)")  # (heads key), or model
_PART = re.compile(r"(?:(\d+)\+)?([A-Za-z_]\w*)(?:\+(\d+))?|1")  # key, 128+value, or key+128


@dataclass(frozen=True)
class WeightRule:
    """The place of a variable in files whose tensors are cut and ordered in another way.

    Attributes:
        name: The name of a tensor in the files. `{layer}` stands for each index of a dimension
            whose elements have a tensor each, and `{layer+3}` counts from 3.
        axes: The axes of such a tensor, in names of dimensions: `"hidden model"`; several that make
            one axis in parentheses, `"(heads key) model"`; beside elements that belong to others,
            `"(heads key+128) model"` or `"64+hidden model"`; and 1.
        dtype: The dtype in files that are written, if it is another than that of all.

    Example:
        >>> rule = WeightRule("layers.{layer}.q.weight", "(heads key) model")
        >>> sizes = {"layer": 2, "model": 6, "heads": 2, "key": 4}
        >>> dict(rule.tensors(sizes))
        {(0,): 'layers.0.q.weight', (1,): 'layers.1.q.weight'}
        >>> rule.shape(sizes)
        (8, 6)
    """

    name: str
    axes: str
    dtype: str | None = None

    @cached_property
    def indices(self) -> list[tuple[str, int]]:
        """The dimensions in the name, with the number of their first element."""
        return [(dim, int(first or 0)) for dim, first in _INDEX.findall(self.name)]

    @cached_property
    def parts(self) -> list[list[tuple[str, int, int]]]:
        """The dimensions of every axis, with the numbers of elements before and after them."""
        axes = []
        for several, one in _AXIS.findall(self.axes):
            found = [_PART.fullmatch(word) for word in (several or one).split()]
            if None in found:
                raise NamedMeshError(
                    f"the axes {self.axes!r} of {self.name} cannot be read",
                    fix="write e.g. 'hidden model', '(heads key) model' or '(heads key+128) model'",
                )
            groups = [match.groups() for match in found if match]
            axes.append([(dim, int(a or 0), int(b or 0)) for a, dim, b in groups if dim])
        return axes

    def check(self, variable: str, dims: Sequence[str]) -> None:
        """Raise unless the rule names the dimensions of a variable, each once."""
        named = [dim for dim, _ in self.indices]
        named += [dim for axis in self.parts for dim, _, _ in axis]
        if sorted(named) != sorted(dims):
            raise NamedMeshError(
                f"the rule of {variable} does not fit its dimensions",
                f"{variable}: [{', '.join(dims)}]",
                f"the rule: {self.name!r}, {self.axes!r}",
                fix="name every dimension once, in the name or in the axes",
            )

    def tensors(
        self, sizes: dict[str, int], inside: dict[str, slice] | None = None
    ) -> Iterator[tuple[tuple[int, ...], str]]:
        """Yield the indices of each tensor of a variable, or of a part of it, and its name."""
        bounds = inside or {dim: slice(0, size) for dim, size in sizes.items()}
        ranges = [range(bounds[dim].start, bounds[dim].stop) for dim, _ in self.indices]
        for index in itertools.product(*ranges):
            numbers = iter(i + first for i, (_, first) in zip(index, self.indices, strict=True))
            yield index, _INDEX.sub(lambda _, numbers=numbers: str(next(numbers)), self.name)

    def shape(self, sizes: dict[str, int]) -> tuple[int, ...]:
        """Return the shape of each tensor in the files."""
        return tuple(math.prod(self._sizes(axis, sizes)) for axis in self.parts)

    def read(
        self, entry: Any, dims: Sequence[str], inside: dict[str, slice], sizes: dict[str, int]
    ):
        """Read a part of a tensor; the result has the given dimensions.

        Of an axis of several dimensions, only the rows of the first are cut in the file.
        """
        cuts, whole, inner, names = [], [], [], []
        for axis in self.parts:
            full = self._sizes(axis, sizes)
            rest = math.prod(full[1:])
            for i, (dim, before, _) in enumerate(axis):
                start, stop = inside[dim].start + before, inside[dim].stop + before
                if i == 0:
                    cuts.append(slice(start * rest, stop * rest))
                whole.append(stop - start if i == 0 else full[i])
                inner.append(slice(None) if i == 0 else slice(start, stop))
                names.append(dim)
            if not axis:
                cuts.append(slice(0, 1))
        values = np.asarray(entry[tuple(cuts)]).reshape(whole)
        return values[tuple(inner)].transpose([names.index(dim) for dim in dims])

    def write(
        self, into: np.ndarray, values: np.ndarray, dims: Sequence[str], sizes: dict[str, int]
    ) -> None:
        """Write a variable's values of given dimensions into a tensor of the files."""
        whole, inner, names = [], [], []
        for axis in self.parts:
            whole += self._sizes(axis, sizes)
            inner += [slice(before, before + sizes[dim]) for dim, before, _ in axis]
            names += [dim for dim, _, _ in axis]
        order = [dims.index(dim) for dim in names]
        into.reshape(whole)[tuple(inner)] = values.transpose(order).astype(into.dtype)

    @staticmethod
    def _sizes(axis: Sequence[tuple[str, int, int]], sizes: dict[str, int]) -> list[int]:
        """Return the sizes of what makes up an axis, elements of others included."""
        return [before + sizes[dim] + after for dim, before, after in axis]
