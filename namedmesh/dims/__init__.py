"""What a name is: dimensions, meshes, layouts, and the algebra of shardings.

The package can be called, too, and makes dimensions from one line of text (see `dims.dims`).

Example:
    >>> import namedmesh as nm
    >>> B, M = nm.dims("batch=8 model=16")
    >>> M.size
    16
"""

import sys
import types

from namedmesh.dims.dimension import Dimension as Dimension
from namedmesh.dims.dimension import Shape as Shape
from namedmesh.dims.dimension import dims as dims
from namedmesh.dims.errors import NamedMeshError as NamedMeshError
from namedmesh.dims.layout import Layout as Layout
from namedmesh.dims.mesh import Mesh as Mesh
from namedmesh.dims.sharding import Sharding as Sharding


class _Callable(types.ModuleType):
    """The package as a function: `import namedmesh.dims` hides `nm.dims` otherwise."""

    def __call__(self, text: str) -> list[Dimension]:
        return dims(text)


sys.modules[__name__].__class__ = _Callable
