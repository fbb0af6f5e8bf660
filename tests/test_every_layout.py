"""One program, every layout: a sharded run equals the unsharded one, gradients included."""

import hypothesis
import numpy as np
import pytest

import namedmesh as nm
from tests.programs import Case, cases


def planned(case: Case, program: nm.Program) -> nm.Plan:
    """The plan under the first layout that is legal; one without shared axes always is."""
    for i, layout in enumerate(case.layouts):
        params = None if case.params is None else case.params.only(program.resting_dims)
        try:
            return nm.plan(program, case.mesh, layout.only(program.dims), params)
        except nm.NamedMeshError as error:
            if i + 1 == len(case.layouts) or "is held by dimension" not in str(error):
                raise
    raise AssertionError("no layout left")


def check(case: Case) -> None:
    program = nm.trace(case.function, **case.specs)
    plan = planned(case, program)
    step = nm.Step(plan, strict=True)
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.normal(size=spec.shape.sizes).astype(np.float32)
        for name, spec in case.specs.items()
    }
    state = {name: np.asarray(value) for name, value in program.initial_state(3).items()}
    updated, wanted = program.evaluate(state, **inputs)
    new_state, got = step(step.place(state), **inputs)
    np.testing.assert_allclose(new_state["weight"], updated["weight"], rtol=2e-4, atol=2e-4)
    for key in ("last", "previous", "loss"):
        np.testing.assert_allclose(got[key], wanted[key], rtol=2e-4, atol=2e-4, err_msg=key)
    for one, other in zip(got["grads"], wanted["grads"], strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4)


SETTINGS = hypothesis.settings(
    deadline=None,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck(check) for check in hypothesis.HealthCheck],
    print_blob=False,
)


@hypothesis.seed(20240615)
@hypothesis.settings(SETTINGS, max_examples=40)
@hypothesis.given(case=cases())
def test_seeded_programs_agree(case):
    check(case)


@pytest.mark.slow
@hypothesis.settings(SETTINGS, max_examples=320)
@hypothesis.given(case=cases())
def test_many_programs_agree(case):
    check(case)
