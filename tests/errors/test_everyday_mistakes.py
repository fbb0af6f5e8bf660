"""Habits of numpy, jax and PyTorch, and slips of the keyboard: each error says what to write."""

# The calls are wrong on purpose, and a comment on their lines would enter the messages.
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
# ruff: noqa: B015, B018

import jax.numpy as jnp
import numpy as np
import pytest

import namedmesh as nm
from tests.errors.wrong import B, M, Table, message_of

wrong = Table()


@wrong("""
x has no attribute T
  x: float32[batch=4, seq=6, model=8]
  at LINE: x.T
  fix: dimensions match by name; to reorder them write nm.transpose(x, [model, seq, batch])
""")
def transposed(x):
    x.T


@wrong("""
x has no attribute softmax
  x: float32[batch=4, seq=6, model=8]
  at LINE: x.softmax(M)
  fix: write nm.softmax(x, ...)
""")
def method_that_is_a_function(x):
    x.softmax(M)


@wrong("""
x has no attribute meen
  x: float32[batch=4, seq=6, model=8]
  at LINE: x.meen()
  fix: did you mean 'mean'?
""")
def method_misspelled(x):
    x.meen()


@wrong("""
x has no attribute astype
  x: float32[batch=4, seq=6, model=8]
  at LINE: x.astype("bfloat16")
  fix: write x.cast('bfloat16')
""")
def dtype_by_astype(x):
    x.astype("bfloat16")


@wrong("""
nm.softmax has no argument axis
  nm.softmax(x, over, *, extra)
  at LINE: nm.softmax(x, axis=-1)
  fix: namedmesh reduces over names, not positions: write over=H
""")
def softmax_over_a_position(x):
    nm.softmax(x, axis=-1)


@wrong("""
nm.sum has no argument axis
  nm.sum(x, over, *, where)
  at LINE: nm.sum(x, axis=0)
  fix: namedmesh reduces over names, not positions: write over=H
""")
def sum_over_a_position(x):
    nm.sum(x, axis=0)


@wrong("""
Tensor.mean has no argument dim
  Tensor.mean(over, *, where)
  at LINE: x.mean(dim=-1)
  fix: namedmesh reduces over names, not positions: write over=H
""")
def method_over_a_position(x):
    x.mean(dim=-1)


@wrong("""
nm.mean has no argument keepdims
  nm.mean(x, over, *, where)
  at LINE: nm.mean(x, over=M, keepdims=True)
  fix: leave it out: x - nm.mean(x, over=H) broadcasts by name
""")
def mean_that_keeps_dimensions(x):
    nm.mean(x, over=M, keepdims=True)


@wrong("""
nm.argmax has no argument axis
  nm.argmax(x, over, *, where)
  at LINE: nm.argmax(x, axis=-1)
  fix: namedmesh reduces over names, not positions: write over=H
""")
def largest_over_a_position(x):
    nm.argmax(x, axis=-1)


@wrong("""
nm.concat has no argument axis
  nm.concat(tensors, dim)
  at LINE: nm.concat([x, x], axis=0)
  fix: namedmesh takes names, not positions: write dim=H
""")
def concat_along_a_position(x):
    nm.concat([x, x], axis=0)


@wrong("""
nm.stack has no argument axis
  nm.stack(tensors, dim)
  at LINE: nm.stack([x, x], axis=0)
  fix: namedmesh takes names, not positions: write dim=H
""")
def stack_along_a_position(x):
    nm.stack([x, x], axis=0)


@wrong("""
nm.cumsum has no argument axis
  nm.cumsum(x, dim, exclusive, reverse)
  at LINE: nm.cumsum(x, axis=0)
  fix: namedmesh takes names, not positions: write dim=H
""")
def sum_of_positions(x, k):
    nm.cumsum(x, axis=0)


@wrong("""
nm.mean has no argument ower
  nm.mean(x, over, *, where)
  at LINE: nm.mean(x, ower=M)
  fix: did you mean 'over'?
""")
def argument_misspelled(x):
    nm.mean(x, ower=M)


@wrong("""
nm.softmax takes 2 positional arguments but 3 were given
  nm.softmax(x, over, *, extra)
  at LINE: nm.softmax(x, M, B)
  fix: write nm.softmax(x, over, *, extra)
""")
def too_many_arguments(x):
    nm.softmax(x, M, B)


@wrong("""
sum has no value while tracing
  sum: float32[]
  at LINE: return f"{nm.sum(x):.3f}"
  fix: return it from the traced function and run the step
""")
def formatted(x):
    return f"{nm.sum(x):.3f}"


@wrong("""
jax's functions take arrays, and x has no value while tracing
  x: float32[batch=4, seq=6, model=8]
  at LINE: jnp.tanh(x)
  fix: use the functions of nm, e.g. nm.sum; nm.call_jax runs jax code on tensors
""")
def function_of_jax(x):
    jnp.tanh(x)


@wrong("""
numpy's tanh takes arrays, and x has no value while tracing
  x: float32[batch=4, seq=6, model=8]
  at LINE: np.tanh(x)
  fix: use nm.tanh
""")
def ufunc_of_numpy(x):
    np.tanh(x)


@wrong("""
numpy's mean takes arrays, and x has no value while tracing
  x: float32[batch=4, seq=6, model=8]
  at LINE: np.mean(x)
  fix: use nm.mean
""")
def function_of_numpy(x):
    np.mean(x)


@wrong("""
grad: f is a function, and the gradient is taken of a tensor
  at LINE: nm.grad(lambda x: nm.sum(x * x))(1.0)
  fix: inside a traced function write nm.grad(f(x), x), or nm.value_and_grad(f)(x)
""")
def gradient_of_a_function():
    nm.grad(lambda x: nm.sum(x * x))(1.0)


@wrong("""
nm.plan needs argument mesh
  at LINE: nm.plan(nm.trace(nm.sum, nm.spec([B])), layout="batch:data")
  fix: write mesh=nm.Mesh(data=8)
""")
def plan_without_a_mesh():
    nm.plan(nm.trace(nm.sum, nm.spec([B])), layout="batch:data")


@wrong("""
nm.plan has no argument lay_out
  nm.plan(program, mesh, layout, params, *, conflicts, target, verify)
  at LINE: nm.plan(nm.trace(nm.sum, nm.spec([B])), nm.Mesh(data=2), lay_out="batch:data")
  fix: did you mean 'layout'?
""")
def plan_with_an_option_misspelled():
    nm.plan(nm.trace(nm.sum, nm.spec([B])), nm.Mesh(data=2), lay_out="batch:data")


@wrong("""
nm.compile needs argument mesh
  at LINE: nm.compile(nm.sum, nm.spec([B]), layout="batch:data")
  fix: write mesh=nm.Mesh(data=8)
""")
def compile_without_a_mesh():
    nm.compile(nm.sum, nm.spec([B]), layout="batch:data")


@wrong("""
nm.compile has no argument lay_out, nor has the function
  at LINE: nm.compile(nm.sum, nm.spec([B]), mesh=nm.Mesh(data=2), lay_out="batch:data")
  fix: did you mean layout=?
""")
def compile_with_an_option_misspelled():
    nm.compile(nm.sum, nm.spec([B]), mesh=nm.Mesh(data=2), lay_out="batch:data")


@wrong("""
x does not change, and elements cannot be set or deleted
  x: float32[batch=4, seq=6, model=8]
  at LINE: x[M, 0] = 1.0
  fix: make a new tensor: x = x.at[H, 3].set(y), and add, max, min
""")
def an_element_set(x):
    x[M, 0] = 1.0


@wrong("""
x does not change, and elements cannot be set or deleted
  x: float32[batch=4, seq=6, model=8]
  at LINE: del x[M, 0]
  fix: make a new tensor: x = x.at[H, 3].set(y), and add, max, min
""")
def an_element_deleted(x):
    del x[M, 0]


@wrong("""
the value of x is not known while tracing, nor what is in it
  x: float32[batch=4, seq=6, model=8]
  at LINE: 3.0 in x
  fix: use nm.any(nm.equal(x, value)), a bool scalar
""")
def a_value_in_a_tensor(x):
    3.0 in x


@wrong("""
+ takes number operands
  mask: bool[batch=4, seq=6]
  at LINE: +mask
  fix: use nm.cast(mask, 'int32')
""")
def plus_of_a_bool(mask):
    +mask


@wrong("""
pow of x takes no third argument
  x: float32[batch=4, seq=6, model=8]
  at LINE: pow(x, 2.0, 3.0)
  fix: write x**y % z
""")
def a_power_modulo(x):
    pow(x, 2.0, 3.0)


@wrong("""
round: 1.5 is not a number of digits
  x: float32[batch=4, seq=6, model=8]
  at LINE: round(x, 1.5)
  fix: give a whole number from -30 to 30, known while tracing, e.g. round(x, 2)
""")
def digits_that_are_not_whole(x):
    round(x, 1.5)


@wrong("""
scatter_add takes number operands
  mask: bool[batch=4, seq=6]
  at LINE: nm.scatter_add(mask, k, M)
  fix: use nm.cast(mask, 'float32')
""")
def sums_of_bools_by_index(mask, k):
    nm.scatter_add(mask, k, M)


@wrong("""
[batch=4, seq=6, model=8] has no dimension 'modell'
  at LINE: x.shape.position("modell")
  fix: did you mean 'model'?
""")
def position_of_a_name_that_the_shape_lacks(x):
    x.shape.position("modell")


@wrong("""
model=8 is a Dimension, not its name
  at LINE: x.shape.size_of(M)
  fix: write 'model'
""")
def size_of_a_dimension_itself(x):
    x.shape.size_of(M)


@wrong("""
a shape is indexed by position, not by 'model'
  at LINE: x.shape["model"]
  fix: write shape.named(name) for the dimension, or shape.position(name)
""")
def shape_indexed_by_name(x):
    x.shape["model"]


@wrong.rows
def test_message(function, message):
    assert message_of(function) == message


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("layernorm", "; did you mean nm.layers.layer_norm?"),
        ("soft_max", "; did you mean 'softmax'?"),
        ("Adam", "; did you mean nm.layers.Adam?"),
        ("qqqqqqq", ""),
    ],
)
def test_names_that_nm_lacks(name, advice):
    with pytest.raises(AttributeError) as caught:
        getattr(nm, name)
    assert str(caught.value) == f"module 'namedmesh' has no attribute {name!r}{advice}"


def test_a_missing_attribute_is_an_attribute_error_too():
    def probe(x):
        assert not hasattr(x, "T")
        assert getattr(x, "numpy", None) is None
        return f"{x}" and x

    nm.trace(probe, x=nm.spec([B]))


def test_a_type_error_inside_a_function_is_not_rewritten():
    with pytest.raises(TypeError, match="can only concatenate"):
        nm.trace(lambda x: nm.checkpoint(lambda: x.dtype + 1)(), x=nm.spec([B]))
