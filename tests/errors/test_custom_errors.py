"""Derivatives and TensorFlow functions of the user's own that do not do what they should."""

# The calls are wrong on purpose, and a comment on their lines would enter the messages.
# pyright: reportCallIssue=false, reportArgumentType=false

import tensorflow as tf

import namedmesh as nm
from tests.errors.wrong import B, H, M, S, Table, message_of

wrong = Table()


@wrong("""
custom_vjp: the backward function returned 1 cotangent for 2 arguments
  x: float32[batch=4, seq=6, model=8]
  w: float32[model=8, hidden=16]
  declared at LINE: product = nm.custom_vjp(forward, lambda saved, dy: dy)
  at LINE: y = product(x, w)
  fix: return one cotangent (or None) for each argument of the function, in order
""")
def custom_vjp_with_a_cotangent_too_few(x, w):
    forward = lambda x, w: (nm.einsum([x, w], [B, S, H]), (x, w))
    product = nm.custom_vjp(forward, lambda saved, dy: dy)
    y = product(x, w)
    nm.grad(nm.sum(y), [x, w])


@wrong("""
custom_vjp: the backward function's cotangent of x is float32[batch=4, seq=6]
  x: float32[batch=4, seq=6, model=8]
  declared at LINE: double = nm.custom_vjp(lambda x: (x * 2.0, None), lambda saved, dy: \
nm.sum(dy, over=M))
  at LINE: y = double(x)
  fix: give it the shape and dtype of its argument
""")
def custom_vjp_with_a_cotangent_of_another_shape(x):
    double = nm.custom_vjp(lambda x: (x * 2.0, None), lambda saved, dy: nm.sum(dy, over=M))
    y = double(x)
    nm.grad(nm.sum(y), x)


@wrong("""
custom_vjp: forward did not return (result, residuals)
  x: float32[batch=4, seq=6, model=8]
  declared at LINE: double = nm.custom_vjp(lambda x: x * 2.0, lambda saved, dy: dy)
  at LINE: return double(x)
  fix: return (result, residuals); residuals may be None
""")
def custom_vjp_without_residuals(x):
    double = nm.custom_vjp(lambda x: x * 2.0, lambda saved, dy: dy)
    return double(x)


@wrong("""
call_tf: a result lacks the batch dimension batch
  x: float32[batch=4, seq=6, model=8]
  result: [seq=6, model=8]
  at LINE: nm.call_tf(lambda v: v, x, result=nm.spec([S, M]), batch=[B])
  fix: leave batch out of batch=
""")
def call_tf_with_a_batch_dimension_the_result_lacks(x):
    nm.call_tf(lambda v: v, x, result=nm.spec([S, M]), batch=[B])


@wrong("""
custom_vjp: the backward function's cotangent of x is float32[]
  x: float32[batch=4, seq=6, model=8]
  declared at LINE: double = nm.custom_vjp(lambda x: (x * 2.0, None), lambda saved, dy: 1.0)
  at LINE: nm.grad(nm.sum(double(x)), x)
  fix: give it the shape and dtype of its argument
""")
def custom_vjp_with_a_cotangent_that_is_a_number(x):
    double = nm.custom_vjp(lambda x: (x * 2.0, None), lambda saved, dy: 1.0)
    nm.grad(nm.sum(double(x)), x)


@wrong("""
call_tf: result=[batch=4, seq=6, model=8] is not a spec
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.call_tf(lambda v: v, x, result=[B, S, M])
  fix: describe what the function makes, e.g. result=nm.spec([B, M])
""")
def call_tf_with_dimensions_for_a_spec(x):
    nm.call_tf(lambda v: v, x, result=[B, S, M])


@wrong("""
nm.call_tf: there is no dimension 'bacth' here
  at LINE: nm.call_tf(lambda v: v, x, result=nm.spec([B, S, M]), batch=["bacth"])
  fix: did you mean 'batch'?, or give a size: 'bacth=8'
""")
def call_tf_with_names_for_batch(x):
    nm.call_tf(lambda v: v, x, result=nm.spec([B, S, M]), batch=["bacth"])


@wrong("""
call_tf: no tensor has the batch dimension hidden
  x: float32[batch=4, seq=6, model=8]
  result: [batch=4, seq=6, hidden=16]
  at LINE: nm.call_tf(lambda v: v, x, result=nm.spec([B, S, H]), batch=[H])
  fix: leave hidden out of batch=
""")
def call_tf_with_a_batch_dimension_nobody_has(x):
    nm.call_tf(lambda v: v, x, result=nm.spec([B, S, H]), batch=[H])


@wrong("""
call_tf: the function made float32[4, 8], not float32[4, 8], float32[4, 8]
  x: float32[batch=4, model=8]
  at LINE: call = lambda x: nm.call_tf(tf.identity, x, result=[nm.spec([B, M])] * 2)
  fix: give an nm.spec in result= for each tensor that the function makes, in order
""")
def call_tf_of_too_few_tensors():
    call = lambda x: nm.call_tf(tf.identity, x, result=[nm.spec([B, M])] * 2)
    program = nm.trace(call, x=nm.spec([B, M]))
    program.evaluate({}, x=tf.zeros([4, 8]))


@wrong.rows
def test_message(function, message):
    assert message_of(function) == message
