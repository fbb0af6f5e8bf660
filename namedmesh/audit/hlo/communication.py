"""The collectives of a compiled module, in the terms of a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

from namedmesh.audit.hlo.array_types import ArrayType, TupleType, UnreadableHlo
from namedmesh.audit.hlo.element_types import count_bytes
from namedmesh.audit.hlo.groups import Groups
from namedmesh.audit.hlo.mesh_axes import Pairs, axes_of_groups, axes_of_pairs
from namedmesh.audit.hlo.module import Computation, Instruction, Module
from namedmesh.audit.hlo.opcodes import classify, custom_call_target
from namedmesh.audit.hlo.trip_counts import Runs, find_runs
from namedmesh.dims.mesh import Mesh
from namedmesh.records.collective import count_wire_bytes

# These communicate in no groups that a plan could have: with a host, or nobody knows with whom.
_WITHOUT_GROUPS = ("CustomCall", "Infeed", "Outfeed", "Recv", "Send")
# What must be there to be looked into, by the opcode that runs it.
_BODIES = {
    "while": ("body",),
    "conditional": ("branches",),
    "call": ("to_apply", "calls"),
    "fusion": ("calls",),
    "async-start": ("calls",),
}


@dataclass(frozen=True)
class CompiledCollective:
    """One tensor that compiled code communicates.

    Attributes:
        kind: The collective by the name a plan has for it, such as `AllReduce`.
        axes: The mesh axes along which it runs; None if its groups are not those of any axes.
        elements: The elements that one device sends or receives, whichever is more.
        dtype: The dtype they are sent in.
        op_name: The op it was compiled from, by the compiler's metadata.
        name: The name of its instruction, and what a custom call calls.
        times: How often it runs in one step; a loop of unknown length counts as one iteration.
        open_ended: Whether a loop of unknown length runs it.
        devices: How many devices communicate with each other.
        pairs: Sender and receiver of each shard that a CollectivePermute moves.
        combined: Whether its instruction communicates other tensors too, and may have the
            metadata of one of those.
        completes: Whether it sends a slice of what TPU's fused reduce-scatter leaves on a device;
            `op_name` is then the reduce-scatter's.
    """

    kind: str
    axes: tuple[str, ...] | None
    elements: int
    dtype: str
    op_name: str
    name: str
    times: int = 1
    open_ended: bool = False
    devices: int = 1
    pairs: Pairs | None = None
    combined: bool = False
    completes: bool = False

    @property
    def bytes(self) -> int:
        """The bytes of its elements."""
        return count_bytes(self.dtype, self.elements)

    @property
    def wire_bytes(self) -> int:
        """What one device sends each time, by the usual algorithm."""
        return count_wire_bytes(self.kind, self.bytes, self.devices)


def find_collectives(module: Module, mesh: Mesh) -> list[CompiledCollective]:
    """Find every collective of a module; of several tensors in one collective, each counts."""
    runs = find_runs(module)
    search = _Search(mesh)
    scattering = _find_scattering(module)
    collectives: list[CompiledCollective] = []
    for computation, instruction in module.instructions():
        try:
            _check_bodies(module, instruction)
            kind = classify(instruction)
            if kind is not None:
                # What nothing is known to run may run any number of times.
                often = runs.get(computation.name, Runs(1, open_ended=True))
                found = search.read(kind, computation, instruction, often)
                fusion = scattering.get(computation.name)
                if fusion is not None and kind == "AllReduce":
                    found = [
                        replace(one, kind="ReduceScatter", op_name=fusion.op_name) for one in found
                    ]
                if kind == "CollectivePermute" and not instruction.op_name:
                    source = _follow_slices(computation, instruction)
                    called = source.called.get("calls", ()) if source is not None else ()
                    if source is not None and any(name in scattering for name in called):
                        found = [
                            replace(one, op_name=source.op_name, completes=True) for one in found
                        ]
                collectives += found
        except UnreadableHlo as error:
            raise error.quoting(f"{instruction.name} = {instruction.opcode}(...)") from None
    return collectives


def _find_scattering(module: Module) -> dict[str, Instruction]:
    """Find TPU's form of a reduce-scatter: a fusion of an all-reduce and a slice, by its body."""
    return {
        name: instruction
        for _, instruction in module.instructions()
        if instruction.opcode == "fusion"
        for name in instruction.called.get("calls", ())
        if name.startswith("all-reduce-scatter")
    }


def _follow_slices(computation: Computation, instruction: Instruction) -> Instruction | None:
    """Follow what an instruction reads through slices, to what is sliced."""
    source = computation.instructions.get(instruction.operands[0])
    while source is not None and source.opcode == "slice":
        source = computation.instructions.get(source.operands[0])
    return source


class _Search:
    """What collectives share: the mesh, and the axes of groups that were met before."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.everybody: Groups = (tuple(range(mesh.devices)),)
        self.axes: dict[Groups | Pairs, tuple[str, ...] | None] = {}

    def read(
        self, kind: str, computation: Computation, instruction: Instruction, runs: Runs
    ) -> list[CompiledCollective]:
        """Every tensor that an instruction communicates."""
        axes, pairs = None, None
        devices = self.mesh.devices
        if kind == "CollectivePermute":
            if instruction.pairs is None:
                raise UnreadableHlo("a collective-permute has no source_target_pairs")
            pairs = frozenset(pair for pair in instruction.pairs if pair[0] != pair[1])
            axes = self.find_axes(pairs)
            devices = 2 if pairs else 1
        elif kind not in _WITHOUT_GROUPS:
            groups = instruction.groups or self.everybody
            axes, devices = self.find_axes(groups), len(groups[0])
        elif kind == "CustomCall" and devices == 1:
            axes = ()  # there is nobody to communicate with
        tensors = _tensors(kind, computation, instruction, devices)
        name = instruction.name
        if kind == "CustomCall":
            name = f"{name}, a call of {custom_call_target(instruction) or 'nothing'}"
        return [
            CompiledCollective(
                kind,
                axes,
                elements,
                dtype,
                instruction.op_name,
                name,
                runs.times,
                runs.open_ended,
                devices,
                pairs,
                len(tensors) > 1,
            )
            for dtype, elements in tensors
        ]

    def find_axes(self, key: Groups | Pairs) -> tuple[str, ...] | None:
        """The axes of groups or pairs, each found once."""
        if key not in self.axes:
            of = axes_of_pairs if isinstance(key, frozenset) else axes_of_groups
            self.axes[key] = of(key, self.mesh)  # type: ignore[operator]
        return self.axes[key]


def _check_bodies(module: Module, instruction: Instruction) -> None:
    """Raise if an instruction runs a computation that the module does not have."""
    for role in _BODIES.get(instruction.opcode, ()):
        for name in instruction.called.get(role, ()):
            if name not in module.computations:
                raise UnreadableHlo(f"the computation {name!r}, which may communicate, is missing")
    if instruction.opcode == "async-start" and not instruction.called.get("calls"):
        raise UnreadableHlo("an async-start names no computation, and may communicate")


def _tensors(
    kind: str, computation: Computation, instruction: Instruction, devices: int
) -> list[tuple[str, int]]:
    """Dtype and elements of each tensor a collective communicates, on its larger side."""
    arrays = [array for array in _results(instruction) if array.element.bits]
    if kind in ("Send", "Outfeed") or not arrays:
        types = computation.operand_types(instruction)
        arrays = [array for type in types for array in type.arrays if array.element.bits] or arrays
    tensors = [(array.element.dtype, array.elements) for array in arrays]
    if kind in ("Send", "Recv"):  # what follows are numbers that the two sides agree on
        tensors = tensors[:1]
    if kind == "ReduceScatter":
        tensors = [(dtype, elements * devices) for dtype, elements in tensors]
    if kind == "AllToAll" and len(tensors) == devices and len({*tensors}) == 1:
        # A tuple has one shard for each device of a group.
        tensors = [(tensors[0][0], tensors[0][1] * devices)]
    return tensors or [("token", 0)]


def _results(instruction: Instruction) -> tuple[ArrayType, ...]:
    """What a collective results in; the type of one that is started has its operands before."""
    type = instruction.type
    if not instruction.opcode.endswith("-start") or instruction.opcode == "all-reduce-start":
        return type.arrays
    if not isinstance(type, TupleType) or len(type.parts) < 2:
        raise UnreadableHlo(f"{instruction.opcode} does not have operands and results")
    return type.parts[1].arrays
