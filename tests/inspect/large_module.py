"""A compiled module of any size, as XLA writes one: layers that gather, multiply and add up."""

from __future__ import annotations

_NAME = "jit(step)/jvp(Layer_{i})"
_ADD = """
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}
"""
_ELEMENTWISE = ("tanh", "cosine", "negate", "exponential", "sine", "sqrt", "abs", "log")
_GROUPS = "channel_id={i}, replica_groups=[1,8]<=[8], use_global_device_ids=true"


def write_module(size: int) -> tuple[str, int]:
    """Return the text of a module of at least so many bytes, and its layers."""
    head = ["HloModule jit_step, is_scheduled=true, num_partitions=8", ""]
    head += ["FileNames", '1 "train.py"', "", "FunctionNames", '1 "step"', ""]
    at = "file_name_id=1 function_name_id=1 line={0} end_line={0} column=4 end_column=9"
    head += ["FileLocations", *(f"{i} {{{at.format(i)}}}" for i in range(1, 301)), ""]
    head += ["StackFrames"]
    head += [f"{i} {{file_location_id={i} parent_frame_id=1}}" for i in range(1, 301)]
    fusions, inputs, calls, total, i = [], [], [], 0, 0
    while total < size:
        parts = _write_fusion(i), _write_input(i), _write_calls(i)
        for lines, part in zip((fusions, inputs, calls), parts, strict=True):
            lines.append(part)
        total, i = total + sum(map(len, parts)), i + 1
    given = ", ".join(f"w.{k}: f32[128,1024]" for k in range(i))
    entry = [f"ENTRY %main (x: f32[64,1024], {given}) -> f32[64,1024] {{"]
    entry += ['  %act.-1 = f32[64,1024]{1,0} parameter(0), metadata={op_name="x"}']
    entry += [*inputs, *calls, f"  ROOT %out = f32[64,1024]{{1,0}} negate(%act.{i - 1})", "}", ""]
    return "\n".join([*head, _ADD, *fusions, *entry]), i


def _metadata(i: int, name: str) -> str:
    """The op and the line of an instruction."""
    return f'metadata={{op_name="{name}" stack_frame_id={i % 300 + 1}}}'


def _write_fusion(i: int) -> str:
    """A fusion of elementwise ops."""
    lines = [f"%gelu.{i} (p: f32[64,1024]) -> f32[64,1024] {{"]
    lines += ["  %p = f32[64,1024]{1,0} parameter(0)"]
    before = "p"
    for opcode in _ELEMENTWISE:
        root, name = "ROOT " * (opcode == _ELEMENTWISE[-1]), f"{_NAME.format(i=i)}/{opcode}"
        metadata = _metadata(i, name)
        lines.append(f"  {root}%{opcode} = f32[64,1024]{{1,0}} {opcode}(%{before}), {metadata}")
        before = opcode
    return "\n".join([*lines, "}", ""])


def _write_input(i: int) -> str:
    """A weight, split over all devices."""
    name = f"params['layer_{i}']['kernel']"
    split = f'sharding={{devices=[8,1]<=[8]}}, metadata={{op_name="{name}"}}'
    return f"  %w.{i} = f32[128,1024]{{1,0}} parameter({i + 1}), {split}"


def _write_calls(i: int) -> str:
    """The instructions of a layer: a gather, a product, a fusion, and a sum."""
    groups, name = _GROUPS.format(i=i + 1), _NAME.format(i=i)
    product = _metadata(i, f"{name}/dot_general")
    kind = 'backend_config={"fusion_backend_config":{"kind":"__triton","num_warps":"4"}}'
    rows = [
        (f"start.{i}", "(f32[128,1024], f32[1024,1024])", "all-gather-start", f"%w.{i}",
         f"{groups}, dimensions={{0}}, {product}"),
        (f"done.{i}", "f32[1024,1024]{1,0}", "all-gather-done", f"%start.{i}", product),
        (f"dot.{i}", "f32[64,1024]{1,0}", "dot", f"%act.{i - 1}, %done.{i}",
         f"lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, {product}"),
        (f"act.{i}", "f32[64,1024]{1,0}", "fusion", f"%dot.{i}",
         f"kind=kLoop, calls=%gelu.{i}, {_metadata(i, f'{name}/log')}, {kind}"),
        (f"grad.{i}", "f32[1024,1024]{1,0}", "all-reduce", f"%done.{i}",
         f"{groups}, to_apply=%add, {_metadata(i, f'jit(step)/transpose({name[10:]})/dot')}"),
    ]  # fmt: skip
    return "\n".join(f"  %{a} = {type} {b}({c}), {d}" for a, type, b, c, d in rows)
