"""Peak memory by live ranges, against what a person would count."""

from typing import Any

import pytest

import namedmesh as nm
from namedmesh.cost.live_ranges import PeakMemory
from tests.cost.round_hardware import FUSING, ROUND

A, B, C = nm.dims("a=64 b=32 c=16")
SQUARE, NARROW = 4 * 64 * 64, 4 * 64 * 16
X, Y, Z = (nm.Dimension(name, 64) for name in "xyz")


def memory(
    function: Any,
    hardware: nm.Hardware = ROUND,
    mesh: nm.Mesh | None = None,
    layout: str = "",
    **specs: Any,
) -> PeakMemory:
    plan = nm.plan(nm.trace(function, **specs), mesh or nm.Mesh(all=1), layout)
    return nm.cost(plan, hardware).memory


def test_three_products_hold_an_operand_and_a_result_at_a_time():
    def chain(v):
        w = nm.param("w", [X, Y])
        one = nm.einsum([v, w], [A, Y])

        three = nm.einsum([one, nm.param("u", [Y, Z])], [A, Z])
        return nm.einsum([three, nm.param("t", [Z, C])], [A, C])

    found = memory(chain, v=nm.spec([A, X]))
    kept = 3 * SQUARE + 4 * 64 * 16
    assert found.kept_bytes == kept
    # The first product's result is there until the second has read it.
    assert found.peak_bytes == kept + 2 * SQUARE
    assert [held - kept for _, held in found.timeline] == [SQUARE, 2 * SQUARE, SQUARE + NARROW]
    assert found.at == found.timeline[1][0]
    assert sum(one.bytes for one in found.alive) == found.peak_bytes
    assert [one.bytes for one in found.alive] == sorted(one.bytes for one in found.alive)[::-1]


def test_what_runs_within_a_reader_takes_no_memory():
    found = memory(lambda x: nm.sum(nm.exp(x) * 2.0), x=nm.spec([A, B]))
    assert found.peak_bytes == 4 * 64 * 32 + 4


def test_an_elementwise_op_writes_over_what_nothing_reads_later():
    def twice(v, w):
        return nm.einsum([v, w], [A, Y]) * 2.0

    found = memory(twice, v=nm.spec([A, X]), w=nm.spec([X, Y]))
    assert found.peak_bytes - found.kept_bytes == SQUARE


def test_new_state_takes_the_memory_of_old_state():
    def step(x):
        w = nm.param("w", [A, B])
        nm.assign(w, w + x)
        return nm.sum(w)

    found = memory(step, x=nm.spec([A, B]))
    assert found.peak_bytes == 2 * 4 * 64 * 32 + 4


def test_state_that_is_read_together_with_its_next_value_is_there_twice():
    def step(x):
        w = nm.param("w", [A, B])
        new = nm.cumsum(w + x, A)
        nm.assign(w, new)
        return nm.einsum([new, w], [A])

    found = memory(step, x=nm.spec([A, B]))
    assert found.timeline[-1][1] - found.kept_bytes == 4 * 64 * 32 + 4 * 64


def test_a_loop_holds_what_it_keeps_of_every_iteration_and_the_most_of_one():
    T = nm.Dimension("iteration", 5)

    def loop(x):
        def iteration(x, _):
            y = nm.cumsum(x, A)
            return nm.cumsum(y, B) * 0.5, y

        last, kept = nm.scan(iteration, x, over=T)
        return nm.sum(last), kept

    found = memory(loop, x=nm.spec([A, B]))
    size = 4 * 64 * 32
    # Five iterations' y and the carry; in an iteration y, which is read again, and the sums of it.
    assert found.peak_bytes - found.kept_bytes == 5 * size + size + 2 * size
    assert len(found.timeline) > 3


def test_gathered_operands_are_there_beside_their_shards():
    def step(x):
        return nm.cumsum(nm.replicate(x), A)

    found = memory(step, mesh=nm.Mesh(all=4), layout="a:all", x=nm.spec([A, B]))
    size = 4 * 64 * 32
    assert found.kept_bytes == size // 4
    assert found.peak_bytes >= found.kept_bytes + 2 * size


def test_what_parts_are_added_up_from_is_there_beside_the_sum():
    def step(x, y):
        return nm.einsum([x, y], [A, C])

    specs: dict[str, Any] = {"x": nm.spec([A, B]), "y": nm.spec([B, C])}
    found = memory(step, mesh=nm.Mesh(all=4), layout="b:all", **specs)
    assert found.peak_bytes - found.kept_bytes == 2 * NARROW
    assert sum(one.bytes for one in found.alive) == found.peak_bytes


def test_optimizer_slots_are_kept():
    from namedmesh.layers import Adam

    def train(x):
        loss = nm.mean(nm.square(nm.einsum([x, nm.param("w", [B, C])], [A, C])))
        Adam(1e-3).apply(nm.grad(loss))
        return loss

    found = memory(train, x=nm.spec([A, B]))
    assert found.kept_bytes == pytest.approx(4 * (64 * 32 + 3 * 32 * 16), abs=16)


def test_computing_again_trades_memory():
    L = nm.Dimension("layer", 8)

    def peak(remat):
        def train(x):
            def layer(x, _):
                w = nm.param("w", [X, Y])
                return nm.rename(nm.tanh(nm.cumsum(nm.einsum([x, w], [A, Y]), A)), Y, X), None

            y, _ = nm.scan(layer, x, over=L, stack=True, remat=remat)
            return nm.grad(nm.sum(y))

        return memory(train, FUSING, x=nm.spec([A, X])).peak_bytes

    assert peak("full") < peak("none")


def test_weights_of_a_loop_are_rounded_for_products_before_it():
    """At default precision a TPU reads them in half the bytes, all iterations' at once."""
    L = nm.Dimension("layer", 8)

    def forward(x):
        def layer(x, _):
            w = nm.param("w", [X, Y])
            return nm.rename(nm.cumsum(nm.einsum([x, w], [A, Y]), A), Y, X), None

        return nm.scan(layer, x, over=L, stack=True)[0]

    plan = nm.plan(nm.trace(forward, x=nm.spec([A, X])), nm.Mesh(all=1), "")
    rounded, whole = (
        nm.cost(plan, "tpu-v5e", precision=precision).memory for precision in ("default", "highest")
    )
    assert rounded.peak_bytes - whole.peak_bytes == 8 * SQUARE // 2
    assert sum(one.bytes for one in rounded.alive) == rounded.peak_bytes
    assert any(one.place.startswith("bfloat16") for one in rounded.alive)
