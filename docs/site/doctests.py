"""Griffe extension: examples in docstrings are shown as code.

Griffe knows the section `Examples:` only. Elsewhere Markdown would show `>>>` as nested quotations.
"""

from __future__ import annotations

from typing import Any

import griffe


def format_examples(text: str) -> str:
    """Return a docstring in which every doctest is in an Examples section or a fenced block.

    Args:
        text: The docstring.

    Returns:
        The docstring with `Example:` renamed to `Examples:`, and other doctests fenced.
    """
    lines: list[str] = []
    section_indent: int | None = None
    fence = ""
    for line in text.splitlines():
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if fence and not stripped:
            lines.append(fence)
            fence = ""
        if section_indent is not None and stripped and indent <= section_indent:
            section_indent = None
        if stripped in ("Example:", "Examples:"):
            section_indent = indent
            line = line.replace("Example:", "Examples:")
        elif stripped.startswith(">>>") and section_indent is None and not fence:
            fence = " " * indent + "```"
            if lines and lines[-1].strip():
                lines.append("")
            lines.append(f"{fence}pycon")
        lines.append(line)
    return "\n".join([*lines, fence] if fence else lines)


class Doctests(griffe.Extension):
    """Formats the examples of every docstring that griffe reads."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Format the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = format_examples(obj.docstring.value)
