"""Linear algebra of matrices along two dimensions: each device has whole ones, of its batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.context import Context
from namedmesh.ir.op import OneOfSeveral
from namedmesh.ir.operands import (
    check_dimension,
    check_dtype_kind,
    check_has_dims,
    check_same_sizes,
)
from namedmesh.ir.placement import Placement
from namedmesh.ir.tensor import Tensor
from namedmesh.ops.broadcast import widen
from namedmesh.ops.constants import range as count
from namedmesh.ops.einsum import einsum
from namedmesh.ops.elementwise import cast
from namedmesh.ops.logic import equal, where
from namedmesh.ops.matrices import tril, triu
from namedmesh.ops.shape import name_apart, rename, transpose


class MatrixFunction(OneOfSeveral):
    """A function of matrices of rows and columns, one for each element of other dimensions."""

    by_name = True
    broadcasts = True
    manual = True
    rows: Dimension
    columns: Dimension
    into: Dimension | None = None  # a new dimension: of the values, and of the vectors
    lower_half: bool = True  # of a triangular matrix

    @property
    def batch(self) -> Shape:
        """The dimensions of the matrices besides."""
        return self.inputs[0].shape.without(self.rows.name, self.columns.name)

    @property
    def solved(self) -> Shape:
        """The right-hand sides' dimensions that the matrices lack."""
        return self.inputs[-1].shape.without(self.rows.name, *self.batch.names)

    def results(self) -> list[tuple[Shape, str]]:
        R, C, K = self.rows, self.columns, self.into
        shapes = {
            "cholesky": [(R, C)], "inv": [(C, R)], "cofactors": [(R, C)], "qr": [(R, K), (K, C)],
            "det": [()], "slogdet": [(), ()], "eigh": [(K,), (R, K)], "svd": [(R, K), (K,), (C, K)],
            "solve": [(C, *self.solved)], "triangular_solve": [(C, *self.solved)],
        }[self.function]  # fmt: skip
        return [(Shape([*self.batch, *dims]), self.inputs[0].dtype) for dims in shapes]

    def lower(self, context: Context, *values: Any) -> Any:
        tf, linear, batch = context.tf, context.tf.linalg, [*self.batch.names]
        order = [*batch, self.rows.name, self.columns.name]
        x = context.arrange(values[0], self.inputs[0].shape, order)
        if self.function in ("det", "slogdet"):
            sign, logarithm = _eliminate(tf, x)
            return [sign, logarithm] if self.function == "slogdet" else sign * tf.exp(logarithm)
        if self.function in ("svd", "cofactors"):
            s, u, v = linear.svd(x)
            return [u, s, v] if self.function == "svd" else _multiply_others(tf, u, s, v)
        if self.function == "inv":
            return _solve_each(tf, linear.inv, x)
        if len(values) == 1:
            made = getattr(linear, self.function)(x)
            return list(made) if isinstance(made, tuple) else made
        b, shape = values[1], self.inputs[1].shape
        b = context.align(b, shape, Shape([*self.batch, self.rows, *self.solved]))
        sizes = [*x.shape[:-1], -1]
        b = tf.broadcast_to(b, [*x.shape[:-1], *context.sizes(self.solved)])
        if self.function == "solve":
            made = _solve_each(tf, linear.solve, x, tf.reshape(b, sizes))
        else:
            made = linear.triangular_solve(x, tf.reshape(b, sizes), lower=self.lower_half)
        return tf.reshape(made, context.sizes(self.output.shape))

    def vjp(self, *cotangents: Tensor) -> list[Tensor | None]:
        # In the order of the operands, summed over what they lack.
        pairs = zip(_DERIVATIVES[self.function](self, *cotangents), self.inputs, strict=True)
        return [einsum([dx], x.shape) for dx, x in pairs]

    def flops(self) -> int:
        sizes = self.inputs[0].shape.elements * min(self.rows.size, self.columns.size)
        return 2 * (sizes + (len(self.inputs) > 1) * self.rows.size * self.output.shape.elements)

    def placement(self) -> Placement:
        whole = [self.rows.name, self.columns.name, *([self.into.name] if self.into else [])]
        return Placement(whole=whole)


def _solve_each(tf: Any, solve: Callable[..., Any], *matrices: Any) -> Any:
    """Solve systems; nan for those that have no solution, which eager TensorFlow refuses."""
    try:
        return solve(*matrices)
    except tf.errors.InvalidArgumentError:
        if len(matrices[0].shape) == 2:
            return tf.fill(matrices[-1].shape, tf.constant(float("nan"), matrices[0].dtype))
        rows = zip(*map(tf.unstack, matrices), strict=True)
        return tf.stack([_solve_each(tf, solve, *row) for row in rows])


def _multiply_others(tf: Any, u: Any, s: Any, v: Any) -> Any:
    """Return the cofactors of matrices, singular ones too, by their singular values."""
    one = tf.eye(s.shape[-1], dtype=s.dtype)
    others = tf.reduce_prod(s[..., None, :] * (1.0 - one) + one, -1)
    sign = _eliminate(tf, u)[0] * _eliminate(tf, v)[0]
    return tf.matmul(u * (others * sign[..., None])[..., None, :], v, transpose_b=True)


def _eliminate(tf: Any, x: Any) -> tuple[Any, Any]:
    """Return the sign and the logarithm of the determinant of matrices, by elimination."""
    size = x.shape[-1]
    rows = tf.range(size)

    def step(i: Any, x: Any, sign: Any, logarithm: Any) -> Any:
        column = tf.gather(x, i, axis=-1)
        best = tf.argmax(tf.where(rows >= i, tf.abs(column), -1.0), -1, output_type=tf.int32)
        here = tf.equal(rows, best[..., None])
        chosen = tf.reduce_sum(tf.where(here[..., None], x, 0.0), -2)
        x = tf.where(here[..., None], tf.gather(x, i, axis=-2)[..., None, :], x)  # they swap
        column = tf.where(rows > i, tf.gather(x, i, axis=-1), 0.0)
        pivot = tf.gather(chosen, i, axis=-1)
        safe = tf.where(tf.equal(pivot, 0.0), tf.ones_like(pivot), pivot)
        x -= column[..., None] * (chosen / safe[..., None])[..., None, :]
        sign *= tf.sign(pivot) * tf.where(tf.equal(best, i), 1.0, -1.0)
        return i + 1, x, sign, logarithm + tf.math.log(tf.abs(pivot))

    one = tf.ones(x.shape[:-2], x.dtype)
    start = (tf.constant(0), x, one, tf.zeros_like(one))
    _, _, sign, logarithm = tf.while_loop(lambda i, *_: i < size, step, start)
    return sign, logarithm


def _twin(dim: Dimension, *tensors: Tensor) -> Dimension:
    return name_apart(dim, "twin", *tensors)


def _differentiate_cholesky(op: MatrixFunction, dy: Tensor) -> list[Tensor]:
    L, R, C, batch = op.output, op.rows, op.columns, op.batch
    K, T = _twin(C, dy), _twin(R, dy)
    inner = tril(einsum([L, rename(dy, C, K)], [*batch, C, K]), C, K)
    inner = where(equal(count(C), count(K)), inner * 0.5, inner)
    half = triangular_solve(L, inner, C, R, lower=False)  # of the transpose
    whole = triangular_solve(rename(L, {R: T, C: K}), half, K, T, lower=False)
    return [(rename(whole, T, C) + rename(whole, {R: C, T: R})) * 0.5]


def _differentiate_solve(op: MatrixFunction, dy: Tensor) -> list[Tensor]:
    a = op.inputs[0]
    if op.function == "solve":
        db = solve(a, dy, op.columns, op.rows)
        return [-einsum([db, op.output], a.shape), db]
    db = triangular_solve(a, dy, op.columns, op.rows, lower=not op.lower_half)
    keep = tril if op.lower_half else triu
    return [keep(-einsum([db, op.output], a.shape), op.rows, op.columns), db]


def _differentiate_inverse(op: MatrixFunction, dy: Tensor) -> list[Tensor]:
    return [_change_inverse(op, op.output, dy)]


def _change_inverse(op: MatrixFunction, y: Tensor, dy: Tensor) -> Tensor:
    """Return the cotangent of a matrix from that of its inverse."""
    R, C = op.rows, op.columns
    K, T = _twin(C, y), _twin(R, y)
    factors = [rename(y, C, K), rename(dy, {C: K, R: T}), rename(y, R, T)]
    return -einsum(factors, op.inputs[0].shape)


def _differentiate_determinant(op: MatrixFunction, *cotangents: Tensor) -> list[Tensor]:
    x, R, C = op.inputs[0], op.rows, op.columns
    if op.function == "slogdet":
        return [cotangents[-1] * inv(x, R, C)]
    return [cotangents[0] * _apply("cofactors", x, R, C)[0]]


def _differentiate_cofactors(op: MatrixFunction, dy: Tensor) -> list[Tensor]:
    # They are the determinant times the inverse, which is transposed: by name, that is nothing.
    x, R, C = op.inputs[0], op.rows, op.columns
    y = inv(x, R, C)
    change = _change_inverse(op, y, dy * det(x, R, C))
    return [einsum([dy, y], op.batch) * op.output + change]


def _divide(x: Tensor, y: Tensor) -> Tensor:
    """Return x / y, and zero where x is zero: what nobody asks for has no derivative of nan."""
    none = equal(x, 0.0)
    return where(none, 0.0, x / where(none, 1.0, y))


def _turn(inner: Tensor, values: Tensor, K: Dimension, T: Dimension) -> Tensor:
    """Return how vectors turn to each other: nan for those that have equal values, as in jax."""
    inner = where(equal(count(K), count(T)), 0.0, inner)
    return _divide(inner, rename(values, K, T) - values)


def _differentiate_eigh(op: MatrixFunction, dw: Tensor, dv: Tensor) -> list[Tensor]:
    (w, v), R, C, K = op.outputs, op.rows, op.columns, op.into
    assert K is not None
    T, batch = _twin(K, v), op.batch
    inner = _turn(einsum([v, rename(dv, K, T)], [*batch, K, T]), w, K, T)
    inner = inner + where(equal(count(K), count(T)), dw, 0.0)
    change = einsum([v, inner, rename(v, {R: C, K: T})], [*batch, R, C])
    return [(change + rename(change, {R: C, C: R})) * 0.5]


def _differentiate_svd(op: MatrixFunction, du: Tensor, ds: Tensor, dv: Tensor) -> list[Tensor]:
    (u, s, v), R, C, K, batch = op.outputs, op.rows, op.columns, op.into, op.batch
    assert K is not None
    T = _twin(K, u)

    def turn(x: Tensor, dx: Tensor) -> Tensor:
        inner = einsum([x, rename(dx, K, T)], [*batch, K, T])
        return _turn(inner - rename(inner, {K: T, T: K}), s * s, K, T)

    def rest(x: Tensor, dx: Tensor, side: Dimension) -> Tensor:
        """Return what of a change is orthogonal to all vectors."""
        inner = einsum([rename(x, K, T), dx], [*batch, K, T])
        return _divide(dx - einsum([rename(x, K, T), inner], [*batch, side, K]), s)

    inner = turn(u, du) * rename(s, K, T) + s * turn(v, dv)
    inner = inner + where(equal(count(K), count(T)), ds, 0.0)
    change = einsum([u, inner, rename(v, K, T)], [*batch, R, C])
    change = change + einsum([rest(u, du, R), v], [*batch, R, C])
    return [change + einsum([u, rest(v, dv, C)], [*batch, R, C])]


def _differentiate_qr(op: MatrixFunction, dq: Tensor, dr: Tensor) -> list[Tensor]:
    (q, r), R, C, K, batch = op.outputs, op.rows, op.columns, op.into, op.batch
    assert K is not None
    if R.size < C.size:
        problem = "matrices with more columns than rows have no derivative"
        raise op.error(problem, str(op.inputs[0]), fix="take the first columns, or nm.svd")
    T = _twin(K, q)
    inner = einsum([r, rename(dr, K, T)], [*batch, K, T])
    inner = inner - einsum([dq, rename(q, K, T)], [*batch, K, T])
    low = tril(inner, K, T, -1)
    inner = tril(inner, K, T) + rename(low, {K: T, T: K})
    change = dq + einsum([rename(q, K, T), inner], [*batch, R, K])
    # change times the inverse of the transpose of r: a triangular system from the right.
    return [triangular_solve(r, change, K, C, lower=False)]


_DERIVATIVES: dict[str, Callable[..., list[Tensor]]] = {
    "cholesky": _differentiate_cholesky,
    "inv": _differentiate_inverse,
    "det": _differentiate_determinant,
    "cofactors": _differentiate_cofactors,
    "slogdet": _differentiate_determinant,
    "solve": _differentiate_solve,
    "triangular_solve": _differentiate_solve,
    "eigh": _differentiate_eigh,
    "svd": _differentiate_svd,
    "qr": _differentiate_qr,
}


def _apply(
    what: str,
    x: Tensor,
    rows: Dimension,
    columns: Dimension,
    *more: Tensor,
    into: Dimension | None = None,
    square: bool = True,
    **options: Any,
) -> Sequence[Tensor]:
    """Record a function of matrices, in float32 for narrower dtypes."""
    check_has_dims(what, x, rows, columns)
    for operand in (x, *more):
        check_dtype_kind(what, "float", operand)
    if rows.name == columns.name or (square and rows.size != columns.size):
        problem = f"{what}: {rows} and {columns} are not the two sides of a square matrix"
        raise NamedMeshError(problem, str(x), fix="give two dimensions of one size")
    if into is not None:
        size = min(rows.size, columns.size)
        new = into.name not in x.shape.without(*([rows.name] if square else [])).names
        if check_dimension(what, into, x).size != size or not new:
            fix = f"give a new dimension of size {size}"
            raise NamedMeshError(f"{what}: {into} does not number the results", str(x), fix=fix)
    wide = [cast(one, widen(one.dtype)) for one in (x, *more)]
    made = MatrixFunction(tuple(wide), what, rows, columns, into, **options).outputs
    return [cast(one, x.dtype) for one in made]


def _symmetric(what: str, x: Tensor, rows: Dimension, columns: Dimension) -> Tensor:
    """Return the mean of a matrix and its transpose."""
    check_has_dims(what, x, rows, columns)
    if rows.size != columns.size or rows.name == columns.name:
        return x  # which is explained
    return (x + transpose(rename(x, {rows: columns, columns: rows}), x.shape)) * 0.5


def cholesky(x: Tensor, rows: Dimension, columns: Dimension) -> Tensor:
    """Return the lower triangular matrix whose product with its transpose is a matrix.

    Matrices are whole on a device, batches of them may be split: so for all of linear algebra here.

    Args:
        x: A positive definite matrix, of which the symmetric part is taken; others give nan.
        rows: The dimension of its rows.
        columns: The dimension of its columns.

    Example:
        >>> R, C = nm.dims("row=2 column=2")
        >>> nm.evaluate(lambda x: nm.cholesky(x, R, C), x=([R, C], [[4.0, 2.0], [2.0, 5.0]]))
        array([[2., 0.],
               [1., 2.]], dtype=float32)
    """
    return _apply("cholesky", _symmetric("cholesky", x, rows, columns), rows, columns)[0]


def solve(a: Tensor, b: Tensor, rows: Dimension, columns: Dimension) -> Tensor:
    """Return the `x` for which `nm.einsum([a, x], over=columns)` is `b`.

    Args:
        a: The matrix.
        b: A tensor with the rows: other dimensions that the matrix lacks are further systems.
        rows: The dimension of the equations.
        columns: The dimension of the unknowns, which `x` has in place of the rows.

    Example:
        >>> R, C = nm.dims("row=2 column=2")
        >>> a, b = ([R, C], [[2.0, 0.0], [0.0, 4.0]]), ([R], [2.0, 2.0])
        >>> nm.evaluate(lambda a, b: nm.solve(a, b, R, C), a=a, b=b)
        array([1. , 0.5], dtype=float32)
    """
    return _solve("solve", a, b, rows, columns)


def triangular_solve(
    a: Tensor, b: Tensor, rows: Dimension, columns: Dimension, lower: bool = True
) -> Tensor:
    """Return the solution of equations as `nm.solve`, of which each has one unknown more.

    Args:
        a: The matrix; what is on the other side of its diagonal is not read.
        b: A tensor with the rows: other dimensions that the matrix lacks are further systems.
        rows: The dimension of the equations.
        columns: The dimension of the unknowns, which the result has in place of the rows.
        lower: Whether the matrix is lower triangular; it is upper triangular otherwise.

    Example:
        >>> R, C = nm.dims("row=2 column=2")
        >>> a, b = ([R, C], [[2.0, 9.0], [1.0, 4.0]]), ([R], [2.0, 5.0])
        >>> nm.evaluate(lambda a, b: nm.triangular_solve(a, b, R, C), a=a, b=b)
        array([1., 1.], dtype=float32)
    """
    return _solve("triangular_solve", a, b, rows, columns, lower_half=lower)


def _solve(
    what: str, a: Tensor, b: Tensor, rows: Dimension, columns: Dimension, **options: Any
) -> Tensor:
    """Solve equations; the solution has its dimensions in the order of the right-hand side."""
    check_has_dims(what, b, rows)
    check_same_sizes(what, a, b)
    if b.shape.named(check_dimension(what, columns, a, b).name):
        problem = f"{what}: {b.label} has the dimension {columns} of the unknowns"
        raise NamedMeshError(problem, str(a), str(b), fix="rename it: nm.rename(b, dim, other)")
    (x,) = _apply(what, a, rows, columns, b, **options)
    names = [columns.name if name == rows.name else name for name in b.shape.names]
    more = [name for name in x.shape.names if name not in names]
    return transpose(x, x.shape.select([*more, *names]))


def inv(x: Tensor, rows: Dimension, columns: Dimension) -> Tensor:
    """Return the inverse: its product with the matrix over the columns, or the rows, is one.

    Args:
        x: The matrix.
        rows: The dimension of its rows.
        columns: The dimension of its columns.

    Example:
        >>> R, C = nm.dims("row=2 column=2")
        >>> nm.evaluate(lambda x: nm.inv(x, R, C), x=([R, C], [[2.0, 0.0], [0.0, 4.0]]))
        array([[0.5 , 0.  ],
               [0.  , 0.25]], dtype=float32)
    """
    return _apply("inv", x, rows, columns)[0]


def det(x: Tensor, rows: Dimension, columns: Dimension) -> Tensor:
    """Return the determinant of a matrix.

    Args:
        x: The matrix; second derivatives are there where it has an inverse.
        rows: The dimension of its rows.
        columns: The dimension of its columns.

    Example:
        >>> R, C = nm.dims("row=2 column=2")
        >>> nm.evaluate(lambda x: nm.det(x, R, C), x=([R, C], [[0.0, 1.0], [1.0, 0.0]]))
        array(-1., dtype=float32)
    """
    return _apply("det", x, rows, columns)[0]


def slogdet(x: Tensor, rows: Dimension, columns: Dimension) -> tuple[Tensor, Tensor]:
    """Return the sign of the determinant, and the logarithm of its absolute value.

    Args:
        x: The matrix.
        rows: The dimension of its rows.
        columns: The dimension of its columns.

    Example:
        >>> R, C = nm.dims("row=2 column=2")
        >>> nm.evaluate(lambda x: nm.slogdet(x, R, C), x=([R, C], [[0.0, 1.0], [1.0, 0.0]]))
        (array(-1., dtype=float32), array(0., dtype=float32))
    """
    sign, logarithm = _apply("slogdet", x, rows, columns)
    return sign, logarithm


def qr(x: Tensor, rows: Dimension, columns: Dimension, into: Dimension) -> tuple[Tensor, Tensor]:
    """Return orthonormal columns and an upper triangular matrix whose product is a matrix.

    Args:
        x: The matrix.
        rows: The dimension of its rows.
        columns: The dimension of its columns.
        into: The new dimension between the two, as long as the shorter side.

    Example:
        >>> R, C, K = nm.dims("row=2 column=2 basis=2")
        >>> q, r = nm.evaluate(lambda x: nm.qr(x, R, C, K), x=([R, C], [[0.0, 2.0], [3.0, 0.0]]))
        >>> abs(r)
        array([[3., 0.],
               [0., 2.]], dtype=float32)
    """
    q, r = _apply("qr", x, rows, columns, into=into, square=False)
    return q, r


def eigh(x: Tensor, rows: Dimension, columns: Dimension, into: Dimension) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues of a symmetric matrix in ascending order, and its eigenvectors.

    Args:
        x: The matrix, of which the symmetric part is taken.
        rows: The dimension of its rows, which the vectors have.
        columns: The dimension of its columns.
        into: The new dimension that numbers values and vectors.

    Example:
        >>> R, C, K = nm.dims("row=2 column=2 value=2")
        >>> x = ([R, C], [[2.0, 1.0], [1.0, 2.0]])
        >>> nm.evaluate(lambda x: nm.eigh(x, R, C, K)[0], x=x).round(5)
        array([1., 3.], dtype=float32)
    """
    x = _symmetric("eigh", x, rows, columns)
    values, vectors = _apply("eigh", x, rows, columns, into=into)
    return values, vectors


def svd(
    x: Tensor, rows: Dimension, columns: Dimension, into: Dimension
) -> tuple[Tensor, Tensor, Tensor]:
    """Return singular vectors of the rows, singular values in descending order, and of the columns.

    Args:
        x: The matrix: `nm.einsum([u, s, v], over=into)`.
        rows: The dimension of its rows.
        columns: The dimension of its columns.
        into: The new dimension that numbers them, as long as the shorter side.

    Example:
        >>> R, C, K = nm.dims("row=2 column=2 value=2")
        >>> x = ([R, C], [[0.0, 2.0], [3.0, 0.0]])
        >>> nm.evaluate(lambda x: nm.svd(x, R, C, K)[1], x=x).round(5)
        array([3., 2.], dtype=float32)
    """
    u, s, v = _apply("svd", x, rows, columns, into=into, square=False)
    return u, s, v
