"""Layers whose products are in eight bits, with scales by tensor, by block or of earlier steps."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import namedmesh as nm
from namedmesh.errors.errors import join_names, suggest_names
from namedmesh.errors.source import warn_caller
from namedmesh.layers.weights import Dims, Weights


@dataclass(frozen=True)
class Float8(Weights):
    """Weights whose products are in eight bits, and whose experts' rows are sent so where asked.

    Weights, optimizers and sums stay as they are; both operands of a product and its cotangent are
    rounded. Weights at rest are gathered in eight bits. Routers, norms, biases, tables and what
    attention multiplies keep their dtype.

    Attributes:
        names: The names of the weights to multiply so, such as `{"wi", "wo"}`; None for all.
        block: How many elements share a scale along what is summed over, e.g. 128, or the most
            up to that which divide its size; by default all.
        history: Over how many steps the largest magnitude of operands is remembered, for delayed
            scaling: what is scaled then does not wait for its own largest magnitude. Cotangents
            are scaled by their own. Not inside of loops other than `nm.scan(..., stack=True)`.
        send: Whether the rows of experts, and their cotangents, are sent in eight bits.
        gradients: The dtype of cotangents: `"float8_e5m2"`, or `"float8_e4m3fn"`.
        inside: How weights are made and adapted otherwise.

    Example:
        >>> B, M, H = nm.dims("batch=2 model=8 hidden=4")
        >>> with use_weights(Float8()):
        ...     program = nm.trace(lambda x: nm.layers.dense(x, [M], [H]), nm.spec([B, M]))
        >>> [op.inputs[0].dtype for op in program.ops if op.kind == "einsum"]
        ['float8_e4m3fn']
    """

    names: Collection[str] | None = None
    block: int = 0
    history: int = 0
    send: bool = False
    gradients: str = "float8_e5m2"
    inside: Weights = field(default_factory=Weights)
    _seen: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def __post_init__(self):
        problem = fix = ""
        if isinstance(self.names, str):
            problem, fix = f"names={self.names!r} is one text", f"write names={{{self.names!r}}}"
        elif self.block < 0 or self.history < 0:
            problem, fix = "block= or history= is negative", "write 0 to do without"
        elif self.block and self.history:
            problem = "block= and history= are together: only scales of tensors are remembered"
            fix = "leave one of them out"
        elif self.gradients not in (kinds := ("float8_e4m3fn", "float8_e5m2")):
            problem = f"gradients={self.gradients!r} is not a floating point dtype of 8 bits"
            fix = f"use one of: {', '.join(kinds)}"
        if problem:
            raise nm.NamedMeshError(f"Float8: {problem}", fix=fix)

    def make(
        self, name: str, dims: Dims, init: nm.Initializer | None, over: Dims = (), whole: Dims = ()
    ) -> nm.Tensor:
        """Return a weight as it is made otherwise."""
        return self.inside.make(name, dims, init, over, whole)

    def adapt(self, x: nm.Tensor, y: nm.Tensor, name: str, dims: tuple[Dims, Dims]) -> nm.Tensor:
        """Return a product with what is added to it otherwise."""
        return self.inside.adapt(x, y, name, dims)

    def multiply(self, x: nm.Tensor, weight: nm.Tensor, dims: Dims, name: str) -> nm.Tensor:
        """Return the product of both in eight bits."""
        self._seen.add(name)
        if self.names is not None and name not in self.names:
            return self.inside.multiply(x, weight, dims, name)
        both = [dim for dim in dims if dim in x.shape and dim in weight.shape]
        roles = ((x, f"{name}_input"), (weight, name)) if self.history else ()
        largest = [self._remember(one, f"{role}_largest", both) for one, role in roles]
        options = {"gradients": self.gradients, "block": self.block}
        return nm.scaled_einsum([x, weight], dims, **options, largest=largest or (None, None))

    def reshard(self, x: nm.Tensor, dim: nm.Dimension) -> nm.Tensor:
        """Move rows of experts, in eight bits where that is asked for."""
        if not self.send:
            return self.inside.reshard(x, dim)
        return nm.send_in_8_bits(x, dim, gradients=self.gradients)

    def finish(self) -> None:
        """Warn of names that no weight has had."""
        unknown = [name for name in self.names or () if name not in self._seen]
        if self._seen and unknown:
            warn_caller(
                f"Float8: names= has {join_names(sorted(unknown))}, and no weight of that name is "
                f"multiplied here: {suggest_names(sorted(unknown), self._seen)}"
            )
        self._seen.clear()
        self.inside.finish()

    def _remember(self, x: nm.Tensor, name: str, dims: Dims) -> nm.Tensor:
        """Return the largest magnitude of the last steps, and note that of this one."""
        steps = nm.Dimension("history", self.history)
        over = [dim for dim in x.shape if dim not in dims]
        now = nm.cast(nm.stop_gradient(nm.max(nm.absolute(x), over=over)), "float32")
        known = nm.state(name, [steps, *now.shape])
        largest = nm.max(known, over=steps)
        # What is not finite spoils its own step alone, and not those that remember it.
        newest = nm.where(nm.is_finite(now), now, 0.0)
        noted = nm.where(nm.equal(nm.range(steps), 0), newest, nm.roll(known, steps, 1))
        try:
            nm.assign(known, noted)
        except nm.NamedMeshError as error:
            noting = name.removesuffix("_largest")
            problem = f"Float8: history={self.history} cannot note the magnitudes of {noting}"
            fix = "use Float8() there, as in pipelines, or stack layers: nm.scan(..., stack=True)"
            raise nm.NamedMeshError(problem, error.problem, fix=fix) from None
        return nm.where(largest > 0.0, largest, now)  # in the first step
