"""Values that a tensor does not have while tracing, and operands too many or too few."""

# The calls are wrong on purpose, and a comment on their lines would enter the messages.
# pyright: reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false

import numpy as np

import namedmesh as nm
from tests.errors.wrong import Table, message_of

wrong = Table()


@wrong("""
x == 0 would compare Python objects, not values
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.where(x == 0, 1.0, x)
  fix: use nm.equal(x, 0) for values, 'is' for the same tensor
""")
def equality_with_a_number(x):
    nm.where(x == 0, 1.0, x)


@wrong("""
x != half would compare Python objects, not values
  x: float32[batch=4, seq=6, model=8]
  at LINE: return x != half
  fix: use nm.not_equal(x, half) for values, 'is' for the same tensor
""")
def inequality_with_a_tensor(x, half):
    return x != half


@wrong("""
x == 2.0 would compare Python objects, not values
  x: float32[batch=4, seq=6, model=8]
  at LINE: return np.float32(2) == x
  fix: use nm.equal(x, 2.0) for values, 'is' for the same tensor
""")
def equality_of_a_number_of_numpys(x):
    return np.float32(2) == x


@wrong("""
w == x would compare Python objects, not values
  w: float32[model=8, hidden=16]
  at LINE: return x in [w, x]
  fix: use nm.equal(w, x) for values, 'is' for the same tensor
""")
def tensor_in_a_list(x, w):
    return x in [w, x]


@wrong("""
numpy's exp takes arrays, and x has no value while tracing
  x: float32[batch=4, seq=6, model=8]
  at LINE: np.exp(x)
  fix: use nm.exp
""")
def numpys_function_of_a_tensor(x):
    np.exp(x)


@wrong("""
numpy's add.reduce takes arrays, and x has no value while tracing
  x: float32[batch=4, seq=6, model=8]
  at LINE: np.add.reduce(x)
  fix: use the functions of nm, e.g. nm.sum
""")
def numpys_sum_of_a_tensor(x):
    np.add.reduce(x)


@wrong("""
x cannot be indexed by position: dimensions have names
  x: float32[batch=4, seq=6, model=8]
  at LINE: return x[0]
  fix: write x[H, 3], x[H, 1:5], x[H, indices] or x[{H: i, W: j}]
""")
def item_of_a_tensor(x):
    return x[0]


@wrong("""
x has no length, its dimensions have sizes
  x: float32[batch=4, seq=6, model=8]
  at LINE: len(x)
  fix: use the size of a Dimension, or len(x.shape)
""")
def length_of_a_tensor(x):
    len(x)


@wrong("""
sum has no value while tracing
  sum: float32[]
  at LINE: float(nm.sum(x))
  fix: return it from the traced function and run the step
""")
def float_of_a_tensor(x):
    float(nm.sum(x))


@wrong("""
n has no value while tracing
  n: int32[]
  at LINE: int(n)
  fix: return it from the traced function and run the step
""")
def int_of_a_tensor(n):
    int(n)


@wrong("""
n has no value while tracing
  n: int32[]
  at LINE: return [1, 2, 3][n]
  fix: return it from the traced function and run the step
""")
def index_of_a_tensor(n):
    return [1, 2, 3][n]


@wrong("""
nm.exp takes 1 positional argument but 2 were given
  nm.exp(x)
  at LINE: nm.exp(x, x)
  fix: write nm.exp(x)
""")
def exponential_of_two(x):
    nm.exp(x, x)


@wrong("""
nm.where needs argument y
  at LINE: nm.where(mask, x)
  fix: write nm.where(condition, x, y)
""")
def where_without_an_else(x, mask):
    nm.where(mask, x)


@wrong("""
nm.add needs argument y
  at LINE: nm.add(x)
  fix: write nm.add(x, y)
""")
def sum_of_one(x):
    nm.add(x)


@wrong("""
x: @ multiplies by position, and dimensions have names
  x: float32[batch=4, seq=6, model=8]
  at LINE: return x @ w
  fix: use nm.einsum([x, w], dims), with the dimensions of the result
""")
def product_by_position(x, w):
    return x @ w


@wrong("""
w: @ multiplies by position, and dimensions have names
  w: float32[model=8, hidden=16]
  at LINE: return np.ones((2, 8)) @ w
  fix: use nm.einsum([x, w], dims), with the dimensions of the result
""")
def product_of_an_array_by_position(w):
    return np.ones((2, 8)) @ w


@wrong("""
numpy's arctan takes arrays, and x has no value while tracing
  x: float32[batch=4, seq=6, model=8]
  at LINE: np.arctan(x)
  fix: use the functions of nm, e.g. nm.sum
""")
def numpys_function_that_we_lack(x):
    np.arctan(x)


@wrong.rows
def test_message(function, message):
    assert message_of(function) == message
