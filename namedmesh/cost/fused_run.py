"""Run: some ops that run as one, and what they read and write."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from namedmesh.cost.op_traits import is_product
from namedmesh.dims.dimension import Shape
from namedmesh.dims.sharding import Sharding
from namedmesh.ir.op import Op
from namedmesh.ir.tensor import Tensor

# What is written to memory: a tensor where it lies, or a value that was moved to a place.
Buffer = Tensor | tuple[object, Sharding]


@dataclass
class Run:
    """Ops that run as one, ending in one that writes its results to memory.

    Attributes:
        op: The last of them; the first where several write results.
        reads: The bytes that are read of each buffer.
        writes: The bytes of each buffer that is written.
        flops: The floating point operations of the op itself, on one device.
        fused: The floating point operations of the ops that run within it, by op.
        beside: What is there only while it runs, such as results before collectives move them.
    """

    op: Op
    reads: dict[Buffer, int] = field(default_factory=dict)
    writes: dict[Buffer, int] = field(default_factory=dict)
    flops: float = 0.0
    fused: dict[Op, float] = field(default_factory=dict)
    beside: dict[Buffer, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """What is read and written."""
        return sum(self.reads.values()) + sum(self.writes.values())

    @property
    def fused_flops(self) -> float:
        """The floating point operations of all ops that run within the last one."""
        return sum(self.fused.values())


def merge_sums(runs: Iterable[Run]) -> list[Run]:
    """Join sums that keep the same dimensions and share a large operand: XLA makes one of them.

    A sum joins an earlier one if all that it reads is there by then.
    """
    merged: list[Run] = []
    written: dict[Buffer, int] = {}  # by which run
    sums: dict[tuple[Buffer, Shape], int] = {}
    for run in runs:
        at = len(merged)
        if run.op.sums and not is_product(run.op):
            keys = [(x, run.op.output.shape) for x in _find_large(run)]
            ready = max((written.get(x, -1) for x in run.reads), default=-1)
            at = min((sums[key] for key in keys if sums.get(key, -1) > ready), default=at)
            sums.update(dict.fromkeys(keys, at))
        written.update(dict.fromkeys(run.writes, at))
        if at == len(merged):
            merged.append(run)
            continue
        earlier = merged[at]
        earlier.reads |= run.reads
        earlier.writes |= run.writes
        earlier.fused |= {**run.fused, run.op: run.flops}
        earlier.beside |= run.beside
    return merged


def _find_large(run: Run) -> list[Tensor]:
    """The tensors that are as large as any that a run reads; dtypes differ by a factor of four."""
    most = max(run.reads.values(), default=0)
    return [x for x, size in run.reads.items() if isinstance(x, Tensor) and 4 * size >= most]
