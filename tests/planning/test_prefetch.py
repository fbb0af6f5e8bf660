"""Weights at rest gathered an iteration ahead, and gradients scattered an iteration late."""

import dataclasses

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.aot import compile_for
from namedmesh.display.text import human
from namedmesh.runtime import compiling
from tests.checks import uniform

B, M, H, L, G, A = nm.dims("batch=16 model=16 hidden=32 layer=4 group=2 micro=3")
MESH, LAYOUT = nm.Mesh(data=4, tensor=2), "batch:data, hidden:tensor"
PLAIN, AHEAD = "model:data", "model:data, prefetch"


def layer(x, _):
    w, v = nm.param("w", [M, H]), nm.param("v", [H, M])
    scale = nm.param("scale", [M], nm.constant_init(1.0))
    return x + nm.einsum([nm.relu(nm.einsum([x * scale, w], [B, H])), v], [B, M]) * 0.1, None


def loss_of(x, **options):
    options = {"over": L, "remat": "full", **options}
    embedded = x * nm.param("first", [M], nm.constant_init(1.0))
    y, _ = nm.scan(layer, embedded, stack=True, **options)
    return nm.mean(nm.square(y))


def update(loss, optimizer=None):
    return {"loss": loss, **(optimizer or nm.layers.Adam(0.01)).apply(nm.grad(loss))}


def accumulate(x):
    """Gradients of microbatches, each differentiated in the loop over them."""

    def each(carry, row):
        total, sums = carry
        loss = loss_of(row)
        gradients = nm.grad(loss)
        return (total + loss, {key: sums[key] + one for key, one in gradients.items()}), None

    zeros = {name: nm.zeros(shape) for name, shape in SHAPES.items()}
    (total, sums), _ = nm.scan(each, (nm.zeros([]), zeros), nm.broadcast(x, [A, B, M]), over=A)
    for name, one in sums.items():
        nm.assign(nm.parameters()[name], nm.parameters()[name] - one * 0.1)
    return {"loss": total}


SHAPES = {"w": [L, M, H], "v": [L, H, M], "scale": [L, M], "first": [M]}


def groups(x):
    """A loop of loops, both of which compute again."""

    def group(x, _):
        return nm.scan(layer, x, over=L, stack=True, remat="full")[0], None

    x = x * nm.param("first", [M], nm.constant_init(1.0))
    y, _ = nm.scan(group, x, over=G, stack=True, remat="full")
    return update(nm.mean(nm.square(y)))


STEPS = {
    "computed again": lambda x: update(loss_of(x)),
    "stored": lambda x: update(loss_of(x, remat="none")),
    "in rounds": lambda x: update(loss_of(x, unroll=2)),
    "twice": lambda x: update(loss_of(x, remat="dots", reverse=True)),
    "clipped": lambda x: update(loss_of(x), nm.layers.Adam(0.01, clip_norm=0.1)),
    "layer by layer": lambda x: update(loss_of(x), nm.layers.Adam(0.01, layer_by_layer=True)),
    "factored": lambda x: update(loss_of(x), nm.layers.Adafactor(layer_by_layer=True)),
    "accumulated": accumulate,
    "groups": groups,
    "forward": lambda x: {"loss": loss_of(x)},
}


def plan_of(step, params):
    return nm.plan(nm.trace(STEPS[step], x=nm.spec([B, M])), MESH, LAYOUT, params)


def run(step, params, partitioner="gspmd"):
    options = {"mesh": MESH, "layout": LAYOUT, "params": params, "partitioner": partitioner}
    compiled = nm.compile(STEPS.get(step, step), x=nm.spec([B, M]), strict=True, **options)
    state = compiled.init(0)
    for seed in range(2):
        state, found = compiled(state, x=uniform(seed, 16, 16))
    return {**{name: np.asarray(one) for name, one in state.items()}, **compiled.fetch(found)}


@pytest.mark.parametrize("step", STEPS)
def test_numbers_are_equal_and_collectives_as_planned(step, monkeypatch):
    if step in ("layer by layer", "factored"):
        # Updates in place are fused otherwise in iterations that are written out, and rounded so.
        monkeypatch.setitem(compiling.OPTIONS, "cpu", {"xla_disable_hlo_passes": "fusion"})
    plain, ahead = run(step, PLAIN), run(step, AHEAD)
    assert plain.keys() == ahead.keys()
    for name, value in plain.items():
        np.testing.assert_array_equal(value, ahead[name], name)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_loops_of_few_iterations_are_written_out(size):
    over = nm.Dimension("layer", size)
    plain, ahead = (run(lambda x: update(loss_of(x, over=over)), one) for one in (PLAIN, AHEAD))
    assert all(np.array_equal(value, ahead[name]) for name, value in plain.items())


def test_shardy_makes_the_same():
    plain, ahead = (run("computed again", one, "shardy") for one in (PLAIN, AHEAD))
    assert all(np.array_equal(value, ahead[name]) for name, value in plain.items())


@pytest.mark.parametrize("step", sorted(STEPS.keys() - {"groups"}))
def test_as_much_is_sent_under_the_same_lines(step):
    plain, ahead = plan_of(step, PLAIN), plan_of(step, AHEAD)
    assert [dataclasses.replace(one, copies=()) for one in ahead.collectives] == [
        *plain.collectives
    ]
    gathers = [one for one in ahead.collectives if one.kind == "AllGather" and one.times > 1]
    assert gathers and all(sum(one.copies) == one.times for one in gathers)


def test_rings_in_iterations_that_are_written_out_go_round_as_often():
    R, N = nm.dims("row=16 inner=64")

    def sliced(x, _):
        w, v = nm.param("w", [M, N]), nm.param("v", [N, M])
        h = nm.relu(nm.einsum([x, w], [B, R, N], slices=True))
        return x + nm.einsum([h, v], [B, R, M], slices=True), None

    def train(x):
        return update(nm.mean(nm.square(nm.scan(sliced, x, over=L, stack=True)[0])))

    program, mesh = nm.trace(train, x=nm.spec([B, R, M])), nm.Mesh(data=2, tensor=8)
    layout = "batch:data, inner:tensor, row:tensor"
    plain, ahead = (nm.plan(program, mesh, layout, one) for one in (PLAIN, AHEAD))
    bare = [dataclasses.replace(one, copies=()) for one in ahead.collectives]
    assert bare == [*plain.collectives]
    # Of the three rounds in which shards go both ways round eight devices two are a loop.
    rounds = [one for one in ahead.collectives if one.times == 2 * L.size]
    assert rounds and all(sum(one.copies) == one.times for one in rounds)
    assert {one.copies for one in rounds} == {(2, 6), (2, 2, 4)}


def test_what_the_last_iteration_makes_for_nothing_is_not_planned():
    def train(x):  # no gradient of x is wanted
        def layer(x, _):
            w, v = nm.param("w", [M, H]), nm.param("v", [H, M])
            return x + nm.einsum([nm.relu(nm.einsum([x, w], [B, H])), v], [B, M]), None

        return update(nm.mean(nm.square(nm.scan(layer, x, over=L, stack=True)[0])))

    found = {}
    for params in (PLAIN, AHEAD):
        options = {"mesh": MESH, "layout": LAYOUT, "params": params}
        step = nm.compile(train, x=nm.spec([B, M]), strict=True, **options)
        sums = [one for one in step.artifact.collectives if one.kind == "AllReduce"]
        found[params] = [one.times for one in sums if one.phase == "backward"]
    assert found == {PLAIN: [4], AHEAD: [3]}
    # Nor the last layer of a group that is computed again, whose weights are there by then.
    for plain, ahead in zip(*(plan_of("groups", one).collectives for one in found), strict=True):
        again = plain.phase == "backward" and plain.tensor == "multiply"
        assert ahead.times == (6 if again else plain.times)


def test_the_plan_tells_what_it_takes():
    plain, ahead = plan_of("computed again", PLAIN), plan_of("computed again", AHEAD)
    # w, v and scale of one layer; and their sums, before they are scattered, in the backward loop.
    weights = (2 * M.size * H.size // 2 + M.size) * 4
    gathers = f"the loop over {L} gathers 3 weights one iteration ahead"
    assert {*ahead.decisions} - {*plain.decisions} == {
        f"{gathers}: {human(weights)} more on each device",
        f"{gathers} and adds up 3 gradients one late: {human(2 * weights)} more on each device",
    }
    peaks = [nm.cost(plan, "h100").memory.peak_bytes for plan in (plain, ahead)]
    assert weights <= peaks[1] - peaks[0] <= 2 * weights


def test_a_layout_of_parameters_has_the_word():
    assert nm.Layout(AHEAD).prefetch and not nm.Layout(PLAIN).prefetch
    for layout in (nm.Layout(AHEAD), nm.Layout({"model": "data"}, prefetch=True)):
        assert layout.text == AHEAD and nm.Layout(layout.text) == layout == nm.Layout(layout)
        assert layout.only(["hidden"]).text == "prefetch" and layout != nm.Layout(PLAIN)


@pytest.mark.parametrize("params", [PLAIN, None])
def test_the_word_in_the_layout_is_an_error(params):
    program = nm.trace(STEPS["forward"], x=nm.spec([B, M]))
    with pytest.raises(nm.NamedMeshError, match="the layout has prefetch") as caught:
        nm.plan(program, MESH, "batch:data, prefetch", params)
    assert "write prefetch in params=" in str(caught.value)
    with pytest.raises(nm.NamedMeshError, match="the pin has prefetch"):
        nm.search(program, 4, "h100", pin="batch:data, prefetch", processes=1)


@pytest.mark.parametrize("word", ["prefetching", "prefetch:data", "prefetch=True", "Prefetch"])
def test_the_word_misspelled_is_told(word):
    with pytest.raises(nm.NamedMeshError, match="write the word alone") as caught:
        plan_of("forward", f"{PLAIN}, {word}")
    assert "'model:data, prefetch'" in str(caught.value)


@pytest.mark.parametrize("word, value", [("prefetch", True), ("slices", 64)])
def test_a_word_in_a_dict_is_told_to_stand_beside_it(word, value):
    with pytest.raises(nm.NamedMeshError, match=f"has {word}={value}") as caught:
        nm.plan(nm.trace(STEPS["forward"], x=nm.spec([B, M])), MESH, LAYOUT, {word: value})
    assert f"nm.Layout({{...}}, {word}={value})" in str(caught.value)
    assert getattr(nm.Layout({"model": "data"}, **{word: value}), word) == value


def test_a_step_without_anything_to_gather_ahead_has_a_warning():
    program = nm.trace(lambda x: layer(x, None)[0], x=nm.spec([B, M]))
    with pytest.warns(UserWarning, match="params has prefetch, but no loop"):
        nm.plan(program, MESH, LAYOUT, AHEAD)
    assert not any("prefetch" in one for one in plan_of("forward", AHEAD).warnings)


def test_weights_that_are_not_gathered_are_updated_in_place():
    N, P = nm.dims("expert=8192 part=16")

    def train(x):
        def layer(x, _):
            w, v = nm.param("w", [M, H]), nm.param("v", [H, M])
            own = nm.sum(nm.param("own", [N, P]), over=N)  # in shards of its own, always
            y = nm.einsum([nm.relu(nm.einsum([x, w], [B, H])), v], [B, M])
            return y + nm.rename(own, P, M), None

        y = nm.scan(layer, x, over=L, stack=True, remat="full")[0]
        return update(nm.mean(nm.square(y)), nm.layers.Sgd(0.01, layer_by_layer=True))

    program = nm.trace(train, x=nm.spec([B, M]))
    layout = f"{LAYOUT}, expert:data+tensor"
    artifacts = [nm.export(program, MESH, layout, one) for one in (PLAIN, AHEAD)]
    plain, ahead = (compile_for(one, "cpu:8").peak_bytes or 0 for one in artifacts)
    stack = L.size * N.size * P.size * 4 // 8
    assert plain > stack and ahead < plain + stack // 2
