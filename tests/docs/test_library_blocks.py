"""Code for other libraries in the guide to jax steps: it runs where the library is installed."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).parent.parent.parent / "docs/guides/jax-steps.md"
TEXT = PAGE.read_text()
BLOCKS = re.findall(r"(?m)^### (.+)\n\n```py\n((?:.*\n)*?)```", TEXT)


@pytest.mark.parametrize(("library", "code"), BLOCKS, ids=[name for name, _ in BLOCKS])
def test_the_code_for_a_library_shows_a_step(library, code):
    ast.parse(code)
    for name in re.findall(r"(?m)^(?:import|from) (\w+)", code):
        pytest.importorskip(name)
    blocks = re.findall(r"(?m)^```python\n((?:.*\n)*?)```", TEXT)
    place = next(i for i, block in enumerate(blocks) if "def describe" in block)
    namespace: dict[str, object] = {}
    exec("".join([*blocks[: place + 1], code]), namespace)
    seen = namespace["seen"]
    assert any("model" in one.place for one in seen.tensor_rows)  # type: ignore[attr-defined]


def test_there_are_three_libraries():
    assert [name for name, _ in BLOCKS] == ["Flax NNX", "Equinox", "Haliax"]
