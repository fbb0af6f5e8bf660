"""Arrays that several states and programs share: a step that donates them is noticed by all."""

import jax
import numpy as np
import pytest

import namedmesh as nm
from namedmesh.training import share_state

B, M = nm.dims("batch=8 model=2")
ONES = np.ones((8, 2), np.float32)


def weights(x):
    return nm.sum(x * nm.param("w", [M], nm.constant_init(2.0)))


def train(x):
    w, loss = nm.param("w", [M], nm.constant_init(2.0)), weights(x)
    nm.assign(w, w - 0.5)
    return loss


def train_bias(x):
    """Trains one variable, and reads the other."""
    b, loss = nm.param("b", [], nm.constant_init(1.0)), weights(x)
    nm.assign(b, b + 1.0)
    return loss * b


def compile_for(function, devices, layout="batch:all"):
    return nm.compile(function, nm.spec([B, M]), mesh=nm.Mesh(all=devices), layout=layout)


def place_each(state, program):
    return program.place({name: state[name] for name in program.variables})


USED_UP = "variable w of this state was used up by an earlier step"


@pytest.mark.parametrize("devices", [1, 2, 8])
@pytest.mark.parametrize("share", [share_state, place_each])
def test_a_second_program_notices_that_training_has_donated_its_arrays(devices, share):
    step, evaluate = compile_for(train, devices), compile_for(weights, devices)
    state = step.init(0)
    shared = share(state, evaluate)
    for _ in range(2):
        assert float(evaluate(shared, ONES)[1]) == 32.0
    state, _ = step(state, ONES)
    for _ in range(2):
        with pytest.raises(nm.NamedMeshError) as error:
            evaluate(shared, ONES)
        assert error.value.problem == USED_UP and error.value.fix
    assert float(evaluate(share(state, evaluate), ONES)[1]) == 24.0


@pytest.mark.parametrize("devices", [1, 2])
def test_a_program_that_updates_other_variables_notices_it_too(devices):
    step, other = compile_for(train, devices), compile_for(train_bias, devices)
    state = step.init(0)
    beside = other.place({"w": state["w"], "b": 1.0})
    beside, first = other(beside, ONES)
    state, _ = step(state, ONES)
    with pytest.raises(nm.NamedMeshError) as error:
        other(beside, ONES)
    assert error.value.problem == USED_UP
    # What it did not share is still there, and the run goes on with the new weights.
    beside = other.place({"w": state["w"], "b": beside["b"]})
    assert float(first) == 32.0 and float(other(beside, ONES)[1]) == 48.0


@pytest.mark.parametrize("devices", [1, 2])
def test_one_state_that_two_programs_take(devices):
    step, again = compile_for(train, devices), compile_for(train, devices)
    evaluate = compile_for(weights, devices)
    state = step.init(0)
    evaluate(state, ONES)
    new, _ = again(state, ONES)  # checked once, by another program than made it
    for program in (step, again, evaluate):
        with pytest.raises(nm.NamedMeshError, match=USED_UP):
            program(state, ONES)
    assert float(evaluate(new, ONES)[1]) == 24.0


@pytest.mark.parametrize("devices", [1, 2])
def test_arrays_that_the_user_deletes_or_donates(devices):
    step, evaluate = compile_for(train, devices), compile_for(weights, devices)
    donate = jax.jit(lambda array: array + 1, donate_argnums=0)
    for delete in (lambda array: array.delete(), donate):
        for program in (step, evaluate):
            state = program.init(0)
            state, _ = program(state, ONES)
            delete(state["w"])
            with pytest.raises(nm.NamedMeshError, match=USED_UP):
                program(state, ONES)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_result_outlives_the_step_that_donates_what_it_is_equal_to(devices):
    def step(x):
        w = nm.param("w", [B, M], nm.constant_init(2.0))
        nm.assign(w, w + x)
        return w, w + x

    compiled = compile_for(step, devices)
    state, (old, new) = compiled(compiled.init(0), ONES)
    state, (older, newer) = compiled(state, ONES)
    for array, value in ((old, 2), (new, 3), (older, 3), (newer, 4), (state["w"], 4)):
        np.testing.assert_array_equal(array, np.full((8, 2), value))
    # A result of the last step as an input of the next, beside the state it is equal to.
    state, (_, sums) = compiled(state, x=newer)
    np.testing.assert_array_equal(sums, np.full((8, 2), 8))


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("first", [0, 1])
def test_states_before_and_after_a_step_that_updates_nothing(devices, first):
    evaluate, step = compile_for(weights, devices), compile_for(train, devices)
    before = evaluate.init(0)
    after, _ = evaluate(before, ONES)
    states = (before, after) if first else (after, before)
    step(states[0], ONES)  # donates what both have
    for state in states:
        with pytest.raises(nm.NamedMeshError, match=USED_UP):
            evaluate(state, ONES)


def test_arrays_that_nobody_else_has_are_not_checked(monkeypatch):
    """What a training loop makes and takes back costs nothing; what was read is checked."""
    step, checked = compile_for(train, 2), []
    monkeypatch.setattr("namedmesh.runtime.state._is_deleted", lambda array: checked.append(array))
    state, _ = step(step.init(0), ONES)
    state, _ = step(state, ONES)
    assert not checked
    float(state["w"][0])
    state, _ = step(state, ONES)
    assert len(checked) == 1
    step(state, ONES)
    assert len(checked) == 1
