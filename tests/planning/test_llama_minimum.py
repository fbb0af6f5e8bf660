"""A Llama-style layer under ten layouts sends no more than the least that each needs."""

import pytest

import namedmesh as nm
from benchmarks.llama_plans import CASES, trace_stack


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_layer_sends_the_least_bytes(name):
    case = CASES[name]
    two, four = (
        nm.plan(trace_stack(case, layers), nm.Mesh.parse(case.mesh), case.layout, case.params)
        for layers in (2, 4)
    )
    sent = (four.total_wire_bytes() - two.total_wire_bytes()) / 2
    assert sent <= 1.01 * case.minimum, four.communication
