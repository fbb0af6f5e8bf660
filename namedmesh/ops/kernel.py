"""Results that a backend may make by a kernel of its own, chosen when an Artifact is loaded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Self

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.ir.context import Context
from namedmesh.ir.op import Body, Op, PlacementRules
from namedmesh.ir.tensor import Tensor

# Products of queries and keys, beside those of a forward pass.
_PASSES = {"attention": 1.0, "attention_backward": 2.5}


class Kernel(Op):
    """Results of named ops, which a backend that has the kernel computes by it instead."""

    passes_through = True
    offers_kernel = True
    kept_by_dots = True
    name: str
    kept: tuple[int, ...]  # results of the kernel; operands are those first, then what it reads
    parallel: tuple[str, ...]  # dimensions of which the kernel takes one device's shard
    options: dict[str, Any]

    @property
    def kind(self) -> str:
        return self.name

    @property
    def count(self) -> int:
        """The number of results of named ops among the operands."""
        return len(self.kept)

    def results(self) -> list[tuple[Shape, str]]:
        return [(x.shape, x.dtype) for x in self.inputs[: self.count]]

    @property
    def queries(self) -> tuple[Tensor, Tensor, float]:  # type: ignore[override]
        q, k = self.inputs[self.count : self.count + 2]
        return q, k, _PASSES[self.name]

    def lower(self, context: Context, *values: Any) -> Any:
        plain, read = values[: self.count], values[self.count :]
        if not context.calls_kernel(self):
            return [context.tf.identity(value) for value in plain]
        specs = [context.tf.TensorSpec(value.shape, value.dtype) for value in plain]
        options = {"results": self.kept, **self.options}
        return context.xla.custom_call_v2(
            f"namedmesh.{self.name}", [*read, *plain], specs, json.dumps(options, sort_keys=True)
        )

    def vmap(self, inputs: tuple[Tensor, ...], over: Dimension) -> Sequence[Tensor]:
        return inputs[: self.count]  # the named ops that made them are recorded already

    def vjp(self, *cotangents: Tensor) -> list[Tensor | None]:
        return [*cotangents, *[None] * (len(self.inputs) - self.count)]

    def narrow(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], bodies: Sequence[Body]
    ) -> Self:
        shorter = super().narrow(inputs, outputs, bodies)
        stays, pairs = {*outputs}, zip(self.kept, self.outputs, strict=True)
        kept = tuple(i for i, tensor in pairs if tensor in stays)
        return self if shorter is self else shorter.rebuild(kept=kept)

    def plan(self, rules: PlacementRules, times: int) -> None:
        rules.place_kernel(self, times, self.parallel)


def offer_kernel(
    name: str,
    plain: Sequence[Tensor],
    reads: Sequence[Tensor],
    parallel: Sequence[Dimension],
    **options: Any,
) -> tuple[Tensor, ...]:
    """Let a backend make tensors by a kernel instead of the named ops that made them."""
    names = tuple(dim.name for dim in parallel)
    kept = tuple(range(len(plain)))
    return Kernel((*plain, *reads), name, kept, names, options).outputs
