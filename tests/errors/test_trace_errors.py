"""Tensors used outside their program, and inputs and values that do not fit a program."""

# pyright: reportArgumentType=false

import numpy as np

import namedmesh as nm
from tests.errors.wrong import B, H, M, S, Table, message_of, traced

wrong = Table()


@wrong("""
the value of greater is not known while tracing, so it is neither true nor false
  greater: bool[]
  at LINE: if nm.max(x) > 0:
  fix: use nm.where for a choice per element, nm.cond for a choice of what to run
""")
def bool_of_a_tensor(x):
    if nm.max(x) > 0:
        x = -x


@wrong("""
the value of flag is not known while tracing, so it is neither true nor false
  flag: bool[]
  at LINE: while flag:
  fix: use nm.where for a choice per element, nm.cond for a choice of what to run
""")
def while_on_a_tensor(flag):
    while flag:
        pass


@wrong("""
x cannot be iterated over
  x: float32[batch=4, seq=6, model=8]
  at LINE: for row in x:
  fix: use nm.scan, or nm.chunk for a list of shards
""")
def iteration_over_a_tensor(x):
    for row in x:
        nm.sum(row)


@wrong("""
x has no value while tracing
  x: float32[batch=4, seq=6, model=8]
  at LINE: np.asarray(x)
  fix: return it from the traced function and run the step
""")
def value_of_a_tensor(x):
    np.asarray(x)


@wrong("""
zeros was called outside a traced function
  at LINE: nm.zeros([B])
  fix: call it inside the function given to nm.trace or nm.compile
""")
def op_outside_a_trace():
    nm.zeros([B])


@wrong("""
param was called outside a traced function
  at LINE: nm.param("w", [M, H])
  fix: call it inside the function given to nm.trace or nm.compile
""")
def param_outside_a_trace():
    nm.param("w", [M, H])


@wrong("""
scope was called outside a traced function
  at LINE: with nm.scope("layer"):
  fix: call it inside the function given to nm.trace or nm.compile
""")
def scope_outside_a_trace():
    with nm.scope("layer"):
        pass


@wrong("""
nm.trace was called inside a traced function
  at LINE: nm.trace(lambda y: y, y=nm.spec([B]))
  fix: call the inner function directly
""")
def trace_inside_a_trace(x):
    nm.trace(lambda y: y, y=nm.spec([B]))


@wrong("""
the inputs do not fit <lambda>(x, y): missing a required argument: 'y'
  at LINE: nm.trace(lambda x, y: x + y, x=nm.spec([B]))
  fix: give one nm.spec for each argument of the function
""")
def trace_with_an_argument_too_few():
    nm.trace(lambda x, y: x + y, x=nm.spec([B]))


@wrong("""
input x of <lambda> is [batch=4, model=8], not a spec
  at LINE: nm.trace(lambda x: x, x=[B, M])
  fix: pass x=nm.spec([batch, model])
""")
def trace_with_a_shape_for_a_spec():
    nm.trace(lambda x: x, x=[B, M])


@wrong("""
a result of <lambda> is 'done', not a Tensor
  at LINE: nm.trace(lambda x: (x, "done"), x=nm.spec([B]))
  fix: return tensors, or tuples, lists and dicts of them
""")
def trace_of_a_result_that_is_no_tensor():
    nm.trace(lambda x: (x, "done"), x=nm.spec([B]))


@wrong("""
input name 'token ids' is not an identifier
  at LINE: nm.trace(lambda batch: batch["token ids"], {"token ids": nm.spec([B])})
  fix: use letters, digits and underscores, not starting with a digit
""")
def input_name_that_is_no_identifier():
    nm.trace(lambda batch: batch["token ids"], {"token ids": nm.spec([B])})


@wrong("""
two inputs are named x
  at LINE: nm.trace(lambda x, batch: x, nm.spec([B]), {"x": nm.spec([B])})
  fix: give each input its own name
""")
def two_inputs_of_one_name():
    nm.trace(lambda x, batch: x, nm.spec([B]), {"x": nm.spec([B])})


@wrong("""
scope name 'layer 0' is not an identifier
  at LINE: with nm.scope("layer 0"):
  fix: use letters, digits and underscores, not starting with a digit
""")
def scope_name_that_is_no_identifier(x):
    with nm.scope("layer 0"):
        nm.param("w", [M, H])


@wrong("""
tensor multiply belongs to another program, or to a loop body or branch that has ended
  multiply: float32[batch=4, model=8]
  made at LINE: kept.append(row * 2.0)
  at LINE: return kept[0] + 1.0
  fix: return it from that function and use the returned tensor
""")
def tensor_of_a_loop_body_that_has_ended(x):
    kept = []

    def body(total, row):
        kept.append(row * 2.0)
        return total + row, None

    nm.scan(body, nm.zeros([B, M]), x, over=S)
    return kept[0] + 1.0


@wrong("""
tensor x belongs to another program, or to a loop body or branch that has ended
  x: float32[batch=4, model=8]
  made at LINE: nm.trace(lambda x: kept.append(x), x=nm.spec([B, M]))
  at LINE: nm.trace(lambda y: y + kept[0], y=nm.spec([B, M]))
  fix: return it from that function and use the returned tensor
""")
def tensor_of_another_program():
    kept = []
    nm.trace(lambda x: kept.append(x), x=nm.spec([B, M]))
    nm.trace(lambda y: y + kept[0], y=nm.spec([B, M]))


@wrong("""
nm.trace: 5 of type int is not a function
  at LINE: nm.trace(5)
  fix: pass a function, e.g. lambda x: x
""")
def trace_of_no_function():
    nm.trace(5)


@wrong("""
<lambda> has no input y
  at LINE: nm.trace(lambda x: x, x=nm.spec([B])).evaluate({}, y=np.ones(4))
  fix: use one of: x
""")
def evaluation_with_another_input():
    nm.trace(lambda x: x, x=nm.spec([B])).evaluate({}, y=np.ones(4))


@wrong("""
input x is not given
  x: float32[batch=4]
  at LINE: nm.trace(lambda x: x, x=nm.spec([B])).evaluate({})
  fix: give it as a keyword
""")
def evaluation_without_an_input():
    nm.trace(lambda x: x, x=nm.spec([B])).evaluate({})


@wrong("""
variable w is not given
  w: float32[model=8]
  at LINE: nm.trace(lambda: nm.param("w", [M])).evaluate({})
  fix: give it in the state, e.g. from program.initial_state()
""")
def evaluation_without_a_variable():
    nm.trace(lambda: nm.param("w", [M])).evaluate({})


@wrong("""
input x is float64[4], which does not convert to int32
  x: int32[batch=4]
  at LINE: nm.trace(lambda x: x, x=nm.spec([B], "int32")).evaluate({}, x=np.full(4, 0.5))
  fix: give an array of int32
""")
def evaluation_of_another_dtype():
    nm.trace(lambda x: x, x=nm.spec([B], "int32")).evaluate({}, x=np.full(4, 0.5))


@wrong("""
input x was given with shape (3,), not [batch=4]
  x: float32[batch=4]
  at LINE: nm.trace(lambda x: x, x=nm.spec([B])).evaluate({}, x=np.ones(3))
  fix: give the shape of the spec
""")
def evaluation_of_another_shape():
    nm.trace(lambda x: x, x=nm.spec([B])).evaluate({}, x=np.ones(3))


@wrong.rows
def test_message(function, message):
    assert message_of(function) == message


def test_a_failed_trace_leaves_nothing_behind():
    """After an error in the middle of a scope and a loop body, the next trace starts clean."""
    for function, _ in wrong.values():
        message_of(function)
    program = traced(lambda x: nm.sum(nm.einsum([x, nm.param("w", [M, H])], [B, H])))
    assert list(program.variables) == ["w"]
    assert not program.updates
