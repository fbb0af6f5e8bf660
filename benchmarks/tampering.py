"""Edits of the text of compiled HLO that change what it communicates, and some that do not.

Functions in TAMPERINGS change what is sent, between whom, how often, or what becomes of it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

import namedmesh as nm
from benchmarks.tampered_lines import ASYNC, EXTRA, OTHER
from namedmesh.audit.hlo import ELEMENT_TYPES, parse_type
from namedmesh.audit.hlo.groups import Groups, parse_groups

_SITE = re.compile(
    r"(?P<before>\s*(?:ROOT )?%(?P<name>\S+) = )(?P<type>.*?) "
    r"(?P<opcode>(?:all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute)(?:-start)?)"
    r"\((?P<operands>[^)]*)\)(?P<attributes>.*)"
)
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\](\{[\d,]*\})?")
_GROUPS = re.compile(
    r"replica_groups=(?:\{\{[\d,{}]*\}\}|\{\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?"
    r"|mesh\[[^\]]*\](?:, device_ids=\(.*?\))? \{[^}]*\})"
)
_PAIRS = re.compile(r"source_target_pairs=\{\{[\d,{}]*\}\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CALLS = re.compile(r"(?:body|calls|to_apply|condition)=%([^\s,)}]+)")
_OP = re.compile(r'op_name="[^"]*"')
_JOINS = re.compile(r"to_apply=%([^\s,)}]+)")
_OTHER_DTYPES = ("bf16", "f16", "f32", "s32", "u16", "c64")
# What the runtime carries between TPU slices.
_CARRIED = re.compile(r' (?:send|recv)\(.*_xla_host_transfer_rendezvous="([^"]+)"')
_TRANSFERS = ("ALL_GATHER", "ALL_REDUCE", "ALL_TO_ALL", "ONE_TO_ONE", "REDUCE_SCATTER")
_OPERATIONS = ("SUM", "MAX", "MIN", "PRODUCT")
_ORDERED = ("all-gather", "all-to-all", "reduce-scatter")
# Opcodes that join two elements; of bools, those of a row mean the same.
_REDUCTIONS = ("add", "maximum", "or", "minimum", "multiply", "and")
_OF_BOOLS = ({"add", "maximum", "or"}, {"minimum", "multiply", "and"})
_JOIN = """%{name} (x: {type}, y: {type}) -> {type} {{
  %x = {type} parameter(0)
  %y = {type} parameter(1)
  ROOT %{name}_result = {type} {opcode}({operands})
}}
"""


@dataclass(frozen=True)
class Edit:
    """One edited module.

    Attributes:
        kind: What was done, for the table.
        text: The module.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Site:
    """One collective in the lines of a module."""

    number: int
    match: re.Match[str]

    @property
    def kind(self) -> str:
        """Its opcode, whether it is started or made at once."""
        return self.match["opcode"].removesuffix("-start")

    @property
    def tensors(self) -> list[re.Match[str]]:
        """The types of its results; those of its operands come before, where it is started."""
        arrays = [one for one in _ARRAY.finditer(self.match["type"]) if one[0][:5] != "u32[]"]
        twice = self.kind != self.match["opcode"] and self.match["type"].startswith("(")
        return arrays[len(arrays) // 2 :] if twice else arrays

    def without(self, i: int) -> str:
        """Return the line without one of its tensors."""
        types = _ARRAY.findall(self.match["type"])
        arrays = ["{}[{}]{}".format(*parts) for parts in types]
        operands, count = self.match["operands"].split(", "), len(self.tensors)
        del operands[i]
        halves = [arrays[k : k + count] for k in range(0, len(arrays), count)]
        lists = [f"({', '.join(half[:i] + half[i + 1 :])})" for half in halves]
        type = lists[0] if len(lists) == 1 else f"({', '.join(lists)})"
        return self.line(type=type, operands=", ".join(operands))

    def line(self, **changes: str) -> str:
        """Return the line with some parts changed."""
        part = {**self.match.groupdict(), **changes}
        return (
            f"{part['before']}{part['type']} {part['opcode']}({part['operands']})"
            f"{part['attributes']}"
        )

    def _operand(self, array: re.Match[str]) -> str:
        """Return the type of an operand, by that of its result."""
        along = re.search(r"dimensions=\{(\d+)\}", self.match["attributes"])
        groups = _GROUPS.search(self.match["attributes"])
        if self.kind not in ("all-gather", "reduce-scatter") or not along or not groups:
            return array[0]
        width = len(parse_groups(groups[0].partition("=")[2])[0])
        sizes = [int(size) for size in array[2].split(",")]
        i = int(along[1])
        sizes[i] = sizes[i] // width if self.kind == "all-gather" else sizes[i] * width
        return f"{array[1]}[{','.join(map(str, sizes))}]"

    def started(self, attributes: str | None = None, nested: bool = True) -> str | None:
        """Return the lines that start and finish it; None for what is never started so."""
        part, inner = self.match, ", ".join(map(self._operand, self.tensors))
        several = len(self.tensors) > 1
        if part["opcode"] != self.kind or (self.kind == "all-to-all" and several):
            return None
        types = part["type"] if several else self.tensors[0][0]
        if nested:  # TPUs start an all-reduce without its operands in the type
            types = f"(({inner}), {types})"
        start = part["before"].replace("ROOT ", "").replace(part["name"], f"{part['name']}.s")
        attributes = part["attributes"] if attributes is None else attributes
        return (
            f"{start}{types} {part['opcode']}-start({part['operands']}){attributes}\n"
            f"{part['before']}{part['type']} {part['opcode']}-done(%{part['name']}.s)"
        )


class Text:
    """The lines of a module, with what edits need to know of them."""

    def __init__(self, text: str, mesh: nm.Mesh):
        self.lines, self.mesh = text.split("\n"), mesh
        matches = ((i, _SITE.fullmatch(line)) for i, line in enumerate(self.lines))
        found = [Site(i, match) for i, match in matches if match]
        # What sends nothing may be anything.
        self.sites = [one for one in found if "_pairs={}" not in one.match["attributes"]]
        self.entry = next(i for i, line in enumerate(self.lines) if line.startswith("ENTRY "))

    def edit(self, kind: str, changes: dict[int, str], computations: str = "") -> Edit:
        """Return the module with some lines changed, and with computations before its entry."""
        lines = [changes.get(i, line) for i, line in enumerate(self.lines)]
        if computations:
            lines.insert(self.entry, computations)
        return Edit(kind, "\n".join(lines))

    def insert(self, kind: str, at: int, lines: str, computations: str = "") -> Edit:
        """Return the module with lines after that of a number."""
        return self.edit(kind, {at: f"{self.lines[at]}\n{lines}"}, computations)

    @property
    def group_texts(self) -> dict[str, str]:
        """Replica groups along every choice of axes, and some along none."""
        sizes, names = list(self.mesh.axes.values()), list(self.mesh.axes)
        shape = ",".join(map(str, sizes))
        groups = {}
        for count in range(1, len(names) + 1):
            for axes in itertools.combinations(range(len(names)), count):
                if any(sizes[i] == 1 for i in axes):  # says no more, and alone sends nothing
                    continue
                order = [i for i in range(len(names)) if i not in axes] + list(axes)
                width = self.mesh.size([names[i] for i in axes])
                text = f"[{self.mesh.devices // width},{width}]<=[{shape}]"
                groups["+".join(names[i] for i in axes)] = (
                    f"{text}T({','.join(map(str, order))})" if order != sorted(order) else text
                )
        groups["some devices"] = "{{0,1}}"
        groups["pairs across"] = "{{0,7},{1,6},{2,5},{3,4}}"
        return groups

    def computation_of(self, number: int) -> str:
        """Return the name of the computation that has a line."""
        header = next(
            self.lines[i] for i in range(number, -1, -1) if self.lines[i][:1] not in ("", " ")
        )
        return header.removeprefix("ENTRY ").split(" ")[0].removeprefix("%")

    def find_join(self, name: str) -> tuple[int, str, str]:
        """Return the line, the opcode and the dtype of the result of a reduction's computation."""
        start = next(i for i, line in enumerate(self.lines) if line.startswith(f"%{name} "))
        number = next(i for i in itertools.count(start) if "ROOT " in self.lines[i])
        result = re.search(r" = (\w+)\S+ ([a-z\-]+)\(", self.lines[number])
        assert result is not None, f"the result of {name} is unreadable"
        return number, result[2], result[1]

    def find_limits(self, loop: str, count: str) -> list[int]:
        """Return the lines of a loop's condition, and of what it calls, that have a number."""
        names, searched = [re.findall(r"condition=%([^\s,)}]+)", loop)[0]], []
        while names:
            searched.append(names.pop())
            for i, line in enumerate(self.lines):
                if line.startswith(" ") and self.computation_of(i) == searched[-1]:
                    names += [name for name in _CALLS.findall(line) if name not in searched]
        return [
            i
            for i, line in enumerate(self.lines)
            if f" constant({count})" in line and self.computation_of(i) in searched
        ]


def add_collectives(text: Text) -> Iterator[Edit]:
    """Return an extra collective of each kind, dtype, axes and size, in the entry and in loops.

    Each kind is there with every dtype, and, of float32 and bfloat16, with every choice of axes and
    three sizes, among them those of the program.
    """
    places = [text.entry]
    places += [
        i + 1
        for i, line in enumerate(text.lines)
        if i != text.entry and line.endswith("{") and any(
            f"body=%{line.split(' ')[0].removeprefix('%')}" in other for other in text.lines
        )
    ][:1]  # fmt: skip
    sizes = {16} | {_elements(array) for site in text.sites for array in site.tensors}
    dtypes = [name for name, element in ELEMENT_TYPES.items() if element.bits]
    groups = list(text.group_texts.values())
    for (kind, line), (i, dtype) in itertools.product(EXTRA.items(), enumerate(dtypes)):
        common = dtype in ("f32", "bf16")
        every = itertools.product(groups, sorted(sizes)[:3])
        for chosen, size in every if common else [(groups[i % len(groups)], 16)]:
            gathered = size * len(parse_groups(chosen)[0])
            body = line.format(t=f"{dtype}[{gathered}]", s=f"{dtype}[{size}]", g=chosen)
            place = places[-1 if dtype == "f32" else 0]
            yield text.insert(f"extra {kind}", place, body, _add(dtype))


def add_other_communication(text: Text) -> Iterator[Edit]:
    """Communication that no plan has: sends, custom calls, opcodes that nobody knows."""
    for kind, line in OTHER.items():
        yield text.insert(f"extra {kind}", text.entry, line)


def add_async_forms(text: Text) -> Iterator[Edit]:
    """Extra collectives that are started and done, or wrapped in another computation."""
    for name, groups in text.group_texts.items():
        if name == "some devices":
            continue
        for kind, line in ASYNC.items():
            yield text.insert(f"extra {kind}", text.entry, line.format(g=groups), _add("f32"))
        wrapped = (
            "%tamper_wrapped (p: f32[16]) -> f32[16] {\n  %tamper_p = f32[16]{0} parameter(0)\n"
            f"  ROOT %tamper_r = f32[16]{{0}} all-reduce(%tamper_p), replica_groups={groups}, "
            "to_apply=%tamper_add\n}\n"
        )
        start = (
            "  %tamper_c = f32[16]{0} constant({...})\n  %tamper_s = ((f32[16]{0}), f32[16]{0}, "
            "u32[]) async-start(%tamper_c), calls=%tamper_wrapped\n"
            "  %tamper_d = f32[16]{0} async-done(%tamper_s), calls=%tamper_wrapped"
        )
        yield text.insert("extra async-start", text.entry, start, wrapped + _add("f32"))
        fusion = (
            "  %tamper_c = f32[16]{0} constant({...})\n"
            "  %tamper_f = f32[16]{0} fusion(%tamper_c), kind=kCustom, calls=%tamper_wrapped"
        )
        yield text.insert("extra in a fusion", text.entry, fusion, wrapped + _add("f32"))


def _add(dtype: str) -> str:
    """Return the computation that extra collectives add up by."""
    return _JOIN.format(name="tamper_add", type=f"{dtype}[]", opcode="add", operands="%x, %y")


def take_out(text: Text) -> Iterator[Edit]:
    """Remove every collective in turn, every tensor of a combined one, and double each."""
    for site in text.sites:
        again = site.line().replace("ROOT ", "").replace(f"%{site.match['name']} ", "%tamper ", 1)
        yield text.insert("one made twice", site.number - 1, again)
        attributes = re.search(r", metadata=.*", site.match["attributes"])
        opcode = "tuple" if site.match["type"].startswith("(") else "copy"
        line = site.line(opcode=opcode, attributes=attributes[0] if attributes else "")
        yield text.edit("one taken out", {site.number: line})
        if len(site.tensors) > 1 and site.kind != "all-to-all":
            for i in range(len(site.tensors)):
                yield text.edit("one tensor taken out", {site.number: site.without(i)})


def move_into_loops(text: Text) -> Iterator[Edit]:
    """Return every collective moved into a loop, of known and of unknown length."""
    for site in text.sites:
        type, attributes = site.match["type"], site.match["attributes"]
        body = (
            f"%tamper_body (p: {type}) -> {type} {{\n  %tamper_p = {type} parameter(0)\n"
            f"  ROOT %tamper_r = {type} {site.match['opcode']}(%tamper_p){attributes}\n}}\n\n"
            f"%tamper_condition (q: {type}) -> pred[] {{\n  %tamper_q = {type} parameter(0)\n"
            "  ROOT %tamper_go = pred[] constant(true)\n}\n"
        )
        for iterations in (', backend_config={"known_trip_count":{"n":"7"}}', ""):
            loop = site.line(
                opcode="while",
                attributes=f", condition=%tamper_condition, body=%tamper_body{iterations}",
            )
            yield text.edit("one moved into a loop", {site.number: loop}, body)


def change_trip_counts(text: Text) -> Iterator[Edit]:
    """Change the trip count of every loop that communicates, as stated or in its condition."""
    communicating = {text.computation_of(site.number) for site in text.sites}
    while True:  # what calls a computation that communicates does so too
        callers = {
            text.computation_of(i)
            for i, line in enumerate(text.lines)
            if communicating & {*_CALLS.findall(line)}
        }
        if callers <= communicating:
            break
        communicating |= callers
    for i, line in enumerate(text.lines):
        count = _TRIPS.search(line)
        if " while(" not in line or not count or not communicating & {*_CALLS.findall(line)}:
            continue
        for iterations in (0, int(count[1]) - 1, int(count[1]) + 1, 2 * int(count[1]), 60):
            changed = line.replace(count[0], count[0].replace(f'"{count[1]}"', f'"{iterations}"'))
            yield text.edit("trip count changed", {i: changed})
        for j in text.find_limits(line, count[1]):
            limit = text.lines[j].replace(f"constant({count[1]})", "constant(61)")
            yield text.edit("limit of a loop changed", {j: limit})
            silent = line.replace(count[0], '"other":{}')
            yield text.edit("limit of a loop changed, count not stated", {i: silent, j: limit})


def change_parts(text: Text) -> Iterator[Edit]:
    """Return another dtype, size, groups, pairs, kind or op of every collective in turn."""
    for site in text.sites:
        type, joins = site.match["type"], _JOINS.search(site.match["attributes"])
        added = text.find_join(joins[1])[2] if joins else ""  # without rounding, as planned
        for array, dtype in itertools.product(site.tensors, _OTHER_DTYPES):
            if dtype not in (array[1], added):
                changed = type[: array.start(1)] + dtype + type[array.end(1) :]
                yield text.edit("dtype changed", {site.number: site.line(type=changed)})
        for array in site.tensors:
            first = array[2].split(",")[0]
            for size in (1, 3, 2 * int(first or 1)):
                if not first or size == int(first):
                    continue
                changed = type[: array.start(2)] + re.sub(r"^\d+", str(size), array[2])
                changed += type[array.end(2) :]
                yield text.edit("size changed", {site.number: site.line(type=changed)})
        yield from _change_devices(text, site)
        for opcode in ("collective-broadcast", "all-scatter", "ragged-all-to-all"):
            yield text.edit("kind changed", {site.number: site.line(opcode=opcode)})
        # What several tensors share may be the metadata of one.
        named = _OP.search(site.match["attributes"])
        if named and (len(site.tensors) == 1 or site.kind == "all-to-all"):
            other = _OP.sub('op_name="jit(f)/namedmesh/nm.other.99/X"', site.match["attributes"])
            yield text.edit("of another op", {site.number: site.line(attributes=other)})


def _change_devices(text: Text, site: Site) -> Iterator[Edit]:
    """Return other groups or pairs of one collective."""
    attributes = site.match["attributes"]
    old = _GROUPS.search(attributes) or _PAIRS.search(attributes)
    if old is None:
        return
    if old[0].startswith("source"):
        pairs = "{{0,1},{1,0},{2,3},{3,2},{4,5},{5,4},{6,7},{7,6}}"
        others = [f"source_target_pairs={pairs}", "source_target_pairs={{0,1}}"]
    else:
        mine = parse_groups(old[0].partition("=")[2])
        others = [
            f"replica_groups={groups}"
            for groups in text.group_texts.values()
            if {*map(frozenset, parse_groups(groups))} != {*map(frozenset, mine)}
        ]
    for other in others:
        changed = site.line(attributes=attributes.replace(old[0], other))
        yield text.edit("devices changed", {site.number: changed})


def change_reductions(text: Text) -> Iterator[Edit]:
    """Return another reduction of every collective that reduces, at once or started and done."""
    for site in text.sites:
        joins = _JOINS.search(site.match["attributes"])
        if joins is None:
            continue
        dtype = site.tensors[0][1]
        number, opcode, _ = text.find_join(joins[1])
        others = {name: "%x, %y" for name in _REDUCTIONS if name != opcode}
        if dtype == "pred":
            same = next(row for row in _OF_BOOLS if opcode in row)
            others = {name: both for name, both in others.items() if name not in same}
        elif dtype.startswith(("f", "bf")):
            others = {name: both for name, both in others.items() if name not in ("and", "or")}
        changed = site.match["attributes"].replace(joins[0], "to_apply=%tamper_join")
        for other, operands in [*others.items(), (opcode, "%x, %x"), ("subtract", "%x, %y")]:
            parts = {"name": "tamper_join", "type": f"{dtype}[]", "opcode": other}
            computation = _JOIN.format(**parts, operands=operands)
            for line in (site.line(attributes=changed), site.started(changed)):
                if line:
                    yield text.edit("reduction changed", {site.number: line}, computation)
        for other in others:
            line = text.lines[number].replace(f" {opcode}(", f" {other}(")
            yield text.edit("computation of a reduction changed", {number: line})


def change_orders(text: Text) -> Iterator[Edit]:
    """Return the same devices in another order, where a device's place decides what it gets."""
    for site in text.sites:
        attributes = site.match["attributes"]
        old = _GROUPS.search(attributes) or _PAIRS.search(attributes)
        if old is None or site.kind == "all-reduce":
            continue
        groups = parse_groups(old[0].partition("=")[2]) or (tuple(range(text.mesh.devices)),)
        name, others = "replica_groups", _reorder_groups(text.mesh, groups)
        if site.kind == "collective-permute":
            name, others = "source_target_pairs", _reorder_pairs(text.mesh, groups)
        for other in others:
            changed = attributes.replace(old[0], f"{name}={_list(other)}")
            for line in (site.line(attributes=changed), site.started(changed)):
                if line:
                    yield text.edit("order of devices changed", {site.number: line})


def _reorder_groups(mesh: nm.Mesh, groups: Groups) -> list[Groups]:
    """Return groups of the same devices in other orders: in all groups, or in the first alone."""
    width = len(groups[0])
    grid = np.array(groups)
    orders = [range(width)[::-1], [*range(1, width), 0], [1, 0, *range(2, width)]]
    # Places of the members as a grid of the axes they differ along, with its axes exchanged.
    for rows in (rows for rows in range(2, width) if width % rows == 0):
        orders.append(np.arange(width).reshape(rows, -1).T.ravel().tolist())
    found = []
    for order in orders if width > 1 else ():
        found.append(_tuples(grid[:, list(order)]))
        found.append((tuple(grid[0, list(order)].tolist()), *groups[1:]))
    return [other for other in dict.fromkeys(found) if other != groups]


def _reorder_pairs(mesh: nm.Mesh, pairs: Groups) -> list[Groups]:
    """Return pairs of the same senders with other receivers."""
    senders, receivers = (tuple(one) for one in zip(*pairs, strict=True))
    found = [tuple(zip(receivers, senders, strict=True))]
    found.append(tuple(zip(senders, (*receivers[1:], receivers[0]), strict=True)))
    found.append(tuple(zip(senders, (*receivers[:2][::-1], *receivers[2:]), strict=True)))
    places, names = np.arange(mesh.devices).reshape(tuple(mesh.axes.values())), len(mesh.axes)
    for order in itertools.permutations(range(names)):
        moved = places.transpose(order).ravel().tolist()
        found.append(tuple(zip(range(mesh.devices), moved, strict=True)))
    mine = {pair for pair in pairs if pair[0] != pair[1]}
    return [
        other
        for other in dict.fromkeys(found)
        if {pair for pair in other if pair[0] != pair[1]} not in (mine, set())
    ]


def _tuples(grid: np.ndarray) -> Groups:
    """Return the rows of a grid."""
    return tuple(map(tuple, grid.tolist()))


def _list(groups: Groups) -> str:
    """Write groups or pairs one by one."""
    return "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in groups) + "}"


def change_transfers(text: Text) -> Iterator[Edit]:
    """Change what the runtime carries between TPU slices: one end of it, or both."""
    ends: dict[str, list[int]] = {}
    for i, line in enumerate(text.lines):
        if named := _CARRIED.search(line):
            ends.setdefault(named[1], []).append(i)
    for name, numbers in ends.items():
        lines = {i: text.lines[i] for i in numbers}
        for i, line in lines.items():
            opcode = re.sub(r" (send|recv)\(", " custom-call(", line)
            yield text.edit("end of a transfer taken out", {i: opcode})
            yield text.edit("ends of other transfers", {i: line.replace(f'"{name}"', '"other"')})
            again = line.replace(" = ", ".tamper = ", 1)
            yield text.insert("end of a transfer made twice", i, again)
        both = "\n".join(lines.values()).replace(name, "tamper_again").replace(" = ", ".tamper = ")
        yield text.insert("transfer made twice", max(numbers), both)
        for pattern, options, kind in (
            (r'transfer_type="(\w+)"', _TRANSFERS, "transfer of another kind"),
            (r'reduce_operation="(\w+)"', _OPERATIONS, "reduction of a transfer changed"),
            (r"= \(([a-z]+\d*)\[", ("f16", "u16", "c64"), "dtype of a transfer changed"),
            (r"= \([a-z]+\d*\[(\d+)", ("3", "64"), "size of a transfer changed"),
            (r'target="?\{+(\d+)', ("7", "700001"), "devices of a transfer changed"),
            (r'target="\{[\d,]+\}x\{(\d+:\d+)', ("0:0", "1:2"), "devices of a transfer changed"),
            (r"target=\{\{(\d+,\d+)", (), "devices of a transfer exchanged"),
        ):
            found = {i: re.search(pattern, line) for i, line in lines.items()}
            if not all(found.values()):
                continue
            for option in options or ("exchanged",):
                changed = {}
                for i, match in found.items():
                    assert match is not None
                    new = option if options else ",".join(match[1].split(",")[::-1])
                    changed[i] = lines[i][: match.start(1)] + new + lines[i][match.end(1) :]
                if changed != lines:
                    yield text.edit(kind, changed)


def cut_off(text: Text) -> Iterator[Edit]:
    """Send what has not been added up in the slice, and gather what has not been received."""
    if not any(_CARRIED.search(line) for line in text.lines):
        return
    for site in text.sites:
        reads = f"(%{site.match['name']})"
        for i, line in enumerate(text.lines):
            if site.kind in ("all-reduce", "reduce-scatter") and reads in line:
                other = line.replace(reads, f"({site.match['operands'].split(', ')[0]})")
                if re.search(r" (?:send|bitcast|copy|fusion)\(", line):
                    yield text.edit("what a slice adds up is not sent", {i: other})
    for line in text.lines:
        if " recv-done(" in line:
            name = line.split(" = ")[0].strip().removeprefix("%")
            for j, other in enumerate(text.lines):
                if f"get-tuple-element(%{name}), index=0" in other:
                    constant = re.sub(r"get-tuple-element\(.*", "constant({...})", other)
                    yield text.edit("what is received is not read", {j: constant})


def keep_meaning(text: Text) -> Iterator[Edit]:
    """Edit that change nothing that is communicated: whoever objects raises a false alarm."""
    yield Edit("as compiled", "\n".join(text.lines))
    for i, line in enumerate(text.lines):
        count = _TRIPS.search(line)
        if count:  # the code of the loop still says how often it runs
            silent = line.replace(count[0], '"other":{}')
            yield text.edit("trip count not stated", {i: silent})
    for site in text.sites:
        for nested in {True, site.kind != "all-reduce"}:
            lines = site.started(nested=nested)
            if lines:
                yield text.edit("started and done", {site.number: lines})
        yield from _keep_devices(text, site)
        yield from _keep_reduction(text, site)
    yield from _exchange_names(text)


def _keep_devices(text: Text, site: Site) -> Iterator[Edit]:
    """Return the same devices, listed otherwise where that means nothing."""
    old = _GROUPS.search(site.match["attributes"])
    if old is None or old[0] == "replica_groups={}":
        return
    groups = parse_groups(old[0].partition("=")[2])
    kinds = {"groups in another order": groups[::-1]}
    if site.kind == "all-reduce":
        kinds["devices that add up in another order"] = tuple(group[::-1] for group in groups)
    for kind, listed in kinds.items():
        changed = site.match["attributes"].replace(old[0], f"replica_groups={_list(listed)}")
        yield text.edit(kind, {site.number: site.line(attributes=changed)})


def _keep_reduction(text: Text, site: Site) -> Iterator[Edit]:
    """Return the same reduction by a computation of another name, the operands exchanged."""
    joins = _JOINS.search(site.match["attributes"])
    if joins is None:
        return
    _, opcode, dtype = text.find_join(joins[1])
    parts = {"name": "same", "type": f"{dtype}[]", "opcode": opcode}
    changed = site.match["attributes"].replace(joins[0], "to_apply=%same")
    computation = _JOIN.format(**parts, operands="%y, %x")
    yield text.edit(
        "reduction by another name", {site.number: site.line(attributes=changed)}, computation
    )


def _exchange_names(text: Text) -> Iterator[Edit]:
    """Exchange the ops that two collectives are named after, equal in all that they send."""
    equal: dict[tuple[str, ...], Site] = {}
    for site in text.sites:
        attributes, name = site.match["attributes"], _OP.search(site.match["attributes"])
        devices = _GROUPS.search(attributes) or _PAIRS.search(attributes)
        joins = _JOINS.search(attributes)
        if name is None or devices is None:
            continue
        reduction = text.find_join(joins[1])[1] if joins else ""
        place = text.computation_of(site.number)
        key = (place, site.match["type"], site.match["opcode"], devices[0], reduction)
        other = equal.setdefault(key, site)
        named = _OP.search(other.match["attributes"])
        if named and named[0] != name[0]:
            mine = site.line(attributes=attributes.replace(name[0], named[0]))
            its = other.line(attributes=other.match["attributes"].replace(named[0], name[0]))
            yield text.edit("names exchanged", {site.number: mine, other.number: its})


TAMPERINGS = (
    add_collectives,
    add_other_communication,
    add_async_forms,
    take_out,
    move_into_loops,
    change_trip_counts,
    change_parts,
    change_reductions,
    change_orders,
    change_transfers,
    cut_off,
)


def _elements(array: re.Match[str]) -> int:
    """Return the number of elements an array type has."""
    return parse_type(array[0]).arrays[0].elements
