"""A report of a plan on several hosts, in a real browser."""

import namedmesh as nm
from tests.report.models import LAYOUT, small_program


def test_the_page_shows_what_leaves_a_host(open_page, tmp_path):
    plan = nm.plan(small_program(), nm.Mesh(data=2, tensor=4, hosts=2), LAYOUT)
    nm.report(plan, tmp_path / "hosts.html", target="h200")
    page = open_page(tmp_path / "hosts.html")
    assert "8 devices on 2 hosts" in page.locator(".setting").inner_text()
    facts = page.locator(".facts li", has_text="Leaves a host")
    share = plan.total_host_bytes() / (4 * plan.total_wire_bytes())
    assert f"{100 * share:.0f}% of what its devices send" in facts.inner_text()
    rows = page.locator("#collectives table tbody tr")
    head = page.locator("#collectives table thead th").all_inner_texts()
    column = next(i for i, title in enumerate(head) if title.startswith("Leaves host"))
    shown = [row.locator("td").all_inner_texts() for row in rows.all()]
    # The first cell of a row may be its head, which is not a td.
    texts = [cells[column - (len(head) - len(cells))] for cells in shown]
    sizes = [one.total_host_bytes for one in plan.collectives]
    assert texts == [f"{size // 1024} KiB" if size >= 1024 else f"{size} B" for size in sizes]
    wide = page.locator("#collectives .scroll").evaluate_all(
        "boxes => boxes.some(box => box.scrollWidth > box.clientWidth + 1)"
    )
    assert not wide, "the table fits"
