"""Operands that are not tensors, dimensions or numbers: found while tracing, at their line."""

# pyright: reportArgumentType=false

import numpy as np

import namedmesh as nm
from tests.errors.wrong import B, H, M, S, Table, message_of

E = nm.Dimension("expert", 4)
wrong = Table()


@wrong("""
sum: 3.0 of type float is not a Tensor
  at LINE: nm.sum(3.0)
  fix: write nm.full(dims, 3.0)
""")
def sum_of_a_number(x):
    nm.sum(3.0)


@wrong("""
softmax: float64[3] of type ndarray is not a Tensor
  at LINE: nm.softmax(np.ones(3), over=M)
  fix: pass arrays in as inputs (nm.spec) or variables (nm.param, nm.state)
""")
def softmax_of_an_array(x):
    nm.softmax(np.ones(3), over=M)


@wrong("""
broadcast: 2.0 of type float is not a Tensor
  at LINE: nm.broadcast(2.0, [B])
  fix: write nm.full(dims, 2.0)
""")
def broadcast_of_a_number(x):
    nm.broadcast(2.0, [B])


@wrong("""
transpose: [x: float32[batch=4, seq=6, model=8], x: float32[batch=4, seq=6, model=8]] of type \
list is not a Tensor
  at LINE: nm.transpose([x, x], [B])
  fix: pass arrays in as inputs (nm.spec) or variables (nm.param, nm.state)
""")
def transpose_of_a_list(x):
    nm.transpose([x, x], [B])


@wrong("""
reshard: 3.0 of type float is not a Tensor
  at LINE: nm.reshard(3.0, B)
  fix: write nm.full(dims, 3.0)
""")
def reshard_of_a_number(x):
    nm.reshard(3.0, B)


@wrong("""
gather: float32[4, 6] of type ndarray is not a Tensor
  at LINE: nm.gather(np.ones((4, 6), np.float32), k, S)
  fix: pass arrays in as inputs (nm.spec) or variables (nm.param, nm.state)
""")
def gather_from_an_array(k):
    nm.gather(np.ones((4, 6), np.float32), k, S)


@wrong("""
index: 6 is outside seq=6
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.gather(x, [0, 6], S)
  fix: give a number from -6 to 5
""")
def gather_at_a_list(x):
    nm.gather(x, [0, 6], S)


@wrong("""
one_hot: 3 of type int is not a Tensor
  at LINE: nm.one_hot(3, E)
  fix: write nm.full(dims, 3)
""")
def one_hot_of_a_number(x):
    nm.one_hot(3, E)


@wrong("""
scatter_add: float64[3] of type ndarray is not a Tensor
  at LINE: nm.scatter_add(np.ones(3), k, E)
  fix: pass arrays in as inputs (nm.spec) or variables (nm.param, nm.state)
""")
def scatter_add_of_an_array(k):
    nm.scatter_add(np.ones(3), k, E)


@wrong("""
dynamic_update: 1.0 of type float is not a Tensor
  at LINE: nm.dynamic_update(x, 1.0, 0, S)
  fix: write nm.full(dims, 1.0)
""")
def dynamic_update_by_a_number(x):
    nm.dynamic_update(x, 1.0, 0, S)


@wrong("""
concat: 1.0 of type float is not a Tensor
  at LINE: nm.concat([1.0, x], B)
  fix: write nm.full(dims, 1.0)
""")
def concat_of_a_number(x):
    nm.concat([1.0, x], B)


@wrong("""
concat: x: float32[batch=4, seq=6, model=8] is not a list of tensors
  at LINE: nm.concat(x, B)
  fix: write nm.concat([a, b], S)
""")
def concat_of_a_tensor_that_is_in_no_list(x):
    nm.concat(x, B)


@wrong("""
concat: the list of tensors is empty
  at LINE: nm.concat([], B)
  fix: write nm.concat([a, b], S)
""")
def concat_of_nothing(x):
    nm.concat([], B)


@wrong("""
einsum: 3 of type int is not a list of tensors
  at LINE: nm.einsum(3, [B])
  fix: write nm.einsum([x, w], [B, H])
""")
def einsum_of_a_number(x):
    nm.einsum(3, [B])


@wrong("""
einsum: float64[8, 16] of type ndarray is not a Tensor
  at LINE: nm.einsum([x, np.ones((8, 16))], [B, H])
  fix: pass arrays in as inputs (nm.spec) or variables (nm.param, nm.state)
""")
def einsum_of_an_array(x):
    nm.einsum([x, np.ones((8, 16))], [B, H])


@wrong("""
add: float32[100, 200] of type ndarray is neither a Tensor nor a number
  x: float32[batch=4, seq=6, model=8]
  at LINE: return x + np.ones((100, 200), np.float32)
  fix: pass arrays in as inputs (nm.spec) or variables (nm.param, nm.state)
""")
def add_of_a_large_array(x):
    return x + np.ones((100, 200), np.float32)


@wrong("""
add: float64[2] of type ndarray is neither a Tensor nor a number
  x: float32[batch=4, seq=6, model=8]
  at LINE: return np.ones(2) + x
  fix: pass arrays in as inputs (nm.spec) or variables (nm.param, nm.state)
""")
def add_to_an_array(x):
    return np.ones(2) + x


@wrong("""
add: 'one' of type str is neither a Tensor nor a number
  x: float32[batch=4, seq=6, model=8]
  at LINE: return x + "one"
  fix: pass arrays in as inputs (nm.spec) or variables (nm.param, nm.state)
""")
def add_of_text(x):
    return x + "one"


@wrong("""
grad: 1.0 of type float is not a Tensor
  at LINE: nm.grad(1.0, x)
  fix: write nm.full(dims, 1.0)
""")
def gradient_of_a_number(x):
    nm.grad(1.0, x)


@wrong("""
grad: cannot differentiate with respect to 3.0
  at LINE: nm.grad(nm.sum(x), 3.0)
  fix: name floating point tensors in wrt=
""")
def gradient_with_respect_to_a_number(x):
    nm.grad(nm.sum(x), 3.0)


@wrong("""
grad: cotangent: 1.0 of type float is not a Tensor
  at LINE: nm.grad(x, x, cotangent=1.0)
  fix: write nm.full(dims, 1.0)
""")
def gradient_with_a_cotangent_that_is_a_number(x):
    nm.grad(x, x, cotangent=1.0)


@wrong("""
manual: 3.0 of type float is not a Tensor
  at LINE: nm.manual(lambda v: v, 3.0, over=B)
  fix: write nm.full(dims, 3.0)
""")
def manual_region_of_a_number(x):
    nm.manual(lambda v: v, 3.0, over=B)


@wrong("""
scan: 5.0 of type float is not a Tensor
  at LINE: nm.scan(lambda total, row: (total, None), nm.zeros([B]), 5.0, over=S)
  fix: write nm.full(dims, 5.0)
""")
def scan_of_a_number(x):
    nm.scan(lambda total, row: (total, None), nm.zeros([B]), 5.0, over=S)


@wrong("""
assign: float64[8] of type ndarray is neither a Tensor nor a number
  w: float32[model=8]
  at LINE: nm.assign(w, np.ones(8))
  fix: pass arrays in as inputs (nm.spec) or variables (nm.param, nm.state)
""")
def assign_of_an_array(x):
    w = nm.param("w", [M])
    nm.assign(w, np.ones(8))


@wrong("""
assign: w is float32[model=8], the value float32[]
  at LINE: nm.assign(w, 1.0)
  fix: give it the variable's dimensions and dtype, e.g. with nm.cast
""")
def assign_of_a_number_to_many(x):
    w = nm.param("w", [M])
    nm.assign(w, 1.0)


@wrong("""
<class 'numpy.str_'> is not a dtype of tensors
  at LINE: nm.cast(x, np.str_)
  fix: use one of: bfloat16, bool, complex64, float16, float32, float64, float8_e4m3fn, \
float8_e5m2, int32, int64, int8, uint32, uint8
""")
def cast_to_a_type(x):
    nm.cast(x, np.str_)


@wrong.rows
def test_message(function, message):
    assert message_of(function) == message
