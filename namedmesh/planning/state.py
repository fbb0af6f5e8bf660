"""State: what is known of a program before it is planned, and what planning has decided so far."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from namedmesh.dims.sharding import Sharding, Transfer
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.op import Op, every_op
from namedmesh.ir.program import Program
from namedmesh.ir.tensor import Tensor
from namedmesh.records.collective import Collective

# An axis that shards a dimension of a tensor only because the layout maps the one to the other.
Default: TypeAlias = tuple[Tensor, str, str]
Placed: TypeAlias = tuple[object, Sharding]  # a value, by its key, in one of its places


@dataclass(frozen=True, eq=False)
class Uses:
    """The producer and the readers of each tensor of a program, known before planning."""

    names: Mapping[Op, str]  # what ops are called, in compiled code too
    producers: Mapping[Tensor, Op]
    readers: Mapping[Tensor, Sequence[Op]]
    binders: Mapping[Tensor, Op]  # the loop or branch that binds an argument of its body
    returners: Mapping[Tensor, tuple[Op, int]]  # that whose body returns it, and as which result
    returned: Mapping[Tensor, int]  # how often a tensor is a result of a body or the program
    final: frozenset[Tensor]  # results of the program itself
    primals: frozenset[Tensor]  # of cotangents

    @classmethod
    def of_program(cls, program: Program, label: str) -> Uses:
        """Index a program; the label is put before the name of every op."""
        if not label and program in _INDEXED:
            return _INDEXED[program]
        names: dict[Op, str] = {}
        producers: dict[Tensor, Op] = {}
        readers: dict[Tensor, list[Op]] = defaultdict(list)
        binders: dict[Tensor, Op] = {}
        returners: dict[Tensor, tuple[Op, int]] = {}
        results = [*program.outputs, *program.updates.values()]
        final, primals = frozenset(results), set[Tensor]()
        for op in every_op(program.ops):
            names[op] = f"{spell_in_ascii(label + op.kind)}.{len(names)}"
            primals.update(tensor.primal for tensor in op.outputs if tensor.primal is not None)
            producers.update(dict.fromkeys(op.outputs, op))
            for tensor in op.inputs:
                readers[tensor].append(op)
            for body in op.bodies:
                results += body.outputs
                returners.update((x, (op, i)) for i, x in enumerate(body.outputs))
                binders.update(dict.fromkeys(body.arguments, op))
        returned = Counter(results)
        used = names, producers, dict(readers), binders, returners, returned, final
        uses = cls(*used, frozenset(primals))
        if not label:
            _INDEXED[program] = uses
        return uses

    def count_uses(self, tensor: Tensor) -> int:
        """Count how often a tensor is read, or is a result of a body or the program."""
        return len(self.readers.get(tensor, ())) + self.returned.get(tensor, 0)

    def sole_reader(self, tensor: Tensor) -> Op | None:
        """Return the only op that reads a tensor that nothing else uses."""
        readers = self.readers.get(tensor, ())
        return readers[0] if len(readers) == 1 and tensor not in self.returned else None

    def is_offered(self, tensor: Tensor) -> bool:
        """Return whether nothing reads a tensor but kernels that a backend may not have."""

        def offers(op: Op) -> bool:
            at = [i for i, x in enumerate(op.inputs) if x is tensor]
            if op.offers_kernel:
                return at[0] >= len(op.outputs)
            bodies = (zip(body.captures, body.captured, strict=True) for body in op.bodies)
            inner = [one for pairs in bodies for one, outer in pairs if outer is tensor]
            return len(inner) == len(at) and all(map(self.is_offered, inner))

        return tensor not in self.returned and all(map(offers, self.readers.get(tensor, ())))

    def is_stored(self, tensor: Tensor) -> bool:
        """Return whether a tensor, or what is made of it by element, is a result of a body."""
        pending, seen = [tensor], {tensor}
        while pending:
            one = pending.pop()
            if one in self.returned:
                return True
            made = [op.output for op in self.readers.get(one, ()) if op.elementwise]
            pending += [result for result in made if result not in seen]
            seen.update(made)
        return False

    def is_summand(self, tensor: Tensor) -> bool:
        """Return whether a tensor is one of several terms of a cotangent, and nothing else."""
        reader = self.sole_reader(tensor)
        return reader is not None and reader.adds_operands and len(reader.inputs) > 1

    def shrinks_later(self, tensor: Tensor) -> bool:
        """Return whether partial sums of a tensor are fewer bytes after what its readers make."""
        return self._count_late_bytes(tensor, 0) < tensor.shape.elements * tensor.itemsize

    def _count_late_bytes(self, tensor: Tensor, depth: int) -> int:
        """Return the bytes of partial sums where they are fewest: here, or after all readers."""
        here, later = tensor.shape.elements * tensor.itemsize, 0
        results = self.pass_sums(tensor) if depth < 32 else None
        for result in results or ():
            later += self._count_late_bytes(result, depth + 1) if later < here else 0
        return min(here, later) if results else here

    def pass_sums(self, tensor: Tensor) -> list[Tensor] | None:
        """Return what all readers make of partial sums of a tensor; None if one needs the sum."""
        results: list[Tensor] = []
        for reader in self.readers.get(tensor, ()):
            i = next(i for i, x in enumerate(reader.inputs) if x is tensor)
            by_rule = reader.inherits_sharding or (reader.adds_operands and len(reader.inputs) == 1)
            linear = (i,) in reader.linear_in and reader.late_sums and by_rule
            if reader.passes_through:  # its derivative reads the other operands
                results += reader.outputs[i : i + 1]
            elif (linear or reader.states_place) and not reader.same_value:
                results.append(reader.output)
            else:
                return None
        if tensor in self.returned:
            rows = self._find_rows(tensor)
            if not rows:
                return None
            results += rows
        fits = all(x.shape.elements <= tensor.shape.elements for x in results)
        return results if fits else None

    def _find_rows(self, tensor: Tensor) -> list[Tensor]:
        """Return what loops read of the history of a tensor, row by row; [] if it is read whole."""
        op, i = self.returners.get(tensor, (None, 0))
        loop = None if op is None else op.loop
        if op is None or loop is None or loop.over is None or i < loop.carries:
            return []
        history, rows = op.outputs[i], list[Tensor]()
        for reader in self.readers.get(history, ()):
            (i,) = (i for i, x in enumerate(reader.inputs) if x is history)
            if reader.loop is None or reader.loop.over is None or not reader.loop.reads_rows(i):
                return []
            rows.append(reader.loop.body.arguments[i])
        return [] if self.returned[tensor] > 1 or history in self.returned else rows

    def find_term(self, tensor: Tensor) -> Tensor | None:
        """Return a term of a cotangent that a tensor becomes behind a cast, and nothing else."""
        reader = self.sole_reader(tensor)
        if reader is None or not reader.same_value or not self.is_summand(reader.output):
            return None
        return reader.output


# Searches plan a program hundreds of times, under as many layouts.
_INDEXED: WeakKeyDictionary[Program, Uses] = WeakKeyDictionary()


def spell_in_ascii(name: str) -> str:
    """Spell other letters by their numbers: TensorFlow's scopes and XLA's metadata are ASCII."""
    return "".join(letter if letter.isascii() else f"u{ord(letter):x}" for letter in name)


class Pipeline(NamedTuple):
    """The parts of an iteration that run beside the one before it, or the one after."""

    # What is gathered an iteration ahead: its reader, the tensor and its moves, by value and place.
    gathers: Mapping[Placed, tuple[Op, Tensor, Sequence[Transfer]]]
    sums: Sequence[Tensor]  # gradients that are added up an iteration late
    late: Sequence[Op]  # what is then made of them
    results: Sequence[int]  # results of the body that are therefore late


NO_PIPELINE = Pipeline({}, (), (), ())


@dataclass(eq=False)
class Placements:
    """The shardings and moves of a plan, in the detail that lowering and costs need."""

    names: Mapping[Op, str]
    producers: Mapping[Tensor, Op]
    shardings: dict[Tensor, Sharding] = field(default_factory=dict)  # as readers find a tensor
    natural: dict[Tensor, Sharding] = field(default_factory=dict)  # as its op makes it ...
    moves: dict[Tensor, list[Transfer]] = field(default_factory=dict)  # ... and from there
    # Moves for one reader, by op and position; of a body or the program, by position of a result.
    operand_moves: dict[tuple[Any, int], list[Transfer]] = field(default_factory=dict)
    result_moves: dict[tuple[Any, int], list[Transfer]] = field(default_factory=dict)
    # Moves of what a loop captures, made once before it: by the tensor inside and the sharding in
    # which its body reads it, the operand's position and the steps.
    captured_moves: dict[Op, dict[tuple[Tensor, Sharding], tuple[int, list[Transfer]]]] = field(
        default_factory=dict
    )
    # Operands of a sum: those that are sharded alike are added up first, then moved together.
    sum_groups: dict[Op, list[tuple[tuple[int, ...], list[Transfer]]]] = field(default_factory=dict)
    sum_owners: dict[Tensor, Op] = field(default_factory=dict)  # the op that left partial sums
    local_ops: set[Op] = field(default_factory=set)  # run on each device's own shard
    pipelines: dict[Op, Pipeline] = field(default_factory=dict)  # by loop
    gathered_before: set[Op] = field(default_factory=set)  # barriers whose operand is moved for all
    # Tensors made of constants alone, which every reader makes where it needs them; each with the
    # same tensor outside of the loop that captures it.
    constants: dict[Tensor, Tensor] = field(default_factory=dict)
    constant_uses: dict[tuple[object, int], Sharding] = field(default_factory=dict)

    def value_of(self, tensor: Tensor) -> object:
        """Return a key that is the same for tensors of equal value, which are moved once."""
        *_, tensor = self.equal_tensors(tensor)
        producer = self.producers.get(tensor)
        if producer is None or not producer.same_value:
            return tensor
        return (producer.inputs[0], tensor.dtype)  # casts of one tensor to one dtype are equal

    def equal_tensors(self, tensor: Tensor) -> Iterator[Tensor]:
        """Yield a tensor, and those whose value it has: the one term of a sum, what is gathered."""
        yield tensor
        producer = self.producers.get(tensor)
        while producer is not None and (
            (producer.adds_operands and len(producer.inputs) == 1)
            or producer in self.gathered_before
            or self.is_gathered_by(producer)
        ):
            (tensor,) = producer.inputs
            yield tensor
            producer = self.producers.get(tensor)

    def is_gathered_by(self, op: Op) -> bool:
        """Return whether an op that states a place only gathers: what it read is still there."""
        if not op.states_place or op.inputs[0] in self.constants:
            return False
        before, steps = self.shardings.get(op.inputs[0]), self.operand_moves.get((op, 0), ())
        gathers = all(step.kind == "AllGather" for step in steps)
        return before is not None and not before.partial and gathers

    def count_shared_moves(
        self, tensor: Tensor, steps: Sequence[Transfer], moved: Container[Placed]
    ) -> int:
        """Count the first steps of a tensor's moves that were made for other readers."""
        value = self.value_of(tensor)
        begin = self.shardings.get(self.first_equal(tensor))  # it still is where it was made
        places = enumerate((step.result for step in steps), 1)
        return max((i for i, to in places if to == begin or (value, to) in moved), default=0)

    def first_equal(self, tensor: Tensor) -> Tensor:
        """Return the tensor that was made, which sums of one term pass on."""
        for one in self.equal_tensors(tensor):
            tensor = one
            if self.producers.get(one) in self.gathered_before:
                break
        return tensor

    def held_between(self, op: Op) -> list[tuple[Tensor, Sharding]]:
        """Return what a loop holds from one iteration to the next beside its carries."""
        gathers, sums, *_ = self.pipelines.get(op, NO_PIPELINE)
        ahead = [(tensor, place) for (_, place), (_, tensor, _) in gathers.items()]
        return [*ahead, *((tensor, self.natural[tensor]) for tensor in sums)]

    def moves_for(self, owner: object, i: int) -> Sequence[Transfer]:
        """Return the moves of an op's operand, or of a result of a body or the program."""
        return self.operand_moves.get((owner, i)) or self.result_moves.get((owner, i), ())

    def sharding_for(self, owner: object, i: int, tensor: Tensor) -> Sharding:
        """Return the sharding in which an op reads, or a body or the program returns, a tensor."""
        if tensor in self.constants:
            return self.constant_uses.get((owner, i), self.shardings[tensor])
        steps = self.moves_for(owner, i)
        return steps[-1].result if steps else self.shardings[tensor]

    def operand_sharding(self, op: Op, i: int) -> Sharding:
        """Return the sharding in which an op reads an operand."""
        return self.sharding_for(op, i, op.inputs[i])


class Capture(NamedTuple):
    """A tensor that a loop gives its body unchanged."""

    loop: Op
    operand: int
    times: int  # how often the loop itself runs
    open_loops: int  # loops of unknown length around it


@dataclass(eq=False)
class PlanState(Placements):
    """Placements in the making, and what planning tracks besides."""

    resting: set[Tensor] = field(default_factory=set)  # sharded by the params layout
    zeros: set[Tensor] = field(default_factory=set)  # constants that are zero everywhere
    # Sums that a loop carries: an accumulator's sharding is that of the first addend, and not
    # known until then; a running sum is an accumulator and other terms.
    accumulators: set[Tensor] = field(default_factory=set)
    running_sums: set[Tensor] = field(default_factory=set)
    # Whether a term, a gradient of some tensor, is only added up further on.
    accumulated: dict[tuple[Tensor, Tensor | None], bool] = field(default_factory=dict)
    sum_names: dict[Tensor, str] = field(default_factory=dict)  # of what partial sums make up
    captures: dict[Tensor, Capture] = field(default_factory=dict)
    invariant: dict[Tensor, int] = field(default_factory=dict)  # in a loop; how often it changes
    open_loops: int = 0  # loops of unknown length around what is being planned
    moved: set[Placed] = field(default_factory=set)
    places: dict[object, list[Sharding]] = field(default_factory=lambda: defaultdict(list))
    in_slices: set[Op] = field(default_factory=set)  # one tensor of which goes round the devices
    # Of what was moved and is not read there yet: where it came from, and the collectives.
    unread: dict[Placed, tuple[Placed, Sequence[Collective]]] = field(default_factory=dict)
    collectives: list[Collective] = field(default_factory=list)
    decisions: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    yielding: dict[Default, str] = field(default_factory=dict)  # for the next pass
    conflict: NamedMeshError | None = None  # the first, where it is an error
    solved: list[frozenset[str]] = field(default_factory=list)  # conflicts, by their dimensions

    def placements(self) -> Placements:
        """Return what remains when the plan is made."""
        return Placements(**{one.name: getattr(self, one.name) for one in fields(Placements)})

    def find_capture(self, tensor: Tensor) -> Tensor | None:
        """Return the tensor, or one of equal value, that the loop around it captures."""
        # The cotangent of a sum that a loop adds to is the same in every iteration.
        return next((one for one in self.equal_tensors(tensor) if one in self.captures), None)

    @contextmanager
    def in_open_loops(self, number: int) -> Iterator[None]:
        """Plan what is planned inside as part of some loops of unknown length."""
        before, self.open_loops = self.open_loops, number
        yield
        self.open_loops = before

    def note_move(self, place: Placed, source: Placed, made: Sequence[Collective]) -> None:
        """Note a value that was moved, where it came from, and the collectives of the move."""
        self.moved.add(place)
        self.places[place[0]].append(place[1])
        self.unread[place] = source, made

    def read(self, tensor: Tensor, sharding: Sharding) -> None:
        """Note that something reads a tensor where it is, and so what brings it there."""
        place = self.value_of(tensor), sharding
        while place in self.unread:
            place, _ = self.unread.pop(place)

    def drop_unread(self) -> None:
        """Leave out moves to where nothing reads a value: XLA does not make them."""
        unread = {id(one) for _, made in self.unread.values() for one in made}
        self.collectives = [one for one in self.collectives if id(one) not in unread]
        for moves in self.captured_moves.values():
            for place in moves.keys() & self.unread.keys():
                del moves[place]

    def add_group(self, op: Op, members: Iterable[int], steps: list[Transfer]) -> None:
        """Note operands of a sum that are added up first, and the moves of what they make."""
        self.sum_groups.setdefault(op, []).append((tuple(members), steps))

    def bind_constant(self, argument: Tensor, outer: Tensor) -> bool:
        """Let a body make a constant that it captures for itself; False if it is not one."""
        if outer in self.constants:
            self.constants[argument] = self.constants[outer]
            self.shardings[argument] = self.shardings[outer]
            if outer in self.zeros:
                self.zeros.add(argument)
        return outer in self.constants

    def name_sum(self, tensor: Tensor, owner: Op, addends: Iterable[Tensor]) -> None:
        """Note the op and the name of the sum that partial sums belong to."""
        pending = [x for x in addends if self.is_pending(x)]
        owners = (self.sum_owners[x] for x in pending if x in self.sum_owners)
        # What the backward pass makes of a sum of the forward pass is a sum of its own.
        phases = ("forward", "backward")
        alike = (one for one in owners if (one.phase, owner.phase) != phases)
        self.sum_owners.setdefault(tensor, next(alike, owner))
        names = [self.sum_names[x] for x in pending if x in self.sum_names]
        if tensor.name is not None or tensor.primal is not None:
            self.sum_names.setdefault(tensor, names[0] if names else tensor.label)
        elif names:
            self.sum_names[tensor] = names[0]

    def pass_sum(self, inner: Tensor, outer: Tensor) -> None:
        """Note that partial sums of a body are those of a loop's or branch's result."""
        if inner in self.sum_owners:
            self.sum_owners[outer] = self.sum_owners[inner]
            if inner in self.sum_names and outer.name is None and outer.primal is None:
                self.sum_names[outer] = self.sum_names[inner]

    def close_accumulator(self, tensor: Tensor, sharding: Sharding) -> None:
        """Give a sum that a loop carries its sharding."""
        self.accumulators.remove(tensor)
        self.shardings[tensor] = sharding

    def close_accumulators(self, op: Op) -> None:
        """Give accumulators that an op adds to the sharding of the sum."""
        for tensor in self.accumulators.intersection(op.inputs):
            self.close_accumulator(tensor, self.shardings[op.output])

    def is_pending(self, tensor: Tensor) -> bool:
        """Return whether a tensor is made of partial sums that are still to be added up."""
        sharding = self.shardings.get(tensor)
        return tensor in self.accumulators or (sharding is not None and bool(sharding.partial))

    def pending_axes(self, tensor: Tensor) -> tuple[str, ...]:
        """Return the axes along which devices have partial sums of a tensor."""
        sharding = self.shardings.get(tensor)
        return () if sharding is None or tensor in self.constants else sharding.partial

    def decide(self, text: str, tensor: Tensor) -> None:
        """Note a decision that nothing in the program states, and a tensor it was made for."""
        self.decisions[text].append(tensor.label)
