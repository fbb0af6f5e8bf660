"""Set-ups of a Llama-style stack, each with the least bytes that a device has to send, by hand.

The minima count what Megatron-LM, FSDP and GShard send for one layer, forward and backward: from
the sizes of weights and activations and the number of devices, without a look at any plan. In
bfloat16, weights are float32 at rest and in optimizers, and everything that layers read, and what
is sent of it, is bfloat16; scales of norms and routers stay float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.llama import Llama
from namedmesh import Dimension, Program

SIZES = Llama.of()
B, S, M, H, N = SIZES.B.size, SIZES.S.size, SIZES.M.size, SIZES.H.size, SIZES.N.size
R, D, E, C = SIZES.R.size, SIZES.D.size, SIZES.E.size, SIZES.C.size
MICRO, STAGE, TOKENS = Dimension("micro", 4), Dimension("stage", 4), Dimension("vocab", 256)
ITERATIONS = MICRO.size + STAGE.size - 1  # of a pipeline

# Elements of one layer.
ATTENTION = 2 * M * N * R * D + 2 * M * N * D
FEED_FORWARD = 3 * M * H
NORMS = 2 * M
ROUTER = M * E
ACTIVATIONS = B * S * M
KEYS = B * S * N * D
CHOICES = B * S * 2  # each token's experts
EXPERT_BUFFERS = E * B * C * M
TABLE = TOKENS.size * M
FLOAT, BFLOAT = 4, 2


def gather(size: float, devices: int) -> float:
    """Return the bytes that one device sends in an AllGather, a ReduceScatter or an AllToAll."""
    return size * (devices - 1) / devices


def reduce(size: float, devices: int) -> float:
    """Return the bytes that one device sends in an AllReduce."""
    return 2 * gather(size, devices)


@dataclass(frozen=True)
class Case:
    """A layout, and the least bytes that one device has to send for a layer under it."""

    mesh: str
    layout: str
    minimum: float
    why: str
    params: str | None = None
    dtype: str = "float32"
    micro: str = ""  # accumulation over microbatches: nm.grad "inside" the loop, or "outside"
    gather_once: bool = False  # weights at rest are gathered before the loop over microbatches
    remat: str = "none"
    unrolled: bool = False  # layers one after the other, and not a loop
    experts: bool = False  # a mixture instead of SwiGLU
    stages: bool = False  # a pipeline, whose stages are loops over layers
    parallel: bool = False  # attention and SwiGLU beside each other
    repeated: bool = False  # heads of keys and values are repeated, by nm.repeat
    table: bool = False  # no layers: an embedding that is the output projection too
    step: Callable[[], Program] | None = None  # no layers: a whole step


TENSOR = "head:tensor, hidden:tensor"
ROWS = "row:context, seq:context"


def list_cases(dtype: str) -> dict[str, Case]:
    """List the set-ups of layers in one dtype."""
    size = FLOAT if dtype == "float32" else BFLOAT
    steps = MICRO.size
    # What is sent of the weights of a layer in use, and of their gradients in float32.
    used = size * (ATTENTION + FEED_FORWARD) + FLOAT * NORMS
    summed = FLOAT * (ATTENTION + FEED_FORWARD + NORMS)
    quarter = size * (ATTENTION + FEED_FORWARD) / 4 + FLOAT * NORMS  # under tensor parallelism
    shared = size * ATTENTION + FLOAT * (NORMS + ROUTER)  # what is not an expert
    x, keys, buffers = size * ACTIVATIONS, size * KEYS, size * EXPERT_BUFFERS
    row = x / steps  # a microbatch of a pipeline
    every: dict[str, Case] = {}

    def add(
        name: str, mesh: str, layout: str, minimum: float, why: str, params: str | None = None, **kw
    ) -> None:
        every[name] = Case(mesh, layout, minimum, why, params, dtype, **kw)

    add("dp", "data=8", "batch:data", reduce(used, 8), "every gradient is added up over the batch")
    add("tp", "tensor=4", TENSOR, 4 * reduce(x, 4),
        "two sums of activations forward, two backward (Megatron-LM)")  # fmt: skip
    add(
        "tp+sp",
        "tensor=4",
        f"{TENSOR}, row:tensor",
        8 * gather(x, 4) + reduce(FLOAT * NORMS, 4),
        "each of those as ReduceScatter and AllGather; scales of norms see a part of the rows",
    )
    add(
        "fsdp",
        "data=8",
        "batch:data",
        3 * gather(used, 8),
        "weights gathered forward and backward, gradients scattered (ZeRO-3)",
        "model:data",
    )
    add(
        "fsdp+tp",
        "data=2, tensor=4",
        f"batch:data, {TENSOR}",
        3 * gather(quarter, 2) + 4 * reduce(x / 2, 4),
        "a quarter of the weights as under fsdp, half of the rows as under tp",
        "model:data",
    )
    add(
        "hsdp",
        "outer=2, inner=4",
        "batch:outer+inner",
        3 * gather(used, 4) + reduce(used / 4, 2),
        "fsdp among four, whose shards of gradients are added up over two",
        "model:inner",
    )
    add(
        "cp",
        "context=4",
        ROWS,
        4 * gather(keys, 4) + reduce(used, 4),
        "keys and values gathered, their gradients scattered; gradients of weights added up",
    )
    add(
        "dp+cp",
        "data=2, context=4",
        f"batch:data, {ROWS}",
        4 * gather(keys / 2, 4) + reduce(used, 8),
        "as cp for half of the batch; gradients of weights added up once over both axes",
    )
    add(
        "ep",
        "data=8",
        "batch:data, expert:data",
        4 * gather(buffers / 8, 8) + reduce(shared, 8),
        "to the experts and back, forward and backward; what is not an expert is as dp",
        experts=True,
    )
    add(
        "ep+tp",
        "data=4, tensor=2",
        f"batch:data, expert:data, {TENSOR}",
        4 * gather(buffers / 4, 4)
        + 4 * reduce(x / 4, 2)
        + reduce(size * CHOICES / 4, 2)
        + reduce(size * ATTENTION / 2 + FLOAT * (NORMS + ROUTER), 4),
        "experts as ep, added up as tokens as under tp, and the gradients of their weights",
        experts=True,
    )
    add(
        "ep+tp+sp",
        "data=4, tensor=2",
        f"batch:data, expert:data, row:tensor, {TENSOR}",
        4 * gather(buffers / 4, 4)
        + 8 * gather(x / 4, 2)
        + reduce(size * CHOICES / 4, 2)
        + reduce(size * ATTENTION / 2 + FLOAT * ROUTER, 4)
        + reduce(FLOAT * NORMS, 8),
        "the same sums scattered and gathered",
        experts=True,
    )
    add("parallel tp", "tensor=4", TENSOR, 2 * reduce(x, 4),
        "attention and feed-forward are added before they are sent, and so are their gradients",
        parallel=True)  # fmt: skip
    add(
        "parallel tp+sp",
        "tensor=4",
        f"{TENSOR}, row:tensor",
        4 * gather(x, 4) + reduce(FLOAT * M, 4),
        "the same, scattered and gathered; one norm",
        parallel=True,
    )
    add(
        "parallel accumulation tp+sp",
        "tensor=4",
        f"{TENSOR}, row:tensor",
        steps * 4 * gather(x, 4) + reduce(FLOAT * M, 4),
        "activations of each microbatch, the gradient of the norm once",
        micro="inside",
        parallel=True,
    )
    add(
        "repeated heads tp",
        "tensor=4",
        TENSOR,
        4 * reduce(x, 4),
        "as tp: gradients of repeated heads are added up where they are",
        repeated=True,
    )

    add(
        "accumulation dp",
        "data=8",
        "batch:data",
        reduce(summed, 8),
        "parts of gradients are added up over four microbatches, then over the devices, once",
        micro="inside",
    )
    add(
        "accumulation tp",
        "tensor=4",
        TENSOR,
        steps * 4 * reduce(x, 4),
        "each microbatch as tp; no gradient is sent",
        micro="inside",
    )
    add(
        "accumulation tp+sp",
        "tensor=4",
        f"{TENSOR}, row:tensor",
        steps * 8 * gather(x, 4) + reduce(FLOAT * NORMS, 4),
        "activations of each microbatch, gradients of norms once",
        micro="inside",
    )
    add(
        "accumulation fsdp",
        "data=8",
        "batch:data",
        steps * 3 * gather(used, 8),
        "no device ever has all of a stack, so that every microbatch is as fsdp",
        "model:data",
        micro="inside",
    )
    add(
        "accumulation fsdp+tp",
        "data=2, tensor=4",
        f"batch:data, {TENSOR}",
        steps * (3 * gather(quarter, 2) + 4 * reduce(x / 2, 4)),
        "every microbatch is as fsdp+tp",
        "model:data",
        micro="inside",
    )
    add(
        "accumulation hsdp",
        "outer=2, inner=4",
        "batch:outer+inner",
        steps * 3 * gather(used, 4) + reduce(summed / 4, 2),
        "fsdp among four in every microbatch; over the other two gradients are added up once",
        "model:inner",
        micro="inside",
    )
    add(
        "accumulation dp+tp",
        "data=2, tensor=4",
        f"batch:data, {TENSOR}",
        steps * 4 * reduce(x / 2, 4)
        + reduce(FLOAT * (ATTENTION + FEED_FORWARD) / 4 + FLOAT * NORMS, 2),
        "activations in every microbatch, a quarter of the gradients once",
        micro="inside",
    )
    add(
        "accumulation dp+cp",
        "data=2, context=4",
        f"batch:data, {ROWS}",
        steps * 4 * gather(keys / 2, 4) + reduce(summed, 8),
        "keys and values of each microbatch, gradients of weights once",
        micro="inside",
    )
    add(
        "accumulation ep",
        "data=8",
        "batch:data, expert:data",
        steps * 4 * gather(buffers / 8, 8) + reduce(FLOAT * (ATTENTION + NORMS + ROUTER), 8),
        "tokens of each microbatch, gradients of what is not an expert once",
        micro="inside",
        experts=True,
    )
    add(
        "accumulation outside dp",
        "data=8",
        "batch:data",
        reduce(summed, 8),
        "the same sums where nm.grad is around the loop",
        micro="outside",
    )
    add(
        "accumulation outside remat fsdp",
        "data=8",
        "batch:data",
        steps * 4 * gather(used, 8),
        "layers are gathered forward, where they are computed again, and backward; and scattered",
        "model:data",
        micro="outside",
        remat="full",
    )
    add(
        "accumulation gathered once",
        "data=8",
        "batch:data",
        gather(used, 8) + gather(summed, 8),
        "before the loop over microbatches all weights are gathered, after it scattered",
        "model:data",
        micro="inside",
        gather_once=True,
    )
    add(
        "accumulation outside remat dp",
        "data=8",
        "batch:data",
        reduce(summed, 8),
        "computing the layers again sends nothing",
        micro="outside",
        remat="full",
    )

    add(
        "remat tp",
        "tensor=4",
        TENSOR,
        5 * reduce(x, 4),
        "the backward pass needs the sum after attention again, and not that after the layer",
        remat="full",
    )
    add(
        "remat fsdp",
        "data=8",
        "batch:data",
        3 * gather(used, 8),
        "what is computed again reads the weights that the backward pass gathers",
        "model:data",
        remat="full",
    )
    add(
        "unrolled dp",
        "data=8",
        "batch:data",
        reduce(used, 8),
        "a loop changes nothing",
        unrolled=True,
    )
    add(
        "unrolled fsdp",
        "data=8",
        "batch:data",
        2 * gather(used, 8),
        "weights stay whole until the backward pass has read them",
        "model:data",
        unrolled=True,
    )
    add(
        "unrolled accumulation dp",
        "data=8",
        "batch:data",
        reduce(summed, 8),
        "parts of gradients are added up over microbatches first",
        micro="inside",
        unrolled=True,
    )

    add("pipeline", "stage=4", "stage:stage", 0, "layers of a stage send nothing", stages=True)
    add(
        "pipeline dp",
        "data=2, stage=4",
        "batch:data, stage:stage",
        reduce(summed, 2),
        "gradients are added up over the iterations of the pipeline, then over the devices, once",
        stages=True,
    )
    add(
        "pipeline tp",
        "tensor=2, stage=4",
        f"{TENSOR}, stage:stage",
        ITERATIONS * 6 * reduce(row, 2),
        "two sums forward, two where a stage is computed again, two backward",
        stages=True,
    )
    return every


def list_tables(dtype: str) -> dict[str, Case]:
    """List the set-ups of an embedding in one dtype: a whole step."""
    size = FLOAT if dtype == "float32" else BFLOAT
    every = {
        "embedding dp": Case(
            "data=8", "batch:data", reduce(size * TABLE, 8) + reduce(FLOAT, 8),
            "lookup and projection add to one gradient of the table; and the loss",
        ),
        "embedding fsdp": Case(
            "data=8", "batch:data", 2 * gather(size * TABLE, 8) + reduce(FLOAT, 8),
            "the table is gathered for both, its gradient scattered; and the loss", "model:data",
        ),
        "embedding accumulation dp": Case(
            "data=8", "batch:data", reduce(FLOAT * TABLE, 8) + reduce(FLOAT, 8),
            "the table's gradient is added up over microbatches first", micro="inside",
        ),
    }  # fmt: skip
    return {name: replace(case, dtype=dtype, table=True) for name, case in every.items()}


def _name_all() -> dict[str, Case]:
    """Return all set-ups by name, those in bfloat16 with that before it."""
    cases = {**list_cases("float32"), **list_tables("float32")}
    narrow = {**list_cases("bfloat16"), **list_tables("bfloat16")}
    return cases | {f"bfloat16 {name}": case for name, case in narrow.items()}


CASES = _name_all()
