"""Code of one of two TPU slices against a plan for both, in the form that its compiler writes."""

import dataclasses

import pytest

import namedmesh as nm
from namedmesh.audit.audit import Audit, audit
from namedmesh.audit.backend_rules import ACROSS_SLICES, BETWEEN_SLICES
from namedmesh.dims.hop import Hop
from namedmesh.errors.source import Source
from namedmesh.records.collective import Collective
from tests.audit.hlo.text import module_of

MESH = nm.Mesh(data=4, model=2, slices=2)  # a slice has two devices along both axes
INSIDE = Collective(
    "AllReduce", ("model",), 32, "float32", 128, 1, "y", "einsum.9", "forward",
    Source("stack.py", 11), devices=2, reduction="add",
)  # fmt: skip
ACROSS = Collective(
    "AllReduce", ("data",), 32, "float32", 128, 1, "d_w", "einsum.35", "backward",
    Source("stack.py", 11), devices=4, host_bytes=256, slice_bytes=256, reduction="add",
)  # fmt: skip
SUM = """
  %s = f32[4,8]{1,0} all-reduce(%p), replica_groups={{0,1},{2,3}}, to_apply=%add, \
metadata={op_name="jit(f)/namedmesh/nm.einsum.9/XlaDot"}
"""
SCATTER = """
  %scatter = f32[2,8]{1,0} reduce-scatter(%p), replica_groups={{0,2},{1,3}}, dimensions={0}, \
to_apply=%add
"""
GATHER = """
  %gather = f32[4,8]{1,0} all-gather(%brought), replica_groups={{0,2},{1,3}}, dimensions={0}
"""
SEND = """
  %token = token[] after-all()
  %send = (f32[2,8]{1,0}, u32[], token[]) send(%scatter, %token), channel_id=5, \
is_host_transfer=true, frontend_attributes={_xla_host_transfer_rendezvous="all-reduce.1_0",\
_xla_megascale_reduce_operation="SUM",_xla_megascale_target="{1,2}x{0:3}",\
_xla_megascale_transfer_type="ALL_REDUCE"}
"""
RECV = """
  %recv = (f32[2,8]{1,0}, u32[], token[]) recv(%token), channel_id=6, \
is_host_transfer=true, frontend_attributes={_xla_host_transfer_rendezvous="all-reduce.1_0",\
_xla_megascale_reduce_operation="SUM",_xla_megascale_target="{1,2}x{0:3}",\
_xla_megascale_transfer_type="ALL_REDUCE"}
  %recv-done = (f32[2,8]{1,0}, token[]) recv-done(%recv), is_host_transfer=true
  %brought = f32[2,8]{1,0} get-tuple-element(%recv-done), index=0
"""
CODE = SUM + SCATTER + SEND + RECV + GATHER


def audit_of(lines: str, *planned: Collective, mesh: nm.Mesh = MESH) -> Audit:
    return audit(module_of(lines), mesh, planned, backend="tpu")


def test_a_sum_over_slices_is_scattered_sent_received_and_gathered():
    found = audit_of(CODE, INSIDE, ACROSS)
    assert found.exact, str(found)
    assert found.rules == {BETWEEN_SLICES.name: 1}
    assert [(plan.tensor, one.kind) for plan, one in found.matched] == [
        ("y", "AllReduce"),
        ("d_w", "ReduceScatter"),
    ]


@pytest.mark.parametrize(
    "code",
    [
        CODE.replace(RECV, ""),
        CODE.replace(GATHER, ""),
        CODE.replace("%brought)", "%scatter)"),
        CODE.replace(SCATTER, "  %scatter = f32[2,8]{1,0} slice(%p), slice={[0:2], [0:8]}\n"),
        CODE.replace("f32[2,8]{1,0}, u32", "f32[1,8]{1,0}, u32"),
        CODE.replace("{{0,2},{1,3}}", "{{0,1},{2,3}}"),
        CODE.replace("ALL_REDUCE", "ALL_GATHER"),
        SUM,
    ],
    ids=[
        "nothing received",
        "not gathered",
        "not sent",
        "not added",
        "too little",
        "axes",
        "not a sum",
        "none",
    ],
)
def test_what_does_less_or_otherwise_is_not_as_planned(code):
    found = audit_of(code, INSIDE, ACROSS)
    assert not found.exact
    assert [plan.tensor for plan in found.missing] == ["d_w"]


def test_more_than_is_planned_is_unplanned():
    (alone,) = audit_of(CODE, INSIDE).unplanned
    assert (alone.kind, alone.axes, alone.elements) == ("AllReduce", ("data",), 32)
    twice = CODE + SEND.replace("%token = token[] after-all()", "").replace("%send", "%send.2")
    twice += RECV.replace("%recv", "%recv.2")
    assert [one.kind for one in audit_of(twice, INSIDE, ACROSS).unplanned] == ["Send", "Recv"]


def test_groups_inside_a_slice_are_checked():
    wrong = CODE.replace("{{0,1},{2,3}}", "{{0,3},{1,2}}")
    found = audit_of(wrong, INSIDE, ACROSS)
    assert not found.exact and found.differences


def transfer(kind: str, sent: str, received: str, target: str, how: str = "") -> str:
    """A Send and a Recv as TPU's compiler writes them."""
    attributes = (
        f'frontend_attributes={{_xla_host_transfer_rendezvous="x_0",{how}'
        f'_xla_megascale_target={target},_xla_megascale_transfer_type="{kind}"}}'
    )
    return f"""
  %token = token[] after-all()
  %piece = f32[{sent}] bitcast(%p)
  %send = (f32[{sent}], u32[], token[]) send(%piece, %token), is_host_transfer=true, {attributes}
  %recv = (f32[{received}], u32[], token[]) recv(%token), is_host_transfer=true, {attributes}
  %recv-done = (f32[{received}], token[]) recv-done(%recv), is_host_transfer=true
  %brought = f32[{received}] get-tuple-element(%recv-done), index=0
"""


SUMMED = '_xla_megascale_reduce_operation="SUM",'
EACH = '"{1,2}x{0:3}"'
ALL = "{{100000,100002,200000,200002},{100001,100003,200001,200003}}"
PAIRS = "{{200002->100000},{100002->200000},{200003->100001},{100003->200001}}"
INNER_GATHER = """
  %whole = f32[4,8] all-gather(%brought), replica_groups={{0,2},{1,3}}, dimensions={0}
"""
INNER_PERMUTE = """
  %next = f32[32] collective-permute(%piece), source_target_pairs={{0,2},{1,3}}
"""
PLANS = {
    kind: dataclasses.replace(ACROSS, kind=kind, reduction="", **more)
    for kind, more in {
        "AllGather": {"order": ("data",)},
        "AllToAll": {"order": ("data",)},
        "CollectivePermute": {"hop": Hop(-1, 0, 3, cyclic=True, axes=("data",))},
    }.items()
}
MADE = {
    "AllGather": transfer("ALL_GATHER", "8", "16", EACH) + INNER_GATHER,
    "AllToAll": transfer("ALL_TO_ALL", "32", "32", ALL),
    "CollectivePermute": transfer("ONE_TO_ONE", "32", "32", PAIRS) + INNER_PERMUTE,
}


@pytest.mark.parametrize("kind", MADE)
def test_other_collectives_over_slices_are_carried_by_the_runtime(kind):
    found = audit_of(SUM + MADE[kind], INSIDE, PLANS[kind])
    assert found.exact, str(found)
    assert found.rules == {ACROSS_SLICES.name: 1}


def test_a_scatter_over_slices_of_one_device_each():
    mesh = nm.Mesh(data=2, model=4, slices=2)
    plan = dataclasses.replace(ACROSS, kind="ReduceScatter", devices=2, order=("data",))
    code = transfer("REDUCE_SCATTER", "32", "16", EACH, SUMMED)
    assert audit_of(code, plan, mesh=mesh).exact
    for changed in (code.replace("SUM", "MAX"), code.replace("f32[32]", "f32[64]")):
        assert [one.kind for one in audit_of(changed, plan, mesh=mesh).missing] == ["ReduceScatter"]


def test_a_device_assignment_numbers_the_devices():
    mesh = nm.Mesh((0, 2, 1, 3, 4, 6, 5, 7), data=4, model=2, slices=2)
    groups = "{{100000,100001,200000,200001},{100002,100003,200002,200003}}"
    made = MADE["AllToAll"].replace(ALL, groups)
    assert audit_of(SUM + made, INSIDE, PLANS["AllToAll"], mesh=mesh).exact
    assert not audit_of(SUM + made, INSIDE, PLANS["AllToAll"]).exact


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("AllGather", INNER_GATHER, ""),
        ("AllGather", "{0,2},{1,3}", "{0,1},{2,3}"),
        ("AllGather", "{1,2}x", "{1,3}x"),
        ("AllGather", "f32[16]", "f32[32]"),
        ("AllToAll", "100002,200000", "200000,100002"),
        ("AllToAll", "ALL_TO_ALL", "ALL_GATHER"),
        ("AllToAll", "f32[32]", "f32[16]"),
        ("CollectivePermute", "200002->100000", "200002->100001"),
        ("CollectivePermute", "{{0,2},{1,3}}", "{{2,0},{3,1}}"),
        ("CollectivePermute", INNER_PERMUTE, ""),
    ],
)
def test_what_the_runtime_does_otherwise_is_noticed(kind, before, after):
    assert before in MADE[kind]
    found = audit_of(SUM + MADE[kind].replace(before, after), INSIDE, PLANS[kind])
    assert [plan.kind for plan in found.missing] == [kind]


def test_bools_are_packed_into_numbers_that_a_slice_adds_up():
    """Four to a number, as TPU's compiler writes any and all."""
    parts = "".join(
        f"""
  %x{i} = u32[] shift-right-logical(%x, %by{i})
  %a{i} = pred[] convert(%x{i})
  %y{i} = u32[] shift-right-logical(%y, %by{i})
  %b{i} = pred[] convert(%y{i})
  %c{i} = pred[] and(%a{i}, %b{i})
  %d{i} = u32[] convert(%c{i})
  %e{i} = u32[] shift-left(%d{i}, %by{i})"""
        for i in range(2)
    )
    join = f"""%pack (x: u32[], y: u32[]) -> u32[] {{
  %x = u32[] parameter(0)
  %y = u32[] parameter(1)
  %by0 = u32[] constant(0)
  %by1 = u32[] constant(8){parts}
  ROOT %r = u32[] or(%e0, %e1)
}}
"""
    code = transfer("ALL_REDUCE", "512", "512", EACH, SUMMED.replace("SUM", "MIN"))
    code = code.replace("f32[512] bitcast(%p)", "f32[512] bitcast(%sum)").replace("f32", "pred")
    code = f"""
  %own = pred[12] constant({{...}})
  %crop = pred[512] custom-call(%own), custom_call_target="ZeroCrop"
  %packed = u32[128] bitcast(%crop)
  %sum = u32[128] all-reduce(%packed), replica_groups={{{{0,2}},{{1,3}}}}, to_apply=%pack
{code}"""
    plan = dataclasses.replace(ACROSS, dtype="bool", elements=12, bytes=12, reduction="and")
    for some, exact in ((join, True), (join.replace(" and(", " or("), False)):
        module = module_of(code, f"HloModule test\n\n{some}")
        found = audit(module, MESH, [plan], backend="tpu")
        assert found.exact == exact, found
