"""The paper's own steps on TPU v3: its Transformer, as benchmarks.tpu_v3 traces it.

How the paper's tokens are read. The batches of Table 4 (4M, 1M) are taken as tokens of the source
side, so that a core has as many of the target besides: 4,096 in all on 512 and 2,048 cores. Of 128
cores that would be 16,384 a core, whose FLOPs alone take as long as the measured step at the peak
of a core, and whose activations do not fit in its memory without recomputation; there 8,192 tokens
are read as source and target together. Nothing else would agree with the paper's own statement
that a step of equal tokens a core takes 1.7 times longer on 2,048 cores than on 128: that makes the
steps on 128 cores at most twice as large as those on 2,048.
"""

from __future__ import annotations

import namedmesh as nm
from benchmarks import tpu_v3
from benchmarks.times.table import Step

GROUPS = {128: 4, 512: 2, 2048: 2}  # of 1,024 tokens of the source and of the target, on a core


def estimate_paper(step: Step) -> nm.Cost:
    """Return the cost of one of the paper's models, its tokens read as above."""
    groups = GROUPS.get(step.experts, max(1, step.tokens // tpu_v3.LENGTH))
    remat = "full" if step.remat == "full" else "none"
    case = tpu_v3.Case(step.experts, step.layers, groups, remat=remat)
    return nm.cost(tpu_v3.plan_case(case), "tpu-v3")


def all_to_all_growth(cores: tuple[int, int] = (128, 2048), size: int = 8 * 2**20) -> float:
    """Return how many times longer an AllToAll of 8 MiB takes on more cores."""
    seconds = []
    for count in cores:
        B, E = nm.dims(f"batch={count} expert={size // 4}")
        program = nm.trace(lambda x, to=E: nm.reshard(x, to), x=nm.spec([B, E]))
        plan = nm.plan(program, nm.Mesh(all=count), "batch:all, expert:all")
        seconds.append(nm.cost(plan, "tpu-v3").collective_seconds)
    return seconds[1] / seconds[0]
