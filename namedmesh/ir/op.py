"""Op: a shape rule, a lowering, a derivative and a FLOP count, side by side."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from namedmesh.dims.dimension import Shape
from namedmesh.dims.errors import NamedMeshError
from namedmesh.dims.source import Source, caller
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import current

if TYPE_CHECKING:
    from namedmesh.ir.context import Context


@dataclass(frozen=True)
class Placement:
    """What an op asks of the places of its operands; every other dimension passes through by name.

    whole: dimensions the op needs unsplit.  reduced: dimensions it sums (or takes the maximum of ...) over.
    renames: operand dimension to the result dimension that takes its place.
    """

    whole: frozenset[str] = frozenset()
    reduced: frozenset[str] = frozenset()
    renames: dict[str, str] = field(default_factory=dict)


@dataclass(eq=False)
class Op:
    """One named operation; making one records it in the program being traced."""

    inputs: tuple[Tensor, ...]

    manual: ClassVar[bool] = (
        False  # lowered on each device's own piece, where XLA would communicate
    )
    elementwise: ClassVar[bool] = False

    @property
    def closed(self) -> bool:
        """Whether to lower like a manual op where sizes divide: inner constants are then not shared with other ops."""
        return False

    def __post_init__(self) -> None:
        trace = current(self.kind)
        self.source: Source = trace.source or caller()
        self.phase: str = trace.phase
        self.scope: str = trace.scope
        self.derived: bool = trace.derived
        self.inputs = tuple(trace.bring(tensor) for tensor in self.inputs)
        self.outputs: tuple[Tensor, ...] = tuple(
            Tensor(shape, dtype, self) for shape, dtype in self.results()
        )
        trace.add(self)

    @property
    def kind(self) -> str:
        """The op's name in plans and errors."""
        return type(self).__name__.lower()

    @property
    def output(self) -> Tensor:
        """The one result."""
        return self.outputs[0]

    def results(self) -> list[tuple[Shape, str]]:
        """The shape rule: shape and dtype of each result."""
        raise NotImplementedError

    def lower(self, context: Context, *values: Any) -> Any:
        """TensorFlow ops that compute the results from values laid out as the inputs' shapes say."""
        raise NotImplementedError

    def vjp(self, *cotangents: Tensor) -> list[Tensor | None]:
        """A cotangent per input, in named ops."""
        raise NamedMeshError(
            f"{self.kind} has no derivative",
            *map(str, self.inputs),
            source=self.source,
            fix="put nm.stop_gradient around its operands, or give it a derivative with nm.custom_vjp",
        )

    def flops(self) -> int:
        """Floating point operations, over all devices."""
        return 0

    def placement(self) -> Placement:
        """What the op asks of the places of its operands."""
        return Placement()

    def again(self, inputs: tuple[Tensor, ...]) -> Op:
        """The same op on other inputs, recorded in the program being traced, with loop bodies and branches of its own."""
        from namedmesh.ir.differentiate import copied
        from namedmesh.ir.program import Body

        mine = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        bodies = {name: copied(value) for name, value in mine.items() if isinstance(value, Body)}
        with current(self.kind).at(self.source, derived=self.derived):
            return dataclasses.replace(self, inputs=inputs, **bodies)

    def prune(self, needed: set[Tensor]) -> None:
        """Drops what no needed tensor depends on inside loop bodies and branches."""
        from namedmesh.ir.program import Body, pruned

        for one in dataclasses.fields(self):
            body = getattr(self, one.name)
            if isinstance(body, Body):
                keep = [tensor.producer for tensor in (*body.inputs, *body.captures)]
                setattr(
                    self,
                    one.name,
                    dataclasses.replace(body, ops=pruned(body.ops, body.outputs, keep)),
                )

    def error(self, problem: str, *details: str, fix: str) -> NamedMeshError:
        """An error about this op, with its operands and the user's line."""
        return NamedMeshError(f"{self.kind}: {problem}", *details, fix=fix, source=self.source)
