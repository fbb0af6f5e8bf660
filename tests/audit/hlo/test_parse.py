"""From HLO text to a module: everything an instruction has, and what cannot be read."""

import time

import pytest

import namedmesh as nm
from namedmesh.audit.hlo import parse_module, parse_type
from tests.audit.hlo.text import module_of

MODULE = r"""HloModule jit_step, is_scheduled=true, \
entry_computation_layout={(f32[8,8]{1,0:T(8,128)}, \
/*index=1*/s32[]{:T(256)})->(f32[8,8]{1,0:T(8,128)}, s32[])}, num_partitions=8

FileNames
1 "/project/a = b {.py"

FunctionNames
1 "<module>"

FileLocations
1 {file_name_id=1 function_name_id=1 line=5 end_line=5 column=2 end_column=129}

StackFrames
1 {file_location_id=1 parent_frame_id=1}


%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%async_wrapped (p: f32[8,8]) -> f32[8,8] {
  %p.1 = f32[8,8]{1,0} parameter(0)
  ROOT %all = f32[8,8]{1,0} all-to-all(%p.1), replica_groups={{0,1},{2,3}}, dimensions={0}
}, execution_thread="parallel"

ENTRY %main.7 (w: f32[8,8], i: s32[]) -> (f32[8,8], s32[]) {
  %w = f32[8,8]{1,0:T(8,128)} parameter(0), sharding={devices=[2,4]<=[8]}, metadata={op_name="w"}
  %i = s32[]{:T(256)} parameter(1)
  %table = f32[2,3]{1,0} constant({ { 1, 2, 3 }, { -inf, 5e-07, nan } })
  %start = ((f32[8,8]{1,0}), f32[8,8]{1,0}, u32[]) async-start(%w), calls=%async_wrapped
  %done = f32[8,8]{1,0} async-done(%start)
  %typed = f32[8,8]{1,0} add(f32[8,8]{1,0} %w, /*index=1*/f32[8,8]{1,0} %done)
  %kernel = f32[8,8]{1,0} custom-call(%typed), custom_call_target="f\"oo, bar(", \
called_computations={%add, %async_wrapped}, \
metadata={op_name="jit(f)/\"quoted\"/nm.call.3, {(" source_file="a.py" source_line=3}, \
backend_config="{\"window_config\":{\"estimated_cycles\":\"77\"}}"
  %pick = f32[8,8]{1,0} conditional(%i, %w, %w), branch_computations={%add, %async_wrapped}
  %two = f32[8,8]{1,0} conditional(%i, %w, %w), true_computation=%add, false_computation=%add
  ROOT %out = (f32[8,8]{1,0:T(8,128)}, s32[]) tuple(%pick, %i), control-predecessors={%two, %w}
}
""".replace("\\\n", "")


@pytest.fixture(scope="module")
def module():
    return parse_module(MODULE)


@pytest.fixture(scope="module")
def entry(module):
    return module.computations[module.entry].instructions


def test_a_module_has_a_header(module):
    assert (module.name, module.entry, module.scheduled) == ("jit_step", "main.7", True)
    assert module.attributes["num_partitions"] == "8"
    assert [str(type) for type in module.parameters] == ["f32[8,8]", "s32[]"]
    assert module.parameters[0] == parse_type("f32[8,8]{1,0:T(8,128)}")
    assert str(module.results) == "(f32[8,8], s32[])"


def test_a_module_has_its_computations_in_order(module):
    assert list(module.computations) == ["add", "async_wrapped", "main.7"]
    assert [instruction.name for instruction in module.computations["add"]] == ["x", "y", "sum"]
    assert module.computations["add"].instructions["sum"].root


def test_operands_are_names_whatever_else_is_written(entry):
    assert entry["typed"].operands == ("w", "done")
    assert entry["pick"].operands == ("i", "w", "w")
    assert entry["w"].operands == () and entry["w"].literal == "0"


def test_a_constant_keeps_its_literal(entry):
    assert entry["table"].literal.strip() == "{ { 1, 2, 3 }, { -inf, 5e-07, nan } }"


def test_called_computations_have_roles(entry):
    assert entry["kernel"].called == {"calls": ("add", "async_wrapped")}
    assert entry["pick"].called == {"branches": ("add", "async_wrapped")}
    assert entry["two"].called == {"branches": ("add", "add")}
    assert entry["out"].called == {}


def test_what_starts_one_op_has_its_name(entry):
    """As in jaxlib's text; what libtpu dumps has a computation for it."""
    assert (entry["start"].opcode, entry["done"].opcode) == ("all-to-all-start", "all-to-all-done")
    assert entry["start"].groups == ((0, 1), (2, 3)) and entry["start"].called == {}
    assert entry["start"].attributes["dimensions"] == "{0}"
    alone = MODULE.replace("%async_wrapped}", "%add}")  # nothing else calls it
    assert list(parse_module(alone).computations) == ["add", "main.7"]
    two = MODULE.replace("all-to-all(%p.1)", "all-to-all(%c)").replace(
        "  ROOT %all", "  %c = f32[8,8]{1,0} copy(%p.1)\n  ROOT %all"
    )
    entry = parse_module(two).computations["main.7"].instructions
    assert entry["start"].opcode == "async-start"
    assert entry["start"].called == {"calls": ("async_wrapped",)}


def test_a_compiler_without_an_estimate_of_cycles_writes_the_greatest_number():
    text = MODULE.replace('\\"77\\"', f'\\"{2**63 - 1}\\"')
    assert text != MODULE
    assert parse_module(text).computations["main.7"].instructions["kernel"].cycles == 0


def test_quotes_and_brackets_in_strings_are_text(entry):
    assert entry["kernel"].op_name == 'jit(f)/"quoted"/nm.call.3, {('
    assert entry["kernel"].attributes["custom_call_target"] == r'"f\"oo, bar("'
    assert entry["kernel"].cycles == 77


def test_types_nest(entry):
    assert [str(array) for array in entry["start"].type.arrays] == ["f32[8,8]", "f32[8,8]", "u32[]"]


def test_groups_and_pairs_are_numbers(module):
    assert module.computations["async_wrapped"].instructions["all"].groups == ((0, 1), (2, 3))
    permute = "  %c = f32[4,8]{1,0} collective-permute(%p), source_target_pairs={{0,4},{4,0}}"
    (instruction,) = [one for _, one in module_of(permute).instructions() if one.name == "c"]
    assert instruction.pairs == ((0, 4), (4, 0)) and instruction.groups is None


def test_names_need_no_percent_sign():
    module = parse_module("HloModule m\nENTRY main {\n  ROOT x = f32[] parameter(0)\n}\n")
    assert module.computations["main"].instructions["x"].root


def test_a_table_in_the_header_is_not_taken_for_the_module():
    header = """HloModule outer, num_partitions=2, origin_recovery_table={
  {"constant"} : {"constant__ovp0"},
  "
    HloModule recovery_module

    ENTRY %recovery (q: s32[2]) -> s32[2] {
      ROOT %q = s32[2]{0} parameter(0)
    }

  "
}"""
    module = module_of("  ROOT %x = f32[4,8]{1,0} negate(%p)", header)
    assert (module.name, module.entry, list(module.computations)) == ("outer", "main", ["main"])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("%x = f99[4] add(%p, %p)", "the element type 'f99' is unknown"),
        ("%x = f32[4]{0} add(%p, %p", "the operands have no closing parenthesis"),
        ("%x = f32[4]{0} %p", "expected an opcode"),
        ("%x is f32[4]", "a line of a computation is not an instruction"),
        ("%x = f32[4] all-reduce(%p), replica_groups=<8>", "replica_groups=<8> are in an unknown"),
        ("%x = f32[4,] add(%p)", "'' is not the size of a dimension"),
    ],
)
def test_a_line_that_cannot_be_read_is_quoted(line, reason):
    with pytest.raises(nm.NamedMeshError) as caught:
        module_of(f"  {line}")
    assert caught.value.problem.startswith(f"cannot read compiled HLO: {reason}")
    assert caught.value.details == (line,)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("HloModule m\n", "there is no ENTRY computation"),
        ("", "there is no ENTRY computation"),
        ("HloModule m\n\n  %x = f32[] parameter(0)\n", "an instruction stands outside"),
    ],
)
def test_a_module_that_is_not_whole_is_refused(text, reason):
    with pytest.raises(nm.NamedMeshError, match=reason):
        parse_module(text)


def test_time_is_linear_in_the_text():
    """Four times the text takes about four times as long, at a megabyte a second or better."""
    line = (
        "  %x{} = f32[16,128]{{1,0:T(8,128)}} add(%p, %p), "
        'metadata={{op_name="jit(f)/nm.add.3/Add" '
        'source_file="/project/model.py" source_line=1221}}\n'
    )

    def seconds(count: int) -> tuple[float, int]:
        lines = "".join(line.format(i) for i in range(count))
        text = f"HloModule m\nENTRY %main (p: f32[16,128]) -> f32[] {{\n{lines}}}\n"
        start = time.process_time()
        parse_module(text)
        return time.process_time() - start, len(text)

    seconds(1000)
    small, large = min(seconds(4000) for _ in range(3)), min(seconds(16000) for _ in range(3))
    assert large[0] < 8 * small[0]
    assert large[1] / large[0] > 1e6
