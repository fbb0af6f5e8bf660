"""The functions that are methods of tensors too."""

from namedmesh.ir.tensor import OPERATORS
from namedmesh.ops.broadcast import broadcast, sum
from namedmesh.ops.cumulative import cumsum
from namedmesh.ops.elementwise import cast
from namedmesh.ops.reduce import all, any, argmax, argmin, max, mean, min, prod, std, var
from namedmesh.ops.shape import rename, reshape, transpose

METHODS = (
    all, any, argmax, argmin, broadcast, cast, cumsum, max, mean, min, prod, rename, reshape, std,
    sum, transpose, var,
)  # fmt: skip
OPERATORS.update({method.__name__: method for method in METHODS})
