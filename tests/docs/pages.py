"""Runs the code of a Markdown page and compares what it prints with what the page shows.

The Python blocks of a page share one namespace, and are run as if they were pasted one after the
other into a file named after the page: the line numbers in a plan count those lines. A `text` block
shows what the Python block before it prints, where `...` stands for anything. Blocks in other
languages are not run.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import linecache
import os
import pathlib
import textwrap
from dataclasses import dataclass, field

from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser

WRITES_OUTPUTS = os.environ.get("NAMEDMESH_WRITE_OUTPUTS", "") not in ("", "0")


def match_output(expected: str, printed: str) -> bool:
    """Whether a program printed what is shown, up to the parts shown as an ellipsis.

    Indentation that all lines have in common does not count: Sybil removes it from blocks.
    """
    one, other = (textwrap.dedent(text.rstrip() + "\n") for text in (expected, printed))
    return doctest.OutputChecker().check_output(one, other, doctest.ELLIPSIS)


@dataclass
class Page:
    """A page while it is run.

    Attributes:
        path: The Markdown file.
        code: The lines of Python that have been run so far.
        printed: What the last Python block printed and no text block has shown yet.
        outputs: What to write instead of the text blocks that are wrong, by their positions.
    """

    path: pathlib.Path
    code: list[str] = field(default_factory=list)
    printed: str = ""
    outputs: dict[tuple[int, int], str] = field(default_factory=dict)

    def run(self) -> None:
        """Run every block; raises AssertionError where the page shows something else."""
        parsers = [CodeBlockParser("python", self.run_code), CodeBlockParser("text", self.compare)]
        document = Sybil(parsers).parse(self.path)
        document.namespace["__name__"] = "__main__"
        last = None
        for last in document.examples():
            last.evaluate()
        if last is not None:
            self.check_nothing_printed(last)
        if self.outputs:
            self.write(document.text)

    def run_code(self, example: Example) -> None:
        """Run a Python block at its lines of the page's script."""
        self.check_nothing_printed(example)
        name, start = f"{self.path.stem}.py", len(self.code)
        self.code += str(example.parsed).splitlines(keepends=True)
        linecache.cache[name] = (len(self.code), None, list(self.code), name)
        program = compile("\n" * start + str(example.parsed), name, "exec", dont_inherit=True)
        with contextlib.redirect_stdout(io.StringIO()) as stdout:
            exec(program, example.namespace)
        self.printed = stdout.getvalue()

    def compare(self, example: Example) -> None:
        """Compare a text block with what the Python block before it printed."""
        expected, printed, self.printed = str(example.parsed), self.printed, ""
        where = f"{self.path.name}:{example.line}"
        assert printed, f"{where}: the code before this block prints nothing"
        if match_output(expected, printed):
            return
        if WRITES_OUTPUTS:
            self.outputs[example.start, example.end] = printed
            return
        shown = textwrap.indent(expected.rstrip(), "    ")
        real = textwrap.indent(printed.rstrip(), "    ")
        raise AssertionError(f"{where} shows\n{shown}\nbut its code prints\n{real}")

    def check_nothing_printed(self, example: Example) -> None:
        """Raise if the last Python block printed something that the page does not show."""
        where = f"{self.path.name}, before line {example.line}"
        assert not self.printed, f"{where}: the page does not show this output:\n{self.printed}"

    def write(self, text: str) -> None:
        """Write the page with the outputs of its code."""
        for (start, end), printed in sorted(self.outputs.items(), reverse=True):
            closing = "\n" if text[end - 1] == "\n" else ""
            text = f"{text[:start]}```text\n{printed.rstrip()}\n```{closing}{text[end:]}"
        self.path.write_text(text)
