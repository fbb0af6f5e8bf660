"""Diff: two plans side by side: what changed, what came and went, and what that costs."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from namedmesh.diff.pairing import Changes, R
from namedmesh.diff.sources import record_of
from namedmesh.diff.totals import METRICS, format_change, format_figure, measure
from namedmesh.display.html import html_block, html_details, html_table, html_text
from namedmesh.display.text import columns, human
from namedmesh.errors.errors import NamedMeshError, whole_number
from namedmesh.errors.mistakes import Explained
from namedmesh.records.collective import Collective
from namedmesh.records.plan import PlanRecord
from namedmesh.records.tensor import TensorRecord, shape_of

Totals = Mapping[str, tuple[float | None, float | None]]
_HTML_LINES = 50  # changes of each sort in a notebook


@dataclass(frozen=True, repr=False)
class Diff(Explained):
    """The differences between two plans. Prints as totals, then the changes, the largest first.

    Attributes:
        before: The first plan.
        after: The second.
        tensors: Those with another sharding or other bytes, that came, and that went.
        collectives: Those of another kind, axes, bytes or number of runs, that came, and that went.

    Example:
        >>> import namedmesh as nm
        >>> B, M = nm.dims("batch=8 model=4")
        >>> program = nm.trace(lambda x: nm.sum(x, over=B), x=nm.spec([B, M]))
        >>> mesh = nm.Mesh(data=4)
        >>> difference = nm.diff(nm.plan(program, mesh, "batch:data"),
        ...                      nm.plan(program, mesh, "model:data"))
        >>> difference.same, [one.kind for one in difference.collectives.went]
        (False, ['AllReduce'])
        >>> difference.totals["wire_bytes"]
        (24, 0)
    """

    before: PlanRecord
    after: PlanRecord
    tensors: Changes[TensorRecord]
    collectives: Changes[Collective]

    @property
    def totals(self) -> dict[str, tuple[float | None, float | None]]:
        """Every figure of both plans, None where it is not known.

        Those of a step: `bytes`, `wire_bytes`, `host_bytes`, `slice_bytes`, `collectives`, `flops`,
        `memory`, `seconds`, `AllGather` and the other kinds; and by phase or kind, as
        `wire_bytes.backward`.
        """
        before, after = measure(self.before), measure(self.after)
        names = dict.fromkeys([*before, *after])
        return {name: (before.get(name, 0), after.get(name, 0)) for name in names}

    @property
    def same(self) -> bool:
        """True if neither tensors nor collectives nor a total that both have differ."""
        if self.tensors or self.collectives:
            return False
        return all(a == b for a, b in self.totals.values() if None not in (a, b))

    def describe(self, most: int | None = 12) -> str:
        """Format the differences.

        Args:
            most: How many changes of each sort to show, the largest first; None for all.

        Returns:
            The text.
        """
        if most is not None and ((number := whole_number(most)) is None or number < 0):
            raise NamedMeshError(
                f"{most!r} is not a number of changes", fix="give a whole number, or None for all"
            )
        head = "\n".join(_head_lines(self.before, self.after))
        if self.same:
            return f"{head}\n  {_same_line(self)}"
        exposed = [f"  {line}" for line in _tell_exposed(self.totals)]
        parts = [head, "\n".join([*columns(_total_rows(self.totals)), *exposed])]
        for title, lines in _sections(self, most):
            parts.append("\n".join([f"  {title}", *(f"    {line}" for line in lines)]))
        return "\n\n".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return the totals of both plans and every change, as values that JSON has.

        Example:
            >>> import namedmesh as nm
            >>> program = nm.trace(lambda x: nm.exp(x), x=nm.spec([nm.Dimension("batch", 8)]))
            >>> plan = nm.plan(program, nm.Mesh(data=4), "batch:data")
            >>> nm.diff(plan, plan).to_json()["tensors"]
            {'changed': [], 'came': [], 'went': [], 'equal': 2}
        """
        facts = ("origin", "program", "mesh", "layout", "params", "target")
        return {
            "same": self.same,
            "before": {name: getattr(self.before, name) for name in facts},
            "after": {name: getattr(self.after, name) for name in facts},
            "totals": {name: {"before": a, "after": b} for name, (a, b) in self.totals.items()},
            "tensors": self.tensors.to_json(),
            "collectives": self.collectives.to_json(),
        }

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        head, *lines = _head_lines(self.before, self.after)
        counts = [_same_line(self)] if self.same else [title for title, _ in _sections(self, 0)]
        return "\n".join([f"Diff of {head}", *lines, *(f"  {line}" for line in counts)])

    def _repr_html_(self) -> str:
        title, *lines = _head_lines(self.before, self.after)
        if self.same:
            return html_block(title, html_text(*lines, _same_line(self)))
        head, *rows = _total_rows(self.totals)
        sections = (
            html_details(name, html_text(*changes))
            for name, changes in _sections(self, _HTML_LINES)
        )
        return html_block(title, html_text(*lines), html_table(head, rows, head[1:]), *sections)


def diff(a: Any, b: Any, target: Any = None) -> Diff:
    """Compare two plans: of two layouts, two versions of a model, two commits or two compilers.

    Tensors and collectives are matched by name, scope, phase and function, not by line, so that an
    edit above them changes nothing.

    Args:
        a: A Plan, the path of a saved plan or of an Artifact, an Artifact, an Audit or a compiled
            step (what the compiler made), or a report of ahead-of-time compilation, its row or
            its file.
        b: What it is compared with, of the same sort or another.
        target: What `nm.cost` takes, for the estimated time and memory of Plans; files have those
            that they were saved with.

    Returns:
        The differences.

    Example:
        >>> import namedmesh as nm
        >>> B, M, H = nm.dims("batch=8 model=4 hidden=16")
        >>> def layer(x):
        ...     w = nm.param("w", [M, H])
        ...     return nm.einsum([x, w], [B, H])
        >>> program = nm.trace(layer, x=nm.spec([B, M]))
        >>> mesh = nm.Mesh(data=4)
        >>> print(nm.diff(nm.plan(program, mesh, "batch:data"),
        ...               nm.plan(program, mesh, "batch:data", params="hidden:data")))
        layer on Mesh(data=4), layout 'batch:data'
          params: as the layout -> 'hidden:data'
        <BLANKLINE>
          total        before  after  change
          bytes        0 B     256 B  new
          wire_bytes   0 B     192 B  new
          collectives  0       1      new
          AllGather    0       1      new
        <BLANKLINE>
          collectives: 0 changed, 1 came, 0 went, 0 the same
            + forward AllGather of w over data: 192 B on the wire
        <BLANKLINE>
          tensors: 1 moved, 0 came, 0 went, 2 the same
            ~ w: float32[model=4, hidden=16]: hidden whole -> data, 256 B -> 64 B
    """
    before, after = record_of(a, target), record_of(b, target)
    if before.origin == after.origin:
        tensors = Changes.between(before.tensors, after.tensors, _TENSOR_KEYS, _place_of)
    else:
        # An Artifact lists tensors that a plan leaves out, without partial sums; what a compiler
        # made has no tensors.
        tensors = Changes.between(before.tensors, after.tensors, _TENSOR_KEYS, _summed_place_of)
        tensors = Changes(tensors.changed, (), (), tensors.equal)
    collectives = Changes.between(
        before.collectives, after.collectives, _COLLECTIVE_KEYS, _communication_of
    )
    return Diff(before, after, tensors, collectives)


_place_of = operator.attrgetter("place", "bytes_per_device")
_communication_of = operator.attrgetter(
    "kind", "axes", "hop", "dtype", "devices", "bytes", "wire_bytes", "host_bytes", "slice_bytes",
    "times",
)  # fmt: skip


def _summed_place_of(one: TensorRecord) -> object:
    return one.place.partition(" parts/")[0], one.bytes_per_device


def _op_kind(op: str) -> str:
    """Return an op's name without its number, which shifts with every op above it."""
    return re.sub(r"\.\d+$", "", op)


# What the two sides of a pair have in common: first all that counts, so that equal ones are never
# taken for changes; then less. A function, a scope or a shape may change; a tensor of another name
# is another one.
_TENSOR_KEYS = (
    lambda one: (one.tensor, one.scope, one.phase, one.function, one.place, one.bytes_per_device),
    lambda one: (one.tensor, one.scope, one.phase, one.function, shape_of(one.place)),
    lambda one: (one.tensor, one.scope, one.phase, one.function),
    lambda one: (one.tensor, one.scope, one.phase, shape_of(one.place)),
    lambda one: (one.tensor, one.phase, shape_of(one.place)),
    lambda one: (one.tensor, shape_of(one.place)),
)
_COLLECTIVE_KEYS = (
    lambda one: (
        *(one.phase, one.kind, one.axes, one.hop, one.tensor, one.scope),
        *(_op_kind(one.op), one.function, one.dtype, one.bytes, one.times),
    ),
    lambda one: (one.phase, one.kind, one.axes, one.hop, one.tensor, one.scope, one.bytes),
    lambda one: (one.phase, one.kind, one.axes, one.tensor, one.scope, _op_kind(one.op)),
    lambda one: (one.phase, one.kind, one.axes, one.tensor, one.scope),
    lambda one: (one.phase, one.kind, one.tensor, one.scope),
    lambda one: (one.phase, one.tensor, one.scope, _op_kind(one.op)),
    lambda one: (one.phase, one.kind, one.axes, one.tensor),
)


def _same_line(diff: Diff) -> str:
    both = f"{diff.tensors.equal} tensors and " if _both_have_tensors(diff) else ""
    return f"the same: {both}{diff.collectives.equal} collectives"


def _both_have_tensors(diff: Diff) -> bool:
    return bool(diff.before.tensors and diff.after.tensors)


def _sections(diff: Diff, most: int | None) -> list[tuple[str, list[str]]]:
    """Return titles with the lines of the changes under them."""
    counts, lines = _list_changes(diff.collectives, "total_wire_bytes", _describe, _change, most)
    sections = [(f"collectives: {counts[0]} changed, {counts[1]}", lines)]
    if _both_have_tensors(diff):
        counts, lines = _list_changes(diff.tensors, "bytes_per_device", _locate, _move, most)
        sections.append((f"tensors: {counts[0]} moved, {counts[1]}", lines))
    return sections


def _list_changes(
    changes: Changes[R],
    size: str,
    describe: Callable[[R], str],
    compare: Callable[[R, R], str],
    most: int | None,
) -> tuple[tuple[int, str], list[str]]:
    """Count the changes, and format the largest, equal ones once, and how many are left out."""
    size_of = operator.attrgetter(size)
    weighted = [(size_of(b) - size_of(a), f"~ {compare(a, b)}") for a, b in changes.changed]
    weighted += [(size_of(one), f"+ {describe(one)}") for one in changes.came]
    weighted += [(size_of(one), f"- {describe(one)}") for one in changes.went]
    texts = Counter(text for _, text in sorted(weighted, key=lambda one: -abs(one[0])))
    lines = [f"{text} ({count} of them)" if count > 1 else text for text, count in texts.items()]
    if most is not None and len(lines) > most:
        lines[most:] = [f"and {len(lines) - most} more"]
    rest = f"{len(changes.came)} came, {len(changes.went)} went, {changes.equal} the same"
    return (len(changes.changed), rest), lines


def _head_lines(before: PlanRecord, after: PlanRecord) -> list[str]:
    """Return what both sides are plans of, then the facts in which they differ."""
    program = _arrow(before.program or after.program, after.program or before.program)
    old, new = _format_facts(before), _format_facts(after)
    different = [name for name in old if old[name] != new[name] and old[name] and new[name]]
    head = program or "what the compiler made"
    for name, words in (("mesh", " on "), ("layout", ", layout "), ("target", ", target ")):
        known = old[name] or new[name]
        head += words + known if known and name not in different else ""
    return [head, *(f"  {name}: {_arrow(old[name], new[name])}" for name in different)]


def _format_facts(record: PlanRecord) -> dict[str, str]:
    """Format what a record is a plan of; empty where it is not known."""
    sizes = ", ".join(f"{name}={size}" for name, size in record.mesh.items())
    planned = record.origin in ("plan", "artifact") or record.layout
    params = "as the layout" if record.params == record.layout else repr(record.params)
    return {
        "mesh": f"Mesh({sizes})" if sizes else "",
        "layout": repr(record.layout) if planned else "",
        "params": params if planned else "",
        "compared": record.origin,
        "target": record.target,
    }


def _total_rows(totals: Totals) -> list[tuple[str, str, str, str]]:
    """Return the totals that differ, and the main ones that do not."""
    rows = [("total", "before", "after", "change")]
    main = ("bytes", "wire_bytes", "memory", "seconds", "least_seconds")
    for name in METRICS:
        before, after = totals[name]
        if before == after and (before is None or name not in main):
            continue
        change = "" if before is None or after is None else format_change(before, after)
        rows.append((name, format_figure(name, before), format_figure(name, after), change))
    return rows


def _tell_exposed(totals: Totals) -> list[str]:
    """Return sentences about collectives that are hidden more, or less, than before."""
    lines = []
    for name, (before, after) in totals.items():
        metric, _, kind = name.partition(".")
        change = (after or 0.0) - (before or 0.0)
        if metric == "exposed_seconds" and kind and abs(change) >= 1e-6:
            verb = "exposes" if change > 0 else "hides or saves"
            lines.append(f"this change {verb} {format_figure(name, abs(change))} of {kind}")
    return lines


def _name(one: Collective | TensorRecord) -> str:
    """Return a tensor's name, with its scope unless the name has it already."""
    return one.tensor if one.scope in one.tensor else f"{one.tensor} in {one.scope}"


def _arrow(old: str, new: str) -> str:
    return new if old == new else f"{old} -> {new}"


def _route(one: Collective) -> str:
    """Return the axes, and the neighbour from which an op receives."""
    neighbour = re.search(r"from -?\d+", str(one.hop or ""))
    return "+".join(one.axes) + (f" {neighbour.group()}" if neighbour else "")


def _describe(one: Collective) -> str:
    of = f" of {_name(one)}" if one.tensor else f" in {one.dtype}"
    times = f", {one.times} times" if one.times != 1 else ""
    size = f"{human(one.total_wire_bytes)} on the wire{_leaves(one, one)}"
    return f"{one.phase} {one.kind}{of} over {_route(one)}: {size}{times}"


def _leaves(old: Collective, new: Collective) -> str:
    """Format the bytes that leave a host, or a slice where hosts and slices are one."""
    if not old.host_bytes and not new.host_bytes:
        return ""
    return f", {_arrow(human(old.total_host_bytes), human(new.total_host_bytes))} leaves a host"


def _change(old: Collective, new: Collective) -> str:
    of = f" of {_name(new)}" if new.tensor else ""
    kind, route = _arrow(old.kind, new.kind), _arrow(_route(old), _route(new))
    size = _arrow(human(old.total_wire_bytes), human(new.total_wire_bytes)) + " on the wire"
    dtype = "" if old.dtype == new.dtype else f", {old.dtype} -> {new.dtype}"
    times = "" if old.times == new.times else f", {old.times} -> {new.times} times"
    return f"{new.phase} {kind}{of} over {route}: {size}{_leaves(old, new)}{dtype}{times}"


def _locate(one: TensorRecord) -> str:
    return f"{_name(one)}: {one.place}, {human(one.bytes_per_device)}"


def _move(old: TensorRecord, new: TensorRecord) -> str:
    size = _arrow(human(old.bytes_per_device), human(new.bytes_per_device))
    return f"{_name(new)}: {_format_move(old.place, new.place)}, {size}"


def _format_move(old: str, new: str) -> str:
    """Format a shape, and of each dimension that moved the axes before and after."""
    shape = shape_of(new)
    if shape_of(old) != shape or old == new or " parts/" in old + new:
        return _arrow(old, new)
    moves = []
    for one, other in zip(_split_place(old), _split_place(new), strict=True):
        name, axes = one[0].partition("=")[0], (one[1] or "whole", other[1] or "whole")
        moves += [f"{name} {' -> '.join(axes)}"] if one != other else []
    return f"{shape}: {', '.join(moves)}"


def _split_place(place: str) -> list[tuple[str, str]]:
    """Split a place into its dimensions, each with its mesh axes."""
    cells = place.partition("[")[2].rstrip("]").split(", ")
    return [(cell.partition("/")[0], cell.partition("/")[2]) for cell in cells]
