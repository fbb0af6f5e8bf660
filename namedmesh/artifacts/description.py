"""Tensors of an Artifact's modules: names, shapes, dtypes and shardings."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from namedmesh.dims.dimension import Shape
from namedmesh.dims.mesh import Mesh
from namedmesh.dims.sharding import Sharding
from namedmesh.errors.errors import NamedMeshError
from namedmesh.errors.source import Source

# numpy would take "O", "i4,i4" and much else for a dtype too.
_DTYPE_NAMES = frozenset(
    ["bool", "bfloat16", "complex64", "complex128", "int4", "uint4"]
    + [f"float{bits}" for bits in (16, 32, 64)]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    + [name for name in dir(ml_dtypes) if name.startswith("float8_")]
)


@functools.cache
def dtype_of(name: str) -> np.dtype:
    """Return the numpy dtype of a name, those of ml_dtypes included."""
    if name not in _DTYPE_NAMES:
        raise NamedMeshError(f"{name!r} is not the name of a dtype", fix="write e.g. 'float32'")
    return np.dtype(getattr(ml_dtypes, name, name))


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a module: its name, named dimensions, dtype and sharding.

    Attributes:
        name: Its name.
        shape: Its named dimensions.
        dtype: The name of its dtype, such as `bfloat16`.
        sharding: The mesh axes that each dimension is sharded over.

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

    def __post_init__(self) -> None:
        dtype_of(self.dtype)
        unknown = [name for name, _ in self.sharding.held if name not in self.shape.names]
        used = self.sharding.used
        twice = [axis for axis in dict.fromkeys(used) if used.count(axis) > 1]
        if unknown or twice:
            problem = f"{self.name} has no dimension {', '.join(unknown)} to shard: {self.shape}"
            if twice:
                problem = f"{self.name} is sharded twice over {', '.join(twice)}"
            raise NamedMeshError(problem, fix="shard each dimension over axes of its own")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes without padding."""
        return self.shape.sizes

    def padded(self, mesh: Mesh) -> tuple[int, ...]:
        """Return the sizes rounded up to what divides over the devices.

        Args:
            mesh: The mesh that the tensor is sharded over.

        Returns:
            A size for each dimension.
        """
        shards = self.sharding.local_sizes(self.shape, mesh)
        return tuple(
            shard * mesh.size(self.sharding.axes(dim.name))
            for shard, dim in zip(shards, self.shape, strict=True)
        )

    def bytes_per_device(self, mesh: Mesh) -> int:
        """Return the bytes of one device's shard, padding included.

        Args:
            mesh: The mesh that the tensor is sharded over.

        Returns:
            The bytes.
        """
        return self.sharding.local_elements(self.shape, mesh) * dtype_of(self.dtype).itemsize

    @property
    def text(self) -> str:
        """The dtype and dimensions: float32[group=64, model=512]."""
        return f"{self.dtype}{self.shape}"

    @property
    def sharded_text(self) -> str:
        """The same with mesh axes: float32[group=64/data+expert, model=512]."""
        return f"{self.dtype}{self.sharding.text(self.shape)}"


@dataclass(frozen=True)
class VariableSpec(TensorSpec):
    """A variable: a tensor that lives from step to step.

    Attributes:
        trainable: Whether it is a parameter that is trained.
        updated: Whether a step gives it a new value.
        frozen: Whether it is a parameter that is not trained.

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
    frozen: bool = False

    @property
    def parameter(self) -> bool:
        """True for a parameter, trained or not."""
        return self.trainable or self.frozen


@dataclass(frozen=True)
class OpRecord:
    """A named op of a step: its source line and the tensors it computes."""

    source: Source
    results: tuple[TensorSpec, ...]

    @property
    def texts(self) -> list[str]:
        """A line for each result: its name, type, sharding and source."""
        return [f"{spec.name} {spec.sharded_text} at {self.source}" for spec in self.results]
