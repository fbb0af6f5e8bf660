"""The collectives of a compiled module, in the terms of a plan."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from namedmesh.audit.hlo.array_types import ArrayType, TupleType, UnreadableHlo, count_bytes
from namedmesh.audit.hlo.groups import (
    Groups,
    Pairs,
    axes_of_groups,
    axes_of_pairs,
    order_of_groups,
)
from namedmesh.audit.hlo.module import Computation, Instruction, Module, has_results_alone
from namedmesh.audit.hlo.origins import (
    HloValue,
    LoopSum,
    Readers,
    added_as,
    array_dtype,
    count_spread,
    find_addends,
    find_growths,
    find_loop_sum,
    find_padding,
    find_parts,
    is_rounded,
    name_of_maker,
)
from namedmesh.audit.hlo.trip_counts import SAME_VALUE, Runs, find_callees, find_runs
from namedmesh.dims.mesh import Mesh
from namedmesh.records.collective import KINDS, ORDERED, REDUCING, count_wire_bytes

# Opcodes that communicate with other devices or the host, with the name a plan has for them.
COMMUNICATING = {
    opcode: opcode.title().replace("-", "")
    for opcode in (
        "all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute",
        "collective-reduce", "infeed", "outfeed", "ragged-all-to-all", "recv", "reduce-scatter",
        "send",
    )
}  # fmt: skip
# All other opcodes of XLA. One that is in neither list is an error: it may communicate.
_LOCAL = frozenset(
    """
    abs acos acosh add add-dependency after-all and asin asinh async atan atan2 atanh
    batch-norm-grad batch-norm-inference batch-norm-training bitcast bitcast-convert broadcast call
    cbrt ceil cholesky clamp compare complex concatenate conditional constant convert convolution
    copy cosh cosine count-leading-zeros divide domain dot dynamic-reshape dynamic-slice
    dynamic-update-slice erf exponential exponential-minus-one fft floor fusion gather
    get-dimension-size get-tuple-element imag iota is-finite log log-plus-one logistic map maximum
    minimum mulhi multiply negate not opt-barrier or pad parameter partition-id popcnt power
    ragged-dot real reduce reduce-precision reduce-window remainder replica-id reshape reverse rng
    rng-bit-generator rng-get-and-update-state round-nearest-afz round-nearest-even rsqrt scaled-dot
    scan scatter select select-and-scatter set-dimension-size shift-left shift-right-arithmetic
    shift-right-logical shuffle sign sine sinh slice sort sqrt stochastic-convert subtract tan tanh
    topk transpose triangular-solve tuple while xor
    """.split()  # noqa: SIM905 (as a literal it would take a line for each)
)
# Attributes that only communication has.
_TELLING = ("replica_groups", "source_target_pairs")
# Targets of custom calls that work on one device: linear algebra, sorting, random bits, layouts,
# and callbacks to the host's own process. A target that is not here counts as communication.
_LOCAL_TARGETS = frozenset(
    """
    AllocateBuffer ApproxTopK AsyncCollectiveDone AsyncCollectiveStart
    AssumeGatherIndicesInBound Cholesky ConcatBitcast Eigh
    GatherScatterIndicesBitpacked
    LayoutConstraint LuDecomposition MoveToDevice MoveToHost PadToStatic PartialReduce
    ProductOfElementaryHouseholderReflectors Qr Sharding SliceId SliceToDynamic SPMDFullToShardShape
    SPMDShardToFullShape TopK X64Combine X64SplitHigh X64SplitLow ZeroCrop annotate_device_placement
    dynamic_ducc_fft ducc_fft xla_buffer_python_cpu_callback
    xla_ffi_partitioned_python_cpu_callback xla_ffi_python_cpu_callback
    xla_ffi_python_gpu_callback xla_python_cpu_callback xla_python_gpu_callback
    """.split()  # noqa: SIM905
)
_LOCAL_TARGET_PREFIXES = (
    "__cub$", "__cublas$", "__cudnn$", "__cusolver$", "__gpu$", "__onednn$",
    "__xla_cpu_runtime_", "blas_", "cu_threefry2x32", "cublas_", "cusolver_",
    "hip_threefry2x32", "hipblas_", "hipsolver_", "lapack_",
)  # fmt: skip
_MOSAIC = "tpu_custom_call"
# These communicate without replica groups: with the host, or with unknown devices.
_WITHOUT_GROUPS = ("CustomCall", "Infeed", "Outfeed", "Recv", "Send")
# What the result of a reduction's computation is, by its name in plans.
_REDUCTIONS = {
    "add": "add", "and": "and", "maximum": "max", "minimum": "min", "multiply": "mul", "or": "or",
}  # fmt: skip
_PACKING = {"parameter", "constant", "convert", "shift-left", "shift-right-logical", "or"}
OF_BOOLS = {"add": "or", "max": "or", "mul": "and", "min": "and"}  # the same by other names
STARTS = "AsyncCollectiveStart"  # in a fusion of TPUs that starts a collective
CASTABLE = ("AllGather", "AllToAll", "CollectivePermute")  # commute with casts of their tensors
OTHER = "?"  # a reduction, or an order of devices, that no plan has


@dataclass(frozen=True)
class CompiledCollective:
    """One tensor that compiled code communicates."""

    kind: str  # by its name in plans, such as AllReduce
    axes: tuple[str, ...] | None  # None if its groups are not along mesh axes
    elements: int  # that one device sends or receives, whichever is more
    dtype: str
    op_name: str  # the op it was compiled from, by the compiler's metadata
    name: str  # of its instruction, with the target of a custom call
    times: int = 1  # in one step; a loop of unknown length counts as one iteration
    open_ended: bool = False  # a loop of unknown length runs it
    devices: int = 1  # in one group
    pairs: Pairs | None = None  # of a CollectivePermute: senders and receivers
    combined: bool = False  # its instruction communicates other tensors too; metadata may be theirs
    completes: str = ""  # the TPU reduce-scatter of which it sends a slice on
    reduction: str = ""  # by its name in plans; "" where nothing is reduced
    order: tuple[str, ...] = ()  # the axes that number the devices of a group, where that matters
    sent: str = ""  # the dtype that is sent, where another is received, for no known reason
    parts: tuple[CompiledCollective, ...] = ()  # of each of the tensors that its own concatenates
    terms: tuple[str, ...] = ()  # of a sum, by metadata: the ops whose results its tensor adds up
    # The dtypes its tensor is cast from or to, and how many times as large it is then or broadcast;
    # of a sum whose result is rounded, the dtype of what it adds up.
    growths: frozenset[tuple[str, int]] = frozenset()
    # Of a TPU reduce-scatter that pads its tensor: the elements of that, and in memory's tiles.
    padding: tuple[int, ...] = ()
    loop_sum: LoopSum | None = None  # what a loop has made of its tensor
    # Its instruction, and which of that one's tensors it is; of a part, what makes the part.
    value: Any = field(default=None, compare=False, repr=False)  # an HloValue
    place: int = field(default=0, compare=False)

    @property
    def bytes(self) -> int:
        """The bytes of its elements."""
        return count_bytes(self.dtype, self.elements)

    @property
    def facts(self) -> dict[str, Any]:
        """The fields of a plan's Collective that a compiler decides."""
        names = ("kind", "elements", "dtype", "bytes", "times", "devices", "open_ended")
        return {"axes": self.axes or ("?",), **{name: getattr(self, name) for name in names}}

    @cached_property
    def tensor(self) -> HloValue:
        """The value that makes the tensor it communicates."""
        if classify(self.value.instruction) is None:  # it is a part of a concatenation
            return self.value
        operands = self.value.operands()
        return [*operands, self.value][min(self.place, len(operands))]

    @cached_property
    def spreads(self) -> bool:
        """True if it adds up shards that are zero elsewhere, each from another device."""
        return self.kind == "AllReduce" and count_spread(self.tensor) == self.devices > 1

    @property
    def again(self) -> bool:
        """True if the compiler repeats it to save memory; it names what it repeats so."""
        return ".remat" in self.name

    @property
    def wire_bytes(self) -> int:
        """The bytes that one device sends each time, by the usual algorithm."""
        return count_wire_bytes(self.kind, self.bytes, self.devices)


def find_collectives(module: Module, mesh: Mesh) -> list[CompiledCollective]:
    """Find every collective of a module; one of several tensors counts once for each."""
    runs = find_runs(module)
    reader = _CollectiveReader(module, mesh)
    scattering = _find_scattering(module)
    found: dict[str, list[CompiledCollective]] = {}  # by computation
    for computation, instruction in module.instructions():
        try:
            _check_bodies(module, instruction)
            kind = classify(instruction)
            if kind in ("Send", "Recv") and _is_permute(computation, instruction):
                kind = "CollectivePermute" if kind == "Send" else None
            if kind is not None:
                # A computation with no known caller may run any number of times.
                often = runs.get(computation.name, Runs(1, open_ended=True))
                tensors = reader.read(kind, computation, instruction, often)
                fusion = scattering.get(computation.name)
                if fusion is not None and kind == "AllReduce":
                    # The slice decides who keeps which shard, not the order in the group.
                    padding = find_padding(HloValue(module, computation, instruction))
                    names = {"op_name": fusion.op_name, "name": fusion.name}
                    tensors = [
                        replace(one, kind="ReduceScatter", padding=padding, **names)
                        for one in tensors
                    ]
                if kind == "CollectivePermute" and not instruction.op_name:
                    source = _follow_slices(computation, instruction)
                    called = source.called.get("calls", ()) if source is not None else ()
                    if source is not None and any(name in scattering for name in called):
                        names = {"op_name": source.op_name, "completes": source.name}
                        tensors = [replace(one, **names) for one in tensors]
                found.setdefault(computation.name, []).extend(tensors)
        except UnreadableHlo as error:
            raise error.quoting(f"{instruction.name} = {instruction.opcode}(...)") from None
    for body, starts in _find_continued(module).items():
        copies = found.get(body, [])
        for one in (one for start in starts for one in found.get(start, ())):
            copy = next((other for other in copies if _DESCRIBE(other) == _DESCRIBE(one)), None)
            if copy is None:
                raise UnreadableHlo(f"{body} goes on with it, without it").quoting(one.name)
            copies.remove(copy)
    return [one for some in found.values() for one in some]


def _is_permute(computation: Computation, one: Instruction) -> bool:
    """Return whether a send and a recv of the same channel, pairs and type are one permute."""

    def describe(other: Instruction) -> tuple[object, ...]:
        return other.attributes.get("channel_id"), other.pairs, str(other.type)

    partner = "recv" if one.opcode == "send" else "send"
    others = [other for other in computation if other.opcode == partner]
    return one.pairs is not None and [*map(describe, others)].count(describe(one)) == 1


def _find_scattering(module: Module) -> dict[str, Instruction]:
    """Find TPU's fusions of an all-reduce and a slice, which are reduce-scatters, by body."""
    return {
        name: instruction
        for _, instruction in module.instructions()
        if instruction.opcode == "fusion"
        for name in instruction.called.get("calls", ())
        if name.startswith("all-reduce-scatter")
    }


# What a collective shares with the fusions behind which it goes on.
_DESCRIBE = operator.attrgetter(
    "kind", "axes", "pairs", "elements", "dtype", "op_name", "order", "reduction"
)


def _find_continued(module: Module) -> dict[str, dict[str, None]]:
    """Find TPU's fusions behind which a collective goes on, and those that start it.

    Each fusion that has its flags repeats it, the last one with what waits for it.
    """
    started = {
        computation.name
        for computation, one in module.instructions()
        if one.opcode == "custom-call" and custom_call_target(one) == STARTS
    }
    continued: dict[str, dict[str, None]] = {}
    for computation in module.computations.values() if started else ():
        fusions, handles = dict[str, str](), dict[str, str]()
        for one in computation:
            body = next(iter(one.called.get("calls", ())), "")
            before = next((handles[name] for name in one.operands if name in handles), "")
            if body in started:
                fusions[one.name] = body
            elif before and one.opcode == "fusion":
                fusions[one.name] = before
                continued.setdefault(body, {})[before] = None
            elif one.operands and one.operands[0] in fusions and str(one.type).startswith("u32"):
                handles[one.name] = fusions[one.operands[0]]  # flags, beside what it computes
    return continued


def _follow_slices(computation: Computation, instruction: Instruction) -> Instruction | None:
    """Follow the operand of an instruction through slices to its source."""
    source = computation.instructions.get(instruction.operands[0])
    while source is not None and source.opcode == "slice":
        source = computation.instructions.get(source.operands[0])
    return source


class _CollectiveReader:
    """A reader of collectives on a mesh, with a cache of the axes of groups."""

    def __init__(self, module: Module, mesh: Mesh) -> None:
        self.module, self.mesh = module, mesh
        self.all_devices: Groups = (tuple(range(mesh.devices)),)
        self.axes: dict[Groups | Pairs, tuple[str, ...] | None] = {}
        self.orders: dict[Groups, tuple[str, ...]] = {}
        self.readers: Readers = {}

    def read(
        self, kind: str, computation: Computation, instruction: Instruction, runs: Runs
    ) -> list[CompiledCollective]:
        """Return every tensor that an instruction communicates."""
        axes, pairs, order = None, None, ()
        devices = self.mesh.devices
        if kind == "CollectivePermute":
            if instruction.pairs is None:
                raise UnreadableHlo("a collective-permute has no source_target_pairs")
            pairs = frozenset(pair for pair in instruction.pairs if pair[0] != pair[1])
            axes = self.find_axes(pairs)
            devices = 2 if pairs else 1
        elif kind not in _WITHOUT_GROUPS:
            groups = instruction.groups or self.all_devices
            axes, devices = self.find_axes(groups), len(groups[0])
            order = self.find_order(groups, axes) if axes and kind in ORDERED else ()
        elif kind == "CustomCall" and devices == 1:
            axes = ()  # there is no other device
        tensors = _tensors(kind, computation, instruction, devices)
        name = instruction.name
        if kind == "CustomCall":
            name = f"{name}, a call of {custom_call_target(instruction) or 'nothing'}"
        names, combined = (instruction.op_name, name), len(tensors) > 1
        others = (runs.times, runs.open_ended, devices, pairs, combined)
        how = find_reduction(self.module, instruction) if kind in REDUCING else ""
        value = HloValue(self.module, computation, instruction)
        sources = value.operands() if len(instruction.operands) == len(tensors) else []
        found = []
        for i, (dtype, elements) in enumerate(tensors):
            one = CompiledCollective(
                *(kind, axes, elements, dtype, *names, *others),
                reduction=OF_BOOLS.get(how, how) if dtype == "bool" else how,
                order=order,
                value=value,
                place=i,
            )
            if kind in REDUCING and sources:
                one = replace(describe_sum(one, sources[i]), parts=take_apart(one, sources[i]))
            if kind in CASTABLE and sources:
                one = replace(one, growths=find_growths(value, i, self.readers))
            sent = array_dtype(sources[i]) if sources else dtype
            rounds = kind in REDUCING and (sent, dtype) == ("float32", "bfloat16")
            # The greatest number of bfloat16 is the same in float32, whichever is sent.
            picks = how in ("max", "min") and (sent, dtype) == ("bfloat16", "float32")
            if rounds and is_rounded(value, i, self.readers):
                one = replace(one, growths=frozenset({(sent, 1)}))
            elif sent != dtype and not (picks and added_as(value) == {"f32"}):
                one = replace(one, sent=sent)
            found.append(one)
        return found

    def find_axes(self, key: Groups | Pairs) -> tuple[str, ...] | None:
        """Find the axes of groups or pairs, each once."""
        if key not in self.axes:
            of = axes_of_pairs if isinstance(key, frozenset) else axes_of_groups
            self.axes[key] = of(key, self.mesh)  # type: ignore[operator]
        return self.axes[key]

    def find_order(self, groups: Groups, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Find the order of the devices in groups, each once."""
        if groups not in self.orders:
            self.orders[groups] = order_of_groups(groups, self.mesh, axes) or (OTHER,)
        return self.orders[groups]


def describe_sum(one: CompiledCollective, value: HloValue, of: str = "") -> CompiledCollective:
    """Return a sum with what is known of its tensor; the op that makes that may name it."""
    name = one.op_name or name_of_maker(value)
    terms, loop_sum = find_addends(value), find_loop_sum(value)
    if loop_sum is not None:  # what products of a loop are made as one has the name of one of them
        loop_sum = loop_sum._replace(ops=(*loop_sum.ops, one.op_name or of))
    return replace(one, op_name=name, terms=terms, loop_sum=loop_sum)


def take_apart(
    one: CompiledCollective, value: HloValue, padded: bool = False
) -> tuple[CompiledCollective, ...]:
    """Return a collective for each of the tensors that a value concatenates."""
    name, one = one.op_name, replace(one, op_name="", combined=False)
    parts = [
        describe_sum(replace(one, elements=part.instruction.type.elements, value=part), part, name)
        for part in find_parts(value, padded)
        if isinstance(part.instruction.type, ArrayType)
    ]
    return tuple(parts) if sum(part.elements for part in parts) == one.elements else ()


def find_reduction(module: Module, instruction: Instruction) -> str:
    """Return how an instruction reduces: what its computation makes of two elements."""
    names = instruction.called.get("to_apply", ())
    computation = module.computations.get(names[0]) if len(names) == 1 else None
    root = computation.root if computation is not None else None
    if computation is None or root is None:
        return OTHER

    def follow(one: Instruction | None) -> Instruction | None:
        """Follow a value through conversions to where it is made."""
        while one is not None and one.opcode in SAME_VALUE and len(one.operands) == 1:
            one = computation.instructions.get(one.operands[0])
        return one

    result = follow(root)
    if result is None:
        return OTHER
    operands = [follow(computation.instructions.get(name)) for name in result.operands]
    read = sorted(one.literal for one in operands if one and one.opcode == "parameter")
    # TPUs pack four bools into a number, whose bytes are joined one by one.
    packs = {one.opcode for one in computation if str(one.type) == "pred[]" and one.operands[1:]}
    if packs and {one.opcode for one in computation} | packs == _PACKING | packs:
        return _REDUCTIONS.get(packs.pop(), OTHER) if len(packs) == 1 else OTHER
    return _REDUCTIONS.get(result.opcode, OTHER) if read == ["0", "1"] else OTHER


def _check_bodies(module: Module, instruction: Instruction) -> None:
    """Raise if an instruction runs a computation that the module does not have."""
    for name in find_callees(instruction):
        if name not in module.computations:
            raise UnreadableHlo(f"the computation {name!r}, which may communicate, is missing")
    if instruction.opcode == "async-start" and not instruction.called.get("calls"):
        raise UnreadableHlo("an async-start names no computation, and may communicate")


def _tensors(
    kind: str, computation: Computation, instruction: Instruction, devices: int
) -> list[tuple[str, int]]:
    """Return dtype and elements of each tensor of a collective, on its larger side."""
    arrays = [array for array in _results(instruction, kind, devices) if array.element.bits]
    if instruction.opcode in ("send", "outfeed") or not arrays:
        types = computation.operand_types(instruction)
        arrays = [array for type in types for array in type.arrays if array.element.bits] or arrays
    tensors = [(array.element.dtype, array.elements) for array in arrays]
    if instruction.opcode in ("send", "recv"):  # what follows are channel numbers
        tensors = tensors[:1]
    if kind == "ReduceScatter":
        tensors = [(dtype, elements * devices) for dtype, elements in tensors]
    if kind == "AllToAll" and len(tensors) == devices and len({*tensors}) == 1:
        # A tuple has one shard for each device of a group.
        tensors = [(tensors[0][0], tensors[0][1] * devices)]
    return tensors or [("token", 0)]


def _results(instruction: Instruction, kind: str, devices: int) -> tuple[ArrayType, ...]:
    """Return the result arrays of a collective; the type of a -start has its operands before."""
    type = instruction.type
    if not instruction.opcode.endswith("-start") or has_results_alone(instruction):
        return type.arrays
    if not isinstance(type, TupleType) or len(type.parts) < 2:
        raise UnreadableHlo(f"{instruction.opcode} does not have operands and results")
    operands, results = (part.arrays for part in type.parts[:2])
    grows, shrinks = (devices if kind == name else 1 for name in ("AllGather", "ReduceScatter"))
    for one, other in zip(operands, results, strict=False) if kind in KINDS else ():
        if one.elements * grows != other.elements * shrinks:
            raise UnreadableHlo(f"{instruction.opcode} over {devices} makes {other} of {one}")
    return results


def classify(instruction: Instruction) -> str | None:
    """Return the kind of an instruction's communication, by its name in plans; None for none."""
    opcode, ends = instruction.opcode, instruction.opcode.endswith(("-update", "-done"))
    base = opcode.removesuffix("-start").removesuffix("-update").removesuffix("-done")
    if base in COMMUNICATING:
        return None if ends else COMMUNICATING[base]
    if base == "custom-call":
        return None if ends or _is_local_call(instruction) else "CustomCall"
    if base not in _LOCAL:
        raise UnreadableHlo(f"the opcode {opcode!r} is unknown, and it may communicate")
    telling = [name for name in _TELLING if name in instruction.attributes]
    if telling and not ends:
        raise UnreadableHlo(f"the opcode {opcode!r} has {telling[0]}, as only communication does")
    return None


def _is_local_call(instruction: Instruction) -> bool:
    """Return whether a custom call is known to work on one device, or what it calls is read."""
    target = custom_call_target(instruction)
    # TPU's sparse cores run computations of the module, such as of one collective.
    on_sparse_core = instruction.attributes.get("async_execution_thread") == '"sparsecore"'
    is_read = on_sparse_core and "calls" in instruction.called
    if target == _MOSAIC:  # other kernels than ours may reach other devices
        return "nm.attention" in instruction.op_name
    return is_read or target in _LOCAL_TARGETS or target.startswith(_LOCAL_TARGET_PREFIXES)


def custom_call_target(instruction: Instruction) -> str:
    """Return the target of a custom call."""
    return instruction.attributes.get("custom_call_target", "").strip('"')
