"""Modules for tests, from the lines that matter."""

from namedmesh.audit.hlo import Module, parse_module

JOINS = {"add": "add", "max": "maximum", "min": "minimum", "mul": "multiply"}


def module_of(lines: str, header: str = "HloModule test, is_scheduled=true") -> Module:
    """A module whose entry has two parameters, p and q, and these lines."""
    joins = [join(name) for name in JOINS if f"to_apply=%{name}" in lines]
    return parse_module(f"""{header}
{"".join(joins)}
ENTRY %main (p: f32[4,8], q: bf16[4]) -> f32[4,8] {{
  %p = f32[4,8]{{1,0}} parameter(0)
  %q = bf16[4]{{0}} parameter(1)
{lines}
}}
""")


def join(name: str) -> str:
    """The computation of a reduction."""
    return f"""
%{name} (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %z = f32[] {JOINS[name]}(%x, %y)
}}
"""
