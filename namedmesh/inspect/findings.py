"""Findings: what a compiled step sends or holds without need, its line, what it costs, the fix."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from namedmesh.audit.hlo.arithmetic import product_flops
from namedmesh.audit.hlo.communication import CASTABLE, CompiledCollective, classify
from namedmesh.audit.hlo.origins import RESHAPING, HloValue, array_dtype, follow_back
from namedmesh.audit.hlo.trip_counts import count_runs
from namedmesh.dims.mesh import Mesh
from namedmesh.display.text import human
from namedmesh.errors.source import Source
from namedmesh.inspect.arguments import read_known_axes
from namedmesh.inspect.attribution import Attribution, split_op_name
from namedmesh.inspect.intent import Constraint, Intent
from namedmesh.inspect.variation import Variation
from namedmesh.records.collective import REDUCING, Collective
from namedmesh.records.crossing import count_crossing_bytes
from namedmesh.records.tensor import UNKNOWN, TensorRecord

SMALLEST = 2**10  # bytes sent in one step that are worth a finding
# Bytes of a tensor that may be whole on every device; less in a step whose arguments take little.
LARGEST_WHOLE, SMALLEST_WHOLE, WHOLE_SHARE = 2**20, 2**16, 0.05
LARGEST_SHARE = 0.25  # of the forward pass's products, that all devices along an axis may repeat
_SLICES = ("dynamic-slice", "slice")
_CAST = (*RESHAPING, "convert")
# What readers do with each element by itself: of a slice, they would read a slice.
_ELEMENTWISE = (
    "abs", "add", "divide", "exponential", "log", "logistic", "maximum", "minimum", "multiply",
    "negate", "power", "rsqrt", "select", "sqrt", "subtract", "tanh",
)  # fmt: skip
_PRODUCTS = ("dot", "convolution", "custom-call")
_MOST = 100  # readers of a tensor
_CONSTRAIN = "jax.lax.with_sharding_constraint"
_INVOLUNTARY = re.compile(
    r"Involuntary full rematerialization.*? from sharding (?P<old>\{.*?\}) to (?P<new>\{.*?\}) eff"
    r".*? %(?P<name>\S+) = (?P<type>\S+).*?metadata=\{(?P<metadata>[^}]*)\}"
)
_INNER = re.compile(r"\[[^/\]]*, .*/")  # a tensor that is split in another than the first dimension
_ARGUMENT = re.compile(r"[\[.]")  # what is behind the name of an argument, and between its parts
_ARRAY = re.compile(r"([a-z]+)(\d+)\w*\[([\d,]*)\]")
Pair = tuple[CompiledCollective, Collective]  # as compiled, and as plans have it


@dataclass(frozen=True)
class StepFinding:
    """One thing to fix in a step."""

    kind: str  # such as `gathered twice`
    message: str
    fix: str
    bytes: int  # that a device sends, or holds, in vain
    source: Source = UNKNOWN  # the user's line that it is about, if one is known

    def __str__(self) -> str:
        at = f" at {self.source}: {self.source.code}" if self.source.line else ""
        size = f", {human(self.bytes)} in vain" if self.bytes else ""
        return f"{self.kind}: {self.message}{size}{at}; fix: {self.fix}"


@dataclass(frozen=True)
class CompiledStep:
    """A compiled step, as what looks for findings reads it."""

    pairs: Sequence[Pair]
    tensors: Sequence[TensorRecord]
    mesh: Mesh
    attribution: Attribution
    intent: Intent
    warnings: str = ""  # what the compiler wrote while it compiled

    @cached_property
    def variation(self) -> Variation:
        """The axes and loops that each value differs along."""
        module = self.attribution.module
        known = [re.findall(r"[/+](\w+|\?)", one.place) for one in self.tensors]
        parameters = sorted(
            (one for one in module.computations[module.entry] if one.opcode == "parameter"),
            key=lambda one: int(one.literal),
        )
        counts = [len(one.type.arrays) for one in parameters]
        rows, arguments = iter(known), []
        for count in counts:  # an argument may be a tuple
            arguments.append([axis for axes in itertools.islice(rows, count) for axis in axes])
        axes = {one.value.key: one.axes for one, _ in self.pairs if classify(one.value.instruction)}
        return Variation(module, self.mesh, arguments, axes)

    @cached_property
    def accelerated(self) -> bool:
        """True if it is compiled for devices other than CPUs."""
        return any(
            (one.opcode.startswith("all-") and one.opcode.endswith("-start"))
            or "operation_queue_id" in one.attributes.get("backend_config", "")  # of GPUs
            for _, one in self.attribution.module.instructions()
        )

    def written_dtypes(self, one: Collective) -> set[str] | None:
        """Return the dtypes that the op of a collective is written with, if that is known."""
        return self.intent.dtypes.get((one.source.file, one.source.line, one.op))

    def sends_wide(self, one: Collective) -> bool:
        """Return whether a CPU sends as float32 what is written as bfloat16."""
        narrow = one.dtype == "float32" and not self.accelerated
        return narrow and self.written_dtypes(one) == {"bf16"}

    def constraint_of(self, one: Collective) -> Constraint | None:
        """Return what constrains the tensor of a collective right where it is made, if anything."""
        known, line = self.intent.constrained, (one.source.file, one.source.line)
        found = known.get((*line, one.op)) or known.get((*line, ""))
        if one.kind != "AllGather":
            return None
        if found:
            return found
        # The gather may have the name of another op of the line: the only constraint there fits.
        near = [other for key, other in known.items() if key[:2] == line]
        fits = len(near) == 1 and math.prod(near[0].sizes) % one.elements == 0
        return near[0] if fits else None

    @cached_property
    def largest_whole(self) -> int:
        """The bytes that a tensor may have on every device."""
        held = sum(one.bytes_per_device for one in self.tensors)
        return max(SMALLEST_WHOLE, min(LARGEST_WHOLE, int(WHOLE_SHARE * held)))


def find_all(step: CompiledStep) -> tuple[StepFinding, ...]:
    """Return everything that is found, the most bytes first."""
    if step.mesh.devices == 1:
        return ()
    looks = (
        _find_whole, _find_unused, _find_sent, _find_repeated_products, _find_uneven,
        _find_rematerialized, _find_crossing,
    )  # fmt: skip
    found = [finding for look in looks for finding in look(step)]
    return tuple(sorted(found, key=lambda one: -one.bytes))


def _find_sent(step: CompiledStep) -> Iterator[StepFinding]:
    """Find collectives that send more than is read, or the same again."""
    gathered: dict[object, Source] = {}
    for compiled, one in step.pairs:
        source = step.attribution.follow(compiled.tensor, _CAST)
        again = "rematted" in compiled.op_name  # computed once more, as the user asks for
        key = (source.key, one.kind, one.axes, one.phase, again)
        readers = _find_readers(compiled, step.attribution)
        for kind, what, fix, share in (
            _find_slices(step, one, readers),
            _find_loop(step, compiled, one),
            _find_cast(step, compiled, one, readers),
            _find_copies(step, compiled, one, readers),
            _find_again(gathered.get(key) if one.kind == "AllGather" else None),
        ):
            size = int(one.total_wire_bytes * share)
            if kind and size >= SMALLEST:
                of = f"the {one.kind} of {one.tensor} over {'+'.join(one.axes)}"
                asked = step.constraint_of(one) if kind in _ASKED else None
                source = (asked and asked.source) or one.source
                yield StepFinding(kind, f"{of} {what}", fix, size, source)
        gathered.setdefault(key, one.source)


_ASKED = ("gathered, then sliced", "whole activation")  # perhaps by a constraint
_Found = tuple[str, str, str, float]  # kind, message, fix, and the share of its bytes
_NOTHING: _Found = ("", "", "", 0.0)


def _find_again(first: Source | None) -> _Found:
    """Find a tensor that was gathered before, at a line."""
    if first is None:
        return _NOTHING
    before = f"before, at {first}" if first.line else "before"
    fix = f"gather it once, or split it over the same axis where it is made: {_CONSTRAIN}"
    return "gathered twice", f"gathers what was gathered {before}", fix, 1.0


def _find_slices(step: CompiledStep, one: Collective, readers: list[HloValue]) -> _Found:
    """Find what is made whole on devices of which each reads a part."""
    if not readers or any(value.instruction.opcode not in _SLICES for value in readers):
        return _NOTHING
    read = sum(value.instruction.type.arrays[0].elements for value in readers)
    fix = f"constrain it to its reader's sharding: {_CONSTRAIN}"
    if one.kind == "AllGather" and read < one.elements < read * 1.5:
        what = f"carries {one.elements - read} elements of padding: a dimension is split unevenly"
        return "uneven padding", what, "give the dimension a multiple of its shards", 0.0
    if read * 2 > one.elements:
        return _NOTHING
    share = 1 - read / one.elements
    if one.kind == "AllGather":
        return "gathered, then sliced", "makes whole of what each device keeps a part", fix, share
    # CPUs have no ReduceScatter of their own: there, XLA's sums of shards are all such.
    if one.kind == "AllReduce" and (step.accelerated or one.op.startswith("psum")):
        what = "adds up all of what each device keeps a part: a ReduceScatter would do"
        return "summed, then sliced", what, f"jax.lax.psum_scatter, or {fix}", share / 2
    return _NOTHING


def _find_loop(step: CompiledStep, compiled: CompiledCollective, one: Collective) -> _Found:
    """Find a collective whose tensor is the same in all iterations."""
    value = compiled.tensor
    if one.times < 2 or not step.variation.is_repeated(value.key):
        return _NOTHING
    what, share = f"runs {one.times} times on what never changes", 1 - 1 / one.times
    return "repeated in a loop", what, f"do it before the loop: {_CONSTRAIN}", share


def _find_cast(
    step: CompiledStep, compiled: CompiledCollective, one: Collective, readers: list[HloValue]
) -> _Found:
    """Find float32 that is bfloat16 before it is sent, or after."""
    if one.dtype != "float32":
        return _NOTHING
    source = follow_back(compiled.tensor)
    casts = {value.instruction.opcode for value in readers} == {"convert"}
    narrowed = casts and {*map(array_dtype, readers)} == {"bfloat16"}
    widened = source.instruction.opcode == "convert" and one.kind in CASTABLE
    widened = widened and {*map(array_dtype, source.operands())} == {"bfloat16"}
    if not narrowed and not widened:
        return _NOTHING
    # CPUs send all bfloat16 as float32: what counts is what was written.
    if not step.accelerated and step.written_dtypes(one) != {"f32"}:
        return _NOTHING
    what = "of which all is read as bfloat16" if narrowed else "of what was bfloat16"
    fix = "cast it to bfloat16 where it is still split"
    if one.kind in REDUCING:
        fix = "have the product make bfloat16: its preferred_element_type, or the layer's dtype"
    return "sent as float32", f"sends float32 {what}", fix, 0.5


def _find_copies(
    step: CompiledStep, compiled: CompiledCollective, one: Collective, readers: list[HloValue]
) -> _Found:
    """Find an activation that is gathered whole, and then computed with on every device alike."""
    key, value = compiled.value.key, compiled.tensor
    forward = one.kind == "AllGather" and one.phase == "forward"
    if not forward or one.bytes < step.largest_whole or step.variation.axes_of(key):
        return _NOTHING
    asked = step.constraint_of(one)
    # Rows of a batch are those of the first dimension.
    leading = asked is not None and math.prod(asked.shards) == 1
    while classify(compiled.value.instruction) and not compiled.combined:
        leading |= value.computation.name == key[0] and _gathers_rows(compiled.value)
        value = follow_back(value)
        if value.instruction.opcode != "all-gather":
            break
        leading |= _gathers_rows(value)
        value = value.operands()[0]
    alike = [
        reader
        for reader in readers
        if reader.instruction.opcode in (*_PRODUCTS, "reduce")
        and not step.variation.axes_of(reader.key)
    ]
    if not leading or not alike or step.attribution.find_argument(compiled):
        return _NOTHING
    what = f"makes it whole on all {step.mesh.devices} devices, which then compute the same"
    return "whole activation", what, f"leave it split: {_CONSTRAIN}", 1.0


def _gathers_rows(value: HloValue) -> bool:
    """Return whether a gather is one of the first dimension."""
    return value.instruction.attributes.get("dimensions") == "{0}"


def _find_readers(compiled: CompiledCollective, attribution: Attribution) -> list[HloValue]:
    """Return what reads the tensor that is received, past what keeps its elements."""
    if classify(compiled.value.instruction) is None:  # one of several that are sent as one
        return []
    left, found, place = [compiled.value], [], str(compiled.place)
    while left and len(found) < _MOST:
        for reader, _ in left.pop().readers(attribution.readers):
            opcode = reader.instruction.opcode
            if opcode == "get-tuple-element" and compiled.combined:
                left += [reader] if reader.instruction.attributes["index"] == place else []
                continue
            keeps = opcode in ("parameter", *RESHAPING, *_ELEMENTWISE) or opcode.endswith("-done")
            (left if keeps else found).append(reader)
    return found


def _find_whole(step: CompiledStep) -> Iterator[StepFinding]:
    """Find large arguments that are whole, where an axis splits those beside them."""
    families: defaultdict[str, list[TensorRecord]] = defaultdict(list)
    for one in step.tensors:
        families[_ARGUMENT.split(one.tensor)[0]].append(one)
    # Arguments that are single arrays are beside each other, but not beside a batch.
    single = [ones[0] for ones in families.values() if len(ones) == 1]
    inner = [one for one in single if _INNER.search(one.place)]
    groups = [(ones, ones) for ones in families.values() if len(ones) > 1]
    pairs = [pair for pair in _pair_slots(step.tensors) if sum("/" in x.place for x in pair) == 1]
    # Moments of an optimizer may be split where weights are whole, but not the other way round.
    split_slots = {slot.tensor for slot, _ in pairs if "/" in slot.place}
    groups = [*groups, (single, inner), *(([slot], [weight]) for slot, weight in pairs)]
    known: set[str] = set()
    batches = _list_batches(step)
    for members, beside in groups:
        split = [
            other
            for other in beside
            if "/" in other.place
            and other.tensor not in split_slots
            and not (len(beside) > 1 and other.tensor in batches)
        ]
        axes = Counter(axis for other in split for axis in re.findall(r"[/+](\w+)", other.place))
        least = max([step.largest_whole, *(other.bytes_per_device for other in split)])
        large = [one for one in members if "/" not in one.place and one.bytes_per_device >= least]
        for one in large if split else ():
            able = [
                axis
                for axis, _ in axes.most_common()
                if any(size % step.mesh.axes.get(axis, 1) == 0 for size in _sizes_of(one))
            ]
            if not able or one.tensor in known:
                continue
            known.add(one.tensor)
            size = one.bytes_per_device - one.bytes_per_device // step.mesh.axes.get(able[0], 1)
            message = f"{one.tensor} {one.place} is on every device, and {split[0].tensor} is split"
            fix = f"split it over {able[0]} too; a rename may have broken the rule that names it"
            source = step.attribution.find_reading_line(one.tensor)
            yield StepFinding("whole parameter", message, fix, size, source or UNKNOWN)


def _pair_slots(tensors: Sequence[TensorRecord]) -> Iterator[tuple[TensorRecord, TensorRecord]]:
    """Yield an optimizer's slots by their paths, such as `state[1].mu.up`, with their weights."""
    paths = {one.tensor: _ARGUMENT.split(one.tensor)[1:] for one in tensors}
    weights: dict[object, TensorRecord] = {}
    for one in sorted(tensors, key=lambda one: -len(paths[one.tensor])):
        path, sizes = paths[one.tensor], _sizes_of(one)
        for start in (0, 1):  # one argument may have both: `state.params.up`
            weights[*path[start:], *sizes] = one
    for one in tensors:
        path, sizes = paths[one.tensor], _sizes_of(one)
        for start in range(1, len(path)):
            weight = weights.get((*path[start:], *sizes), one)
            named = re.search("[a-z]", "".join(path[start:]))
            if named and len(paths[weight.tensor]) < len(path):
                yield one, weight


def _list_batches(step: CompiledStep) -> set[str]:
    """List arguments that are split as batches are, in a step that splits nothing else."""
    splits = {*re.findall(r"/([^,\]]+)", " ".join(one.place for one in step.tensors))}
    summed = any(
        one.kind in REDUCING and one.phase == "forward" and one.bytes >= SMALLEST
        for _, one in step.pairs
    )
    if len(splits) != 1 or summed:
        return set()
    moved = {one.tensor for _, one in step.pairs}
    leading = {one.tensor for one in step.tensors if not _INNER.search(one.place)}
    return leading - moved


def _sizes_of(one: TensorRecord) -> list[int]:
    """Return the sizes of a tensor's dimensions."""
    return [int(size) for size in re.findall(r"\b\d+\b", one.place.partition("[")[2])]


def _find_unused(step: CompiledStep) -> Iterator[StepFinding]:
    """Find mesh axes along which everything is the same."""
    used = {axis for one in step.tensors for axis in re.findall(r"[/+](\w+|\?)", one.place)}
    used |= {axis for _, one in step.pairs for axis in one.axes} | {*step.variation.used}
    held = sum(one.bytes_per_device for one in step.tensors)
    for axis, size in step.mesh.axes.items():
        if size > 1 and axis not in used and "?" not in used and held >= SMALLEST:
            message = f"all {size} devices along {axis} hold and compute the same"
            fix = f"split a dimension over {axis}, or leave the axis out"
            largest = max(step.tensors, key=lambda one: one.bytes_per_device, default=None)
            source = step.attribution.find_reading_line(largest.tensor) if largest else None
            yield StepFinding("unused axis", message, fix, held - held // size, source or UNKNOWN)


def _find_repeated_products(step: CompiledStep) -> Iterator[StepFinding]:
    """Find products of the forward pass that all devices along an axis compute alike."""
    module, runs = step.attribution.module, count_runs(step.attribution.module)
    alike: defaultdict[tuple[str, ...], list[tuple[float, int, Source]]] = defaultdict(list)
    used, total = {*step.variation.used}, 0.0
    for computation, one in module.instructions():
        if one.opcode not in _PRODUCTS or "transpose(" in one.op_name:
            continue
        flops = product_flops(computation, one) * runs.get(computation.name, 0)
        total += flops
        same = sorted(used - {*step.variation.axes_of((computation.name, one.name))})
        line = step.attribution.lines.find(one.attributes.get("metadata", ""))
        if flops and line and math.prod(step.mesh.axes[axis] for axis in same) > 1:
            alike[tuple(same)].append((flops, one.type.arrays[0].bytes, line))
    for axes, values in alike.items():
        share = sum(flops for flops, _, _ in values) / total
        held = sum(size for _, size, _ in values)
        if share >= LARGEST_SHARE and held >= step.largest_whole:
            devices, over = math.prod(step.mesh.axes[axis] for axis in axes), "+".join(axes)
            message = (
                f"all {devices} devices along {over} compute the same products, {share:.0%} of "
                "the forward pass's FLOPs"
            )
            lines: defaultdict[Source, float] = defaultdict(float)
            for flops, _, line in values:
                lines[line] += flops
            source = max(lines, key=lambda line: lines[line])
            message += f", on {len(lines)} lines" if len(lines) > 1 else ""
            fix = f"split its rows, or its weight, over {over}; after a reshape: {_CONSTRAIN}"
            yield StepFinding("whole activation", message, fix, held - held // devices, source)


def _find_uneven(step: CompiledStep) -> Iterator[StepFinding]:
    """Find dimensions that are split into shards of which the last are padding."""
    for one in step.intent.constraints():
        if one.padding:
            held = one.padding + math.prod(one.sizes) * one.bytes / math.prod(one.shards)
            uneven = [(a, b) for a, b in zip(one.sizes, one.shards, strict=True) if a % b]
            cells = " and ".join(f"{size} over {shards} devices" for size, shards in uneven)
            message = f"a dimension of {cells} is padded, {one.padding / held:.1%} of the tensor"
            fix = "give the dimension a multiple of its shards"
            yield StepFinding("uneven padding", message, fix, one.padding, one.source or UNKNOWN)
    for one in step.tensors:
        if one.padding:
            message = f"{one.tensor} {one.place} is padded, {one.padding:.1%} of it"
            size = int(one.padding * one.bytes_per_device)
            fix = "give the dimension a multiple of its shards"
            source = step.attribution.find_reading_line(one.tensor)
            yield StepFinding("uneven padding", message, fix, size, source or UNKNOWN)


def _find_rematerialized(step: CompiledStep) -> Iterator[StepFinding]:
    """Find what XLA warned of: tensors that it makes whole to split them otherwise."""
    found = {match[0]: match for match in _INVOLUNTARY.finditer(step.warnings)}.values()
    instructions = step.attribution.module.instructions() if found else ()
    known = {one.op_name: one for _, one in instructions if one.op_name}
    for match in found:
        name = re.search(r'op_name="([^"]*)"', match["metadata"])
        own = known.get(name[1]) if name else None
        metadata = own.attributes.get("metadata", "") if own else match["metadata"]
        source = step.attribution.lines.find(metadata)
        array = _ARRAY.search(match["type"])
        shard = [int(size) for size in array[3].split(",") if size] if array else []
        before, after = (
            read_known_axes(match[name], len(shard), step.mesh) for name in ("old", "new")
        )
        counts = [step.mesh.size(axes) for axes in before or [()] * len(shard)]
        sizes = [size * count for size, count in zip(shard, counts, strict=True)]
        old = _describe(sizes, before) or match["old"]
        new = _describe(sizes, after) or match["new"]
        op = (split_op_name(name[1]) if name else [match["name"]])[-1:] or [match["name"]]
        message = f"XLA makes {op[0]} whole on every device to go from {old} to {new}"
        fix = f"go there in steps that keep it split, each a {_CONSTRAIN}"
        size = math.prod(sizes) * max(1, int(array[2]) // 8) if array else 0
        kind = "involuntary rematerialization"
        yield StepFinding(kind, message, fix, size, source or UNKNOWN)


def _describe(sizes: Sequence[int], axes: Sequence[Sequence[str]] | None) -> str:
    """Return sizes with the names of their axes."""
    pairs = zip(sizes, axes or [], strict=False)
    cells = [f"{size}/{'+'.join(on)}" if on else str(size) for size, on in pairs]
    return f"[{', '.join(cells)}]" if cells else ""


def _find_crossing(step: CompiledStep) -> Iterator[StepFinding]:
    """Find permutations across hosts that other places of the devices would keep inside."""
    mesh, ones = step.mesh, [one for _, one in step.pairs]
    axes = [axis for axis, size in mesh.axes.items() if size > 1]
    if mesh.hosts == 1 or not any(one.host_bytes for one in ones):
        return
    orders = (_reorder(mesh, order) for order in itertools.permutations(axes[:6]))
    best = min((one for one in orders if one), key=lambda other: _count_leaving(ones, other))
    better = _count_leaving(ones, best) < _count_leaving(ones, mesh)
    for compiled, one in step.pairs:
        if one.kind != "CollectivePermute" or one.total_host_bytes < SMALLEST:
            continue
        tensor = follow_back(compiled.tensor)
        asked = "ppermute" in compiled.op_name or tensor.instruction.opcode in _SLICES
        saved = one.times * (one.host_bytes - _count_leaving([one], best) // one.times)
        if (asked and better and saved > 0) or not asked:
            message = f"the CollectivePermute of {one.tensor} over {'+'.join(one.axes)} sends to "
            message += "other hosts, and could stay inside" if asked else "other hosts"
            names = ", ".join(f"{axis}={size}" for axis, size in best.axes.items())
            fix = f"make the mesh with its axes in the order {names}: the last stay inside a host"
            if not asked:
                fix = f"keep one order of devices: the compiler made it to reshard ({_CONSTRAIN})"
            yield StepFinding(
                "permutation across hosts", message, fix, one.total_host_bytes, one.source
            )


def _reorder(mesh: Mesh, order: Iterable[str]) -> Mesh | None:
    """Return a mesh with its axes in another order, if hosts have blocks of it."""
    other = Mesh(None, **{axis: mesh.axes[axis] for axis in order})
    return Mesh(None, hosts=mesh.hosts, **other.axes) if other.divides(mesh.hosts) else None


def _count_leaving(ones: Iterable[Collective], mesh: Mesh) -> int:
    """Count the bytes that leave a host of a mesh."""
    known = [one for one in ones if one.axes and {*one.axes} <= {*mesh.axes}]
    return sum(
        one.times * count_crossing_bytes(one.kind, one.bytes, one.axes, mesh, mesh.hosts)
        for one in known
    )
