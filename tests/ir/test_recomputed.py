"""The share of FLOPs that is computed again: against the program without it, and the compiler's."""

import pytest

import namedmesh as nm
from namedmesh.ir.op import every_op
from namedmesh.ir.program import every_run

B, M, H, L, A = nm.dims("batch=8 model=16 hidden=64 layer=4 micro=2")
X = nm.spec([B, M])


def layer(x, _=None):
    with nm.scope("up"):
        h = nm.tanh(nm.einsum([x, nm.param("wi", [M, H])], [B, H]))
    with nm.scope("down"):
        return x + nm.tanh(nm.einsum([h, nm.param("wo", [H, M])], [B, M])), None


def train(remat="none", unroll=False):
    def step(x):
        y, _ = nm.scan(layer, x, over=L, stack=True, remat=remat, unroll=unroll)
        return nm.grad(nm.sum(y * y))

    return nm.trace(step, x=X)


def checkpointed(function, policy="full"):
    return lambda x: nm.checkpoint(function, policy)(x)


def total(program):
    return sum(program.recomputed.values())


def products(program):
    """FLOPs of einsums that are computed again."""
    again = [op for op in every_op(program.ops) if op.recomputed and op.kind == "einsum"]
    return sum(times * op.flops() for op, times in every_run(program.ops) if op in again)


@pytest.mark.parametrize("unroll", [False, 2, True])
def test_the_share_of_a_loop_is_what_it_computes_more(unroll):
    full, none = train("full", unroll), train("none", unroll)
    more = full.flops() - none.flops()
    assert products(none) == 0
    assert products(full) == L.size * 2 * (2 * B.size * M.size * H.size)
    assert total(full) - total(none) * none.flops() / full.flops() == pytest.approx(
        more / full.flops()
    )
    assert set(full.recomputed) == {"up", "down"}
    assert full.recomputed["up"] == pytest.approx(total(full) * 0.5, rel=0.1)


def test_dots_compute_no_product_again():
    assert products(train("dots")) == 0 < total(train("dots"))


def test_a_step_without_a_backward_pass_computes_nothing_again():
    assert nm.trace(lambda x: layer(x)[0], x=X).recomputed == {}


def test_what_is_checkpointed_twice_is_computed_again_twice():
    def two(x):
        for name in ("first", "second"):
            with nm.scope(name):
                x = checkpointed(lambda x: layer(x)[0])(x)
        return x

    once, both = (
        nm.trace(lambda x, one=one: nm.grad(nm.sum(one(x) ** 2.0)), x=X)
        for one in (two, checkpointed(two))
    )
    # Together they are computed again up to the second, and then each again by itself.
    assert products(both) == 1.5 * products(once) > 0
    assert both.recomputed["first/up"] > 1.9 * both.recomputed["second/up"]


def wrap_in_vmap(x):
    R = nm.Dimension("row", 3)
    rows = nm.broadcast(x, [R, *x.shape])
    return nm.vmap(checkpointed(lambda x: layer(x)[0]), R)(rows)


def wrap_in_manual(x):
    return nm.manual(lambda x: nm.exp(nm.exp(x)), x, over=B)


def wrap_in_cond(x):
    return nm.cond(nm.sum(x) > 0, lambda: nm.exp(layer(x)[0]), lambda: x)


@pytest.mark.parametrize("function", [wrap_in_vmap, wrap_in_manual, wrap_in_cond])
def test_regions_branches_and_batches(function):
    program = nm.trace(lambda x: nm.grad(nm.sum(function(x) ** 2.0), x), x=X)
    assert 0 < total(program) < 0.5
    assert sum(times * op.flops() for op, times in every_run(program.ops)) == program.flops()


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_pipeline_computes_its_stages_again(schedule):
    def step(x):
        P, N = nm.dims("stage=2 piped=4")
        rows = nm.broadcast(x, [N, B, M])
        options = {"stages": P, "batches": N, "schedule": schedule}
        work = lambda x: layer(x)[0]
        last = lambda y, _: nm.mean(y * y)
        return nm.grad(nm.pipeline(work, rows, loss=last, **options))

    program = nm.trace(step, x=X)
    ticks = 5 if schedule == "gpipe" else 4 + 1  # backward units, idle ones too
    assert products(program) == ticks * 2 * 2 * (2 * B.size * M.size * H.size)


def test_plans_records_and_reports_have_it(tmp_path):
    plan = nm.plan(train("full"), nm.Mesh(data=2), "batch:data")
    share = sum(plan.recomputed.values())
    text = f"{share:.1%} of the FLOPs are computed again in the backward pass: "
    assert text in str(plan) and text in repr(plan) and text in plan._repr_html_()
    plan.save(tmp_path / "plan.json")
    assert nm.load_plan(tmp_path / "plan.json").recomputed == plan.recomputed
    plan.report(tmp_path / "page.html")
    assert text in (tmp_path / "page.html").read_text()
    artifact = nm.export(train("full"), nm.Mesh(data=2), "batch:data")
    artifact.save(tmp_path / "step.nmesh")
    report = nm.aot.compile_for(type(artifact).load(tmp_path / "step.nmesh"), "cpu:2")
    assert text in str(report) and report.row()["recomputed"] == plan.recomputed


def test_the_compiler_counts_the_same_more():
    by_compiler = {}
    for remat in ("none", "full"):
        artifact = nm.export(train(remat), nm.Mesh(data=1), "")
        by_compiler[remat] = nm.aot.compile_for(artifact, "cpu:1").compiler_flops
    full = train("full")
    more = total(full) * full.flops() / L.size  # it counts the body of a loop once
    assert by_compiler["full"] - by_compiler["none"] == pytest.approx(more, rel=0.05)
