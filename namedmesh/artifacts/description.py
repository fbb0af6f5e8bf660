"""What an Artifact's modules take, return and compute: tensors with their shapes and shardings."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from namedmesh.dims.dimension import Shape
from namedmesh.dims.mesh import Mesh
from namedmesh.dims.sharding import Sharding
from namedmesh.errors.source import Source

# numpy would take "O", "i4,i4" and much else for a dtype too.
_DTYPE_NAMES = frozenset(
    ["bool", "bfloat16", "complex64", "complex128", "int4", "uint4"]
    + [f"float{bits}" for bits in (16, 32, 64)]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    + [name for name in dir(ml_dtypes) if name.startswith("float8_")]
)


def dtype_of(name: str) -> np.dtype:
    """The numpy dtype of a name, those of ml_dtypes included."""
    if name not in _DTYPE_NAMES:
        raise TypeError(f"{name!r} is not the name of a dtype")
    return np.dtype(getattr(ml_dtypes, name, name))


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a module: its name, named dimensions, dtype, and where its shards lie.

    Attributes:
        name: Its name.
        shape: Its named dimensions.
        dtype: The name of its dtype, such as `bfloat16`.
        sharding: The mesh axes that each dimension is split over.

    Example:
        >>> from namedmesh.runtime import TensorSpec
        >>> from namedmesh.dims.dimension import dims
        >>> spec = TensorSpec("x", Shape(dims("batch=10 model=4")), "float32",
        ...                   Sharding.of({"batch": ["data"]}))
        >>> spec.sharded_text
        'float32[batch=10/data, model=4]'
        >>> spec.padded(Mesh(data=4))
        (12, 4)
    """

    name: str
    shape: Shape
    dtype: str
    sharding: Sharding

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes the user sees."""
        return self.shape.sizes

    def padded(self, mesh: Mesh) -> tuple[int, ...]:
        """The sizes at rest: rounded up to what divides over the devices.

        Args:
            mesh: The mesh the tensor lies on.

        Returns:
            A size for each dimension.
        """
        shards = self.sharding.local_sizes(self.shape, mesh)
        return tuple(
            shard * mesh.size(self.sharding.axes(dim.name))
            for shard, dim in zip(shards, self.shape, strict=True)
        )

    def bytes_per_device(self, mesh: Mesh) -> int:
        """The bytes of one device's shard, padding included.

        Args:
            mesh: The mesh the tensor lies on.

        Returns:
            The bytes.
        """
        return self.sharding.local_elements(self.shape, mesh) * dtype_of(self.dtype).itemsize

    @property
    def text(self) -> str:
        """dtype[name=size, ...] as errors print it."""
        return f"{self.dtype}{self.shape}"

    @property
    def sharded_text(self) -> str:
        """The same with the axes each dimension holds: float32[group=64/data+expert, model=512]."""
        return f"{self.dtype}{self.sharding.text(self.shape)}"


@dataclass(frozen=True)
class VariableSpec(TensorSpec):
    """A variable: a tensor that lives from step to step.

    Attributes:
        name: Its name.
        shape: Its named dimensions.
        dtype: The name of its dtype, such as `bfloat16`.
        sharding: The mesh axes that each dimension is split over.
        trainable: Whether it is a parameter.
        updated: Whether a step gives it a new value.

    Example:
        >>> import namedmesh as nm
        >>> from namedmesh.dims.sharding import Sharding
        >>> from namedmesh.runtime import VariableSpec
        >>> spec = VariableSpec("w", nm.Shape(nm.dims("model=4 hidden=8")), "float32",
        ...                     Sharding.of({"hidden": ["data"]}), trainable=True, updated=False)
        >>> spec.bytes_per_device(nm.Mesh(data=4))
        32
    """

    trainable: bool
    updated: bool


@dataclass(frozen=True)
class OpRecord:
    """A named op of a step: the line that asked for it, and the tensors it makes."""

    source: Source
    results: tuple[TensorSpec, ...]

    @property
    def texts(self) -> list[str]:
        """Each result on a line: its name, type, where it lies, and where it was written."""
        return [f"{spec.name} {spec.sharded_text} at {self.source}" for spec in self.results]
