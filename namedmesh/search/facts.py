"""Facts that a search reads off a program once, before it plans anything."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import networkx as nx

from namedmesh.cost.cost import Cost
from namedmesh.ir.op import Op, every_op
from namedmesh.ir.program import Program, every_op_with_times
from namedmesh.ir.tensor import Tensor

Role = frozenset[str]  # the dimensions that one axis splits
Roles = tuple[Role, ...]  # those of each axis of a mesh
LEAST_SHARE = 0.01  # of the work or the state: below it, splitting a dimension is of no use
MOST_WORK = 0.5  # the share of the work from which on a dimension of no input counts


@dataclass(frozen=True)
class Work:
    """Ops that can be split along the same dimensions, with their seconds on one device."""

    dims: frozenset[str]
    renamed: frozenset[str]  # other names of these dimensions: ops fused into others may have those
    seconds: float


@dataclass(frozen=True)
class Stored:
    """Bytes that a step keeps, with the dimensions along which they can be split."""

    dims: frozenset[str]
    bytes: int
    at_rest: bool = False  # sharded by the params layout


@dataclass(frozen=True)
class SplitSum:
    """A sum over some dimensions: devices that split those, and no kept one, have partial sums."""

    summed: frozenset[str]
    kept: frozenset[str]  # dimensions of the result
    firm: frozenset[str]  # those of the result that every operand but parameters has
    bytes: int  # sent: the result, or the operand that could be gathered instead
    count: int  # of collectives
    gradient: bool  # of a parameter


@dataclass(frozen=True)
class Moved:
    """A tensor that the program moves, how often, and the dimensions that take their axes."""

    dims: frozenset[str]
    taken: frozenset[str]
    bytes: int
    count: int


@dataclass(frozen=True)
class ProgramFacts:
    """The facts of a program."""

    program: Program
    dims: tuple[str, ...]  # worth splitting, in the program's order
    looped: tuple[str, ...]  # of inputs and stacks that loops go along: of use outside of them
    sizes: dict[str, int]  # of every dimension, the size on which the most time is spent
    largest: dict[str, int]  # of every dimension, the largest size
    axes: tuple[str, ...]  # that the program itself names: every mesh has them
    resting: tuple[str, ...]  # to split parameters at rest along, the most bytes first
    sharing: frozenset[frozenset[str]]  # pairs of dimensions that may share an axis
    work: tuple[Work, ...]
    state: tuple[Stored, ...]  # inputs, parameters and slots
    parameters: tuple[Stored, ...]
    histories: tuple[Stored, ...]  # stored by loops for the backward pass
    sums: tuple[SplitSum, ...]
    moves: tuple[Moved, ...]  # by nm.reshard

    @cached_property
    def ranked(self) -> list[str]:
        """Dimensions in the order of a layout: those of the fewest parameters first."""
        # If two dimensions of a parameter are mapped to one axis, the first gets it: `hidden`, say,
        # and not `model`, which all parameters and the inputs have.
        given = {name for tensor in self.program.inputs.values() for name in tensor.shape.names}
        ranks = {
            name: (sum(one.bytes for one in self.parameters if name in one.dims), name in given)
            for name in self.largest
        }
        return sorted(ranks, key=ranks.__getitem__)


def find_facts(cost: Cost) -> ProgramFacts:
    """Read the facts of a program off its cost on one device."""
    program = cost.plan.program
    work = _find_work(cost)
    state = _find_state(program)
    loops = {op.loop.over.name for op in every_op(program.ops) if op.loop and op.loop.over}
    parameters = _merge(
        Stored(frozenset(one.shape.names) - loops - one.whole, _bytes(one.tensor), True)
        for one in program.parameters.values()
    )
    every = _find_useful_dims(program, work, state)
    useful = tuple(name for name in every if name not in loops)
    given = {name for tensor in program.inputs.values() for name in tensor.shape.names}
    looped = tuple(name for name in every if name in loops & {*given, *program.resting_dims})
    histories = (Stored(frozenset(one.shape.names), _bytes(one)) for one in program.histories)
    resting, sharing = _rank_resting(program, useful, state), _find_sharing(program, useful)
    kept = (work, state, parameters, _merge(histories))
    sums, moves = _find_sums(program, parameters), _find_moves(program)
    sizes = _find_sizes(cost), {name: several[-1] for name, several in program.dims.items()}
    axes = find_stated_axes(program)
    return ProgramFacts(program, useful, looped, *sizes, axes, resting, sharing, *kept, sums, moves)


def find_stated_axes(program: Program) -> tuple[str, ...]:
    """Find the mesh axes that a program names itself."""
    axes = (axis for op in every_op(program.ops) for axis in op.stated_axes)
    return tuple(dict.fromkeys(axes))


def _bytes(tensor: Tensor) -> int:
    """Return the bytes of a whole tensor."""
    return tensor.shape.elements * tensor.itemsize


def _split_dims(op: Op) -> frozenset[str]:
    """Return the dimensions along which an op can be split."""
    dims = (dim for tensor in (*op.inputs, *op.outputs) for dim in tensor.shape)
    return frozenset(dim.name for dim in dims if dim.size > 1) - op.placement().whole


def _find_work(cost: Cost) -> tuple[Work, ...]:
    """Add up the seconds of ops that have the same dimensions."""
    seconds: dict[frozenset[str], float] = defaultdict(float)
    for one in cost.ops:
        seconds[_split_dims(one.op)] += one.total_seconds
    alike = nx.Graph(_find_renames(cost.plan.program))
    return tuple(Work(dims, _find_renamed(alike, dims), total) for dims, total in seconds.items())


def _find_renames(program: Program) -> set[tuple[str, str]]:
    """Find dimensions that the program renames to others of their size."""
    return {
        (old, new)
        for op in every_op(program.ops)
        for old, new in op.placement().renames.items()
        if op.inputs[0].shape.size_of(old) == op.outputs[0].shape.size_of(new)
    }


def _find_renamed(alike: nx.Graph, dims: frozenset[str]) -> frozenset[str]:
    """Find the other names of some dimensions."""
    known = [dim for dim in dims if dim in alike]
    return frozenset().union(*(nx.node_connected_component(alike, dim) for dim in known)) - dims


def _find_sizes(cost: Cost) -> dict[str, int]:
    """Find the size of each dimension that counts: inside of ops it may have others."""
    # The halves of an associative scan, say, or a concatenation with one element more.
    seconds: dict[str, dict[int, float]] = {}
    for one in cost.ops:
        for dim in {dim for tensor in (*one.op.inputs, *one.op.outputs) for dim in tensor.shape}:
            by_size = seconds.setdefault(dim.name, {})
            by_size[dim.size] = by_size.get(dim.size, 0.0) + one.total_seconds
    known = {name: max(by_size, key=by_size.__getitem__) for name, by_size in seconds.items()}
    return {name: known.get(name, sizes[-1]) for name, sizes in cost.plan.program.dims.items()}


def _merge(rows: Iterator[Stored]) -> tuple[Stored, ...]:
    """Add up the bytes of rows with the same dimensions."""
    total: dict[tuple[frozenset[str], bool], int] = defaultdict(int)
    for row in rows:
        total[row.dims, row.at_rest] += row.bytes
    return tuple(Stored(dims, size, rests) for (dims, rests), size in total.items())


def _find_state(program: Program) -> tuple[Stored, ...]:
    """Find inputs, parameters and slots, which a device holds throughout."""
    given = [(program.inputs[name], spec.whole, False) for name, spec in program.specs.items()]
    state = [(one.tensor, one.whole, one.at_rest) for one in program.variables.values()]
    return _merge(
        Stored(frozenset(tensor.shape.names) - whole, _bytes(tensor), at_rest)
        for tensor, whole, at_rest in (*given, *state)
    )


def _find_useful_dims(
    program: Program, work: Sequence[Work], state: Sequence[Stored]
) -> tuple[str, ...]:
    """Find the dimensions along which a share of the work or the state can be split."""
    # Dimensions that only inner ops have, such as the pairs of a rotation, are left out, unless
    # most ops have them: the samples that are drawn of a prompt, say.
    seconds = sum(one.seconds for one in work) or 1.0
    size = sum(one.bytes for one in state) or 1
    known = _find_outer_dims(program)
    useful = []
    for name, sizes in program.dims.items():
        worked = sum(one.seconds for one in work if name in one.dims) / seconds
        kept = sum(one.bytes for one in state if name in one.dims) / size
        least = LEAST_SHARE if name in known else MOST_WORK
        if sizes[-1] > 1 and max(worked, kept) >= least:
            useful.append(name)
    return tuple(useful)


def _find_outer_dims(program: Program) -> set[str]:
    """Find the dimensions of inputs and variables, and those that others are renamed to."""
    tensors = [*program.inputs.values(), *(one.tensor for one in program.variables.values())]
    known = {name for tensor in tensors for name in tensor.shape.names}
    renames = _find_renames(program)
    while more := {new for old, new in renames if old in known} - known:
        known |= more
    return known


def _rank_resting(
    program: Program, useful: tuple[str, ...], state: tuple[Stored, ...]
) -> tuple[str, ...]:
    """Rank dimensions of parameters by the bytes that splitting them at rest would split."""
    covered = {
        name: sum(one.bytes for one in state if one.at_rest and name in one.dims)
        for name in useful
        if name in program.resting_dims
    }
    return tuple(sorted(covered, key=lambda name: -covered[name]))


def _find_sharing(program: Program, useful: tuple[str, ...]) -> frozenset[frozenset[str]]:
    """Find pairs of dimensions that may be sharded over one axis."""
    # Pairs that at most parameters and their gradients have: there one dimension takes the axis.
    # And pairs that the program moves axes between: it reshards to both, or makes one of them
    # whole before the other takes its axis.
    weights, gradients = _find_weights(program)
    together: set[frozenset[str]] = set()
    taken: set[str] = set()
    given: set[str] = set()
    for op in every_op(program.ops):
        for tensor in op.outputs if op.phase != "update" else ():
            if tensor not in weights and tensor not in gradients:
                names = [dim.name for dim in tensor.shape if dim.size > 1 and dim.name in useful]
                together.update(map(frozenset, combinations(names, 2)))
        taken.update(op.taken_dims)
        given.update(op.given_dims)
    pairs = map(frozenset, combinations(useful, 2))
    return frozenset(
        pair for pair in pairs if pair not in together or pair <= taken or pair & given
    )


def _is_gradient(tensor: Tensor, weights: set[Tensor]) -> bool:
    """Return True for the cotangent of a weight, or of a recomputed copy."""
    primal = tensor.primal
    while primal is not None and primal not in weights:
        primal = primal.origin
    return primal is not None


def _find_weights(program: Program) -> tuple[set[Tensor], set[Tensor]]:
    """Find variables and what is computed from them alone, and the same of gradients."""
    weights = {one.tensor for one in program.variables.values()}
    gradients: set[Tensor] = set()

    def follow(ops: Iterable[Op]) -> None:
        for op in ops:
            loop = op.loop if op.loop and op.loop.over else None
            if loop is not None:
                for known in (weights, gradients):
                    pairs = zip(op.inputs, loop.body.arguments, strict=True)
                    known.update(inner for outer, inner in pairs if outer in known)
            for body in op.bodies:
                follow(body.ops)
            if loop is not None:
                pairs = zip(loop.body.outputs, op.outputs, strict=True)
                gradients.update(outer for inner, outer in pairs if inner in gradients)
            ranked = [x for x in op.inputs if len(x.shape)]
            if not ranked or op.bodies:
                continue
            if all(x in weights for x in ranked):
                weights.update(op.outputs)
            elif _is_gradient(op.outputs[0], weights) or all(
                x in weights or x in gradients for x in ranked
            ):
                gradients.update(op.outputs)

    follow(program.ops)
    return weights, gradients


def _find_sums(program: Program, parameters: Iterable[Stored]) -> tuple[SplitSum, ...]:
    """Find the sums that leave partial sums where devices split the summed dimensions."""
    # A gradient is sent once, however many iterations of a loop add to it.
    weights, _ = _find_weights(program)
    total: dict[tuple[frozenset[str], frozenset[str], frozenset[str]], tuple[int, int]] = {}
    gradients: dict[frozenset[str], tuple[frozenset[str], frozenset[str], int, int]] = {}
    for op, times in every_op_with_times(program.ops):
        summed = op.placement().reduced
        if not summed:
            continue
        result = op.outputs[0]
        kept = frozenset(result.shape.names)
        operands = [x for x in op.inputs if x not in weights]
        firm = kept.intersection(*(x.shape.names for x in operands))
        if _is_gradient(result, weights):
            first = frozenset(), kept, result.itemsize, 0
            before, shared, width, count = gradients.get(kept, first)
            width = min(width, result.itemsize)
            gradients[kept] = before | (summed - kept), shared & firm, width, count + times
        elif kept:
            size = min([_bytes(result), *map(_bytes, operands)])
            key = summed - kept, kept, firm
            sent, count = total.get(key, (0, 0))
            total[key] = sent + size * times, count + times
    sums = [SplitSum(*dims, *sent, False) for dims, sent in total.items()]
    for one in parameters:
        if one.dims in gradients:
            summed, firm, width, count = gradients[one.dims]
            sums.append(SplitSum(summed, one.dims, firm, one.bytes * width // 4, count, True))
    return tuple(sums)


def _find_moves(program: Program) -> tuple[Moved, ...]:
    """Find tensors whose axes the program moves, with the dimensions that take them."""
    moves = []
    for op, times in every_op_with_times(program.ops):
        if op.taken_dims:
            x, taken = op.inputs[0], frozenset(op.taken_dims)
            moves.append(Moved(frozenset(x.shape.names), taken, _bytes(x) * times, times))
    return tuple(moves)
