"""The data of a page: a plan, its cost, its audit and its differences as lists of numbers."""

from __future__ import annotations

import functools
import os
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from namedmesh.audit.audit import Audit
from namedmesh.cost.cost import Cost
from namedmesh.diff.diff import Diff
from namedmesh.dims.mesh import Mesh
from namedmesh.dims.sharding import Sharding
from namedmesh.errors.source import Source, read_lines
from namedmesh.hardware.hardware import Hardware
from namedmesh.ir.op import Op
from namedmesh.ir.tensor import Tensor
from namedmesh.planning.plan import Plan
from namedmesh.records.collective import ALL_PHASES, PHASES, Collective
from namedmesh.schedule.timeline import Timeline

Value = TypeVar("Value", bound=Hashable)


class Interned(dict[Value, int]):
    """Distinct values, each with its position."""

    def add(self, value: Value) -> int:
        """Return the position of a value, which is entered if it is new."""
        return self.setdefault(value, len(self))


class SourceFiles:
    """The files of a plan, in the order in which its ops mention them."""

    def __init__(self) -> None:
        self._paths: Interned[str] = Interned()
        self._layers: set[str] = set()

    def add(self, source: Source) -> int:
        """Return the number of the file that a line is in."""
        if source.of_a_layer:
            self._layers.add(source.file)
        return self._paths.add(source.file)

    def to_json(self) -> list[dict[str, Any]]:
        """Return each file's name, whether it is a layer's, and its lines."""
        paths = [*self._paths]
        return [
            {
                "name": shorten_path(path, paths),
                "layer": path in self._layers,
                "lines": [line.rstrip("\n") for line in read_lines(path)],
            }
            for path in paths
        ]


def shorten_path(path: str, paths: Iterable[str]) -> str:
    """Return the last parts of a path that no other path ends with."""
    parts = path.split(os.sep)
    others = [other.split(os.sep) for other in paths if other != path]
    for count in range(1, len(parts)):
        if all(other[-count:] != parts[-count:] for other in others):
            return "/".join(parts[-count:])
    return path


Columns = dict[str, list[Any]]


# The columns of the tables.
OP = ("name", "kind", "scope", "phase", "line", "user", "loop", "inputs", "outputs")
TENSOR = (
    "label", "place", "natural", "bytes", "padding", "primal", "origin", "listed", "free", "op",
)  # fmt: skip
COLLECTIVE = (
    "kind", "axes", "bytes", "wire", "times", "open", "dtype", "tensor", "scope", "phase", "line",
    "op", "producer", "hop", "host", "slice",
)  # fmt: skip
OP_COST = ("op", "times", "flops", "bytes", "seconds", "bound")


class PageData:
    """The tables of one plan or compiled step, as columns of equal length."""

    def __init__(self, mesh: Mesh) -> None:
        # A row's number is how other tables refer to it. Numbers in text columns are positions in
        # `texts`, in place columns positions in `places`. A place is a dtype, a list of dimensions
        # (name, size, axes) and the axes of partial sums; axes are positions in the mesh.
        self.mesh = mesh
        self.cost: dict[str, Any] = {}  # on some hardware
        self.timeline: Timeline | None = None
        self.texts: Interned[str] = Interned()
        self.files = SourceFiles()
        self.places: Interned[Any] = Interned()
        self._axes = {axis: i for i, axis in enumerate(mesh.axes)}

    def line(self, source: Source) -> list[int]:
        """Return a line as the number of its file and its own."""
        return [self.files.add(source), source.line]

    def axis_numbers(self, axes: Iterable[str]) -> tuple[int, ...]:
        """Return the places of axes in the mesh; those that it does not have are left out."""
        return tuple(self._axes[axis] for axis in axes if axis in self._axes)

    def collective_row(
        self, one: Collective, phase: str, op: int = -1, producer: int = -1
    ) -> tuple[Any, ...]:
        """Return the row of a collective that an op has for what another one makes."""
        return (
            self.texts.add(one.kind),
            list(self.axis_numbers(one.axes)),
            one.bytes,
            one.wire_bytes,
            one.times,
            int(one.open_ended),
            self.texts.add(one.dtype),
            self.texts.add(one.tensor),
            self.texts.add(one.scope.strip("/")),
            ALL_PHASES.index(phase),
            self.line(one.source),
            op,
            producer,
            self.texts.add(one.hop.direction if one.hop else ""),
            one.host_bytes,
            one.slice_bytes,
        )

    def find_tensor(self, label: str, place: str) -> int:
        """Find a tensor by its name and its place."""
        return self.by_place.get((label, place), -1)

    @functools.cached_property
    def by_place(self) -> dict[tuple[str, str], int]:
        """The first tensor of each label and place."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Return all tables."""
        raise NotImplementedError

    def finish(self, **tables: Any) -> dict[str, Any]:
        """Return tables with what they refer to."""
        return {
            "axes": [[name, size] for name, size in self.mesh.axes.items()],
            "devices": list(self.mesh.device_assignment or ()),
            "blocks": self.mesh.blocks,
            "phases": list(ALL_PHASES),
            **tables,
            "cost": self.cost,
            "places": [_place_to_json(place) for place in self.places],
            "files": self.files.to_json(),
            "texts": [*self.texts],
        }


class PlanData(PageData):
    """The tables of one plan."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.mesh)
        self.plan = plan
        nested = list(_every_op_with_loop(plan.program.ops))
        self.ops = {op: i for i, (op, _) in enumerate(nested)}
        self._loops = [-1 if loop is None else self.ops[loop] for _, loop in nested]
        outputs = (tensor for op in self.ops for tensor in op.outputs)
        self.tensors = {tensor: i for i, tensor in enumerate(outputs)}
        names = plan.placements.names
        self._op_numbers = {names[op]: i for op, i in self.ops.items() if op in names}

    def to_json(self) -> dict[str, Any]:
        """Return all tables."""
        plan = self.plan
        data = {
            "program": plan.program.name,
            "layout": plan.layout.text,
            "params": plan.params.text if plan.params != plan.layout else "",
            "notes": plan.notes,
            "recomputed": sum(plan.recomputed.values()),
            "warnings": list(plan.warnings),
            "decisions": [
                [text, list(dict.fromkeys(names))] for text, names in sorted(plan.decisions.items())
            ],
            "weights": sum(one.shape.elements for one in plan.program.parameters.values()),
            "weight_bytes": sum(
                plan.bytes_per_device(one.tensor) for one in plan.program.parameters.values()
            ),
            "flops": [plan.program.flops(phase) / plan.mesh.devices for phase in PHASES],
            "ops": self._op_columns(),
            "tensors": self._tensor_columns(),
            "moves": self._moves(),
            "collectives": self._collective_columns(),
        }
        return self.finish(**data)

    @functools.cached_property
    def by_place(self) -> dict[tuple[str, str], int]:
        """The first tensor of each label and place."""
        found: dict[tuple[str, str], int] = {}
        for tensor, i in self.tensors.items():
            sharding = self.plan.shardings.get(tensor, Sharding())
            place = f"{tensor.dtype}{sharding.text(tensor.shape)}"
            found.setdefault((tensor.label, place), i)
        return found

    def _op_columns(self) -> Columns:
        """Tabulate ops: source line, enclosing loop, inputs and outputs."""
        rows = [
            (
                self.texts.add(self.plan.placements.names.get(op, op.kind)),
                self.texts.add(op.kind),
                self.texts.add(op.scope.strip("/")),
                ALL_PHASES.index(op.phase),
                self.line(op.source),
                self.line(op.source.user),
                loop,
                [self.tensors[one] for one in op.inputs],
                [self.tensors[one] for one in op.outputs],
            )
            for op, loop in zip(self.ops, self._loops, strict=True)
        ]
        return make_columns(OP, rows)

    def _tensor_columns(self) -> Columns:
        """Tabulate tensors: place, bytes on a device, primal and origin."""
        plan = self.plan
        rows = []
        for op, number in self.ops.items():
            for tensor in op.outputs:
                planned = tensor in plan.shardings
                sharding = plan.shardings.get(tensor, Sharding())
                # The same that tensor_rows leaves out: scalars and a derivative's inner values.
                inner = op.derived and tensor.primal is None
                row = (
                    self.texts.add(tensor.label),
                    self._place(tensor, sharding),
                    self._place(tensor, plan.placements.natural.get(tensor, sharding)),
                    plan.bytes_per_device(tensor) if planned else 0,
                    round(sharding.waste(tensor.shape, plan.mesh), 4),
                    self._tensor_number(tensor.primal),
                    self._tensor_number(tensor.origin),
                    int(planned and bool(len(tensor.shape)) and not inner),
                    int(not planned or tensor in plan.placements.constants),
                    number,
                )
                rows.append(row)
        return make_columns(TENSOR, rows)

    def _tensor_number(self, tensor: Tensor | None) -> int:
        """Return the number of another tensor; -1 for none."""
        return -1 if tensor is None else self.tensors.get(tensor, -1)

    def _place(self, tensor: Tensor, sharding: Sharding) -> int:
        """Return the number of a tensor's place."""
        axes = {dim.name: self.axis_numbers(sharding.axes(dim.name)) for dim in tensor.shape}
        dims = tuple((dim.name, dim.size, axes[dim.name]) for dim in tensor.shape)
        return self.places.add((tensor.dtype, dims, self.axis_numbers(sharding.partial)))

    def _moves(self) -> list[list[Any]]:
        """List the moves of tensors: tensor, the op it is moved for, kind, axes, new place."""
        moves = []  # one right after a tensor is made has its own op
        for tensor, steps in self.plan.placements.moves.items():
            if tensor in self.tensors and tensor in self.plan.placements.producers:
                reader = self.plan.placements.producers[tensor]
                moves += [self._move(tensor, reader, step) for step in steps]
        for (op, i), steps in self.plan.placements.operand_moves.items():
            if op in self.ops:
                moves += [self._move(op.inputs[i], op, step) for step in steps]
        return moves

    def _move(self, tensor: Tensor, reader: Op, step: Any) -> list[Any]:
        return [
            self.tensors[tensor],
            self.ops[reader],
            self.texts.add(step.kind),
            list(self.axis_numbers(step.axes)),
            self._place(tensor, step.result),
        ]

    def _collective_columns(self) -> Columns:
        """Tabulate the collectives of a step, then those of initialisation, in order."""
        step = [(one, one.phase, one.op, one.producer) for one in self.plan.collectives]
        first = [(one, "init", "", "") for one in self.plan.initial_collectives]
        rows = [
            self.collective_row(
                one, phase, self._op_numbers.get(op, -1), self._op_numbers.get(producer, -1)
            )
            for one, phase, op, producer in [*step, *first]
        ]
        return make_columns(COLLECTIVE, rows)


def make_columns(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Columns:
    """Turn rows into columns, which take less space as they name every column once."""
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}


def _every_op_with_loop(ops: Iterable[Op], loop: Op | None = None) -> Iterator[tuple[Op, Any]]:
    """Yield every op with the loop or branch that it is in, if it is in one."""
    for op in ops:
        yield op, loop
        for body in op.bodies:
            yield from _every_op_with_loop(body.ops, op)


def _place_to_json(place: Any) -> list[Any]:
    """Return a place with lists for tuples, as it is read back."""
    dtype, dims, partial = place
    return [dtype, [[name, size, list(axes)] for name, size, axes in dims], list(partial)]


def describe_hardware(hardware: Hardware) -> dict[str, Any]:
    """Describe one device."""
    fastest = sorted(hardware.flops.items(), key=lambda one: -one[1])
    return {
        "target": str(hardware.name),
        "rates": [[dtype, rate] for dtype, rate in fastest],
        "bandwidth": hardware.memory_bandwidth,
        "capacity": hardware.memory_bytes,
    }


def describe_cost(cost: Cost, data: PlanData) -> dict[str, Any]:
    """Describe an estimate by the numbers that a page has for ops, texts and lines."""
    ops = [
        (data.ops[one.op], one.times, one.flops, one.bytes, one.seconds, int(one.bound == "memory"))
        for one in cost.ops
    ]
    return {
        **describe_hardware(cost.hardware.divide(cost.plan.mesh.devices)),
        "seconds": cost.seconds,
        "least": cost.least_seconds,
        "serial": cost.serial_seconds,
        "ops": make_columns(OP_COST, ops),
        "collectives": [one.seconds for one in cost.collectives],
        "memory": _describe_memory(cost, data),
    }


def _describe_memory(cost: Cost, data: PlanData) -> dict[str, Any]:
    """Describe the memory of a device while each op runs, and its tensors at the peak."""
    memory = cost.memory
    return {
        "estimated": memory.estimated,
        "peak": memory.peak_bytes,
        "at": memory.at,
        "kept": memory.kept_bytes,
        "timeline": {
            "op": [data.texts.add(name) for name, _ in memory.timeline],
            "bytes": [size for _, size in memory.timeline],
        },
        "alive": [
            {
                "line": data.line(one.source),
                "tensor": data.find_tensor(one.label, one.place),
                **_pick(one, "label", "bytes", "place"),
            }
            for one in memory.alive
        ],
    }


def describe_audit(audit: Audit, collectives: Sequence[Collective]) -> dict[str, Any]:
    """Describe the outcome of each collective of a plan."""
    # An audit is about collectives as an Artifact's manifest has them, without folders.
    outcomes = defaultdict(deque)
    for planned, status, text in _outcomes(audit):
        outcomes[planned.without_folder()].append((status, text))
    statuses = []
    for one in collectives:
        waiting = outcomes[one.without_folder()]
        statuses.append(list(waiting.popleft()) if waiting else ["", ""])
    return {
        "exact": audit.exact,
        "statuses": statuses,
        "notes": audit.notes,
        "unplanned": [
            {
                "axes": list(one.axes or ()),
                "origin": one.op_name or one.name,
                **_pick(one, "kind", "elements", "dtype", "bytes", "times"),
            }
            for one in audit.unplanned
        ],
    }


def _outcomes(audit: Audit) -> Iterator[tuple[Collective, str, str]]:
    """Yield every planned collective with its outcome."""
    for planned, compiled in audit.matched:
        text = f"{compiled.kind} of {compiled.elements:,} {compiled.dtype} elements"
        yield planned, "made", text
    for planned in audit.merged:
        yield planned, "merged", "made as a part of another collective"
    for difference in audit.differences:
        yield difference.planned, "different", str(difference)
    for planned in audit.missing:
        yield planned, "missing", "the compiled code does not have it"


def describe_differences(found: Diff, before: PageData, after: PageData) -> dict[str, Any]:
    """Describe added, removed and changed rows, by the numbers that a page has for tensors."""

    def pairs(rows: Any) -> list[tuple[Any, Any]]:
        went, came = ((one, None) for one in rows.went), ((None, one) for one in rows.came)
        return [*rows.changed, *went, *came]

    def number(data: PageData, row: Any) -> int | None:
        return row and data.find_tensor(row.tensor, row.place)

    tensors, collectives = pairs(found.tensors), pairs(found.collectives)
    alike = Counter((number(before, old), number(after, new)) for old, new in tensors)
    return {
        "tensors": [[old, new, count] for (old, new), count in alike.items()],
        "equal_tensors": found.tensors.equal,
        "collectives": [[_describe(old), _describe(new)] for old, new in collectives],
        "equal_collectives": found.collectives.equal,
    }


def _describe(one: Collective | None) -> dict[str, Any] | None:
    """Describe a collective of one plan."""
    if one is None:
        return None
    names = ("kind", "tensor", "phase", "scope", "times")
    return {"axes": list(one.axes), "sent": one.total_wire_bytes, **_pick(one, *names)}


def _pick(record: Any, *names: str) -> dict[str, Any]:
    """Return some fields of a record."""
    return {name: getattr(record, name) for name in names}
