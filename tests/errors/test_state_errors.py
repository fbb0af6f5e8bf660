"""Variables declared, initialised and assigned wrongly: found while tracing, at their line."""

# pyright: reportArgumentType=false

import namedmesh as nm
from tests.errors.wrong import B, H, M, S, Table, message_of

wrong = Table()


@wrong("""
variable name 'layer.w' is not an identifier
  at LINE: nm.param("layer.w", [M, H])
  fix: use letters, digits and underscores, not starting with a digit
""")
def param_name_that_is_no_identifier(x):
    nm.param("layer.w", [M, H])


@wrong("""
parameter table is int32, not floating point
  table: int32[model=8, hidden=16]
  at LINE: nm.param("table", [M, H], dtype="int32")
  fix: what is trained is floating point; write trainable=False for frozen weights, or use \
nm.state for what a step changes
""")
def param_of_integers(x):
    nm.param("table", [M, H], dtype="int32")


@wrong("""
variable w exists already with another shape, dtype or role
  before: float32[model=8, hidden=16] at LINE
  now: float32[hidden=16, model=8]
  at LINE: nm.param("w", [H, M])
  fix: give the new one its own name, or put it in its own nm.scope
""")
def param_again_in_another_shape(x):
    nm.param("w", [M, H])
    nm.param("w", [H, M])


@wrong("""
variable w: whole='modell' is not one of its dimensions
  variable w: [model=8, hidden=16]
  at LINE: nm.param("w", [M, H], whole=[nm.Dimension("modell", 8)])
  fix: did you mean 'model'?
""")
def param_whole_in_a_dimension_it_lacks(x):
    nm.param("w", [M, H], whole=[nm.Dimension("modell", 8)])


@wrong("""
state: x is not a variable
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.state("slot", [B], of=x)
  fix: pass the tensor that nm.param or nm.state returned
""")
def slot_of_a_tensor_that_is_no_variable(x):
    nm.state("slot", [B], of=x)


@wrong("""
assign: w is assigned twice in one step
  w: float32[model=8, hidden=16]
  first at LINE: nm.assign(w, w * 0.5)
  at LINE: nm.assign(w, w * 2.0)
  fix: assign the final value once
""")
def assign_twice(x):
    w = nm.param("w", [M, H])
    nm.assign(w, w * 0.5)
    nm.assign(w, w * 2.0)


@wrong("""
assign: w is float32[model=8, hidden=16], the value float32[model=8]
  at LINE: nm.assign(w, nm.sum(w, over=H))
  fix: give it the variable's dimensions and dtype, e.g. with nm.cast
""")
def assign_of_another_shape(x):
    w = nm.param("w", [M, H])
    nm.assign(w, nm.sum(w, over=H))


@wrong("""
assign: w is float32[model=8, hidden=16], the value bfloat16[model=8, hidden=16]
  at LINE: nm.assign(w, nm.cast(w, "bfloat16"))
  fix: give it the variable's dimensions and dtype, e.g. with nm.cast
""")
def assign_of_another_dtype(x):
    w = nm.param("w", [M, H])
    nm.assign(w, nm.cast(w, "bfloat16"))


@wrong("""
assign: y is not a variable
  y: float32[model=8, hidden=16]
  at LINE: nm.assign(y, w)
  fix: pass the tensor that nm.param or nm.state returned; use one of: w
""")
def assign_to_a_tensor_that_is_no_variable(x):
    w = nm.param("w", [M, H])
    y = w * 2.0
    nm.assign(y, w)


@wrong("""
assign: count is assigned inside a loop body or branch
  count: int32[]
  at LINE: nm.assign(count, count + 1)
  fix: return the value and assign it outside
""")
def assign_in_a_loop_body(x):
    count = nm.state("count", [], dtype="int32")

    def body(total, row):
        nm.assign(count, count + 1)
        return total + row, None

    nm.scan(body, nm.zeros([B, M]), x, over=S)


@wrong("""
variable name 3 is not a string
  at LINE: nm.param(3, [M])
  fix: write the name as a string
""")
def param_name_that_is_a_number(x):
    nm.param(3, [M])


@wrong("""
parameter w: init=1.0 is not an initializer
  w: float32[model=8]
  at LINE: nm.param("w", [M], init=1.0)
  fix: write e.g. init=nm.constant_init(1.0) or init=nm.fan_in_init(M)
""")
def param_that_starts_with_a_number(x):
    nm.param("w", [M], init=1.0)


@wrong("""
state w: init: 'zeros' of type str is not a number
  w: float32[model=8]
  at LINE: nm.state("w", [M], init="zeros")
  fix: give a number known while tracing
""")
def state_that_starts_with_text(x):
    nm.state("w", [M], init="zeros")


@wrong("""
state count: init: 0.5 does not fit int32
  count: int32[]
  at LINE: nm.state("count", [], init=0.5, dtype="int32")
  fix: give a whole number, or a floating point dtype
""")
def state_that_starts_with_a_fraction(x):
    nm.state("count", [], init=0.5, dtype="int32")


@wrong("""
the initializer of w made 0.5 of type float, not float32[model=8]
  at LINE: program = nm.trace(lambda: nm.param("w", [M], lambda key, shape, dtype: 0.5))
  fix: return a tensor of the shape and dtype the initializer is called with
""")
def initializer_that_returns_a_number():
    program = nm.trace(lambda: nm.param("w", [M], lambda key, shape, dtype: 0.5))
    program.initial_state()


@wrong.rows
def test_message(function, message):
    assert message_of(function) == message
