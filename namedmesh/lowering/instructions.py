"""What a lowered program is made of: calls of fragments, loops and choices, on values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(eq=False, slots=True)
class Value:
    """A value of a program that is being lowered: what is known of it before it is compiled."""

    sizes: tuple[int, ...]
    dtype: str
    sharding: bytes | None = None  # the annotation it was made with, as XLA writes it

    @property
    def signature(self) -> tuple[Any, ...]:
        """What fragments distinguish operands by."""
        return self.sizes, self.dtype, self.sharding


@dataclass(eq=False, slots=True)
class Call:
    """Results that a fragment, lowered once and by its number, makes of operands."""

    name: str  # of the named op that it belongs to
    fragment: int
    operands: Sequence[Value]
    results: Sequence[Value]


@dataclass(eq=False, slots=True)
class Repeat:
    """A body repeated on what it carries while a test holds."""

    name: str
    start: Sequence[Value]
    test: Block
    body: Block
    results: Sequence[Value]

    @property
    def captures(self) -> list[Value]:
        """What the test and the body read from outside."""
        return list(dict.fromkeys((*self.test.outside(), *self.body.outside())))

    @property
    def operands(self) -> list[Value]:
        """All that the loop reads."""
        return [*self.start, *self.captures]


@dataclass(eq=False, slots=True)
class Choice:
    """One of two blocks."""

    name: str
    condition: Value
    yes: Block
    no: Block
    results: Sequence[Value]

    @property
    def operands(self) -> list[Value]:
        """All that the choice reads."""
        return [self.condition, *self.yes.outside(), *self.no.outside()]


Instruction: TypeAlias = Call | Repeat | Choice


@dataclass(eq=False, slots=True)
class Block:
    """Instructions in order, from arguments to results."""

    arguments: Sequence[Value]
    instructions: list[Instruction] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)
    _outside: list[Value] | None = None

    def outside(self) -> list[Value]:
        """Return the values of enclosing blocks that this one reads, each once."""
        if self._outside is None:
            known = {*self.arguments}
            read: dict[Value, None] = {}

            def note(values: Iterable[Value]) -> None:
                read.update((value, None) for value in values if value not in known)

            for one in self.instructions:
                note(one.operands)
                known.update(one.results)
            note(self.results)
            self._outside = list(read)
        return self._outside
