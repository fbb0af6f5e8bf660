"""Op: a shape rule, a lowering, a derivative, batching and traits side by side; and Body."""

from __future__ import annotations

import copy
import dataclasses
import operator
from abc import abstractmethod
from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Protocol, Self, dataclass_transform

import numpy as np

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.errors.mistakes import explain_calls
from namedmesh.errors.source import Source, caller
from namedmesh.ir.context import Context as Context
from namedmesh.ir.format import count_noun, describe_type, format_value
from namedmesh.ir.placement import Exchange, Placement, Shards
from namedmesh.ir.recorder import require_recorder
from namedmesh.ir.tensor import DTYPES, Tensor

Number = bool | int | float
FEW = 2**20  # elements or operations that a device computes sooner than it receives them


@dataclass_transform(frozen_default=True, eq_default=False)
@dataclass(frozen=True, eq=False)
class Op:
    """One named operation. Making one records it in the program being traced.

    Subclasses are frozen dataclasses (without a decorator) whose fields are the op's options. They
    define `results` and `lower`, and where it applies `vjp`, `vmap`, `flops` and `placement`. All
    else that passes need to know is a trait below: no pass asks for the class of an op.

    Args:
        inputs: The tensors the op reads.

    Example:
        >>> class Double(nm.Op):
        ...     elementwise = True
        ...     linear_in = ((0,),)
        ...
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
    recomputed: bool = field(init=False, repr=False)  # made before: the backward pass repeats it
    identity: object = field(init=False, repr=False)  # stays the same when the op is rebuilt

    kind: ClassVar[str] = "op"  # the op's name in plans and errors; by default that of its class
    # Traits of placement and planning.
    elementwise: ClassVar[bool] = False  # a result element depends on the operands' there
    constant: ClassVar[bool] = False  # costs nothing to make: takes any sharding it is read with
    rearranges: ClassVar[bool] = False  # makes no new numbers
    states_place: ClassVar[bool] = False  # the same value, in a place that the op states
    passes_through: ClassVar[bool] = False  # passes the first operands on; vjp() reads the others
    offers_kernel: ClassVar[bool] = False  # so, and a backend may compute them of the others
    queries: ClassVar[tuple[Tensor, Tensor, float] | None] = None  # of attention, keys, and passes
    adds_operands: ClassVar[bool] = False  # the sum of all operands, which may be partial sums
    same_value: ClassVar[bool] = False  # of one tensor and dtype they make one value, moved once
    barrier: ClassVar[bool] = False  # the same value, apart from what XLA computed before it
    offloads: ClassVar[bool] = False  # moves its operand to the host's memory
    sums: ClassVar[bool] = False  # reduces by adding up, which devices may do with parts, later
    sliced: ClassVar[str] = "none"  # what it gathers and scatters in slices: or "large", "all"
    rests_like: ClassVar[Sequence[int] | None] = None  # works where these operands rest; None: all
    taken_dims: ClassVar[tuple[str, ...]] = ()  # that it shards over the axes of the layout
    given_dims: ClassVar[tuple[str, ...]] = ()  # that it replicates
    stated_axes: ClassVar[tuple[str, ...]] = ()  # of the mesh, which has to have them
    read_operands: ClassVar[Sequence[Collection[int]] | None] = None  # by result; None: all of them
    # Traits of lowering.
    control: ClassVar[bool] = False  # runs its bodies by its context's while_loop() or cond()
    branches: ClassVar[bool] = False  # runs one of its bodies alone
    manual: ClassVar[bool] = False  # lowered on each device's shard, where XLA would communicate
    on_shards: ClassVar[bool] = False  # the same, and zeros that pad a shard change nothing
    any_padding: ClassVar[bool] = False  # the same, and nor does anything else that pads it
    closed: ClassVar[bool] = False  # the same, where sizes divide or there are no operands
    differs: ClassVar[bool] = False  # devices may have other values of a result that has no shards
    nameless: ClassVar[bool] = False  # it is all the same to it what its dimensions are called
    lowering_fix: ClassVar[str] = "fix lower(), or the function it calls"
    # Traits of loops, branches and regions.
    bodies: ClassVar[tuple[Body, ...]] = ()
    applies_body: ClassVar[bool] = True  # its only body makes its results of its operands, in order
    loop: ClassVar[LoopSpec | None] = None  # the body that the op repeats
    keeps_rows: ClassVar[bool] = False  # a loop that can keep any tensor of its body for another
    histories: ClassVar[tuple[Tensor, ...]] = ()  # results with a value for every iteration
    unrolled: ClassVar[UnrolledLoop | None] = None  # itself, if iterations are to be written out
    # Traits of differentiation.
    given: ClassVar[bool] = False  # its value comes from outside: there is nothing to lower
    stops_gradient: ClassVar[bool] = False
    # Indices, rows and dimension, if the result is zeros to which rows are added at the indices.
    added_rows: ClassVar[tuple[Tensor, Tensor, Dimension] | None] = None
    looks_up: ClassVar[Dimension | None] = None  # of the first operand, whose derivative is so made
    kept_by_dots: ClassVar[bool] = False  # remat="dots" keeps its results
    own_backward: ClassVar[bool] = False  # its derivative is a function that the user wrote
    repeated_ops: ClassVar[tuple[Op, ...]] = ()  # recorded before, and again by its derivative
    # Traits of batching: see vmap().
    users_own: ClassVar[bool] = False  # defined outside of namedmesh
    by_name: ClassVar[bool] = False  # finds its dimensions by name: others pass through it
    broadcasts: ClassVar[bool] = False  # operands may lack dimensions that others have
    # Traits of linearity.
    # Groups of operands it is linear in together: of a sum one group of all, of a product one each.
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ()
    late_sums: ClassVar[bool] = True  # partial sums of linear operands may be added up after it
    zero: ClassVar[bool] = False  # the result is known to be zero everywhere
    nonnegative: ClassVar[bool] = False  # no element of the result is less than zero
    copies: ClassVar[bool] = False  # every element of the result is one of the operand's
    # Traits of manual regions.
    placed: ClassVar[bool] = True  # the operands tell where the op runs
    mixes_shards: ClassVar[bool] = False  # its body is a collective of the region around it

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.kind == cls.__mro__[1].__name__.lower():  # a name of its own is inherited
            cls.kind = cls.__name__.lower()
        dataclass(frozen=True, eq=False)(cls)
        cls.users_own = not cls.__module__.startswith("namedmesh.")
        if cls.users_own:  # ours are made by the thousand
            setattr(cls, "__init__", explain_calls(cls.__init__, cls.__name__))  # noqa: B010

    def __post_init__(self) -> None:
        recorder = require_recorder(self.kind)
        self._set(source=recorder.source or caller())
        self._check_inputs()
        self._set(
            phase=recorder.phase,
            scope=recorder.scope,
            derived=recorder.derived,
            recomputed=recorder.recomputed,
            identity=object(),
            inputs=tuple(recorder.bring(tensor) for tensor in self.inputs),
        )
        self._set(outputs=tuple(self._tensor(*result) for result in self._checked_results()))
        self._check_linear_groups()
        recorder.record(self)

    def _check_inputs(self) -> None:
        """Raise unless the operands are a tuple of tensors."""
        several = isinstance(self.inputs, (tuple, list))
        if not several or not all(isinstance(value, Tensor) for value in self.inputs):
            raise self.error(
                f"inputs is {describe_type(self.inputs)}, expected a tuple of tensors",
                fix=f"write {type(self).__name__}((x,)); numbers and arrays are fields of the op, "
                "or tensors (nm.full, nm.spec)",
            )

    def _check_linear_groups(self) -> None:
        """Raise unless the operands in which the op is linear are groups of their positions."""
        groups, count = self.linear_in, len(self.inputs)
        if groups != () and not _are_groups_of(count, groups):
            raise self.error(
                f"linear_in is {format_value(groups)}, expected groups of the positions "
                f"of its {count_noun(count, 'operand')}",
                *map(str, self.inputs),
                fix="write ((0,),) for an op that is linear in its first operand, ((0, 1),) for a "
                "sum of two operands, ((0,), (1,)) for their product",
            )

    def _checked_results(self) -> list[tuple[Shape, str]]:
        """Return the results of the shape rule, or raise unless they are pairs."""
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
        vars(self).update(values)  # ops are frozen for others

    def _tensor(self, shape: Shape, dtype: str, name: str | None = None) -> Tensor:
        """Make a tensor that this op binds."""
        return Tensor(shape, dtype, self.kind, self.source, name)

    @property
    def output(self) -> Tensor:
        """The only result."""
        return self.outputs[0]

    @property
    def additive(self) -> bool:
        """True if the op is linear in all its operands together, as sums and reshapes are."""
        return self.linear_in == (tuple(range(len(self.inputs))),)

    @property
    def takes_padding(self) -> bool:
        """True if zeros that pad a shard of the operands at most pad what the op makes of it."""
        # To a sum they add zero, if it is linear in operands that have what it sums over.
        linear = [[{*self.inputs[i].shape.names} for i in group] for group in self.linear_in]
        reduced = self.placement().reduced
        adds_zero = any(all(reduced <= names for names in group) for group in linear)
        return self.elementwise or (self.sums and adds_zero)

    @property
    def reduction(self) -> str:
        """The reduction that XLA makes between devices by itself; "" if it is unknown."""
        return "add" if self.sums else ""

    @property
    def summed_in(self) -> str:
        """The dtype in which XLA adds the result up, where it does so by itself."""
        return self.output.dtype

    @property
    def folds(self) -> bool:
        """True if it makes constants of constants, wherever they are read."""
        if self.constant or self.elementwise or self.rearranges:
            return True
        # XLA computes some of them while it compiles, and moves nothing; what is small is so made
        # by every device, as a whole.
        sizes = [tensor.shape.elements for tensor in (*self.inputs, *self.outputs)]
        return not self.bodies and max(*sizes, self.flops()) <= FEW

    @property
    def repeatable(self) -> bool:
        """True if a backward loop may compute it again: XLA fuses it, and nothing is sent."""
        return (self.elementwise or self.constant) and self.inherits_sharding

    @property
    def inherits_sharding(self) -> bool:
        """True if results inherit the operands' sharding: `plan` is not overridden."""
        return type(self).plan is Op.plan

    def results(self) -> list[tuple[Shape, str]]:
        """Return a shape and the name of a dtype for each result, or raise `self.error(...)`."""
        fix = "define it, e.g. to return [(self.inputs[0].shape, self.inputs[0].dtype)]"
        raise self.error(f"{type(self).__name__} defines no results()", fix=fix)

    # Any signature is a proper override of (*args, **options): an op names its own values.
    def lower(self, *args: Any, **options: Any) -> Any:
        """Return the results, one or a list, by TensorFlow: write `def lower(self, context, x, y)`.

        Args:
            *args: The context (its `tf` is TensorFlow), then a value for each of `inputs`, with its
                dimensions in order; inside a manual op, one device's shard (`context.size(dim)`).
            **options: Nothing is passed by name.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no lower()")

    def vjp(self, *args: Any, **options: Any) -> Sequence[Tensor | None]:
        """Return a cotangent like each input, or None for no gradient: write `def vjp(self, dy)`.

        Args:
            *args: The cotangent of each result.
            **options: Nothing is passed by name.
        """
        raise NamedMeshError(
            f"{self.kind} has no derivative",
            *map(str, self.inputs),
            source=self.source,
            fix="put nm.stop_gradient around its operands, define vjp() if it is an op of yours, "
            "or give it a derivative with nm.custom_vjp",
        )

    def vmap(self, inputs: tuple[Tensor, ...], over: Dimension) -> Sequence[Tensor] | None:
        """Record the op on operands of which some have a further dimension, as their first.

        An op that is `elementwise`, on operands of one shape, or works `by_name` needs no rule of
        its own: the dimension is added to its operands (unless it `broadcasts`) and to the shapes
        among its options.

        Args:
            inputs: The operands.
            over: The dimension.

        Returns:
            The results, with the dimension where they depend on it; None to run the op once for
            each element in a loop, which is right for every op.
        """
        if self.bodies:
            raise vmap_error(self, inputs, over)
        if not (self.elementwise or self.by_name):
            return None
        named = self.by_name or self.broadcasts
        if not named and len({x.shape for x in (*self.inputs, *self.outputs)}) > 1:
            return None  # operands that broadcast by position would meet other dimensions
        if not self.broadcasts:
            pairs = zip(inputs, self.inputs, strict=True)
            inputs = tuple(with_dim(x, over, old.shape) for x, old in pairs)
        shapes = {
            name: Shape([over, *value])
            for name, value in options_of(self).items()
            if isinstance(value, Shape)
        }
        return dataclasses.replace(self, inputs=inputs, **shapes).outputs

    def flops(self) -> int:
        """Count floating point operations, over all devices: by default those of its bodies."""
        return sum(op.flops() for body in self.bodies for op in body.ops)

    def placement(self) -> Placement:
        """Return what the op asks of the shardings of its operands."""
        return Placement()

    def plan(self, rules: PlacementRules, times: int) -> None:
        """Choose the rule of placement that decides how the results are sharded.

        Args:
            rules: The planner, whose methods are the rules.
            times: How often the op runs in a step.
        """
        rules.place_by_name(self, times)

    def exchanges(self, shards: Shards) -> Sequence[Exchange] | None:
        """Return the collectives that the op makes itself; None to gather a dimension before.

        Args:
            shards: The number of shards of each dimension that is `exchanged`.
        """
        return ()

    def narrow(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], bodies: Sequence[Body]
    ) -> Self:
        """Return this op with some of its operands and results alone, which is not recorded.

        Args:
            inputs: The operands that are still read.
            outputs: The results that something depends on.
            bodies: What is left of each of `bodies`.
        """
        before = (self.inputs, self.outputs, self.bodies)
        if all(map(are_same, (inputs, outputs, bodies), before)):
            return self
        fields = dict(zip(self.body_fields(), bodies, strict=True))
        return self.rebuild(inputs=tuple(inputs), outputs=tuple(outputs), **fields)

    def read_by_result(self) -> Iterator[tuple[Tensor, Sequence[Tensor]]]:
        """Yield each result with the operands that it is made of."""
        read = self.read_operands if len(self.outputs) > 1 else None
        for i, tensor in enumerate(self.outputs):
            yield tensor, self.inputs if read is None else [self.inputs[j] for j in read[i]]

    @property
    def sensitive_operands(self) -> Sequence[Collection[int]] | None:
        """The operands that each result has a derivative in; None for all of them."""
        return self.read_operands

    def drop_operands(self, ignored: Collection[int]) -> Self:
        """Return this op without operands that none of its results is made of.

        Args:
            ignored: Their positions.
        """
        raise NotImplementedError

    def find_equal(self, known: Mapping[Tensor, Number]) -> Tensor | None:
        """Return a tensor that the only result equals, if there is one: an operand, or a constant.

        Args:
            known: Tensors that are one number everywhere.
        """
        return None

    def find_number(self, known: Mapping[Tensor, Number]) -> Number | None:
        """Return the number that every element of the only result is, if that is known.

        Args:
            known: Tensors that are one number everywhere.
        """
        numbers = {known.get(tensor) for tensor in self.inputs}
        if self.zero or (self.additive and numbers == {0}):
            return 0
        return numbers.pop() if self.copies and len(numbers) == 1 else None

    def fold(self, *arrays: Any) -> Any | None:
        """Return the only result as an array, computed by NumPy; None if that is not worth while.

        Args:
            *arrays: The operands, which are made of constants alone.
        """
        return None

    def find_rows(self, name: str, start: int, stop: int) -> tuple[Tensor, int] | None:
        """Return a tensor that has some rows of the only result, if fewer operands make them.

        Args:
            name: The dimension.
            start: The first row.
            stop: The row after the last.

        Returns:
            The tensor, and the number of its first row.
        """
        return None

    def rebuild(self, **changes: Any) -> Self:
        """Return a copy with some attributes changed, which is not recorded.

        Args:
            **changes: The new values, by attribute.
        """
        other = copy.copy(self)
        other._set(**changes)
        return other

    def body_fields(self) -> dict[str, Body]:
        """Return the fields that hold a Body, by name."""
        names = _option_names(type(self))
        return {name: value for name in names if isinstance(value := getattr(self, name), Body)}

    def map_bodies(self, function: Callable[[Body], Body]) -> Self:
        """Return this op with other bodies, which is not recorded; itself if they are the same.

        Args:
            function: What to make of each body.
        """
        if not self.bodies:
            return self
        before = self.body_fields()
        after = {name: function(body) for name, body in before.items()}
        return self if are_same(after.values(), before.values()) else self.rebuild(**after)

    def error(self, problem: str, *details: str, fix: str) -> NamedMeshError:
        """Return an error about this op, with the user's line.

        Args:
            problem: What is wrong, in one line.
            *details: The tensors and dimensions it is about, a line each.
            fix: What to do about it.
        """
        return NamedMeshError(f"{self.kind}: {problem}", *details, fix=fix, source=self.source)


def options_of(op: Op) -> dict[str, Any]:
    """Return what an op was made with besides its inputs, by field."""
    return {name: getattr(op, name) for name in _option_names(type(op))}


def _are_groups_of(count: int, groups: Any) -> bool:
    """Return whether a value is a tuple of groups of the positions of so many operands."""
    nested = isinstance(groups, tuple) and all(isinstance(group, tuple) for group in groups)
    return nested and all(i in range(count) for group in groups for i in group)


@cache
def _option_names(kind: type[Op]) -> tuple[str, ...]:
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
    # Outside, for the last inputs: variables made inside, by slices.
    stacked: tuple[Tensor, ...] = ()

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """Inputs, then captures: what a caller gives values for."""
        return (*self.inputs, *self.captures)

    def read_arguments(self) -> list[set[int]]:
        """Return the arguments that each output is made of."""
        made_of = {tensor: {i} for i, tensor in enumerate(self.arguments)}
        for op in self.ops:
            for tensor, operands in () if op.given else op.read_by_result():
                made_of[tensor] = {i for x in operands for i in made_of[x]}
        return [made_of[tensor] for tensor in self.outputs]

    def bind(self, tensors: Iterable[Tensor]) -> list[Op]:
        """Return ops like those of the arguments, through which some tensors become arguments."""
        given = next(op for op in self.ops if op.given)
        return [
            given.rebuild(
                outputs=(x,), shape=x.shape, dtype=x.dtype, source=x.source, identity=object()
            )
            for x in tensors
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
    gather_once: bool = False  # what it captures at rest is gathered before it, by rows or not

    @property
    def length(self) -> int:
        """The number of iterations; 1 if that is not known."""
        return 1 if self.over is None else self.over.size

    def reads_rows(self, i: int) -> bool:
        """Return whether an iteration reads a row of an operand."""
        return self.carries <= i < len(self.body.inputs)


class PlacementRules(Protocol):
    """The rules of placement that an op can choose from in `Op.plan`."""

    def place_by_name(self, op: Op, times: int) -> None:
        """Let operands agree on the dimension that each axis shards; results inherit it by name."""

    def place_pass_through(self, op: Op, times: int) -> None:
        """Leave every result where the operand is that it passes on."""

    def place_kernel(self, op: Op, times: int, parallel: Collection[str]) -> None:
        """Pass through, and offer the kernel if what it reads is sharded along `parallel` alone."""

    def place_move(
        self,
        op: Op,
        times: int,
        take: Sequence[str],
        give: Sequence[str],
        exact: Any = None,
    ) -> None:
        """Shard `take` over the axes of the layout, replicate `give`; or shard exactly so."""

    def place_sum(self, op: Op, times: int) -> None:
        """Add operands up where they are, then move the sum to where its primal is."""

    def place_loop(self, op: Op, times: int) -> None:
        """Plan the body of `op.loop`; carries keep the sharding that they start with."""

    def place_branches(self, op: Op, times: int) -> None:
        """Plan both bodies of a choice; results are sharded as the first body leaves them."""


class UnrolledLoop(Op):
    """A loop along a dimension whose iterations can be written out, all or in rounds."""

    body: Body
    over: Dimension
    carries: int  # so many first operands and results go from iteration to iteration
    reverse: bool  # starts at the end of the dimension

    @property
    def bodies(self) -> tuple[Body, ...]:
        return (self.body,)

    @property
    def histories(self) -> tuple[Tensor, ...]:
        return self.outputs[self.carries :]

    @property
    def unrolled(self) -> UnrolledLoop | None:
        return self if self.iterations else None

    def narrow(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], bodies: Sequence[Body]
    ) -> Self:
        shorter = super().narrow(inputs, outputs, bodies)
        carries = len({*outputs} & {*self.outputs[: self.carries]})
        return self if shorter is self else shorter.rebuild(carries=carries)

    @property
    @abstractmethod
    def iterations(self) -> Sequence[int]:
        """The iterations that are to be written out, in the order in which they run."""

    @property
    @abstractmethod
    def rounds(self) -> Dimension:
        """The dimension that it runs along where a round of iterations is written out."""

    @abstractmethod
    def take_iteration(self, x: Tensor, iteration: int) -> Tensor:
        """Return what an unrolled iteration reads of a tensor, or of a round's row of it."""

    @abstractmethod
    def join_iterations(self, values: Sequence[Tensor]) -> Tensor:
        """Stack what the iterations that are written out made, in the order of their numbers."""

    @abstractmethod
    def split_rounds(self, x: Tensor) -> Tensor:
        """Split the loop's dimension of a tensor into rounds and the iterations of a round."""

    @abstractmethod
    def join_rounds(self, x: Tensor) -> Tensor:
        """Undo `split_rounds`."""

    @abstractmethod
    def repeat_rounds(self, inputs: Sequence[Tensor], body: Body) -> UnrolledLoop:
        """Record the loop along `rounds` with another body and its operands."""


class OneOfSeveral(Op):
    """One of several functions, by whose name plans and errors call the op."""

    function: str

    @property
    def kind(self) -> str:
        return self.function


def vmap_error(op: Op, inputs: Sequence[Tensor], over: Dimension) -> NamedMeshError:
    """Make the error for an op that is not defined along another dimension."""
    return op.error(
        f"vmap over {over} does not know what {op.kind} is along another dimension",
        *map(str, inputs),
        fix="do this outside of the function, or give it the dimension by name",
    )


def with_dim(x: Tensor, over: Dimension, shape: Shape) -> Tensor:
    """Return a tensor with a dimension first, before those of a shape, also if it lacks it."""
    return x if over in x.shape else x.broadcast([over, *shape])


def are_same(some: Collection[object], others: Collection[object]) -> bool:
    """Return whether two collections have the same objects in the same order."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


def every_op(ops: Iterable[Op]) -> Iterator[Op]:
    """Yield every op, those of loop bodies and branches included."""
    for op in ops:
        yield op
        for body in op.bodies:
            yield from every_op(body.ops)


def describe_op(op: Op) -> Hashable:
    """Return all that an op's lowering may read of it: its class, options and tensors."""
    tensors = tuple((tensor.shape, tensor.dtype) for tensor in (*op.inputs, *op.outputs))
    return describe_options(op), len(op.inputs), tensors


def describe_options(op: Op) -> Hashable:
    """Return what an op computes of its inputs: its class and options."""
    return type(op), *map(describe, options_of(op).values())


def describe(value: Any) -> Hashable:
    """Return what tells an option apart: its contents, or the object itself."""
    if isinstance(value, (str, Dimension, Shape)) or value is None:
        return value
    if isinstance(value, (bool, int, float, complex)):
        return type(value), repr(value)
    if isinstance(value, (tuple, list)):
        return type(value), *map(describe, value)
    if isinstance(value, dict):
        return dict, *((describe(key), describe(one)) for key, one in value.items())
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return np.ndarray, value.dtype.str, value.shape, value.tobytes()
    return _Same(value)


@dataclasses.dataclass(frozen=True, eq=False)
class _Same:
    """An object that equals itself alone."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)
