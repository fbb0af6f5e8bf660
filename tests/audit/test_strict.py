"""What a strict Executable insists on: in a step, and in initialisation."""

import dataclasses

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.errors.source import Source
from namedmesh.records.collective import Collective

B, M = nm.dims("batch=8 model=16")
EXTRA = Collective(
    "AllGather", ("data",), 64, "float32", 256, 1, "w", "take.9", "init", Source("model.py", 3), 4
)


@pytest.fixture(scope="module")
def artifact() -> nm.Artifact:
    def step(x):
        return nm.sum(x * nm.param("w", [M]))

    return nm.export(nm.trace(step, x=nm.spec([B, M])), nm.Mesh(data=4), "batch:data")


def test_strict_holds_for_initialisation(artifact):
    """A planned collective that initialisation does not make is an error there, too."""
    promised = dataclasses.replace(artifact, initial_collectives=(EXTRA,))
    strict = nm.runtime.Executable(promised, strict=True)
    assert strict.initial_audit is None
    with pytest.raises(nm.NamedMeshError, match="the compiler did not make 1 collective that"):
        strict.init(0)
    with pytest.raises(nm.NamedMeshError, match="the compiler did not make 1 collective that"):
        strict.init(0)  # and not only the first time
    lenient = nm.runtime.Executable(promised, strict=False)
    with pytest.warns(UserWarning, match="not made AllGather over data of w, 64 float32 elements"):
        lenient.init(0)
    assert lenient.initial_audit is not None and lenient.initial_audit.missing == [EXTRA]


def test_strict_holds_for_what_a_step_does_not_make(artifact):
    promised = dataclasses.replace(artifact, collectives=(*artifact.collectives, EXTRA))
    with pytest.raises(nm.NamedMeshError, match="not made AllGather over data of w"):
        nm.runtime.Executable(promised, strict=True)


def test_strict_holds_for_what_a_step_makes_more_often(artifact):
    changed = [dataclasses.replace(one, times=60) for one in artifact.collectives]
    promised = dataclasses.replace(artifact, collectives=tuple(changed))
    with pytest.raises(nm.NamedMeshError, match=r"different AllReduce of \w+ .*: run 1 for 60"):
        nm.runtime.Executable(promised, strict=True)


def test_a_loop_of_unknown_length_is_planned_and_printed_by_the_iteration():
    def step(x):
        def body(x):
            return x + nm.sum(x, over=B) * 0.5

        return nm.while_loop(lambda x: nm.sum(x) < 100.0, body, x)

    compiled = nm.compile(
        step, nm.spec([B, M]), mesh=nm.Mesh(data=4), layout="batch:data", strict=True
    )
    assert compiled.plan.collectives and all(one.open_ended for one in compiled.plan.collectives)
    assert "1 per iteration" in str(compiled.plan)
    assert compiled.plan.to_json()["collectives"][0]["open_ended"] is True
    count = len(compiled.plan.collectives)
    assert compiled.audit.notes == [
        f"{count} in loops of unknown length, which the plan counts by the iteration"
    ]
    assert {one.open_ended for _, one in compiled.audit.matched} == {True}
    _, total = compiled(None, np.ones((8, 16), np.float32))
    assert np.asarray(total).sum() >= 100


def test_plans_show_bytes_on_the_wire_beside_those_of_the_buffer(artifact):
    program = nm.trace(lambda x: nm.sum(x, over=B), x=nm.spec([B, M]))
    plan = nm.plan(program, nm.Mesh(data=4), "batch:data")
    (sum,) = plan.collectives
    assert (sum.bytes, sum.wire_bytes, sum.devices) == (64, 2 * 64 * 3 // 4, 4)
    assert plan.to_json()["collectives"][0]["wire_bytes"] == 96
    assert plan.to_json()["wire_bytes_per_device"]["forward"] == plan.total_wire_bytes() == 96
    assert "on the wire" in plan.communication and "64 B per device, 96 B on the wire" in str(plan)


class ClaimsElementwise(nm.Op):
    """A sum that says it works on each element by itself."""

    elementwise = True

    def results(self):
        return [(self.inputs[0].shape.without("model"), "float32")]

    def lower(self, context, x):
        return context.tf.reduce_sum(x, 1)


def test_an_op_that_sends_unplanned_is_named_by_its_line():
    """It was the line of nm.compile."""
    B, M = nm.dims("batch=16 model=8")

    def total(x):
        y = nm.exp(x)
        return ClaimsElementwise((y,)).output  # here

    with pytest.raises(nm.NamedMeshError, match="made 1 collective that the plan") as caught:
        nm.compile(
            total, nm.spec([B, M]), mesh=nm.Mesh(a=2, b=4), layout="batch:a, model:b", strict=True
        )
    assert "at test_strict.py" in str(caught.value) and "# here" in str(caught.value)
