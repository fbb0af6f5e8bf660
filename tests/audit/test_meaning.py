"""What becomes of what collectives send: how it is reduced, and the order of the devices."""

import re

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.audit.audit import audit
from namedmesh.audit.hlo import find_collectives, parse_module
from namedmesh.audit.hlo.groups import order_of_groups, parse_groups
from tests.audit.cases import LINE, MESH, audit_of, planned
from tests.audit.hlo.text import module_of

CUBE = nm.Mesh(a=2, b=2, c=2)
MESSY = """HloModule m

%join (x: TYPE, y: TYPE) -> TYPE {
  %x = TYPE parameter(0)
  %y = TYPE parameter(1)
LINES
}

ENTRY %main (p: TYPE8) -> TYPE8 {
  %p = TYPE8{0} parameter(0)
  ROOT %r = TYPE8{0} all-reduce(%p), replica_groups=[1,8]<=[8], to_apply=%join
}
"""


def reduction_of(lines: str, dtype: str = "f32") -> str:
    text = MESSY.replace("LINES", lines).replace("TYPE8", f"{dtype}[8]")
    (one,) = find_collectives(parse_module(text.replace("TYPE", f"{dtype}[]")), MESH)
    return one.reduction


@pytest.mark.parametrize(
    ("lines", "reduction"),
    [
        ("  ROOT %r = f32[] add(%x, %y)", "add"),
        ("  ROOT %r = f32[] maximum(%y, %x)", "max"),
        ("  ROOT %r = f32[] minimum(%x, %y)", "min"),
        ("  ROOT %r = f32[] multiply(%x, %y)", "mul"),
        ("  ROOT %r = f32[] subtract(%x, %y)", "?"),
        ("  ROOT %r = f32[] add(%x, %x)", "?"),
        ("  ROOT %r = f32[] copy(%x)", "?"),
        ("  %n = f32[] negate(%y)\n  ROOT %r = f32[] add(%x, %n)", "?"),
    ],
)
def test_a_reduction_is_what_its_computation_makes_of_two_elements(lines, reduction):
    assert reduction_of(lines) == reduction


def test_a_reduction_may_be_computed_in_a_wider_type():
    lines = """  %a = f32[] convert(%x)
  %b = f32[] convert(%y)
  %c = f32[] add(%a, %b)
  ROOT %r = bf16[] convert(%c)"""
    assert reduction_of(lines, "bf16") == "add"


@pytest.mark.parametrize("names", [("or", "add", "maximum"), ("and", "multiply", "minimum")])
def test_reductions_of_bools_have_several_names(names):
    for name in names:
        assert reduction_of(f"  ROOT %r = pred[] {name}(%x, %y)", "pred") == names[0]


@pytest.mark.parametrize("reduction", ["add", "max", "min", "mul"])
@pytest.mark.parametrize("start", ["", "TPU", "GPU"])
def test_another_reduction_is_a_difference(reduction, start):
    line = LINE
    if start:
        line = line.replace("all-reduce(", "all-reduce-start(")
    if start == "GPU":
        line = line.replace("= f32[4,8]{1,0} ", "= ((f32[4,8]{1,0}), f32[4,8]{1,0}) ")
    made = {name: audit_of(line.replace("%add", f"%{name}"), planned(reduction=reduction))
            for name in ("add", "max", "min", "mul")}  # fmt: skip
    for name, result in made.items():
        assert result.exact == (name == reduction)
        if name != reduction:
            (one,) = result.differences
            assert str(one) == f"AllReduce of y (einsum.3): by {name} for {reduction}"


def test_every_tensor_of_a_combined_reduction_is_checked():
    line = """
  %w = f32[2]{0} slice(%p), slice={[0:2]}
  %r = (f32[4,8]{1,0}, f32[2]{0}) all-reduce(%p, %w), replica_groups=[2,4]<=[8], \
to_apply=%add, metadata={op_name="jit(f)/namedmesh/(nm.einsum.9/XlaDot:nm.sum.7/Sum)"}
"""
    small = planned(op="sum.7", elements=2, bytes=8, reduction="add")
    plans = [planned(op="einsum.9", reduction="add"), small]
    assert audit_of(line, *plans).exact
    assert not audit_of(line.replace("%add", "%max"), *plans).exact


def test_a_scattered_sum_must_be_a_sum_on_every_backend():
    plan = planned(kind="ReduceScatter", reduction="add", order=("model",))
    assert audit_of(LINE, plan).exact
    assert not audit_of(LINE.replace("%add", "%max"), plan).exact
    native = LINE.replace("f32[4,8]", "f32[4,2]").replace("all-reduce", "reduce-scatter")
    for backend in ("gpu", "tpu"):
        assert audit_of(native, plan, backend=backend).exact
        assert not audit_of(native.replace("%add", "%min"), plan, backend=backend).exact


@pytest.mark.parametrize("order", ["abc", "cab", "cba", "ab", "ca", "b"])
def test_the_order_of_groups_is_read_whatever_their_own_order(order):
    names = list(CUBE.axes)
    others = [i for i, name in enumerate(names) if name not in order]
    grid = np.arange(8).reshape(2, 2, 2).transpose([*others, *map(names.index, order)])
    groups = tuple(map(tuple, grid.reshape(-1, 2 ** len(order)).tolist()))
    axes = tuple(sorted(order))
    assert order_of_groups(groups, CUBE, axes) == tuple(order)
    assert order_of_groups(groups[::-1], CUBE, axes) == tuple(order)
    backwards = tuple(group[::-1] for group in groups)
    assert order_of_groups(backwards, CUBE, axes) == ()
    assert order_of_groups((groups[0][::-1], *groups[1:]), CUBE, axes) == ()


GATHERS = {
    "AllGather": "%r = f32[4,8] all-gather(%p), replica_groups=G, dimensions={0}, M",
    "AllToAll": "%r = f32[4,8] all-to-all(%p), replica_groups=G, dimensions={0}, M",
    "ReduceScatter": "%r = f32[1,8] reduce-scatter(%p), replica_groups=G, to_apply=%add, M",
    "started": "%r = (f32[1,8], f32[4,8]) all-gather-start(%p), replica_groups=G, M",
}


@pytest.mark.parametrize("kind", GATHERS)
@pytest.mark.parametrize(
    ("groups", "good"),
    [
        ("[2,4]<=[8]", True),
        ("{{4,5,6,7},{0,1,2,3}}", True),
        ("{{0,1,2,3},{4,5,7,6}}", False),
        ("{{3,2,1,0},{7,6,5,4}}", False),
        ("{{0,2,1,3},{4,6,5,7}}", False),
    ],
)
def test_the_order_of_devices_matters_where_places_do(kind, groups, good):
    line = GATHERS[kind].replace("G", groups).replace(" M", ' metadata={op_name="nm.einsum.3/x"}')
    kind = kind.replace("started", "AllGather")
    plan = planned(
        kind=kind, order=("b", "c"), axes=("b", "c"), reduction="add" * kind.startswith("Reduce")
    )
    result = audit(module_of(f"  {line}"), CUBE, [plan], backend="gpu")
    assert result.exact == good
    if not good:
        assert str(result.differences[0]).endswith(": with devices in another order")


def test_the_order_of_devices_does_not_matter_to_a_sum():
    line = LINE.replace("[2,4]<=[8]", "{{3,1,0,2},{7,6,5,4}}")
    assert audit_of(line, planned(reduction="add")).exact


PROGRAMS = {
    "sum": ("add", lambda x, B: nm.sum(x, over=B)),
    "max": ("max", lambda x, B: nm.max(x, over=B)),
    "min": ("min", lambda x, B: nm.min(x, over=B)),
    "prod": ("mul", lambda x, B: nm.prod(x, over=B)),
    "any": ("or", lambda x, B: nm.any(x > 0.0, over=B)),
    "all": ("and", lambda x, B: nm.all(x > 0.0, over=B)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_plan_knows_how_it_reduces_and_compilers_agree(name):
    reduction, function = PROGRAMS[name]
    B, M = nm.dims("batch=8 model=4")
    program = nm.trace(lambda x: function(x, B), x=nm.spec([B, M]))
    step = nm.compile(program, mesh=nm.Mesh(data=4), layout="batch:data", strict=True)
    (one,) = step.artifact.collectives
    assert one.reduction == reduction


def test_a_plan_knows_the_order_of_devices_and_the_compiler_agrees():
    B, M = nm.dims("batch=8 model=8")
    mesh = nm.Mesh(p=2, q=4)
    for layout, order in (("batch:p+q", ("p", "q")), ("batch:q+p", ("q", "p"))):
        program = nm.trace(lambda x: nm.replicate(x, B), x=nm.spec([B, M]))
        step = nm.compile(program, mesh=mesh, layout=layout, strict=True)
        (one,) = step.artifact.collectives
        assert (one.kind, one.order, one.axes) == ("AllGather", order, ("p", "q"))
        groups = re.search(r"all-gather\(.*replica_groups=(.*?), dimensions", step.text)
        assert groups is not None
        expected = np.arange(8).reshape(2, 4)
        expected = expected if order == ("p", "q") else expected.T
        assert parse_groups(groups[1]) == (tuple(expected.ravel().tolist()),)
