"""Variation: the mesh axes and loops that each value of a compiled step differs along."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from namedmesh.audit.hlo.module import Computation, Instruction, Module
from namedmesh.audit.hlo.trip_counts import find_callees
from namedmesh.dims.mesh import Mesh

# A bit for each axis of the mesh, then one for each loop; of a tuple, those of each element.
Bits = int | tuple["Bits", ...]
_GATHERING = ("all-gather", "all-reduce")  # after which devices have the same
_SCATTERING = ("reduce-scatter", "all-to-all", "collective-permute")
_OUTSIDE = ("partition-id", "replica-id", "rng", "rng-get-and-update-state", "recv", "infeed")
_MOST_PASSES = 8  # through the body of a loop


class Variation:
    """Finds what differs from device to device, and from one iteration of a loop to the next.

    A value that neither device nor loop changes is the same on all devices, and in all iterations.
    """

    def __init__(
        self,
        module: Module,
        mesh: Mesh,
        arguments: Sequence[Sequence[str]],
        axes: Mapping[tuple[str, str], Sequence[str] | None],
    ) -> None:
        """Follow every value of a module.

        Args:
            module: The module.
            mesh: Its devices.
            arguments: The axes along which each argument of the step differs.
            axes: Those of each collective, by its computation and name; None if not known.
        """
        self.module, self.mesh, self.axes = module, mesh, axes
        self.names = {axis: 1 << i for i, axis in enumerate(mesh.axes)}
        self.all_axes = (1 << len(mesh.axes)) - 1
        self.found: dict[tuple[str, str], Bits] = {}
        self.loops: dict[str, int] = {}  # the bit of each loop, by its body
        # Lists of a number for each device, from which a device takes its own.
        self._tables: dict[tuple[str, str], int] = {}
        entry = module.computations[module.entry]
        self._run(entry, [self._bits_of(one) for one in arguments])

    def axes_of(self, key: tuple[str, str]) -> tuple[str, ...]:
        """Return the axes along which a value differs."""
        bits = _flatten(self.found.get(key, self.all_axes))
        return tuple(axis for axis, bit in self.names.items() if bits & bit)

    def is_repeated(self, key: tuple[str, str]) -> bool:
        """Return whether a value is the same in all iterations of the loop that it is in."""
        loop = self.loops.get(key[0], 0)
        return bool(loop) and key in self.found and not _flatten(self.found[key]) & loop

    @property
    def used(self) -> tuple[str, ...]:
        """The axes along which any value differs."""
        bits = reduce(operator.or_, map(_flatten, self.found.values()), 0)
        return tuple(axis for axis, bit in self.names.items() if bits & bit)

    def _bits_of(self, axes: Sequence[str] | None) -> int:
        """Return the bits of axes; all where they are not known."""
        known = axes is not None and all(axis in self.names for axis in axes)
        return sum(self.names[axis] for axis in axes or ()) if known else self.all_axes

    def _run(self, computation: Computation, given: Sequence[Bits]) -> Bits:
        """Follow the values of a computation, and return those of its result."""
        name, last = computation.name, 0
        for one in computation:
            operands = [self.found.get((name, operand), 0) for operand in one.operands]
            if one.opcode == "parameter":
                index = int(one.literal)
                bits = given[index] if index < len(given) else self.all_axes
            else:
                bits = self._follow(computation, one, operands)
            key = name, one.name
            self.found[key] = _join(self.found[key], bits) if key in self.found else bits
            last = self.found[key] if one.root else last
        return last

    def _follow(self, where: Computation, one: Instruction, operands: list[Bits]) -> Bits:
        """Return the bits of an instruction's result."""
        opcode = one.opcode
        base = opcode.removesuffix("-start").removesuffix("-done").removesuffix("-update")
        called = [self.module.computations.get(name) for name in find_callees(one)]
        if opcode == "tuple":
            return tuple(operands)
        if opcode == "get-tuple-element":
            index = int(one.attributes["index"])
            return operands[0][index] if isinstance(operands[0], tuple) else operands[0]
        if opcode in ("copy", "opt-barrier", "copy-start", "copy-done"):
            return operands[0]
        if base in _OUTSIDE:
            return self.all_axes
        if opcode == "constant" and len(one.literal) > self.mesh.devices > 1:
            self._enter_table(where, one)
        if opcode == "dynamic-slice" and (where.name, one.operands[0]) in self._tables:
            return self._tables[where.name, one.operands[0]]
        bits = reduce(operator.or_, map(_flatten, operands), 0)
        if base in (*_GATHERING, *_SCATTERING) and not opcode.endswith(("-done", "-update")):
            axes = self.axes.get((where.name, one.name))
            along = self._bits_of(axes)
            if base in _SCATTERING:
                return bits | along
            return bits & ~along if axes is not None and along else bits
        if opcode == "while" and called[-1] is not None:
            return self._iterate(one, called[-1], called[0], operands[0])
        if opcode == "conditional":
            results = [
                self._run(body, [given])
                for body, given in zip(called, operands[1:], strict=False)
                if body is not None
            ]
            return _add(reduce(_join, results), _flatten(operands[0])) if results else bits
        if opcode in ("fusion", "call", "async-start") and called and called[0] is not None:
            for each in called[0]:  # tables are tables inside too
                if each.opcode == "parameter" and int(each.literal) < len(one.operands):
                    table = self._tables.get((where.name, one.operands[int(each.literal)]))
                    self._tables |= {(called[0].name, each.name): table} if table else {}
            return self._run(called[0], operands)
        return bits

    def _iterate(
        self, one: Instruction, body: Computation, condition: Computation | None, start: Bits
    ) -> Bits:
        """Follow what a loop carries until nothing changes."""
        own = self.loops.setdefault(body.name, 1 << (len(self.mesh.axes) + len(self.loops)))
        root, carried = body.root, start
        parts = root.operands if root is not None and root.opcode == "tuple" else ()
        kept = [_is_kept(body, part, i) for i, part in enumerate(parts)]
        for _ in range(_MOST_PASSES):
            if isinstance(carried, tuple) and len(kept) == len(carried):
                changed = zip(carried, kept, strict=True)
                carried = tuple(bits if same else _add(bits, own) for bits, same in changed)
            else:
                carried = _add(carried, own)
            result = _join(carried, self._run(body, [carried]))
            if result == carried:
                break
            carried = result
        ends = self._run(condition, [carried]) if condition is not None else 0
        return _drop(_add(carried, _flatten(ends) & self.all_axes), own)

    def _enter_table(self, where: Computation, one: Instruction) -> None:
        """Enter a list of a number for each device, with the axes along which they differ."""
        # Of these, XLA makes the offsets of shards, which differ along the axes that split alone.
        numbers = np.array(re.findall(r"-?\d+", one.literal))
        if numbers.size == self.mesh.devices:
            grid = numbers.reshape(*self.mesh.axes.values())
            differs = ((grid != grid.take([0], i)).any() for i in range(grid.ndim))
            bits = (bit * int(one) for bit, one in zip(self.names.values(), differs, strict=True))
            self._tables[where.name, one.name] = sum(bits)


def _is_kept(body: Computation, name: str, index: int) -> bool:
    """Return whether an element of a loop's result is the one that it was given."""
    one = body.instructions.get(name)
    while one is not None and one.opcode == "copy":
        one = body.instructions.get(one.operands[0])
    if one is None or one.opcode != "get-tuple-element" or one.attributes["index"] != str(index):
        return False
    source = body.instructions.get(one.operands[0])
    return source is not None and source.opcode == "parameter"


def _flatten(bits: Bits) -> int:
    """Return the bits of a value, or of all elements of a tuple."""
    return reduce(operator.or_, map(_flatten, bits), 0) if isinstance(bits, tuple) else bits


def _join(a: Bits, b: Bits) -> Bits:
    """Return the bits of two values of which either may be meant."""
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return tuple(map(_join, a, b))
    return _flatten(a) | _flatten(b)


def _add(bits: Bits, more: int) -> Bits:
    """Add bits to a value."""
    return tuple(_add(one, more) for one in bits) if isinstance(bits, tuple) else bits | more


def _drop(bits: Bits, less: int) -> Bits:
    """Take a loop's bit away, outside of it."""
    return tuple(_drop(one, less) for one in bits) if isinstance(bits, tuple) else bits & ~less
