"""Modules for tests, from the lines that matter."""

from namedmesh.audit.hlo import Module, parse_module


def module_of(lines: str, header: str = "HloModule test, is_scheduled=true") -> Module:
    """A module whose entry has two parameters, p and q, and these lines."""
    return parse_module(f"""{header}

ENTRY %main (p: f32[4,8], q: bf16[4]) -> f32[4,8] {{
  %p = f32[4,8]{{1,0}} parameter(0)
  %q = bf16[4]{{0}} parameter(1)
{lines}
}}
""")
