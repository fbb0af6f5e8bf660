"""What no result depends on is left out, inside loops and branches too."""

import numpy as np

import namedmesh as nm
from namedmesh.ir.op import every_op
from namedmesh.ops.scan import Scan

L, B = nm.dims("layer=3 batch=4")


def kinds(program: nm.Program) -> list[str]:
    return [op.kind for op in every_op(program.ops)]


def loop(x, used):
    def body(carry, _):
        h, watched, chained = carry
        return (nm.tanh(h) * 2.0, watched + nm.sum(nm.exp(h)), nm.sin(chained + watched)), {
            "h": h,
            "more": nm.cos(h),
        }

    (h, watched, chained), rows = nm.scan(
        body, (x, nm.zeros([]), nm.zeros([])), nm.range(L), over=L
    )
    return {
        "h": h,
        "watched": watched,
        "chained": chained,
        "rows": rows["h"],
        "more": rows["more"],
    }[used]


def test_unused_results_and_the_carries_behind_them_are_left_out():
    h = nm.trace(lambda x: loop(x, "h"), nm.spec([B]))
    assert not {"exp", "sin", "cos"} & {*kinds(h)}
    (scan,) = [op for op in h.ops if isinstance(op, Scan)]
    assert (scan.carries, len(scan.outputs), len(scan.inputs)) == (1, 1, 1)


def test_a_carry_that_another_one_reads_stays():
    chained = kinds(nm.trace(lambda x: loop(x, "chained"), nm.spec([B])))
    assert {"exp", "sin", "tanh"} <= {*chained} and "cos" not in chained


def test_what_is_left_computes_the_same():
    x = np.linspace(-1, 1, 4).astype(np.float32)
    h, watched, chained, rows, more = x, 0.0, 0.0, [], []
    for _ in range(3):
        rows.append(h)
        more.append(np.cos(h))
        h, watched, chained = np.tanh(h) * 2, watched + np.exp(h).sum(), np.sin(chained + watched)
    expected = {
        "h": h,
        "watched": watched,
        "chained": chained,
        "rows": np.stack(rows),
        "more": np.stack(more),
    }
    for used, value in expected.items():
        program = nm.trace(lambda x, used=used: loop(x, used), nm.spec([B]))
        step = nm.compile(program, mesh=nm.Mesh(data=2), layout="batch:data", strict=True)
        np.testing.assert_allclose(step(None, x)[1], value, rtol=1e-5)


def test_loops_inside_loops_and_branches_are_looked_into():
    def inside(x):
        return nm.cond(
            nm.sum(x) > 0.0,
            lambda: loop(x, "h"),
            lambda: nm.scan(lambda c, _: (loop(c, "h"), None), x, over=L)[0],
        )

    assert not {"exp", "cos", "sin"} & {*kinds(nm.trace(inside, nm.spec([B])))}
