"""Move a state to another mesh, layout or dtype: planned box by box, done in bounded pieces."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from namedmesh.dims.mesh import Mesh
from namedmesh.display.text import columns, human, name_some
from namedmesh.errors.errors import NamedMeshError, check_count
from namedmesh.errors.mistakes import Explained
from namedmesh.errors.source import warn_caller
from namedmesh.processes.devices import device_mesh, order_by_host
from namedmesh.processes.watch import watch_step
from namedmesh.runtime import Artifact, Executable, State, TensorSpec
from namedmesh.runtime.compiling import named_sharding, report_failure
from namedmesh.runtime.digest import sum_shards, total_sums
from namedmesh.runtime.state import check_state
from namedmesh.training.saved_variables import SavedVariable, match_variables

MEMORY = 2**28  # bytes on each device, beside the states
DISK = -1  # in the place of the number of a device
_COPIES = 4  # of a piece on one device: cut out, received, cast, and what another round still has
_MOST_ROWS = 40
Bounds = tuple[tuple[int, int], ...]  # where a box begins and ends in each dimension
Places = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ShardGrid:
    """The shards of a variable: their sizes, and the place of that of each device in the grid."""

    shard: tuple[int, ...]
    devices: tuple[int, ...]
    places: Places

    @classmethod
    def of_spec(cls, spec: TensorSpec, mesh: Mesh) -> ShardGrid:
        """Return where a program has a variable; no devices are needed."""
        axes = dict(zip(mesh.axes, np.indices([*mesh.axes.values()]), strict=True))
        places = []
        for dim in spec.shape:
            place = np.zeros([*mesh.axes.values()], int)
            for axis in spec.sharding.axes(dim.name):
                place = place * mesh.axes[axis] + axes[axis]
            places.append(place.ravel().tolist())
        numbers = tuple(mesh.device_assignment or range(mesh.devices))
        shard = spec.sharding.local_sizes(spec.shape, mesh)
        return cls(shard, numbers, tuple(zip(*places, strict=True)) or ((),) * len(numbers))

    def offset(self, device: int, bounds: Bounds) -> np.ndarray:
        """Return where a box begins in the shard of a device."""
        place = self.places[self.devices.index(device)]
        spans = zip(bounds, place, self.shard, strict=True)
        return np.array([start - i * n for (start, _), i, n in spans], np.int32)

    def box(self, place: Sequence[int], sizes: Sequence[int]) -> Bounds:
        """Return the bounds of a shard, without padding."""
        spans = zip(place, self.shard, sizes, strict=True)
        return tuple((min(i * n, size), min(i * n + n, size)) for i, n, size in spans)


@dataclass(frozen=True)
class SentBox:
    """A box of a variable that a device sends to another, or has already.

    Attributes:
        source: The number of the device that has it; -1 for a checkpoint.
        target: The number of the device that gets it.
        bounds: Where the box begins and ends in each dimension of the variable.
        relayed: Whether the source has it from another move: it crosses between hosts once.

    Example:
        >>> from namedmesh.training import SentBox
        >>> SentBox(0, 1, ((0, 4), (2, 8))).elements
        24
    """

    source: int
    target: int
    bounds: Bounds
    relayed: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the box."""
        return tuple(stop - start for start, stop in self.bounds)

    @property
    def elements(self) -> int:
        """The number of elements of the box."""
        return math.prod(self.sizes)


@functools.lru_cache(1024)  # the layers of a model are all alike
def plan_moves(
    sizes: tuple[int, ...], source: ShardGrid, target: ShardGrid, hosts: tuple[int, ...]
) -> tuple[SentBox, ...]:
    """Plan who sends what: nothing that is there already, between hosts each box once."""
    owners: dict[tuple[int, ...], list[int]] = {}
    for device, place in zip(source.devices, source.places, strict=True):
        owners.setdefault(place, []).append(device)
    hosts = (*hosts, DISK)  # a checkpoint is a host of its own: DISK is the last index
    moves: list[SentBox] = []
    load: Counter[int] = Counter()
    leaders: dict[tuple[int, Bounds], int] = {}
    for device, place in zip(target.devices, target.places, strict=True):
        box = target.box(place, sizes)
        spans = zip(box, source.shard, strict=True)
        for other in itertools.product(*(range(a // n, -(-b // n)) for (a, b), n in spans)):
            pairs = zip(box, source.box(other, sizes), strict=True)
            part = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in pairs)
            if any(start >= stop for start, stop in part):
                continue
            key = (hosts[device], part)
            choices = [one for one in owners[other] if hosts[one] == hosts[device]]
            relayed = not choices and key in leaders
            if device in choices:
                choices = [device]
            elif relayed:
                choices = [leaders[key]]
            elif not choices:
                choices, leaders[key] = owners[other], device
            sender = min(choices, key=lambda one: (load[one], one))
            move = SentBox(sender, device, part, relayed)
            load[sender] += move.elements * (sender != device)
            moves.append(move)
    return tuple(moves)


@dataclass(frozen=True)
class Route:
    """The way of one variable: its placements and dtypes before and after, and its moves."""

    source: ShardGrid
    target: ShardGrid
    dtypes: tuple[str, str]
    texts: tuple[str, str]
    moves: tuple[SentBox, ...]

    @functools.cached_property
    def dtype(self) -> np.dtype:
        """The dtype on the way: the smaller one."""
        return min(map(jnp.dtype, self.dtypes), key=lambda one: one.itemsize)


class TransferPlan(Explained):
    """A plan of what each device sends to whom, before anything moves; call it with the state.

    Attributes:
        routes: By variable, its placements before and after and its moves.
        links: The bytes from each device to each other one, by the pair of their numbers; -1 is a
            checkpoint.
        memory: The bytes that a device needs at most beside the two states.

    Example:
        >>> import namedmesh as nm
        >>> (M,) = nm.dims("model=8")
        >>> use = lambda: nm.param("w", [M], nm.constant_init(1.0)) * 2
        >>> program = nm.trace(use)
        >>> plan = nm.transfer(nm.export(program, nm.Mesh(a=2), "model:a"),
        ...                    nm.export(program, nm.Mesh(a=1), ""))
        >>> plan.links
        Counter({(1, 0): 16})
    """

    def __init__(
        self,
        title: str,
        routes: Mapping[str, Route],
        hosts: Sequence[int],
        memory: int,
        programs: tuple[Artifact, Artifact] | None = None,
    ):
        self.title, self.routes, self.memory = title, dict(routes), memory
        self._programs = programs
        self._hosts = (*hosts, DISK)
        self.links: Counter[tuple[int, int]] = Counter()
        for route in self.routes.values():
            for move in route.moves:
                if move.source != move.target:
                    self.links[move.source, move.target] += move.elements * route.dtype.itemsize

    @property
    def bytes_moved(self) -> int:
        """The bytes that any device sends or that are read from a checkpoint."""
        return sum(self.links.values())

    @property
    def bytes_between_hosts(self) -> int:
        """The part of that which goes from one host to another, or is read from a checkpoint."""
        return sum(n for pair, n in self.links.items() if self._kind(*pair) == 2)

    @property
    def peak_bytes(self) -> int:
        """The most that a device has at once: both states, and what is on its way."""
        held: Counter[int] = Counter()
        for route in self.routes.values():
            for place, dtype in zip((route.source, route.target), route.dtypes, strict=True):
                size = math.prod(place.shard) * jnp.dtype(dtype).itemsize
                held.update(dict.fromkeys(place.devices, size))
        held.pop(DISK, None)
        return max(held.values(), default=0) + self.memory

    def _kind(self, source: int, target: int) -> int:
        """Return 0 for what stays on its device, 1 within a host, 2 between hosts."""
        return int(source != target) + int(self._hosts[source] != self._hosts[target])

    def __str__(self) -> str:
        disk = any(DISK in pair for pair in self.links)
        head = ("stays", "within hosts", "read" if disk else "between hosts")
        rows, totals = [], [0, 0, 0]
        for name, route in self.routes.items():
            amounts = [0, 0, 0]
            for move in route.moves:
                size = move.elements * route.dtype.itemsize
                amounts[self._kind(move.source, move.target)] += size
            totals = [a + b for a, b in zip(totals, amounts, strict=True)]
            rows.append((name, *route.texts, *map(human, amounts)))
        shown = [("variable", "from", "to", *head), *rows[:_MOST_ROWS]]
        lines = [self.title, *columns(shown)]
        lines += [f"  and {len(rows) - _MOST_ROWS} more"] * (len(rows) > _MOST_ROWS)
        kinds = ", ".join(
            f"{human(n)} {what}" for n, what in zip(totals[1:], head[1:], strict=True)
        )
        lines.append(f"total: {kinds}; {human(totals[0])} there already")
        if self.links:
            (source, target), size = self.links.most_common(1)[0]
            place = "the checkpoint" if source == DISK else f"device {source}"
            lines.append(f"busiest of {len(self.links)} links: {human(size)}, {place} to {target}")
        lines.append(
            f"memory: at most {human(self.peak_bytes)} on a device, both states and "
            f"{human(self.memory)} for what is on its way"
        )
        return "\n".join(lines)

    __repr__ = __str__

    def __call__(self, state: State, *, donate: bool = False, verify: bool = True) -> State:
        """Move a state by the plan; every process must call it.

        Args:
            state: The state, as the plan has it before.
            donate: Delete each variable of the state as soon as it has been moved.
            verify: Compare digests before and after, which reads both states on the host, and warn
                of finite values that the target's dtype does not have.

        Returns:
            The state of the target.

        Raises:
            NamedMeshError: If the state is not the one that was planned for, or arrives changed;
                a `LostProcess` if another process is gone.
        """
        if self._programs is None:
            fix = "call checkpoints.restore(program), which reads by this plan"
            raise NamedMeshError("this plan reads a checkpoint, and moves no state", fix=fix)
        source, target = self._programs
        known = {spec.name: spec for spec in source.variables}
        before, mesh = device_mesh(source.mesh), device_mesh(target.mesh)
        check_state(source, known, state, functools.partial(named_sharding, before))
        fix = "see what jax says above; if it comes again, test the devices and links"
        advice = fix, "give nm.transfer a smaller memory=, or the plan donate=True"
        with (
            report_failure("the transfer failed on its devices", *advice),
            watch_step("the transfer"),
        ):
            return self._move(state, mesh, donate, verify)

    def _move(self, state: State, mesh: Any, donate: bool, verify: bool) -> State:
        """Move a state to the devices of a mesh."""
        assert self._programs is not None
        target = self._programs[1]
        specs = target.variables
        mover, sums, arrays = _Mover(self.memory), dict[str, Any](), {}
        overflowed = []
        for spec in specs:
            array, route = state.arrays[spec.name], self.routes[spec.name]
            if verify:
                with np.errstate(over="ignore"):
                    sums[f"{spec.name} before"] = sum_shards(array, spec.sizes, spec.dtype)
                if _overflows(array, spec.dtype):
                    overflowed.append(spec.name)
            own = {mover.numbers[shard.device]: shard.data for shard in array.addressable_shards}
            parts = mover.move(own, route)
            if donate:
                own.clear()
                array.delete()
            sharding, padded = named_sharding(mesh, spec), spec.padded(target.mesh)
            made = jax.make_array_from_single_device_arrays(padded, sharding, [*parts.values()])
            arrays[spec.name] = made
            if verify:
                sums[f"{spec.name} after"] = sum_shards(made, spec.sizes)
        if overflowed:
            warn_caller(
                f"{name_some(overflowed)} had finite values that the target's dtype does not have; "
                "they are inf or nan now"
            )
        if verify:
            totals = total_sums("the transfer", sums)
            names = (spec.name for spec in specs)
            wrong = [one for one in names if totals[f"{one} before"] != totals[f"{one} after"]]
            if wrong:
                raise NamedMeshError(
                    f"{name_some(wrong)} did not arrive as they were sent",
                    fix="transfer the state again; if it comes again, test the devices and links",
                )
        return State(arrays, {spec.name: spec for spec in specs})


def _overflows(array: jax.Array, dtype: str) -> bool:
    """Return whether a cast to a dtype makes a finite value infinite or NaN."""
    if array.dtype == dtype:
        return False
    for shard in array.addressable_shards:
        values = np.asarray(shard.data)
        with np.errstate(over="ignore"):
            cast = values.astype(jnp.dtype(dtype))
        if (np.isfinite(values) & ~np.isfinite(cast)).any():
            return True
    return False


class _Mover:
    """Boxes on their way between the devices of all processes."""

    def __init__(self, memory: int):
        self.devices = order_by_host(jax.devices())
        self.numbers = {device: i for i, device in enumerate(self.devices)}
        self._own = {
            i for i, one in enumerate(self.devices) if one.process_index == jax.process_index()
        }
        self._memory, self._under_way = memory, 0

    def move(self, own: Mapping[int, jax.Array], route: Route) -> dict[int, jax.Array]:
        """Move one variable; return the shards that the devices of this process get."""
        dtype, way = jnp.dtype(route.dtypes[1]), route.dtype
        parts = {
            number: jnp.zeros(route.target.shard, dtype, device=self.devices[number])
            for number in self._own.intersection(route.target.devices)
        }

        def cut(move: SentBox) -> jax.Array:
            held, place = (parts, route.target) if move.relayed else (own, route.source)
            shard = held[move.source]
            if move.sizes == shard.shape and shard.dtype == way and move.source != move.target:
                return shard  # is copied on its way
            return _cut(shard, place.offset(move.source, move.bounds), move.sizes, way)

        def write(move: SentBox, values: jax.Array) -> None:
            corner = route.target.offset(move.target, move.bounds)
            parts[move.target] = _write(parts[move.target], values, corner)
            self._under_way += _COPIES * values.nbytes
            if self._under_way + _COPIES * values.nbytes > self._memory:
                jax.block_until_ready([*parts.values()])
                self._under_way = 0

        most = max(1, self._memory // (2 * _COPIES * way.itemsize))
        for relayed in (False, True):
            moves = (one for one in route.moves if one.relayed == relayed)
            pieces = [piece for one in moves for piece in _cut_up(one, most)]
            far = [one for one in pieces if self._is_far(one)]
            for piece in pieces:
                if piece.target in self._own and not self._is_far(piece):
                    values = cut(piece)
                    write(piece, jax.device_put(values, self.devices[piece.target]))
            for together in _rounds(far):
                self._exchange(together, cut, write, way)
        jax.block_until_ready([*parts.values()])
        return parts

    def _is_far(self, move: SentBox) -> bool:
        """Return whether a move goes from one process to another."""
        source, target = self.devices[move.source], self.devices[move.target]
        return source.process_index != target.process_index

    def _exchange(self, moves: Sequence[SentBox], cut: Any, write: Any, dtype: Any) -> None:
        """Send boxes of equal sizes from devices to devices; all processes take part."""
        sizes = moves[0].sizes
        sent = {one.source: one for one in moves}
        operands = [
            cut(sent[number])[None]
            if number in sent
            else jnp.zeros((1, *sizes), dtype, device=self.devices[number])
            for number in sorted(self._own)
        ]
        mesh = jax.sharding.Mesh(np.array(self.devices), ("all",))
        whole = jax.make_array_from_single_device_arrays(
            (len(self.devices), *sizes), jax.NamedSharding(mesh, PartitionSpec("all")), operands
        )
        received = _permute(whole, mesh, tuple((one.source, one.target) for one in moves))
        jax.block_until_ready(received)  # on CPUs, no second collective may wait for this one
        arrived = {self.numbers[shard.device]: shard.data for shard in received.addressable_shards}
        for one in moves:
            if one.target in self._own:
                write(one, arrived[one.target][0])


@functools.partial(jax.jit, static_argnums=(2, 3))
def _cut(shard: jax.Array, corner: Any, sizes: tuple[int, ...], dtype: Any) -> jax.Array:
    """Copy a box of a shard, cast."""
    return jax.lax.dynamic_slice(shard, list(corner), sizes).astype(dtype)


@functools.partial(jax.jit, donate_argnums=0)
def _write(shard: jax.Array, values: jax.Array, corner: Any) -> jax.Array:
    """Write a box of a shard, in place."""
    return jax.lax.dynamic_update_slice(shard, values.astype(shard.dtype), list(corner))


@functools.partial(jax.jit, static_argnums=(1, 2))
def _permute(values: jax.Array, mesh: Any, pairs: tuple[tuple[int, int], ...]) -> jax.Array:
    """Send each device's values to another device."""
    send = functools.partial(jax.lax.ppermute, axis_name="all", perm=pairs)
    spec = PartitionSpec("all")
    return jax.shard_map(send, mesh=mesh, in_specs=spec, out_specs=spec)(values)


def _cut_up(move: SentBox, most: int) -> Iterator[SentBox]:
    """Cut a box into pieces of at most so many elements, along its first dimensions."""
    if move.elements <= most:
        yield move
        return
    axis = next(i for i, (a, b) in enumerate(move.bounds) if b - a > 1)
    first, last = move.bounds[axis]
    rows = max(1, (last - first) * most // move.elements)
    for start in range(first, last, rows):
        span = ((start, min(start + rows, last)),)
        bounds = (*move.bounds[:axis], *span, *move.bounds[axis + 1 :])
        yield from _cut_up(SentBox(move.source, move.target, bounds, move.relayed), most)


def _rounds(moves: Sequence[SentBox]) -> Iterator[list[SentBox]]:
    """Group moves of equal sizes so that in each group a device sends once and receives once."""
    while moves:
        together: dict[int, SentBox] = {}
        receivers, left = set[int](), list[SentBox]()
        for one in moves:
            busy = one.source in together or one.target in receivers
            if busy or one.sizes != moves[0].sizes:
                left.append(one)
            else:
                together[one.source] = one
                receivers.add(one.target)
        yield [*together.values()]
        moves = left


def transfer(
    source: Executable | Artifact,
    target: Executable | Artifact,
    *,
    cast: bool = False,
    memory: int = MEMORY,
) -> TransferPlan:
    """Plan to move a state to another mesh, layout or dtype, as from a trainer to a sampler.

    Each device of the target gets what it does not have yet, and each box crosses between hosts
    once. Then `plan(state)` does it: between the devices of a process directly, between processes
    by CollectivePermutes, in pieces, so that nothing is whole anywhere unless the target has it so.

    Args:
        source: The program that the state belongs to. Planning with Artifacts needs no devices.
        target: The program that is to get it; the variables that it does not have stay behind.
        cast: Convert other floating-point dtypes to those of the target; sent is the smaller one.
        memory: The bytes that each device may use for this beside both states.

    Returns:
        The plan, which can be printed.

    Raises:
        NamedMeshError: If variables are missing or have another size or dtype; it lists all.

    Example:
        >>> import namedmesh as nm
        >>> (M,) = nm.dims("model=8")
        >>> use = lambda: nm.param("w", [M], nm.constant_init(1.0)) * 2
        >>> trainer = nm.compile(use, mesh=nm.Mesh(data=1))
        >>> sampler = nm.compile(use, mesh=nm.Mesh(all=1), layout="model:all")
        >>> plan = nm.transfer(trainer, sampler)
        >>> plan.bytes_moved
        0
        >>> plan(trainer.init())["w"].shape
        (8,)
    """
    for one in (source, target):
        if not isinstance(one, Executable | Artifact):
            problem = f"transfer was given a {type(one).__name__}"
            fix = "give two steps or Artifacts, and the plan a state: transfer(step, other)(state)"
            raise NamedMeshError(problem, fix=fix)
    memory = check_count(memory, "memory", least=1)
    start = source.artifact if isinstance(source, Executable) else source
    end = target.artifact if isinstance(target, Executable) else target
    given, specs = ({one.name: one for one in each.variables} for each in (start, end))
    saved = {
        name: SavedVariable(one.sizes, one.dtype, tuple(one.shape.names))
        for name, one in given.items()
    }
    fix = "give programs whose variables agree" + ("" if cast else "; cast=True converts dtypes")
    match_variables(f"the state of {start.name}", saved, specs, cast=cast, fix=fix)
    planned = isinstance(source, Artifact) and isinstance(target, Artifact)
    hosts = find_hosts([start.mesh, end.mesh], planned)
    routes = {}
    for name, spec in specs.items():
        before = given[name]
        grid = ShardGrid.of_spec(before, start.mesh)
        routes[name] = make_route(spec, end.mesh, grid, hosts, before.dtype, before.sharded_text)
    title = f"transfer from {start.mesh} to {end.mesh}"
    return TransferPlan(title, routes, hosts, memory, (start, end))


def make_route(
    spec: TensorSpec, mesh: Mesh, source: ShardGrid, hosts: tuple[int, ...], dtype: str, text: str
) -> Route:
    """Plan the moves of one variable."""
    target = ShardGrid.of_spec(spec, mesh)
    moves = plan_moves(spec.sizes, source, target, hosts)
    return Route(source, target, (dtype, spec.dtype), (text, spec.sharded_text), moves)


def find_hosts(meshes: Sequence[Mesh], planned: bool) -> tuple[int, ...]:
    """Return the host of each device: its process, or as the meshes say."""
    if not planned and jax.process_count() > 1:
        return tuple(one.process_index for one in order_by_host(jax.devices()))
    count = max(mesh.devices for mesh in meshes)
    inside = min((one.devices // one.hosts for one in meshes if one.hosts > 1), default=count)
    return tuple(i // inside for i in range(count))
