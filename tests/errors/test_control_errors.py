"""Gradients, regions, loops and branches that do not fit: found while tracing, at their line."""

# pyright: reportArgumentType=false

import namedmesh as nm
from tests.errors.wrong import B, H, M, S, Table, message_of

T = nm.Dimension("token", 6)
wrong = Table()


@wrong("""
grad: the loss is not a scalar
  loss: float32[batch=4, hidden=16]
  at LINE: nm.grad(loss)
  fix: reduce it, e.g. nm.mean(loss), or give cotangent=
""")
def gradient_of_many_numbers(x):
    w = nm.param("w", [M, H])
    loss = nm.einsum([x, w], [B, H])
    nm.grad(loss)


@wrong("""
grad: the loss is int32, through which no gradient flows
  sum: int32[]
  at LINE: nm.grad(nm.sum(k), x)
  fix: compute it in floating point: nm.cast its operands, not the loss
""")
def gradient_of_an_integer(x, k):
    nm.grad(nm.sum(k), x)


@wrong("""
grad: cannot differentiate with respect to k: int32[batch=4, seq=6]
  at LINE: nm.grad(nm.sum(x), [x, k])
  fix: name floating point tensors in wrt=
""")
def gradient_with_respect_to_integers(x, k):
    nm.grad(nm.sum(x), [x, k])


@wrong("""
grad: there is nothing to differentiate with respect to
  at LINE: nm.grad(nm.sum(x))
  fix: make parameters with nm.param (trainable=True), or name tensors in wrt=
""")
def gradient_with_respect_to_nothing(x):
    nm.grad(nm.sum(x))


@wrong("""
grad: the cotangent is not like the loss
  loss: float32[batch=4, seq=6, model=8]
  cotangent: float32[batch=4, model=8]
  at LINE: nm.grad(y, x, cotangent=nm.ones([B, M]))
  fix: give it the same dimensions, order and dtype
""")
def gradient_with_a_cotangent_of_another_shape(x):
    y = x * 2.0
    nm.grad(y, x, cotangent=nm.ones([B, M]))


@wrong("""
while: a loop of unknown length has no derivative
  x: float32[batch=4, seq=6, model=8]
  at LINE: halved = nm.while_loop(lambda v: nm.max(v) > 1.0, lambda v: v * 0.5, x)
  fix: give most=, a bound of its length, use nm.scan, or nm.stop_gradient on its start
""")
def gradient_of_a_while_loop(x):
    halved = nm.while_loop(lambda v: nm.max(v) > 1.0, lambda v: v * 0.5, x)
    nm.grad(nm.sum(halved), x)


@wrong("""
sum: mixes elements of dimension batch, over which the region is split
  x: float32[batch=4, seq=6, model=8]
  at LINE: return nm.manual(lambda x: x - nm.mean(x, over=B), x, over=B)
  fix: leave batch out of over=, do this outside the region, or use nm.collective
""")
def manual_region_that_sums_over_its_own_dimension(x):
    return nm.manual(lambda x: x - nm.mean(x, over=B), x, over=B)


@wrong("""
manual: the result zeros lacks dimension batch, over which the region is split
  zeros: float32[seq=6, model=8]
  at LINE: return nm.manual(lambda x: nm.zeros([S, M]), x, over=B)
  fix: compute it outside the region, or nm.broadcast it to include batch
""")
def manual_region_whose_result_lacks_its_dimension(x):
    return nm.manual(lambda x: nm.zeros([S, M]), x, over=B)


@wrong("""
replicate: nothing moves inside a manual region
  x: float32[batch=4, seq=6, model=8]
  at LINE: return nm.manual(lambda x: nm.replicate(x), x, over=B)
  fix: move the tensor before the region
""")
def manual_region_that_moves_a_tensor(x):
    return nm.manual(lambda x: nm.replicate(x), x, over=B)


@wrong("""
scan: the body's carry: sum is float32[batch=4], expected float32[batch=4, model=8]
  at LINE: nm.scan(lambda total, row: (nm.sum(row, over=M), None), nm.zeros([B, M]), x, over=S)
  fix: make it like zeros, e.g. with nm.cast, nm.sum or nm.broadcast
""")
def scan_whose_carry_changes_shape(x):
    nm.scan(lambda total, row: (nm.sum(row, over=M), None), nm.zeros([B, M]), x, over=S)


@wrong("""
scan: the body's carry: zeros is bfloat16[batch=4, model=8], expected float32[batch=4, model=8]
  at LINE: nm.scan(lambda total, row: (nm.cast(total, "bfloat16"), None), nm.zeros([B, M]), x, \
over=S)
  fix: make it like zeros, e.g. with nm.cast, nm.sum or nm.broadcast
""")
def scan_whose_carry_changes_dtype(x):
    nm.scan(lambda total, row: (nm.cast(total, "bfloat16"), None), nm.zeros([B, M]), x, over=S)


@wrong("""
scan: the body did not return (carry, y)
  at LINE: nm.scan(lambda total, row: total + row, nm.zeros([B, M]), x, over=S)
  fix: return a pair; y may be None
""")
def scan_that_returns_no_pair(x):
    nm.scan(lambda total, row: total + row, nm.zeros([B, M]), x, over=S)


@wrong("""
scan: x has no dimension token
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.scan(lambda total, row: (total + row, None), nm.zeros([B, M]), x, over=T)
  fix: use one of: batch, model, seq
""")
def scan_over_a_dimension_its_rows_lack(x):
    nm.scan(lambda total, row: (total + row, None), nm.zeros([B, M]), x, over=T)


@wrong("""
scan: the carry x has the loop's own dimension seq
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.scan(lambda total, row: (total, None), x, x, over=S)
  fix: rename it, e.g. nm.rename(x, seq, nm.Dimension('seq_2', 6))
""")
def scan_whose_carry_has_its_own_dimension(x):
    nm.scan(lambda total, row: (total, None), x, x, over=S)


@wrong("""
scan: the result zeros has the loop's own dimension seq
  zeros: float32[seq=6]
  at LINE: nm.scan(lambda total, row: (total, nm.zeros([S])), nm.zeros([B, M]), x, over=S)
  fix: rename it, e.g. nm.rename(x, seq, nm.Dimension('seq_2', 6))
""")
def scan_whose_result_has_its_own_dimension(x):
    nm.scan(lambda total, row: (total, nm.zeros([S])), nm.zeros([B, M]), x, over=S)


@wrong("""
scan: 8 is not a Dimension
  at LINE: nm.scan(lambda total, row: (total, None), nm.zeros([B]), over=8)
  fix: pass the Dimension, e.g. from nm.dims('seq=128'), or its name, not a position
""")
def scan_over_a_number(x):
    nm.scan(lambda total, row: (total, None), nm.zeros([B]), over=8)


@wrong("""
there is no remat 'dot'
  at LINE: nm.scan(lambda total, row: (total + row, None), nm.zeros([B, M]), x, over=S, remat="dot")
  fix: did you mean 'dots'?
""")
def scan_with_a_remat_that_is_none(x):
    nm.scan(lambda total, row: (total + row, None), nm.zeros([B, M]), x, over=S, remat="dot")


@wrong("""
cond: the condition mask: bool[batch=4, seq=6] is not a bool scalar
  at LINE: nm.cond(mask, lambda: x, lambda: -x)
  fix: reduce it with nm.any or nm.all; use Python's own if for what is known
""")
def cond_on_many_bools(x, mask):
    nm.cond(mask, lambda: x, lambda: -x)


@wrong("""
cond: the second branch's result: sum is float32[batch=4, seq=6], expected float32[batch=4, \
seq=6, model=8]
  at LINE: nm.cond(flag, lambda: x, lambda: nm.sum(x, over=M))
  fix: make it like x, e.g. with nm.cast, nm.sum or nm.broadcast
""")
def cond_whose_branches_differ(x, flag):
    nm.cond(flag, lambda: x, lambda: nm.sum(x, over=M))


@wrong("""
cond: the second branch's result is x, expected (x, x)
  got: x: float32[batch=4, seq=6, model=8]
  expected: x: float32[batch=4, seq=6, model=8]
  expected: x: float32[batch=4, seq=6, model=8]
  at LINE: nm.cond(flag, lambda: (x, x), lambda: x)
  fix: return the structure of the first branch
""")
def cond_whose_branches_return_other_numbers_of_tensors(x, flag):
    nm.cond(flag, lambda: (x, x), lambda: x)


@wrong("""
while_loop: the body's carry: sum is float32[batch=4, seq=6], expected float32[batch=4, seq=6, \
model=8]
  at LINE: nm.while_loop(lambda v: nm.max(v) > 1.0, lambda v: nm.sum(v, over=M), x)
  fix: make it like x, e.g. with nm.cast, nm.sum or nm.broadcast
""")
def while_loop_whose_carry_changes_shape(x):
    nm.while_loop(lambda v: nm.max(v) > 1.0, lambda v: nm.sum(v, over=M), x)


@wrong("""
while_loop: the condition greater: bool[batch=4, seq=6, model=8] is not a bool scalar
  at LINE: nm.while_loop(lambda v: v > 1.0, lambda v: v * 0.5, x)
  fix: reduce it with nm.any or nm.all; use Python's own if for what is known
""")
def while_loop_whose_condition_is_no_scalar(x):
    nm.while_loop(lambda v: v > 1.0, lambda v: v * 0.5, x)


@wrong("""
cond: the second branch's result is {'a': x, 'z': negative}, expected {'a': x, 'b': x}
  got: x: float32[batch=4, seq=6, model=8]
  got: negative: float32[batch=4, seq=6, model=8]
  expected: x: float32[batch=4, seq=6, model=8]
  expected: x: float32[batch=4, seq=6, model=8]
  at LINE: nm.cond(flag, lambda: {"a": x, "b": x}, lambda: {"a": x, "z": -x})
  fix: return the structure of the first branch
""")
def cond_whose_branches_have_other_names(x, flag):
    nm.cond(flag, lambda: {"a": x, "b": x}, lambda: {"a": x, "z": -x})


@wrong("""
cond: the second branch's result is [x], expected {'a': x}
  got: x: float32[batch=4, seq=6, model=8]
  expected: x: float32[batch=4, seq=6, model=8]
  at LINE: nm.cond(flag, lambda: {"a": x}, lambda: [x])
  fix: return the structure of the first branch
""")
def cond_whose_branches_are_a_dict_and_a_list(x, flag):
    nm.cond(flag, lambda: {"a": x}, lambda: [x])


@wrong("""
cond: the condition True is not a bool scalar
  at LINE: nm.cond(True, lambda: x, lambda: -x)
  fix: reduce it with nm.any or nm.all; use Python's own if for what is known
""")
def cond_on_a_known_value(x):
    nm.cond(True, lambda: x, lambda: -x)


@wrong("""
while_loop: the condition True is not a bool scalar
  at LINE: nm.while_loop(lambda v: True, lambda v: v * 0.5, x)
  fix: reduce it with nm.any or nm.all; use Python's own if for what is known
""")
def while_loop_on_a_known_value(x):
    nm.while_loop(lambda v: True, lambda v: v * 0.5, x)


@wrong("""
while_loop: the body's carry is multiply, expected [x, 0]
  got: multiply: float32[batch=4, seq=6, model=8]
  expected: x: float32[batch=4, seq=6, model=8]
  expected: 0: int32[]
  at LINE: nm.while_loop(lambda v, n: n < 3, lambda v, n: v * 0.5, x, 0)
  fix: return the structure of the carry
""")
def while_loop_whose_body_drops_a_value(x):
    nm.while_loop(lambda v, n: n < 3, lambda v, n: v * 0.5, x, 0)


@wrong("""
scan: the body's carry is {'z': add}, expected {'a': zeros}
  got: add: float32[batch=4, model=8]
  expected: zeros: float32[batch=4, model=8]
  at LINE: nm.scan(lambda total, row: ({"z": total["a"] + row}, None), {"a": nm.zeros([B, M])}, \
x, over=S)
  fix: return the structure of the carry
""")
def scan_whose_carry_has_other_names(x):
    nm.scan(lambda total, row: ({"z": total["a"] + row}, None), {"a": nm.zeros([B, M])}, x, over=S)


@wrong("""
cond: x: float32[batch=4, seq=6, model=8] is not a function
  at LINE: nm.cond(flag, x, -x)
  fix: pass a function, e.g. lambda x: x
""")
def cond_of_tensors_for_functions(x, flag):
    nm.cond(flag, x, -x)


@wrong("""
scan: 3 of type int is not a function
  at LINE: nm.scan(3, nm.zeros([B, M]), x, over=S)
  fix: pass a function, e.g. lambda x: x
""")
def scan_of_a_number_for_a_function(x):
    nm.scan(3, nm.zeros([B, M]), x, over=S)


@wrong.rows
def test_message(function, message):
    assert message_of(function) == message
