"""nm.print: what a step prints, evaluated, compiled and loaded from a file."""

import numpy as np
import pytest

import namedmesh as nm
from tests.checks import MESH

B, M, L = nm.dims("batch=8 model=2 layer=3")
X = np.arange(16, dtype=np.float32).reshape(8, 2)


def step(x):
    nm.print("sum of rows", nm.sum(x, M))
    w = nm.param("w", [M], nm.constant_init(2.0))

    def layer(h, _):
        nm.print("norm", nm.sum(h), "and", nm.max(h))
        return h * w, None

    h, _ = nm.scan(layer, x, over=L)
    loss = nm.sum(h)
    nm.assign(w, w - nm.grad(loss, w))
    nm.print("loss", loss)
    return {"loss": loss}


EXPECTED = [
    "sum of rows [ 1.  5.  9. 13. 17. 21. 25. 29.]",
    *[f"layer {i}: norm {120.0 * 2**i} and {15.0 * 2**i}" for i in range(3)],
    "loss 960.0",
]


def test_evaluation_prints(capsys):
    program = nm.trace(step, nm.spec([B, M]))
    _, results = program.evaluate(program.initial_state(0), x=X)
    assert capsys.readouterr().out.splitlines() == EXPECTED
    assert list(results) == ["loss"]


@pytest.mark.parametrize("loaded", [False, True])
def test_a_compiled_step_prints_every_time(capsys, tmp_path, loaded):
    made = nm.compile(step, nm.spec([B, M]), mesh=MESH, layout="batch:b", strict=True)
    if loaded:
        made.artifact.save(tmp_path / "step.nm")
        made = nm.runtime.load(tmp_path / "step.nm", strict=True)
    state, results = made(made.init(0), X)
    assert capsys.readouterr().out.splitlines() == EXPECTED
    assert float(results["loss"]) == 960.0
    made(state, X)
    assert len(capsys.readouterr().out.splitlines()) == len(EXPECTED)


def test_printing_moves_nothing_that_is_not_moved_anyway():
    def quiet(x):
        return nm.sum(x)

    def loud(x):
        nm.print(x)
        return nm.sum(x)

    plans = [nm.plan(nm.trace(f, nm.spec([B, M])), MESH, "batch:b") for f in (quiet, loud)]
    assert plans[0].collectives[0].kind == plans[1].collectives[0].kind == "AllReduce"
    assert len(plans[1].collectives) == 1


def test_loops_in_loops_are_numbered(capsys):
    def function(x):
        def outer(h, _):
            def inner(h, _):
                nm.print("at", h)
                return h + 1.0, None

            return nm.scan(inner, h, over=M)[0], None

        return nm.scan(outer, x, over=nm.Dimension("iteration", 2))[0]

    nm.trace(function, nm.spec([])).evaluate({}, x=np.float32(0))
    assert capsys.readouterr().out.splitlines() == [
        f"iteration {i}: model {j}: at {2.0 * i + j}" for i in range(2) for j in range(2)
    ]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: nm.print("no tensor", 3), "no tensor among 'no tensor', 3"),
        (lambda x: nm.manual(lambda x: nm.print(x) or x, x, over=B), "manual region"),
        (lambda x: nm.cond(nm.sum(x) > 0, lambda: nm.print(x) or x, lambda: x), "branch"),
    ],
)
def test_where_it_cannot_print_it_says_so(function, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        nm.trace(function, nm.spec([B, M]))
