"""Rules for files of other libraries: weights by layers, transposed, and fused."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
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
        >>> import os, tempfile
        >>> import numpy as np
        >>> import namedmesh as nm
        >>> from safetensors.numpy import save_file
        >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
        >>> save_file({f"{i}.q": np.full((4, 3), i, np.float32) for i in (0, 1)}, path)
        >>> dims = ("layer", "model", "key")
        >>> specs = {"q": nm.training.SavedVariable((2, 3, 4), "float32", dims)}
        >>> rule = nm.WeightRule("{layer}.q", "key model")
        >>> nm.load_weights(path, specs, names={"q": rule})["q"].shape
        (2, 3, 4)
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


def check_rule(rule: WeightRule, variable: str, dims: Sequence[str]) -> None:
    """Raise unless a rule names the dimensions of a variable, each once."""
    named = [dim for dim, _ in rule.indices]
    named += [dim for axis in rule.parts for dim, _, _ in axis]
    if sorted(named) != sorted(dims):
        raise NamedMeshError(
            f"the rule of {variable} does not fit its dimensions",
            f"{variable}: [{', '.join(dims)}]",
            f"the rule: {rule.name!r}, {rule.axes!r}",
            fix="name every dimension once, in the name or in the axes",
        )


def name_tensors(
    rule: WeightRule, bounds: Mapping[str, slice]
) -> Iterator[tuple[dict[str, int], str]]:
    """Yield the indices of each tensor of a part of a variable, by dimension, and its name."""
    dims = [dim for dim, _ in rule.indices]
    for index in itertools.product(*(range(bounds[d].start, bounds[d].stop) for d in dims)):
        numbers = iter(i + first for i, (_, first) in zip(index, rule.indices, strict=True))
        name = _INDEX.sub(lambda _, numbers=numbers: str(next(numbers)), rule.name)
        yield dict(zip(dims, index, strict=True)), name


def tensor_shape(rule: WeightRule, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of each tensor in the files."""
    return tuple(math.prod(_sizes(axis, sizes)) for axis in rule.parts)


def read_part(
    rule: WeightRule,
    entry: Any,
    dims: Sequence[str],
    inside: Mapping[str, slice],
    sizes: Mapping[str, int],
) -> np.ndarray:
    """Read a part of a tensor of a file; the result has the given dimensions."""
    # Of an axis of several dimensions, only the rows of the first are cut in the file.
    cuts, whole, inner = [], [], []
    for axis in rule.parts:
        bounds = [(inside[dim].start + n, inside[dim].stop + n) for dim, n, _ in axis] or [(0, 1)]
        (start, stop), (_, *others) = bounds[0], _sizes(axis, sizes) or [1]
        cuts.append(slice(start * math.prod(others), stop * math.prod(others)))
        whole += [stop - start, *others]
        inner += [slice(None) if axis else 0, *(slice(*one) for one in bounds[1:])]
    values = np.asarray(entry[tuple(cuts)]).reshape(whole)[tuple(inner)]
    names = [dim for axis in rule.parts for dim, _, _ in axis]
    return values.transpose([names.index(dim) for dim in dims])


def write_part(
    rule: WeightRule,
    into: np.ndarray,
    values: np.ndarray,
    dims: Sequence[str],
    sizes: Mapping[str, int],
) -> None:
    """Write values of given dimensions into a tensor for a file."""
    parts = [part for axis in rule.parts for part in axis]
    whole = [size for axis in rule.parts for size in _sizes(axis, sizes)]
    inner = tuple(slice(before, before + sizes[dim]) for dim, before, _ in parts)
    order = [dims.index(dim) for dim, _, _ in parts]
    into.reshape(whole)[inner] = values.transpose(order).astype(into.dtype)


def _sizes(axis: Sequence[tuple[str, int, int]], sizes: Mapping[str, int]) -> list[int]:
    """Return the sizes of what makes up an axis, elements of others included."""
    return [before + sizes[dim] + after for dim, before, after in axis]
