"""Wrong inputs, states and meshes, found when a program is run; nothing changes after any."""

# pyright: reportArgumentType=false

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import namedmesh as nm
from namedmesh.errors.source import Source
from namedmesh.runtime import Executable, State
from tests.errors.running import X, assert_nothing_has_changed, compiled, given
from tests.errors.wrong import Table, message_of

wrong = Table()


@wrong("""
input x was given as float64[8, 6], not float32[batch=8, model=6]
  at LINE: step(state, X.astype(np.float64), 0.1)
  fix: give an array of shape (8, 6) and dtype float32
""")
def input_of_another_dtype(step, state):
    step(state, X.astype(np.float64), 0.1)


@wrong("""
input x was given as float32[4, 6], not float32[batch=8, model=6]
  at LINE: step(state, X[:4], 0.1)
  fix: give an array of shape (8, 6) and dtype float32
""")
def input_of_another_shape(step, state):
    step(state, X[:4], 0.1)


@wrong("""
input x was given as float32[6, 8], not float32[batch=8, model=6]
  at LINE: step(state, X.T, 0.1)
  fix: give an array of shape (8, 6) and dtype float32
""")
def input_of_other_dimensions_in_order(step, state):
    step(state, X.T, 0.1)


@wrong("""
input x is a ragged list, not float32[batch=8, model=6]
  at LINE: step(state, [[1.0], [1.0, 2.0]], 0.1)
  fix: give an array of shape (8, 6) and dtype float32
""")
def input_of_rows_of_different_lengths(step, state):
    step(state, [[1.0], [1.0, 2.0]], 0.1)


@wrong("""
input rate was given as <U4[], not float32[]
  at LINE: step(state, X, "fast")
  fix: give an array of shape () and dtype float32
""")
def input_that_is_text(step, state):
    step(state, X, "fast")


@wrong("""
input rate was given as bool[], not float32[]
  at LINE: step(state, X, True)
  fix: give an array of shape () and dtype float32
""")
def input_that_is_true(step, state):
    step(state, X, True)


@wrong("""
input 'rate' of train is missing
  x: float32[batch=8, model=6]
  rate: float32[]
  at LINE: step(state, X)
  fix: give all of: x, rate
""")
def input_that_is_missing(step, state):
    step(state, X)


@wrong("""
train has no input 'rat', and input 'rate' is missing
  x: float32[batch=8, model=6]
  rate: float32[]
  at LINE: step(state, x=X, rat=0.1)
  fix: did you mean 'rate'?
""")
def input_that_is_unknown(step, state):
    step(state, x=X, rat=0.1)


@wrong("""
train has no input 'X', 'rates', and input 'x', 'rate' are missing
  x: float32[batch=8, model=6]
  rate: float32[]
  at LINE: step(state, X=X, rates=0.1)
  fix: did you mean 'rate'?
""")
def inputs_that_are_all_unknown(step, state):
    step(state, X=X, rates=0.1)


@wrong("""
2 inputs of train do not fit
  input x was given as float32[4, 6], not float32[batch=8, model=6]
  input rate was given as bool[], not float32[]
  at LINE: step(state, X[:4], True)
  fix: give arrays of these shapes and dtypes
""")
def inputs_that_are_all_wrong(step, state):
    step(state, X[:4], True)


@wrong("""
3 inputs were given, train takes 2
  x: float32[batch=8, model=6]
  rate: float32[]
  at LINE: step(state, X, 0.1, X)
  fix: give the state, then: x, rate
""")
def inputs_that_are_too_many(step, state):
    step(state, X, 0.1, X)


@wrong("""
input x was given twice
  at LINE: step(state, X, 0.1, x=X)
  fix: give each input by position or by name
""")
def input_given_twice(step, state):
    step(state, X, 0.1, x=X)


@wrong("""
variable count is an array that an earlier step used up
  expected int32[]
  at LINE: step.place({"w": np.zeros([6, 4], np.float32), "count": old})
  fix: give an array of shape () and dtype int32
""")
def input_that_was_used_up(step, state):
    after, _ = step(step.init(0), X, 0.1)
    old = after.arrays["count"]
    step(after, X, 0.1)
    step.place({"w": np.zeros([6, 4], np.float32), "count": old})


@wrong("""
the state given to train is a ndarray
  expected: State(w: float32[model=6, hidden=4], count: int32[])
  at LINE: step(X, 0.1)
  fix: start from step.init(seed), or step.place({name: array}) for arrays of your own
""")
def state_left_out(step):
    step(X, 0.1)


@wrong("""
the state given to train is a dict
  expected: State(w: float32[model=6, hidden=4], count: int32[])
  at LINE: step(dict(state), X, 0.1)
  fix: start from step.init(seed), or step.place({name: array}) for arrays of your own
""")
def state_that_is_a_plain_dict(step, state):
    step(dict(state), X, 0.1)


@wrong("""
train was called without a state
  expected: State(w: float32[model=6, hidden=4], count: int32[])
  at LINE: step(None, X, 0.1)
  fix: start from step.init(seed), or step.place({name: array}) for arrays of your own
""")
def state_that_is_none(step):
    step(None, X, 0.1)


@wrong("""
the state given to train is that of another program
  given: State(v: float32[model=6, hidden=4])
  expected: State(w: float32[model=6, hidden=4], count: int32[])
  missing: w, count
  unknown: v
  at LINE: step(other.init(0), X, 0.1)
  fix: start from step.init(seed), or step.place({name: array}) for arrays of your own
""")
def state_of_another_program(step, other):
    step(other.init(0), X, 0.1)


@wrong("""
variable w of this state is sharded otherwise than in train
  w: float32[model=6, hidden=4/model]
  mesh: Mesh(data=4, model=2)
  at LINE: step(elsewhere.init(0), X, 0.1)
  fix: move it with step.place(state)
""")
def state_of_the_same_program_elsewhere(step, elsewhere):
    step(elsewhere.init(0), X, 0.1)


@wrong("""
variables w, count of this state were used up by an earlier step
  w: float32[model=6, hidden=4]
  count: int32[]
  at LINE: step(old, X, 0.1)
  fix: use the state that step returned
""")
def state_used_up_by_an_earlier_step(step):
    old = step.init(0)
    step(old, X, 0.1)
    step(old, X, 0.1)


@wrong("""
variable w of this state was used up by an earlier step
  w: float32[model=6, hidden=4]
  at LINE: print(old["w"])
  fix: read it from the state that step returned
""")
def state_read_after_it_was_used_up(step):
    old = step.init(0)
    step(old, X, 0.1)
    print(old["w"])


@wrong("""
variable count of this state was used up by an earlier step; \
variable w of this state is sharded otherwise than in train
  count: int32[]
  w: float32[model=6, hidden=4/model]
  mesh: Mesh(data=4, model=2)
  at LINE: step(State({"w": there["w"], "count": old.arrays["count"]}, old.specs), X, 0.1)
  fix: use the state that step returned; move it with step.place(state)
""")
def state_with_several_wrong_variables(step, elsewhere):
    old, there = step.init(0), elsewhere.init(0)
    step(old, X, 0.1)
    step(State({"w": there["w"], "count": old.arrays["count"]}, old.specs), X, 0.1)


@wrong("""
variables w, count of this state are not what train has
  w is float32[4, 6], not float32[model=6, hidden=4]
  count is float32[], not int32[]
  at LINE: step(State(arrays, step.variables), X, 0.1)
  fix: start from this step's own init or place
""")
def state_of_other_shapes(step):
    arrays = {"w": jnp.zeros([4, 6]), "count": jnp.zeros([])}
    step(State(arrays, step.variables), X, 0.1)


@wrong("""
the state has no variable 'weight'
  state: State(w: float32[model=6, hidden=4], count: int32[])
  at LINE: state["weight"]
  fix: use one of: count, w
""")
def state_read_by_a_name_it_lacks(state):
    state["weight"]


@wrong("""
variable 'count' of train is missing
  w: float32[model=6, hidden=4]
  count: int32[]
  at LINE: step.place({"w": np.zeros([6, 4], np.float32)})
  fix: give all of: w, count
""")
def state_placed_with_a_variable_missing(step):
    step.place({"w": np.zeros([6, 4], np.float32)})


@wrong("""
train has no variable 'counter'
  w: float32[model=6, hidden=4]
  count: int32[]
  at LINE: step.place({**state, "counter": 1})
  fix: did you mean 'count'?
""")
def state_placed_with_an_unknown_variable(step, state):
    step.place({**state, "counter": 1})


@wrong("""
variable w was given as float32[4, 6], not float32[model=6, hidden=4]
  at LINE: step.place({**state, "w": np.zeros([4, 6], np.float32)})
  fix: give an array of shape (6, 4) and dtype float32
""")
def state_placed_in_another_shape(step, state):
    step.place({**state, "w": np.zeros([4, 6], np.float32)})


@wrong("""
variable count was given as int64[], not int32[]
  at LINE: step.place({**state, "count": 2**40})
  fix: give an array of shape () and dtype int32
""")
def state_placed_with_a_number_too_large(step, state):
    step.place({**state, "count": 2**40})


@wrong("""
place was given a list
  at LINE: step.place([X])
  fix: give whole arrays by name: place({name: array})
""")
def state_placed_from_a_list(step, state):
    step.place([X])


@wrong("""
the seed 0.5 is not an int32
  at LINE: step.init(0.5)
  fix: give a whole number from -2**31 to 2**31 - 1, e.g. init(0)
""")
def seed_that_is_a_fraction(step):
    step.init(0.5)


@wrong("""
the seed 2147483648 is not an int32
  at LINE: step.init(2**31)
  fix: give a whole number from -2**31 to 2**31 - 1, e.g. init(0)
""")
def seed_that_is_too_large(step):
    step.init(2**31)


@wrong("""
the mesh needs 128 devices, and this process has 8 (cpu)
  mesh: Mesh(data=64, model=2)
  at LINE: Executable(dataclasses.replace(artifact, mesh=nm.Mesh(data=64, model=2)))
  fix: use a smaller mesh, or on CPU call namedmesh.runtime.use_cpu_devices(128) \
before anything else uses jax
""")
def mesh_larger_than_the_devices(artifact):
    Executable(dataclasses.replace(artifact, mesh=nm.Mesh(data=64, model=2)))


@wrong("""
the compiler made 1 collective that the plan does not have
  unplanned AllReduce over data of 6 float32 elements, from nm.sum.1/Sum
  at LINE: Executable(dataclasses.replace(other.artifact, collectives=()), strict=True)
  fix: reshard or replicate the tensors named here explicitly, or run with strict=False
""")
def collective_that_was_not_planned(other):
    Executable(dataclasses.replace(other.artifact, collectives=()), strict=True)


@wrong("""
the compiler did not make 1 collective that the plan has, and made 1 collective otherwise than \
planned
  not made AllGather over data of w, 6 float32 elements, 5 times (take.9 at model.py:3)
  different AllReduce of total (sum.1): run 1 for 7
  at LINE: Executable(dataclasses.replace(other.artifact, collectives=plans), strict=True)
  fix: the plan is wrong about the collectives named here: please report them, \
or run with strict=False
""")
def collective_that_was_not_made(other):
    (sum,) = other.artifact.collectives
    gather = dataclasses.replace(sum, kind="AllGather", op="take.9", tensor="w", times=5)
    gather = dataclasses.replace(gather, source=Source("model.py", 3))
    plans = (gather, dataclasses.replace(sum, tensor="total", times=7))
    Executable(dataclasses.replace(other.artifact, collectives=plans), strict=True)


@wrong.rows
def test_message_and_nothing_has_changed(function, message):
    things = given()
    assert message_of(function, **things) == message
    assert_nothing_has_changed(things["step"], things["state"])


def test_numbers_that_fit_are_inputs():
    """What looks like a mistake and is none: a plain number for a scalar, whole or not."""
    step = compiled()["step"]
    losses = [float(step(step.init(0), X, rate)[1]) for rate in (0, 0.25, np.float32(0.25))]
    assert losses[1:] == losses[2:] + losses[2:]
    assert step.init(0).get("weight") is None


def test_an_unplanned_collective_is_a_warning_when_asked():
    artifact = compiled()["other"].artifact
    with pytest.warns(UserWarning, match="1 collective that the plan does not have"):
        Executable(dataclasses.replace(artifact, collectives=()), strict=False)
