"""The README fits on a screen or two, and its example prints what it shows."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

import namedmesh as nm

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
TRANSFORMER = (ROOT / "docs" / "guides" / "transformer.md").read_text()


def block(language: str, after: str, text: str = README) -> str:
    """The first fenced block of a language after some text."""
    found = re.search(rf"```{language}\n(.*?)```", text[text.index(after) :], re.S)
    assert found
    return found.group(1)


def printed_by(path: str) -> str:
    """What an example prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("XLA_FLAGS", None)
    done = subprocess.run(
        [sys.executable, path],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_the_readme_is_short_and_narrow():
    lines = README.splitlines()
    assert 120 <= len(lines) <= 150
    assert [line for line in lines if len(line) > 110] == []


def test_the_example_is_the_file():
    shown = block("python", "## Thirty lines").strip()
    assert shown in (ROOT / "examples" / "quickstart.py").read_text()


def test_the_example_prints_what_is_shown():
    shown = block("text", "prints the plan, the audit").strip().splitlines()
    printed = printed_by("examples/quickstart.py").splitlines()
    for one, other in zip(shown, printed, strict=True):
        if one.endswith("…"):  # the README cuts lines that are too long for it
            other = other[: len(one) - 1] + "…"
        assert one == other


def test_every_link_leads_to_a_file():
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", README)
    assert [one for one in targets if "://" not in one and not (ROOT / one).exists()] == []


def test_the_transformer_of_the_guide_is_the_file():
    shown = block("python", "Beam, Decoder, Transformer, batch_of", TRANSFORMER).strip()
    assert shown in (ROOT / "examples" / "transformer.py").read_text()


@pytest.mark.slow
def test_the_transformer_prints_what_is_shown():
    shown = block("console", "prints", TRANSFORMER).strip().splitlines()
    printed = printed_by("examples/transformer.py").splitlines()
    assert (printed[0], printed[-1]) == (shown[0], shown[-1])
    for one, other in zip(printed[1:-1], shown[1:-1], strict=True):
        assert one.split(":")[0] == other.split(":")[0]
        assert float(one.split()[-1]) == pytest.approx(float(other.split()[-1]), abs=0.05)


def test_the_readme_shows_the_real_message():
    G, S, E, M, C = nm.dims("group=8 seq=16 expert=8 model=32 capacity=4")

    def model(x, combine):
        sent = nm.reshard(nm.einsum([combine, x], [E, G, C, M]), E)
        y = nm.einsum([combine, sent], [G, S, M])
        return y

    program = nm.trace(model, nm.spec([G, S, M]), nm.spec([G, S, E, C], whole=[E]))
    with pytest.raises(nm.LayoutConflict) as caught:
        nm.plan(program, nm.Mesh(all=8), "group:all, expert:all")
    line = f"{caught.value.source}:"
    assert (
        str(caught.value).replace(line, "model.py:12:")
        == block("text", "line and every fix, the cheapest first:").rstrip()
    )
