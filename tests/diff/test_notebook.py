"""What notebooks show: tables with the figures, escaped, in an engine that draws them."""

import html.parser
import re
import shutil
import subprocess

import pytest

import namedmesh as nm
from namedmesh.audit.hlo import CompiledCollective
from namedmesh.display.html import html_block, html_table
from namedmesh.errors.source import Source
from namedmesh.records.collective import Collective
from namedmesh.runtime import Audit
from tests.diff.models import PROGRAM, plan

VOID = {"br", "hr", "img", "input"}


class Cells(html.parser.HTMLParser):
    """The cells of every table, and whether all tags are closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.rows, self.tags = [], [], set()
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def test_a_tensor_shows_its_dimensions_and_bytes():
    text = PROGRAM.inputs["x"]._repr_html_()
    assert Cells(text).rows == [["dimension", "size"], ["batch", "16"], ["model", "32"]]
    assert "<strong>x</strong>" in text and "float32, 2.0 KiB, made at models.py:" in text
    assert "<table>" not in PROGRAM.outputs[0]._repr_html_()  # a scalar


def test_a_plan_shows_totals_collectives_and_tensors():
    shown = plan("fsdp")
    rows = Cells(shown._repr_html_()).rows
    assert rows[:3] == [
        ["phase", "collectives", "bytes/device", "on the wire"],
        ["forward", "3", "32.0 KiB", "24.0 KiB"],
        ["backward", "2", "32.0 KiB", "24.0 KiB"],
    ]
    assert ["forward", "AllGather", "data", "wi"] in [row[:4] for row in rows]
    assert ["wi", "4.0 KiB", "float32[model=32/data, hidden=128]"] in [row[:3] for row in rows]
    assert len(rows) == 3 + 2 + len(shown.collectives) + len({*shown.tensor_rows})


def test_an_audit_shows_what_was_planned_and_made():
    source = Source("model.py", 7)
    planned = Collective("AllReduce", ("data",), 8, "float32", 32, 3, "loss", "sum.4", "forward",
                         source, devices=4)  # fmt: skip
    made = CompiledCollective("AllReduce", ("data",), 8, "bfloat16", "nm.sum.4", "r", 3, devices=4)
    text = Audit(matched=[(planned, made)], unplanned=[made])._repr_html_()
    rows = Cells(text).rows
    assert rows[1] == ["AllReduce", "data", "loss", "48 B", "24 B", "3", "forward", "model.py:7"]
    assert "audit: 1 as planned, 1 unplanned" in text
    assert "unplanned AllReduce over data of 8 bfloat16 elements" in text
    assert "<table>" not in Audit()._repr_html_()


def test_costs_searches_and_hardware_are_a_few_lines_and_tables():
    priced = nm.cost(plan("fsdp"), "h200")
    assert len(repr(priced)) < 200 and repr(priced).startswith("Cost(step on Mesh(data=4), h200: ")
    rows = Cells(priced._repr_html_()).rows
    assert ["op", "in one step", "times", "bound by", "FLOPs", "bytes", "line"] in rows
    assert len(repr(priced.memory)) < 100 and len(repr(priced.ops[0])) < 400
    assert Cells(priced.hardware._repr_html_()).rows[3] == ["vector_flops", "6.69e+13"]
    result = nm.search(PROGRAM, 4, "h200", progress=False, plans=4)
    assert len(repr(result)) < 300 and repr(result).startswith("Search(step on 4 devices of h200, ")
    rows = Cells(result._repr_html_()).rows
    assert rows[0][:3] == ["step", "overlapped", "memory"] and len(rows[0]) == len(rows[1])
    assert len(repr(result.best)) < 300
    assert Cells(result.best._repr_html_()).rows[0][:2] == ["step", "overlapped"]


def test_an_ahead_of_time_report_is_a_few_lines_and_tables():
    artifact = nm.export(nm.trace(lambda x: nm.sum(x), x=nm.spec(nm.dims("batch=8"))), nm.Mesh(d=1))
    report = nm.aot.compile_for(artifact, "cpu:1", name="model")
    assert repr(report).startswith("TargetReport(model on cpu:1, 1 cores, Mesh(d=1): compiles")
    assert len(repr(report)) < 300
    rows = Cells(report._repr_html_()).rows
    assert ["inputs", "32 B"] in rows and ["collective", "axes"] not in [row[:2] for row in rows]
    assert report.memory is not None
    assert Cells(report.memory._repr_html_()).rows[1] == ["weights", "0 B"]


def test_names_and_code_are_escaped():
    mean = "<script>alert('x')</script>&\"quoted\""
    planned = Collective(mean, (mean,), 8, "float32", 32, 3, mean, mean, "forward",
                         Source(mean, 7), devices=4)  # fmt: skip
    made = CompiledCollective(mean, (mean,), 8, "float32", mean, mean, devices=4)
    tensor = nm.Tensor(nm.Shape(nm.dims("batch=2")), "float32", "sum", Source(mean, 1), mean)
    audit = Audit(matched=[(planned, made)], unplanned=[made])
    block = html_block(mean, html_table([mean], [[mean]]))
    for text in (tensor._repr_html_(), audit._repr_html_(), block):
        cells = Cells(text)
        assert "script" not in cells.tags and "&lt;script&gt;" in text
    assert Cells(audit._repr_html_()).rows[1][0] == mean


def test_long_tables_say_how_many_rows_are_left_out():
    text = html_table(["number"], [[str(i)] for i in range(1000)], ["number"])
    assert len(Cells(text).rows) == 201 and "and 800 more" in text
    assert text.count('class="number"') == 201


@pytest.mark.parametrize(("ground", "ink"), [("#ffffff", "#202020"), ("#111111", "#dddddd")])
def test_a_browser_draws_the_tables_in_the_colours_of_the_page(ground, ink, tmp_path):
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium here")
    page = tmp_path / "page.html"
    # The page writes what its cells look like into its title, which --dump-dom prints.
    page.write_text(
        f"<!doctype html><title></title><body style='background:{ground};color:{ink}'>"
        f"{plan('fsdp')._repr_html_().replace('<details>', '<details open>')}"
        "<script>const cell = document.querySelector('td.number'), style = getComputedStyle(cell);"
        "document.title = [style.color, style.textAlign, document.querySelectorAll('td').length,"
        "cell.offsetWidth > 0, document.body.scrollWidth <= innerWidth].join('|')</script>"
    )
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=900,700", "--dump-dom"]
    done = subprocess.run(
        [chromium, *options, f"--user-data-dir={tmp_path}/profile", f"file://{page}"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    found = re.search(r"<title>(.*?)</title>", done.stdout)
    assert found, done.stderr[-2000:]
    colour, align, cells, visible, fits = found.group(1).split("|")
    wanted = tuple(int(ink[i : i + 2], 16) for i in (1, 3, 5))
    assert colour == f"rgb({wanted[0]}, {wanted[1]}, {wanted[2]})"
    assert align == "right" and int(cells) > 50 and (visible, fits) == ("true", "true")


def test_a_comparison_is_a_few_lines_and_a_table():
    before = plan("data")
    found = nm.diff(before, plan("fsdp"))
    assert repr(found).startswith("Diff of ") and len(repr(found).splitlines()) < 8
    rows = Cells(found._repr_html_()).rows
    assert ["wire_bytes", "48.0 KiB", "48.0 KiB", "same"] in rows
    assert "the same" in nm.diff(before, before)._repr_html_()
