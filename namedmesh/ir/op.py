"""Op: a shape rule, a lowering, a derivative and a FLOP count, side by side; and Body."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Protocol, Self, dataclass_transform

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.errors.source import Source, caller
from namedmesh.ir.context import Context as Context
from namedmesh.ir.exchange import Exchange, Shards
from namedmesh.ir.format import describe_type, format_value
from namedmesh.ir.placement import Placement
from namedmesh.ir.recorder import require_recorder
from namedmesh.ir.tensor import DTYPES, Tensor


@dataclass_transform(frozen_default=True, eq_default=False)
@dataclass(frozen=True, eq=False)
class Op:
    """One named operation. Making one records it in the program being traced.

    An op is one class: subclasses are frozen dataclasses (without a decorator) whose fields are the
    op's options, and define `results`, `lower`, and where it applies `vjp`, `flops` and
    `placement`. What the passes need to know besides is a trait: a class attribute or property
    listed below. No pass of namedmesh knows an op by its class, so an op of your own needs no
    change anywhere else.

    Args:
        inputs: The tensors the op reads.

    Example:
        >>> import namedmesh as nm
        >>> class Double(nm.Op):
        ...     def results(self):
        ...         return [(self.inputs[0].shape, self.inputs[0].dtype)]
        ...
        ...     def lower(self, context, x):
        ...         return x + x
        ...
        ...     def vjp(self, dy):
        ...         return [Double((dy,)).output]
        >>> M = nm.Dimension("model", 2)
        >>> nm.evaluate(lambda x: Double((x,)).output, x=([M], [1.0, 2.0]))
        array([2., 4.], dtype=float32)
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...] = field(init=False, repr=False)
    source: Source = field(init=False, repr=False)  # the user's line
    phase: str = field(init=False, repr=False)  # forward, backward or update
    scope: str = field(init=False, repr=False)
    derived: bool = field(init=False, repr=False)  # made by a derivative rule
    identity: object = field(init=False, repr=False)  # stays the same when the op is rebuilt

    # Traits of placement and planning.
    elementwise: ClassVar[bool] = False  # a result element depends on the operands' there
    constant: ClassVar[bool] = False  # costs nothing to make in any place: lies wherever it is read
    rearranges: ClassVar[bool] = False  # makes no new numbers: of constants it makes constants
    states_place: ClassVar[bool] = False  # the same value, in a place that the op states
    passes_through: ClassVar[bool] = False  # passes the first operands on; vjp() reads the others
    offers_kernel: ClassVar[bool] = False  # so, and a backend may compute them of the others
    adds_operands: ClassVar[bool] = False  # the sum of all operands, which may be partial sums
    same_value: ClassVar[bool] = False  # of one tensor and dtype they make one value, moved once
    sums: ClassVar[bool] = False  # reduces by adding up, which devices may do with parts, later
    # Traits of lowering.
    control: ClassVar[bool] = False  # runs its bodies by its context's while_loop() or cond()
    branches: ClassVar[bool] = False  # runs one of its bodies alone
    manual: ClassVar[bool] = False  # lowered on each device's shard, where XLA would communicate
    on_shards: ClassVar[bool] = False  # the same, and zeros that pad a shard change nothing
    # Traits of differentiation.
    given: ClassVar[bool] = False  # its value comes from outside: there is nothing to lower
    stops_gradient: ClassVar[bool] = False
    kept_by_dots: ClassVar[bool] = False  # remat="dots" keeps its results

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        dataclass(frozen=True, eq=False)(cls)

    def __post_init__(self) -> None:
        recorder = require_recorder(self.kind)
        self._set(source=recorder.source or caller())
        self._check_inputs()
        self._set(
            phase=recorder.phase,
            scope=recorder.scope,
            derived=recorder.derived,
            identity=object(),
            inputs=tuple(recorder.bring(tensor) for tensor in self.inputs),
        )
        self._set(outputs=tuple(self._tensor(*result) for result in self._checked_results()))
        recorder.record(self)

    def _check_inputs(self) -> None:
        """Raise unless the class is complete and its operands are a tuple of tensors."""
        missing = [
            name
            for name in ("results", "lower")
            if getattr(type(self), name) is getattr(Op, name)
            and not (name == "lower" and self.given)
        ]
        if missing:
            raise self.error(
                f"the class {type(self).__name__} does not define {' and '.join(missing)}",
                fix=f"define {' and '.join(f'{name}()' for name in missing)}; see help(nm.Op)",
            )
        if not isinstance(self.inputs, (tuple, list)):
            raise self.error(
                f"inputs is {describe_type(self.inputs)}, expected a tuple of tensors",
                fix=f"write {type(self).__name__}((x,))",
            )
        wrong = [describe_type(value) for value in self.inputs if not isinstance(value, Tensor)]
        if wrong:
            raise self.error(
                f"{', '.join(wrong)} among the inputs, expected tensors",
                fix="give numbers and arrays as fields of the op, or as tensors (nm.full, nm.spec)",
            )

    def _checked_results(self) -> list[tuple[Shape, str]]:
        """What the shape rule says, each result a shape and the name of a dtype."""
        results = self.results()
        entries = list(results) if isinstance(results, (list, tuple)) else []
        for entry in entries or [results]:
            pair = isinstance(entry, tuple) and len(entry) == 2
            if not pair or not isinstance(entry[0], Shape) or entry[1] not in DTYPES:
                raise self.error(
                    f"results() returned {format_value(results)}",
                    *map(str, self.inputs),
                    fix="return a list with a pair (Shape, dtype name) for each result, "
                    "e.g. [(x.shape, 'float32')]",
                )
        return entries

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _tensor(self, shape: Shape, dtype: str, name: str | None = None) -> Tensor:
        """Make a tensor that this op binds."""
        return Tensor(shape, dtype, self.kind, self.source, name)

    @property
    def kind(self) -> str:
        """The op's name in plans and errors."""
        return type(self).__name__.lower()

    @property
    def output(self) -> Tensor:
        """The one result."""
        return self.outputs[0]

    @property
    def linear(self) -> str:
        """In which operands the op is linear, so that parts of a sum may pass through it.

        "together" (as a sum is), "each" alone (as a product is), the "first", or "" for none.
        """
        return ""

    @property
    def summed_in(self) -> str:
        """The dtype in which XLA adds the result up, where it does so by itself."""
        return self.output.dtype

    @property
    def zero(self) -> bool:
        """Whether the result is known to be zero everywhere."""
        return False

    @property
    def lowering_fix(self) -> str:
        """What to do when the lowering raises an exception that is not a NamedMeshError."""
        return "fix lower(), or the function it calls"

    @property
    def closed(self) -> bool:
        """Whether to lower like a manual op where sizes divide, or there are no operands.

        For ops that become many XLA ops: XLA merges equal constants before it partitions, and one
        that is shared with a tensor lying elsewhere would draw the op there and back.
        """
        return False

    @property
    def repeatable(self) -> bool:
        """Whether a backward loop may compute it again instead of storing it.

        For ops that XLA fuses with what reads them, and that communicate nothing.
        """
        return (self.elementwise or self.constant) and self.inherits_sharding

    @property
    def inherits_sharding(self) -> bool:
        """Whether results inherit the sharding that operands agree on: `plan` is not overridden."""
        return type(self).plan is Op.plan

    @property
    def loop(self) -> LoopSpec | None:
        """What the op repeats, if it is a loop."""
        return None

    @property
    def bodies(self) -> tuple[Body, ...]:
        """Loop bodies, branches and regions, for passes that look at every op."""
        return ()

    @property
    def histories(self) -> tuple[Tensor, ...]:
        """Results that hold a value for every iteration of a loop."""
        return ()

    @property
    def iterations(self) -> Sequence[int]:
        """The iterations of a loop that are to be written out, in the order in which they run."""
        return ()

    @property
    def taken_dims(self) -> tuple[str, ...]:
        """Dimensions that this op makes the holders of their axes."""
        return ()

    @property
    def given_dims(self) -> tuple[str, ...]:
        """Dimensions that this op makes whole."""
        return ()

    def results(self) -> list[tuple[Shape, str]]:
        """The shape rule: returns each result's shape and dtype, or raises for unfit operands.

        Returns:
            A shape and a dtype for each result.

        Raises:
            NamedMeshError: The operands do not fit the op; `self.error` makes one.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no results()")

    # Any signature is a proper override of (*args, **options): an op names its own values.
    def lower(self, *args: Any, **options: Any) -> Any:
        """Compute the results with TensorFlow: write `def lower(self, context, x, y)`.

        Args:
            *args: The context (a `Context`, whose `tf` is TensorFlow), then a value for each of
                `inputs`, with its tensor's dimensions in order; inside a manual op, one device's
                shard of them (`context.size(dim)`).
            **options: Nothing is given by name.

        Returns:
            One value, or a list if there are several results.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no lower()")

    def vjp(self, *args: Any, **options: Any) -> Sequence[Tensor | None]:
        """The derivative, in named ops: write `def vjp(self, dy)`.

        Args:
            *args: The cotangent of each result.
            **options: Nothing is given by name.

        Returns:
            A cotangent of the same dims and dtype for each input, or None for one that gets no
            gradient.

        Raises:
            NamedMeshError: The op has no derivative.
        """
        raise NamedMeshError(
            f"{self.kind} has no derivative",
            *map(str, self.inputs),
            source=self.source,
            fix="put nm.stop_gradient around its operands, define vjp() if it is an op of yours, "
            "or give it a derivative with nm.custom_vjp",
        )

    def flops(self) -> int:
        """Count floating point operations, over all devices."""
        return 0

    def placement(self) -> Placement:
        """Say what the op asks of the places of its operands."""
        return Placement()

    def plan(self, rules: PlacementRules, times: int) -> None:
        """Choose the rule of placement that decides how the results are sharded.

        Args:
            rules: The planner, whose methods are the rules.
            times: How often the op runs in a step.
        """
        rules.place_by_name(self, times)

    def exchanges(self, shards: Shards) -> Sequence[Exchange] | None:
        """Say what the op sends between devices by itself, when dimensions are split so.

        Only dimensions that its placement calls `exchanged` are asked for.

        Args:
            shards: Into how many shards each dimension is split.

        Returns:
            Its collectives; None if a dimension should rather be gathered before.
        """
        return ()

    def drop_results(self, needed: set[Tensor]) -> Op:
        """Return this op without the results that are not needed, if it can leave them out.

        Args:
            needed: The results that something depends on.

        Returns:
            An op with fewer results, or this one.
        """
        return self

    def drop_unchanged(self) -> tuple[Op, dict[Tensor, Tensor]]:
        """Return this op without the results that are operands of it, and those operands."""
        return self, {}

    def find_equal(self, zeros: Container[Tensor]) -> Tensor | None:
        """Find the operand that the only result equals.

        Args:
            zeros: Tensors that are zero everywhere.

        Returns:
            The operand, if there is one.
        """
        return None

    def rebuild(self, **changes: Any) -> Self:
        """Return a copy with some attributes changed, which is recorded nowhere by itself.

        Args:
            **changes: The new values, by attribute.

        Returns:
            The copy.
        """
        other = copy.copy(self)
        other._set(**changes)
        return other

    def body_fields(self) -> dict[str, Body]:
        """Return the fields that hold a Body, by name."""
        values = {name: getattr(self, name) for name in option_names(type(self))}
        return {name: value for name, value in values.items() if isinstance(value, Body)}

    def error(self, problem: str, *details: str, fix: str) -> NamedMeshError:
        """Make an error about this op, with the user's line.

        Args:
            problem: What is wrong, in one line.
            *details: The tensors and dimensions it is about, each on a line of its own.
            fix: What to do about it.

        Returns:
            The error, to be raised.
        """
        return NamedMeshError(f"{self.kind}: {problem}", *details, fix=fix, source=self.source)


@cache
def option_names(kind: type[Op]) -> tuple[str, ...]:
    """Return the names of the fields that an op of a class is made with, besides its inputs."""
    return tuple(one.name for one in dataclasses.fields(kind) if one.init and one.name != "inputs")


@dataclass(frozen=True, eq=False)
class Body:
    """A loop body, a branch or a manual region: a function of its inputs and captures."""

    ops: tuple[Op, ...]
    inputs: tuple[Tensor, ...]
    captures: tuple[Tensor, ...]  # stand-ins inside for ...
    captured: tuple[Tensor, ...]  # ... these tensors outside
    outputs: tuple[Tensor, ...]
    stacked: tuple[
        Tensor, ...
    ] = ()  # outside, for the last inputs: variables made inside, by slices

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """Inputs, then captures: what a caller gives values for."""
        return (*self.inputs, *self.captures)

    def bind(self, tensors: Iterable[Tensor]) -> list[Op]:
        """Return ops like those of the arguments, through which some tensors become arguments."""
        given = next(op for op in self.ops if op.given)
        return [
            given.rebuild(
                outputs=(tensor,),
                shape=tensor.shape,
                dtype=tensor.dtype,
                source=tensor.source,
                identity=object(),
            )
            for tensor in tensors
        ]


@dataclass(frozen=True)
class LoopSpec:
    """A body that an op repeats.

    The op's operands are the first carries, the tensors that are read row by row, and captures: of
    the test, if there is one, then of the body. Its results are the last carries, then histories.
    """

    body: Body
    carries: int
    over: Dimension | None = None  # the dimension it runs along; None if its length is not known
    test: Body | None = None

    @property
    def length(self) -> int:
        """How many iterations there are; 1 if that is not known."""
        return 1 if self.over is None else self.over.size

    def reads_rows(self, i: int) -> bool:
        """Whether an iteration reads a row of an operand."""
        return self.carries <= i < len(self.body.inputs)


class PlacementRules(Protocol):
    """The rules of placement that an op can choose from in `Op.plan`."""

    def place_by_name(self, op: Op, times: int) -> None:
        """Let operands agree on the dimension that each axis shards; results inherit it by name."""
        ...

    def place_pass_through(self, op: Op, times: int) -> None:
        """Leave every result where the operand is that it passes on."""
        ...

    def place_kernel(self, op: Op, times: int, parallel: Collection[str]) -> None:
        """Pass through, and offer the kernel if what it reads is sharded along `parallel` alone."""
        ...

    def place_move(
        self,
        op: Op,
        times: int,
        take: Sequence[str],
        give: Sequence[str],
        exact: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Shard `take` over the axes of the layout, replicate `give`; or shard exactly so."""
        ...

    def place_sum(self, op: Op, times: int) -> None:
        """Add operands up where they are, then move the sum to where its primal is."""
        ...

    def place_loop(self, op: Op, times: int) -> None:
        """Plan the body of `op.loop`; carries keep the sharding that they start with."""
        ...

    def place_branches(self, op: Op, times: int) -> None:
        """Plan both bodies of a choice; results are sharded as the first body leaves them."""
        ...


def every_op(ops: Iterable[Op]) -> Iterator[Op]:
    """Yield every op, those of loop bodies and branches included."""
    for op in ops:
        yield op
        for body in op.bodies:
            yield from every_op(body.ops)
