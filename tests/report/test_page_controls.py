"""Every control of a report, used in a real browser."""

import re

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import namedmesh as nm
from tests.report.models import LAYOUT, MESH, small_plan


def count(page, section="program"):
    """How many rows a section says that it shows."""
    text = page.inner_text(f"#{section} [role=status]")
    return int(re.sub(r"\D.*", "", text.replace(",", "")))


def choose(page, section, label):
    """Clicks a choice that radio buttons offer."""
    page.click(f"#{section} .choice label:has-text('{label}')")


def open_tensor(page, name):
    page.evaluate(f"location.hash = '#tensor/{name}'")
    page.wait_for_function(f"document.querySelector('#tensor code')?.textContent === '{name}'")


def test_phases_axes_and_inner_values_filter_the_tree(open_page):
    page = open_page("small")
    rows = list(small_plan().tensor_rows)
    assert count(page) == len(rows)
    numbers = []
    for phase in ("forward", "backward", "update"):
        choose(page, "program", phase)
        numbers.append(count(page))
        assert {*page.locator("#program .phase").all_text_contents()} <= {phase}
    assert sum(numbers) == len(rows) and min(numbers) > 0
    choose(page, "program", "all")
    page.select_option("#program .select select", "tensor")
    held = [re.findall(r"/([^,\]]+)", row.place.partition("] parts")[0]) for row in rows]
    assert count(page) == sum("tensor" in "+".join(axes).split("+") for axes in held)
    page.select_option("#program .select select", "none")
    assert count(page) == sum(not axes for axes in held)
    page.select_option("#program .select select", "")
    page.check("#program .check input")
    assert count(page) > len(rows)


def test_scopes_unfold_and_fold(open_page):
    page = open_page("largest")
    head = page.locator("#program .group-head", has_text="encoder").first
    before = head.get_attribute("aria-expanded")
    head.click()
    assert head.get_attribute("aria-expanded") != before
    head.press("Enter")
    assert head.get_attribute("aria-expanded") == before
    outside = page.locator("#program .group-head", has_text="outside all scopes")
    outside.click()
    page.locator("#program .group-head", has_text="adafactor.py").last.click()
    shown = page.locator("#program .tensor-row").count()
    page.locator("#program .more").first.click()
    assert page.locator("#program .tensor-row").count() > shown


def test_search_finds_tensors_scopes_and_lines_everywhere(open_page):
    page = open_page("small")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"
    page.keyboard.type("ffn wi")
    page.wait_for_selector("#program [role=status]:has-text('ffn wi')")
    labels = page.locator("#program .tensor-row > a").all_text_contents()
    assert labels and count(page) == len(labels) and "body/ffn/wi" in labels
    assert count(page, "collectives") < len(small_plan().collectives)
    page.fill("input[type=search]", "nothing has this name")
    page.wait_for_selector("#program :text('No tensor passes')")
    page.fill("input[type=search]", "models.py:20")
    page.wait_for_selector("#program .tensor-row")


def test_a_link_opens_a_tensor_and_back_and_forward_work(open_page):
    plan = small_plan()
    names = [name for op, name in plan.placements.names.items() if op.kind == "einsum"]
    page = open_page("small", hash=f"#tensor/{names[0]}")
    shown = lambda: page.inner_text("#tensor .tensor-facts code >> nth=0")
    assert shown() == names[0]
    open_tensor(page, names[1])
    page.go_back()
    page.wait_for_function(f"document.querySelector('#tensor code').textContent === '{names[0]}'")
    page.go_forward()
    page.wait_for_function(f"document.querySelector('#tensor code').textContent === '{names[1]}'")
    page.click("#tensor .neighbours a >> nth=0")
    page.wait_for_function(f"document.querySelector('#tensor code').textContent !== '{names[1]}'")
    assert "#tensor/" in page.url
    assert page.locator("#program .tensor-row.selected").count() == 1


def test_forward_and_backward_show_a_tensor_and_its_cotangent(open_page):
    page = open_page("small")
    choose(page, "tensor", "backward")
    page.wait_for_function("document.querySelector('#tensor h3').textContent.startsWith('d_')")
    choose(page, "tensor", "forward")
    page.wait_for_function("!document.querySelector('#tensor h3').textContent.startsWith('d_')")


def indices_of_devices(shape, axes):
    """Which slice each device holds, as jax has it."""
    devices = np.array(jax.devices()[:8]).reshape(2, 4)
    mesh = jax.sharding.Mesh(devices, tuple(MESH.axes))
    found = NamedSharding(mesh, PartitionSpec(*axes)).devices_indices_map(shape)
    return [found[device] for device in devices.flat]


@pytest.mark.parametrize("kind", ["placeholder", "einsum"])
def test_shards_of_every_device_are_those_that_jax_has(open_page, kind):
    plan = small_plan()
    page = open_page("small")
    checked = 0
    for op, name in plan.placements.names.items():
        if op.kind != kind or not len(op.output.shape) or op.output not in plan.shardings:
            continue
        open_tensor(page, name)
        sharding = plan.shardings[op.output]
        axes = [sharding.axes(dim.name) or None for dim in op.output.shape]
        sizes = tuple(dim.size for dim in op.output.shape)
        for device, slices in enumerate(indices_of_devices(sizes, axes)):
            page.fill("#tensor input[type=number]", str(device))
            told = page.get_attribute("#tensor svg[role=slider]", "aria-valuetext")
            expected = []
            for dim, one, held in zip(op.output.shape, slices, axes, strict=True):
                start, stop, _ = one.indices(dim.size)
                expected.append(f"{dim.name} {start} to {stop}" if held else f"{dim.name} whole")
            where = f"data={device // 4}, tensor={device % 4}"
            assert told == f"device {device} at {where} holds {', '.join(expected)}"
            checked += 1
        if checked >= 40:
            return
    assert checked


def test_devices_answer_to_the_mouse_and_to_arrow_keys(open_page):
    page = open_page("largest")
    grid = page.locator("#tensor svg[role=slider]")
    device = lambda: int(page.input_value("#tensor input[type=number]"))
    box = grid.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_function("document.querySelector('#tensor input[type=number]').value > 500")
    assert device() < 1600
    grid.focus()
    grid.press("Home")
    grid.press("ArrowRight")
    assert device() == 1
    grid.press("ArrowDown")
    below = device()
    assert below > 1 and "inner=65" in grid.get_attribute("aria-valuetext")
    grid.press("ArrowUp")
    assert device() == 1
    grid.press("End")
    assert device() == 2047
    assert "outer=15, inner=127" in grid.get_attribute("aria-valuetext")


def test_collectives_filter_sort_and_link(open_page):
    plan = small_plan()
    page = open_page("small")
    assert count(page, "collectives") == len(plan.collectives)
    assert page.locator("#collectives tbody .status-made").count() == len(plan.collectives)
    for phase in ("forward", "backward"):
        choose(page, "collectives", phase)
        assert count(page, "collectives") == len(plan.of_phase(phase))
    choose(page, "collectives", "all")
    page.select_option("#collectives .select:has-text('Kind') select", "AllReduce")
    expected = sum(one.kind == "AllReduce" for one in plan.collectives)
    assert count(page, "collectives") == expected
    page.select_option("#collectives .select:has-text('Kind') select", "")
    page.select_option("#collectives .select:has-text('Over') select", "tensor")
    assert count(page, "collectives") == sum("tensor" in one.axes for one in plan.collectives)
    page.select_option("#collectives .select:has-text('Over') select", "")
    page.click("#collectives th button:has-text('Sent')")
    header = page.locator("#collectives th", has_text="Sent")
    assert header.get_attribute("aria-sort") == "descending"
    page.click("#collectives th button:has-text('Sent')")
    assert header.get_attribute("aria-sort") == "ascending"
    page.click("#collectives tbody .line-link >> nth=0")
    page.wait_for_selector("#code tr.selected")
    assert "#code/models.py:" in page.url


def test_the_timeline_tells_and_opens_what_is_under_the_mouse(open_page):
    page = open_page("small")
    bar = page.locator("#collectives svg .bar:not(.compute)").first
    bar.hover()
    told = page.inner_text("#collectives .readout")
    assert re.search(r"(All\w+|ReduceScatter) of|collectives in a row", told)
    bar.click()
    page.wait_for_function("location.hash.startsWith('#tensor/')")


def test_memory_tells_what_is_there_under_the_mouse(open_page):
    page = open_page("small")
    page.locator("#memory svg").hover()
    page.wait_for_selector("#memory .readout:has-text('while')")
    page.click("#memory tbody a >> nth=0")
    page.wait_for_function("location.hash.length > 1")
    page.click("#memory th button:has-text('Alive')")
    assert page.get_attribute("#memory th >> nth=0", "aria-sort") == "ascending"


def test_the_roofline_tells_and_opens_ops(open_page):
    page = open_page("small")
    circle = page.locator("#roofline circle").first
    circle.hover(force=True)
    page.wait_for_selector("#roofline .readout:has-text('FLOP/s')")
    rows = page.locator("#roofline tbody tr").count()
    choose(page, "roofline", "update")
    page.wait_for_function(f"document.querySelectorAll('#roofline tbody tr').length < {rows}")
    choose(page, "roofline", "all")
    page.locator("#roofline circle").first.click(force=True)
    page.wait_for_function("location.hash.startsWith('#tensor/')")


def test_the_source_has_costs_unfolds_and_lists_tensors(open_page):
    page = open_page("small")
    lines = page.locator("#code tbody tr")
    before = lines.count()
    page.click("#code .gap button >> nth=0")
    assert lines.count() > before
    page.click("#code .line-number >> nth=0")
    page.wait_for_selector("#code tr.made a")
    page.click("#code tr.made a >> nth=0")
    page.wait_for_function("location.hash.startsWith('#tensor/')")
    big = open_page("largest")
    value = big.locator("#code select option", has_text="mixture.py").get_attribute("value")
    big.select_option("#code select", value)
    big.wait_for_selector("#code td:has-text('einsum')")


def test_colours_follow_the_switch_and_the_system(open_page):
    page = open_page("small", color_scheme="dark")
    background = lambda: page.evaluate("getComputedStyle(document.body).backgroundColor")
    dark = background()
    page.click(".title-row label:has-text('light')")
    light = background()
    assert light != dark
    page.click(".title-row label:has-text('dark')")
    assert background() == dark
    page.click(".title-row label:has-text('auto')")
    page.emulate_media(color_scheme="light")
    assert background() == light


def test_two_plans_side_by_side_or_one_of_them(open_page):
    page = open_page("two")
    assert page.locator("#program .side-name").all_text_contents() == ["Plan A", "Plan B"]
    sent = [small_plan(layout).total_wire_bytes() for layout in (LAYOUT, "batch:data+tensor")]
    row = page.inner_text("#differences tr:has-text('Sent by a device')")
    change = 100 * (sent[1] / sent[0] - 1)
    assert f"{abs(change):.1f}%" in row or f"×{sent[1] / sent[0]:.1f}" in row
    found = nm.diff(small_plan(), small_plan("batch:data+tensor"))
    collectives = page.locator("#differences [aria-label^=Collectives] tbody tr")
    assert collectives.filter(has_text="A only").count() == len(found.collectives.went) > 0
    assert collectives.filter(has_text="both").count() == len(found.collectives.changed) > 0
    page.click("nav label:has-text('B')")
    assert page.locator("#program .side-name").count() == 0
    assert "batch:data+tensor" in page.inner_text(".setting")
    page.click("#program .tensor-row a >> nth=0")
    page.wait_for_function("location.hash.startsWith('#b/tensor/')")
    page.click("nav label:has-text('both')")
    assert page.locator("#tensor .tensor-view").count() == 2
    page.click("nav label >> nth=0")
    assert "hidden:tensor" in page.inner_text(".setting")


def test_sections_can_be_jumped_to(open_page):
    page = open_page("small")
    for name in ("program", "collectives", "memory", "roofline", "code"):
        page.click(f"nav a[href='#{name}']")
        page.wait_for_function(
            f"Math.abs(document.getElementById('{name}').getBoundingClientRect().top) < innerHeight"
        )
        assert page.url.endswith(f"#{name}")
