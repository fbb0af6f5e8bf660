"""Every case of benchmarks/embeddings sends what a person would send at least."""

import pytest

from benchmarks import embeddings

pytestmark = pytest.mark.filterwarnings("ignore:.*padded to", "ignore:no dimension is mapped")


@pytest.mark.parametrize("case", embeddings.list_cases(), ids=lambda case: case.name)
def test_a_case_sends_at_most_five_percent_more_than_the_least(case):
    plan = embeddings.plan_step(case)
    assert plan.total_wire_bytes() <= 1.05 * embeddings.count_least(case)
    assert not plan.warnings or "padded" in plan.warnings[0] or case.devices == 1
    assert bool(plan.decisions) == (case.devices > 1)
