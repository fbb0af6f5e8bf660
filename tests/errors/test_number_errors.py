"""Numbers and dtypes that an op cannot take: found while tracing, on the line that is wrong."""

# pyright: reportArgumentType=false

import math

import namedmesh as nm
from tests.errors.wrong import B, M, S, Table, message_of

wrong = Table()


@wrong("""
slice: start 0.5 is not a whole number
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.slice(x, M, 0.5, 2)
  fix: give a whole number
""")
def slice_from_a_fraction(x):
    nm.slice(x, M, 0.5, 2)


@wrong("""
slice: size None is not a whole number
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.slice(x, M, 0, None)
  fix: give a whole number
""")
def slice_of_no_size(x):
    nm.slice(x, M, 0, None)


@wrong("""
slice: start n: int32[] is not a whole number known while tracing
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.slice(x, M, n, 2)
  fix: use nm.dynamic_slice or nm.dynamic_update for a start that a tensor holds
""")
def slice_from_a_tensor(x, n):
    nm.slice(x, M, n, 2)


@wrong("""
roll: by 1.5 is not a whole number
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.roll(x, M, 1.5)
  fix: give a whole number
""")
def roll_by_a_fraction(x):
    nm.roll(x, M, 1.5)


@wrong("""
pad: low 0.5 is not a whole number
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.pad(x, M, 0.5)
  fix: give a whole number
""")
def pad_by_a_fraction(x):
    nm.pad(x, M, 0.5)


@wrong("""
pad: 0.5 does not fit int32
  k: int32[batch=4, seq=6]
  at LINE: nm.pad(k, S, 1, value=0.5)
  fix: give a whole number, or a floating point dtype
""")
def pad_of_integers_with_a_fraction(k):
    nm.pad(k, S, 1, value=0.5)


@wrong("""
chunk: number of parts 2.5 is not a whole number
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.chunk(x, M, 2.5)
  fix: give a whole number
""")
def chunk_into_a_fraction(x):
    nm.chunk(x, M, 2.5)


@wrong("""
chunk: 0 does not cut model=8 into whole parts
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.chunk(x, M, 0)
  fix: give a divisor of the size, or sizes that add up to it
""")
def chunk_into_none(x):
    nm.chunk(x, M, 0)


@wrong("""
full: 'a' of type str is not a number
  at LINE: nm.full([M], "a")
  fix: give a number known while tracing
""")
def full_of_text(x):
    nm.full([M], "a")


@wrong("""
full: 0.5 does not fit int32
  at LINE: nm.full([M], 0.5, "int32")
  fix: give a whole number, or a floating point dtype
""")
def full_of_a_fraction_in_integers(x):
    nm.full([M], 0.5, "int32")


@wrong("""
full: sum: float32[] is not a number
  at LINE: nm.full([M], nm.sum(x))
  fix: use nm.broadcast(x, dims) for a tensor
""")
def full_of_a_tensor(x):
    nm.full([M], nm.sum(x))


@wrong("""
full: inf does not fit int32
  at LINE: nm.full([M], math.inf, "int32")
  fix: give a whole number, or a floating point dtype
""")
def full_of_infinity_in_integers(x):
    nm.full([M], math.inf, "int32")


@wrong("""
add: 1099511627776 does not fit int32
  k: int32[batch=4, seq=6]
  at LINE: return k + 2**40
  fix: give a number from -2147483648 to 2147483647, or another dtype
""")
def number_too_large(k):
    return k + 2**40


@wrong("""
random.key: 1099511627776 does not fit int32
  at LINE: nm.random.key(2**40)
  fix: give a number from -2147483648 to 2147483647, or another dtype
""")
def random_key_too_large(x):
    nm.random.key(2**40)


@wrong("""
random.uniform makes floating point numbers, not int32
  at LINE: nm.random.uniform(nm.random.key(0), [B], dtype="int32")
  fix: use nm.cast on what it makes, or nm.random.bits
""")
def random_integers(x):
    nm.random.uniform(nm.random.key(0), [B], dtype="int32")


@wrong("""
random.categorical takes float operands
  k: int32[batch=4, seq=6]
  at LINE: nm.random.categorical(nm.random.key(0), k, S)
  fix: use nm.cast(k, 'float32')
""")
def random_choice_by_integers(k):
    nm.random.categorical(nm.random.key(0), k, S)


@wrong("""
var takes float operands
  k: int32[batch=4, seq=6]
  at LINE: nm.var(k)
  fix: use nm.cast(k, 'float32')
""")
def variance_of_integers(k):
    nm.var(k)


@wrong("""
softmax takes float operands
  k: int32[batch=4, seq=6]
  at LINE: nm.softmax(k, over=S)
  fix: use nm.cast(k, 'float32')
""")
def softmax_of_integers(k):
    nm.softmax(k, over=S)


@wrong("""
prod takes number operands
  mask: bool[batch=4, seq=6]
  at LINE: nm.prod(mask)
  fix: use nm.cast(mask, 'float32')
""")
def product_of_bools(mask):
    nm.prod(mask)


@wrong("""
any takes bool operands
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.any(x)
  fix: compare first, e.g. x > 0
""")
def any_of_numbers(x):
    nm.any(x)


@wrong("""
sort takes number operands
  mask: bool[batch=4, seq=6]
  at LINE: nm.sort(mask, S)
  fix: use nm.cast(mask, 'float32')
""")
def sort_of_bools(mask):
    nm.sort(mask, S)


@wrong("""
top_k takes number operands
  mask: bool[batch=4, seq=6]
  at LINE: nm.top_k(mask, S, nm.Dimension("best", 2))
  fix: use nm.cast(mask, 'float32')
""")
def top_k_of_bools(mask):
    nm.top_k(mask, S, nm.Dimension("best", 2))


@wrong("""
add takes number operands
  half: bfloat16[batch=4, seq=6, model=8]
  mask: bool[batch=4, seq=6]
  at LINE: return half + mask
  fix: use nm.cast(mask, 'bfloat16')
""")
def add_of_bools_and_numbers(half, mask):
    return half + mask


@wrong("""
einsum: dimension model has size 10 in result and 8 in w
  result: [model=10]
  w: [model=8, hidden=16]
  the result: [model=8]
  at LINE: nm.einsum([result, w], [M])
  fix: one name has one size in an op; rename one of them or slice the larger
""")
def size_of_a_result_that_is_named_so(w):
    result = nm.zeros([nm.Dimension("model", 10)])
    nm.einsum([result, w], [M])


@wrong("""
broadcast: dimension model has size 10 in result and 8 in the result
  result: [model=10]
  the result: [batch=4, model=8]
  at LINE: nm.broadcast(result, [B, M])
  fix: one name has one size in an op; rename one of them or slice the larger
""")
def broadcast_of_a_tensor_named_result(x):
    result = nm.zeros([nm.Dimension("model", 10)])
    nm.broadcast(result, [B, M])


@wrong("""
multiply: 100000000000000000000000000000000000000000000000000000000... does not fit float32
  x: float32[batch=4, seq=6, model=8]
  at LINE: return x * 10**400
  fix: give a number from -1.7976931348623157e+308 to 1.7976931348623157e+308, or another dtype
""")
def number_too_large_for_any_float(x):
    return x * 10**400


@wrong.rows
def test_message(function, message):
    assert message_of(function) == message
