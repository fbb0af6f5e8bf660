"""Ops given what they cannot take: found while tracing, on the line that is wrong."""

# pyright: reportArgumentType=false

import numpy as np

import namedmesh as nm
from tests.errors.wrong import B, H, M, S, Table, message_of

E = nm.Dimension("expert", 4)
WIDE = nm.Dimension("model", 10)
wrong = Table()


@wrong("""
einsum: dimension model has size 8 in x and 10 in w
  x: [batch=4, seq=6, model=8]
  w: [model=10, hidden=16]
  the result: [batch=4, seq=6, hidden=16]
  at LINE: nm.einsum([x, w], [B, S, H])
  fix: one name has one size in an op; rename one of them or slice the larger
""")
def einsum_of_one_name_in_two_sizes(x):
    w = nm.param("w", [WIDE, H])
    nm.einsum([x, w], [B, S, H])


@wrong("""
einsum: result dimension hiden is in none of the operands
  x: float32[batch=4, seq=6, model=8]
  w: float32[model=8, hidden=16]
  the result: [batch=4, seq=6, hiden=16]
  at LINE: nm.einsum([x, w], [B, S, nm.Dimension("hiden", 16)])
  fix: did you mean 'hidden'? (to add a dimension use nm.broadcast)
""")
def einsum_of_a_result_dimension_nobody_has(x, w):
    nm.einsum([x, w], [B, S, nm.Dimension("hiden", 16)])


@wrong("""
einsum: dimension hidden has size 16 in w and 8 in the result
  x: [batch=4, seq=6, model=8]
  w: [model=8, hidden=16]
  the result: [batch=4, seq=6, hidden=8]
  at LINE: nm.einsum([x, w], [B, S, nm.Dimension("hidden", 8)])
  fix: one name has one size in an op; rename one of them or slice the larger
""")
def einsum_of_a_result_in_another_size(x, w):
    nm.einsum([x, w], [B, S, nm.Dimension("hidden", 8)])


@wrong("""
einsum: operands of different dtypes
  half: bfloat16[batch=4, seq=6, model=8]
  w: float32[model=8, hidden=16]
  at LINE: nm.einsum([half, w], [B, S, H])
  fix: make them agree with nm.cast(x, dtype)
""")
def einsum_of_two_dtypes(half, w):
    nm.einsum([half, w], [B, S, H])


@wrong("""
einsum takes number operands
  mask: bool[batch=4, seq=6]
  mask: bool[batch=4, seq=6]
  at LINE: nm.einsum([mask, mask], [B])
  fix: use nm.cast(mask, 'float32')
""")
def einsum_of_bools(mask):
    nm.einsum([mask, mask], [B])


@wrong("""
einsum: x: float32[batch=4, seq=6, model=8] is not a list of tensors
  at LINE: nm.einsum(x, [B])
  fix: write nm.einsum([x, w], [B, H])
""")
def einsum_of_a_tensor_that_is_in_no_list(x):
    nm.einsum(x, [B])


@wrong("""
einsum: dimension batch appears twice in one shape: [batch=4, batch=4]
  x: float32[batch=4, seq=6, model=8]
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.einsum([x, x], [B, B])
  fix: rename one of them, e.g. nm.rename(x, batch, nm.Dimension('batch_2', 4))
""")
def einsum_of_a_dimension_twice(x):
    nm.einsum([x, x], [B, B])


@wrong("""
add: dimension model has size 8 in x and 10 in bias
  x: [batch=4, seq=6, model=8]
  bias: [model=10]
  at LINE: return x + bias
  fix: one name has one size in an op; rename one of them or slice the larger
""")
def add_of_one_name_in_two_sizes(x):
    bias = nm.param("bias", [WIDE])
    return x + bias


@wrong("""
add: operands of different dtypes
  x: float32[batch=4, seq=6, model=8]
  half: bfloat16[batch=4, seq=6, model=8]
  at LINE: return x + half
  fix: make them agree with nm.cast(x, dtype)
""")
def add_of_two_dtypes(x, half):
    return x + half


@wrong("""
add: float64[2] of type ndarray is neither a Tensor nor a number
  x: float32[batch=4, seq=6, model=8]
  at LINE: return x + np.ones(2)
  fix: pass arrays in as inputs (nm.spec) or variables (nm.param, nm.state)
""")
def add_of_an_array(x):
    return x + np.ones(2)


@wrong("""
add: number 0.5 beside k, which is int32
  k: int32[batch=4, seq=6]
  at LINE: return k + 0.5
  fix: write nm.cast(k, 'float32') or a whole number
""")
def add_of_a_fraction_to_integers(k):
    return k + 0.5


@wrong("""
add takes number operands
  mask: bool[batch=4, seq=6]
  mask: bool[batch=4, seq=6]
  at LINE: return mask + mask
  fix: use nm.cast(mask, 'float32')
""")
def add_of_bools(mask):
    return mask + mask


@wrong("""
divide takes float operands
  k: int32[batch=4, seq=6]
  2: int32[]
  at LINE: return k / 2
  fix: use nm.cast(k, 'float32')
""")
def division_of_integers(k):
    return k / 2


@wrong("""
exp takes float operands
  k: int32[batch=4, seq=6]
  at LINE: nm.exp(k)
  fix: use nm.cast(k, 'float32')
""")
def exponential_of_integers(k):
    nm.exp(k)


@wrong("""
logical_and takes bool operands
  x: float32[batch=4, seq=6, model=8]
  mask: bool[batch=4, seq=6]
  at LINE: return x & mask
  fix: compare first, e.g. x > 0
""")
def logical_and_of_numbers(x, mask):
    return x & mask


@wrong("""
where takes a bool condition
  x: float32[batch=4, seq=6, model=8]
  x: float32[batch=4, seq=6, model=8]
  0.0: float32[]
  at LINE: nm.where(x, x, 0.0)
  fix: compare first, e.g. x > 0
""")
def where_of_a_number(x):
    nm.where(x, x, 0.0)


@wrong("""
where: dimension seq has size 6 in mask and 5 in other
  mask: [batch=4, seq=6]
  x: [batch=4, seq=6, model=8]
  other: [batch=4, seq=5, model=8]
  at LINE: nm.where(mask, x, other)
  fix: one name has one size in an op; rename one of them or slice the larger
""")
def where_of_two_sizes(x, mask):
    other = nm.zeros([B, nm.Dimension("seq", 5), M])
    nm.where(mask, x, other)


@wrong("""
'float23' is not a dtype of tensors
  at LINE: nm.cast(x, "float23")
  fix: did you mean 'float32'?
""")
def cast_to_a_dtype_that_is_none(x):
    nm.cast(x, "float23")


@wrong("""
sum: x has no dimension modle
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.sum(x, over=nm.Dimension("modle", 8))
  fix: did you mean 'model'?
""")
def sum_over_a_dimension_it_lacks(x):
    nm.sum(x, over=nm.Dimension("modle", 8))


@wrong("""
sum: x has model=8, not model=10
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.sum(x, over=WIDE)
  fix: pass the dimension at the size the tensor has
""")
def sum_over_a_dimension_of_another_size(x):
    nm.sum(x, over=WIDE)


@wrong("""
nm.sum: there is no dimension 'modle' here
  at LINE: nm.sum(x, over=["modle"])
  fix: did you mean 'model'?, or give a size: 'modle=8'
""")
def sum_over_a_name(x):
    nm.sum(x, over=["modle"])


@wrong("""
softmax: -1 is not a Dimension
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.softmax(x, over=[-1])
  fix: pass the Dimension, e.g. from nm.dims('seq=128'), or its name, not a position
""")
def sum_over_a_position(x):
    nm.softmax(x, over=[-1])


@wrong("""
softmax: None is not a Dimension
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.softmax(x, over=None)
  fix: pass the Dimension, e.g. from nm.dims('seq=128'), or its name, not a position
""")
def softmax_over_nothing(x):
    nm.softmax(x, over=None)


@wrong("""
sum: dimension model=8 is named twice in over=
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.sum(x, over=[M, M])
  fix: name it once
""")
def sum_over_a_dimension_twice(x):
    nm.sum(x, over=[M, M])


@wrong("""
argmax: x has no dimension hidden
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.argmax(x, H)
  fix: use one of: batch, model, seq
""")
def argmax_over_a_dimension_it_lacks(x):
    nm.argmax(x, H)


@wrong("""
gather: dimension batch has size 4 in x and 3 in ids
  x: [batch=4, seq=6, model=8]
  ids: [batch=3]
  at LINE: nm.gather(x, ids, S)
  fix: one name has one size in an op; rename one of them or slice the larger
""")
def gather_of_two_batch_sizes(x):
    ids = nm.zeros([nm.Dimension("batch", 3)], "int32")
    nm.gather(x, ids, S)


@wrong("""
gather: the indices are not integers
  mean: float32[batch=4, seq=6]
  at LINE: nm.gather(x, nm.mean(x, over=M), S)
  fix: use nm.cast(mean, 'int32')
""")
def gather_at_fractions(x):
    nm.gather(x, nm.mean(x, over=M), S)


@wrong("""
gather: w has no dimension seq
  w: float32[model=8, hidden=16]
  at LINE: nm.gather(w, k, S)
  fix: use one of: hidden, model
""")
def gather_along_a_dimension_it_lacks(w, k):
    nm.gather(w, k, S)


@wrong("""
one_hot: seq=6 is not a new dimension
  k: int32[batch=4, seq=6]
  at LINE: nm.one_hot(k, S)
  fix: give a Dimension that the indices do not have
""")
def one_hot_in_a_dimension_it_has(k):
    nm.one_hot(k, S)


@wrong("""
one_hot: the indices are not integers
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.one_hot(x, E)
  fix: use nm.cast(x, 'int32')
""")
def one_hot_of_fractions(x):
    nm.one_hot(x, E)


@wrong("""
scatter_add: w has no dimension batch; w has no dimension seq
  w: float32[model=8, hidden=16]
  at LINE: nm.scatter_add(w, k, E)
  fix: use one of: hidden, model
""")
def scatter_add_of_updates_without_the_dimensions_of_the_indices(w, k):
    nm.scatter_add(w, k, E)


@wrong("""
top_k: best=9 cannot hold the largest of model=8
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.top_k(x, M, nm.Dimension("best", 9))
  fix: give a new dimension of size at most 8
""")
def top_k_of_more_than_there_are(x):
    nm.top_k(x, M, nm.Dimension("best", 9))


@wrong("""
cumsum takes number operands
  mask: bool[batch=4, seq=6]
  at LINE: nm.cumsum(mask, S)
  fix: use nm.cast(mask, 'float32')
""")
def cumsum_of_bools(mask):
    nm.cumsum(mask, S)


@wrong("""
sort: x has no dimension expert
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.sort(x, E)
  fix: use one of: batch, model, seq
""")
def sort_along_a_dimension_it_lacks(x):
    nm.sort(x, E)


@wrong.rows
def test_message(function, message):
    assert message_of(function) == message
