"""Seconds of the instructions that run by themselves: the compiler's own, or by a roofline."""

from __future__ import annotations

import math
from collections.abc import Iterator

from namedmesh.audit.hlo.arithmetic import product_flops
from namedmesh.audit.hlo.module import Computation, Instruction, Module
from namedmesh.hardware.hardware import Hardware

# These run nothing: they name, group or allocate values.
_FREE = (
    "add-dependency", "after-all", "bitcast", "constant", "domain", "get-tuple-element",
    "opt-barrier", "parameter", "partition-id", "replica-id", "tuple",
)  # fmt: skip
_SLICING = ("dynamic-slice", "gather", "slice")
# Products of queries and keys in one call of our attention kernel, and the ops on each score beside
# them, as nm.cost counts them: the backward pass has five products, in two calls.
_ATTENTION = {"nm.attention.": (2.0, 5.0), "nm.attention_backward.": (2.5, 2.5)}


class Prices:
    """The seconds of a module's instructions on some hardware."""

    def __init__(self, module: Module, hardware: Hardware, clock: float | None = None) -> None:
        self.module, self.hardware, self.clock = module, hardware, clock

    def seconds(self, computation: Computation, one: Instruction) -> float:
        """Return how long an instruction computes."""
        if one.opcode in _FREE or "AllocateBuffer" in one.attributes.get("custom_call_target", ""):
            return 0.0
        if one.cycles and self.clock:
            return one.cycles / self.clock
        hardware, operands = self.hardware, computation.operand_types(one)
        flops, size = self.count(computation, one)
        scores, keys, of_key, passes = self._count_scores(computation, one)
        dtypes = [array.element.dtype for type in operands for array in type.arrays]
        peak = hardware.product_flops(next(iter(dtypes), "float32"))
        compute = flops / (peak * hardware.product_share)
        if scores:
            share = hardware.kernel_product_share or hardware.product_share
            vector_rate = hardware.vector_flops * hardware.kernel_share
            each = 2.0 * of_key * passes[0] / (peak * share) + passes[1] / vector_rate
            compute = scores * (each + passes[0] / 2 * hardware.kernel_row / keys)
        memory = size / (hardware.memory_bandwidth * hardware.memory_share)
        # What the compiler has an estimate of elsewhere takes next to nothing where it has none.
        start = 0.0 if self.clock else hardware.start
        return start + max(compute, memory)

    def _count_scores(
        self, computation: Computation, one: Instruction
    ) -> tuple[int, int, int, tuple[float, float]]:
        """Count an attention kernel's scores, those of a row, a key's elements, and the passes."""
        name = _find_pass(one)
        arrays = [type.arrays[0] for type in computation.operand_types(one) if name]
        # On TPUs numbers of tiles may come first, and heads are among the rows of a batch.
        on_tpu = "tpu_custom_call" in one.attributes.get("custom_call_target", "")
        floats = [array.sizes for array in arrays if array.element.dtype != "int32"]
        operands = floats[:2] if on_tpu else [array.sizes for array in arrays[:2]]
        if [len(sizes) for sizes in operands] != [3 if on_tpu else 4] * 2:
            return 0, 0, 0, (0.0, 0.0)
        scores = math.prod(operands[0][:-1]) * operands[1][1]
        return scores, operands[1][1], operands[0][-1], _ATTENTION[name]

    def count(self, computation: Computation, one: Instruction) -> tuple[float, int]:
        """Count the operations of products in an instruction, and the bytes it reads and writes."""
        flops = sum(product_flops(*each) for each in self._products(computation, one))
        return flops, self._count_bytes(computation, one, self._body(one))

    def _count_unread(self, computation: Computation, one: Instruction) -> int:
        """Count the bytes of a cache that a token's attention does not read: other layers' keys."""
        arrays = [type.arrays[0] for type in computation.operand_types(one) if _find_pass(one)]
        masks = [array.sizes for array in arrays if array.element.dtype == "int8"]
        if not masks or len(arrays[0].sizes) != 3:  # a token's queries have no dimension of heads
            return 0
        caches, keys = arrays[1:3], masks[0][-1]  # before, rows, after, key
        return sum(one.bytes * (one.sizes[1] - keys) // one.sizes[1] for one in caches)

    def _body(self, one: Instruction) -> Computation | None:
        """Return the computation that a fusion runs."""
        names = one.called.get("calls", ()) if one.opcode == "fusion" else ()
        return self.module.computations.get(names[0]) if names else None

    def _products(
        self, computation: Computation, one: Instruction
    ) -> Iterator[tuple[Computation, Instruction]]:
        """Yield the products in an instruction, those of fusions inside it too."""
        if one.opcode in ("dot", "convolution", "custom-call"):
            yield computation, one
        body = self._body(one)
        for inner in body or ():
            assert body is not None
            yield from self._products(body, inner)

    def _count_bytes(
        self, computation: Computation, one: Instruction, body: Computation | None
    ) -> int:
        """Count the bytes read and written: of what is sliced or updated in place, that alone."""
        known = computation.instructions
        if body is None:
            of_operands = [known[name].type.bytes for name in one.operands if name in known]
            if one.opcode in _SLICING:
                return 2 * one.type.bytes
            if one.opcode == "dynamic-update-slice":
                return 2 * sum(of_operands[1:2])
            return one.type.bytes + sum(of_operands) - self._count_unread(computation, one)
        total = one.type.bytes
        for inner in body:
            if inner.opcode == "parameter":
                # Of some only a part is read, and others are updated in place.
                readers = list(_find_readers(body, inner.name))
                partly = [other for other, first in readers if first]
                cuts = [other for other in partly if other.opcode in _SLICING]
                updates = [other for other in partly if other.opcode == "dynamic-update-slice"]
                whole = len(cuts) + len(updates) < len(readers)
                total += inner.type.bytes if whole else sum(other.type.bytes for other in cuts)
            elif inner.opcode == "dynamic-update-slice":
                total += body.instructions[inner.operands[1]].type.bytes - inner.type.bytes
        return max(0, total)


def _find_readers(body: Computation, name: str) -> Iterator[tuple[Instruction, bool]]:
    """Yield what reads a value, through bitcasts, and whether as its first operand."""
    for one in body:
        if name in one.operands and one.opcode == "bitcast":
            yield from _find_readers(body, one.name)
        elif name in one.operands:
            yield one, one.operands[0] == name


def _find_pass(one: Instruction) -> str:
    """Return which pass of our attention kernel an instruction runs; empty for others."""
    target = one.attributes.get("custom_call_target", "")
    if "triton" not in target and "tpu_custom_call" not in target:
        return ""
    return next((name for name in _ATTENTION if name in one.op_name), "")
