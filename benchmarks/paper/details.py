"""Appendix A.1 and A.2: decoding, the models' sizes, the optimizer and the vocabularies."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import namedmesh as nm
from benchmarks.paper.rows import Row, holds, read
from namedmesh.layers import Adafactor, Beam, Decoder, Transformer, config
from namedmesh.layers.adafactor import PAPER_RATE

CONFIG = ("namedmesh/layers/configuration.py", "docs/guides/transformer.md")
OPTIMIZER = ("namedmesh/layers/adafactor.py", "tests/layers/test_optimizers.py")


def decoding() -> Iterator[Row]:
    """A.1: flat beam search."""
    rows = {(one["beam"], one["dtype"]): one for one in read("gpu/decode.json")["rows"]}
    flat, ordinary = (rows[beam, "bfloat16"] for beam in ("flat", "ordinary"))
    ratio = flat["tokens_per_second"] / ordinary["tokens_per_second"]
    yield Row(
        "Hypotheses interleaved in one sequence, so that keys and values are never reordered",
        "faster or slower, by details", f"{ratio:.2f} times the tokens/s of an ordinary beam",
        "better" if ratio > 1 else "worse",
        ("namedmesh/layers/beam.py", "docs/guides/decoding.md#beams", "tests/layers/test_beam.py"),
        "python -m benchmarks.gpu.decode measure FOLDER --json decode.json",
    )  # fmt: skip
    model = Transformer(config("tiny"), group=8, source=8, target=8)
    program, slots = trace_decoding(model)
    yield Row(
        "Attention of a flat beam of 4 is longer", "4 times (k)", f"{slots} times",
        holds(slots == 4), ("namedmesh/layers/cache.py", "tests/layers/test_decoding.py"),
    )  # fmt: skip
    plan = nm.plan(program, nm.Mesh(all=8), "group:all, expert:all")
    sent = sum(one.kind == "AllToAll" and one.phase == "forward" for one in plan.collectives)
    yield Row(
        "Each MoE layer dispatches and combines in decoding too, on the devices of training",
        "AllToAlls in every step", f"{sent} AllToAlls in the plan of encoder and decoder",
        holds(sent >= 4), ("namedmesh/layers/decoder.py", "docs/guides/decoding.md"),
    )  # fmt: skip


def trace_decoding(model: Transformer) -> tuple[nm.Program, int]:
    """Trace a flat beam search of four hypotheses, and count the slots of a position."""
    slots = []

    def translate(source: nm.Tensor, segments: nm.Tensor) -> object:
        decoder = Decoder(model, source, segments, hypotheses=4, flat=True)
        slots.append(decoder.cache.slot.size if decoder.cache.slot else 1)
        return decoder.decode(Beam(decoder.N))

    spec = nm.spec([model.G, model.S], "int32")
    return nm.trace(translate, source=spec, segments=spec), slots[0]


def translation() -> Iterator[Row]:
    """A.2: sizes, optimizer and vocabularies."""
    ours = config("moe_2048e_36l")
    claims = (
        ("Transformer model dimension", 1024, ours.model),
        ("Feed-forward and expert hidden dimension", 8192, ours.hidden),
        ("Heads of attention", 16, ours.heads),
        ("Key and value dimension", 128, ours.key),
        ("Dropout of inputs, residuals and attention", 0.1, ours.dropout),
        ("Source vocabulary, all languages", 64_000, ours.source_vocab),
        ("Target vocabulary, English", 32_000, ours.target_vocab),
    )
    for claim, paper, value in claims:
        yield Row(claim, f"{paper:,}", f"{value:,}", holds(paper == value), CONFIG)
    M, H = nm.dims("model=128 hidden=256")
    program = nm.trace(
        lambda x: Adafactor().apply(nm.grad(nm.sum(nm.param("w", [M, H]) * x))), nm.spec([])
    )
    slots = {name: one.shape for name, one in program.variables.items() if "/w/" in name}
    elements = sum(int(np.prod(shape.sizes)) for shape in slots.values())
    yield Row(
        "Adafactor's second moment is factored", "rows and columns",
        f"{elements} numbers for {M.size * H.size:,} weights",
        holds(elements == M.size + H.size), OPTIMIZER,
    )  # fmt: skip
    default = Adafactor()
    yield Row(
        "Adafactor's first moment decay", "0.0", f"{default.beta1}",
        holds(default.beta1 == 0), OPTIMIZER,
    )  # fmt: skip
    yield Row(
        "Adafactor's second moment decay", "0.99, scheduled by 1 - t^-0.8",
        f"{default.beta2}, scheduled by 1 - t^-{default.beta2_exponent}",
        holds((default.beta2, default.beta2_exponent) == (0.99, 0.8)), OPTIMIZER,
    )  # fmt: skip
    yield Row(
        "Adafactor's threshold of update clipping", "1.0", f"{default.clipping_threshold}",
        holds(default.clipping_threshold == 1), OPTIMIZER,
    )  # fmt: skip
    first, last, later = evaluate_rate([1, 10_000, 40_000])
    scale = first * 10_000**0.5
    yield Row(
        "Learning rate, with square root decay after 10,000 steps", "1.0",
        f"{scale:.1f}, of 1 / sqrt(max(step, 10,000)): {first:.3f} at step 1, "
        f"{last:.3f} at 10,000, {later:.3f} at 40,000",
        holds(bool(np.allclose([scale, last / first, later / first], [1, 1, 0.5], rtol=1e-3))),
        ("namedmesh/layers/learning_rate.py", "tests/layers/test_schedules.py"),
    )  # fmt: skip


def evaluate_rate(steps: list[int]) -> list[float]:
    """Return the paper's learning rate at some steps."""
    program = nm.trace(PAPER_RATE, step=nm.spec([], "int32"))
    return [float(program.evaluate({}, step=np.int32(step))[1]) for step in steps]
