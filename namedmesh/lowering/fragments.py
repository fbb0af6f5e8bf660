"""Fragments: what TensorFlow lowers once, in one function, however often a program has it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla as tf2xla

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.ir.op import Op

STAND_IN, RESULTS = "namedmesh.stand_in", "namedmesh.results"  # what marks them in StableHLO


@dataclass(eq=False, slots=True)
class Value:
    """A value of a program that is being lowered: what is known of it before it is compiled."""

    sizes: tuple[int, ...]
    dtype: str
    sharding: bytes | None = None  # the annotation it was made with, as XLA writes it


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
    results: list[Value]

    @property
    def captures(self) -> list[Value]:
        """The values that the test and the body read from outside."""
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
    results: list[Value]

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
            read: list[Value] = []
            for one in self.instructions:
                read += [value for value in one.operands if value not in known]
                known.update(one.results)
            read += [value for value in self.results if value not in known]
            self._outside = list(dict.fromkeys(read))
        return self._outside


Results: TypeAlias = tuple[tuple[Any, ...], ...]  # the signature of each


@dataclass(frozen=True)
class Traced:
    """A fragment as far as it is known before it is compiled."""

    number: int
    results: Results
    owner: Op | None  # the op it was first traced for
    new: bool = False  # whether it has yet to be compiled
    lasting: bool = False  # whether other programs may use it


class Fragments:
    """The fragments of a program, traced by TensorFlow as they are asked for.

    Args:
        setting: The mesh and the precision, on which fragments depend besides their keys.
        known: The results of fragments that were compiled before.
    """

    def __init__(self, setting: Hashable, known: Mapping[Hashable, Results]) -> None:
        self.traced: dict[Hashable, Traced] = {}
        self._setting, self._known = setting, known
        self._stand_ins: dict[Hashable, Any] = {}
        self.results: list[Any] = []  # of all fragments, one after the other

    def find(
        self, key: Hashable, function: Callable[..., Any], values: Sequence[Value], owner: Op | None
    ) -> Traced:
        """Return the fragment of a key, traced if it is new."""
        signatures = tuple((one.sizes, one.dtype, one.sharding) for one in values)
        known = self._setting, key, signatures
        fragment = self.traced.get(known)
        if fragment is None:
            number, results = len(self.traced), self._known.get(known)
            if results is None:
                results = self._trace(number, function, signatures)
                ours = owner is None or owner.lower.__module__.startswith("namedmesh.")
                lasting = ours and is_lasting(key)
                fragment = Traced(number, results, owner, new=True, lasting=lasting)
            else:
                fragment = Traced(number, results, owner)
            self.traced[known] = fragment
        return fragment

    def _trace(
        self, number: int, function: Callable[..., Any], signatures: Sequence[tuple[Any, ...]]
    ) -> Results:
        """Trace a new fragment, and return the signatures of its results."""
        operands = [self._stand_in(one, i) for i, one in enumerate(signatures)]
        with tf.name_scope(scope_of(number)):
            results = function(*operands)
            results = list(results) if isinstance(results, (tuple, list)) else [results]
        self.results += results
        return tuple(map(_sign, results))

    def _stand_in(self, signature: tuple[Any, ...], position: int) -> Any:
        """Return a value of which nothing is known but what an operand's signature says."""
        key = signature, position
        if key not in self._stand_ins:
            sizes, dtype, sharding = signature
            name = f"{position} {len(self._stand_ins)}"
            with tf.name_scope(STAND_IN + "/"):
                value = custom_call(STAND_IN, [], sizes, tf.as_dtype(dtype), name)
                if sharding is not None:
                    value = tf2xla.sharding(value, sharding=sharding)
            self._stand_ins[key] = value
        return self._stand_ins[key]


def is_lasting(key: Hashable) -> bool:
    """Return whether a key is of contents alone: objects, and ops of users, may change."""
    if isinstance(key, tuple):
        return all(map(is_lasting, key))
    if isinstance(key, type):
        return key.__module__.partition(".")[0] in ("namedmesh", "builtins", "numpy")
    return key is None or isinstance(key, (str, bytes, int, float, Dimension, Shape))


def custom_call(target: str, operands: Any, sizes: Any, dtype: Any, config: str) -> Any:
    """Return the one result of a call that only StableHLO knows."""
    results: Any = tf2xla.custom_call_v2(target, operands, [tf.TensorSpec(sizes, dtype)], config)
    return results[0]


def scope_of(number: int) -> str:
    """Return the scope in which TensorFlow names a fragment's ops."""
    return f"fragment.{number}/"


def _sign(value: Any) -> tuple[Any, ...]:
    """Return the signature of a TensorFlow value."""
    sharding = value.op.get_attr("sharding") if value.op.type == "XlaSharding" else None
    return tuple(value.shape.as_list()), value.dtype.name, sharding


@dataclass(frozen=True)
class Compiled:
    """The fragments of a program, the new ones compiled."""

    module: str  # StableHLO; empty if there are no new ones
    traced: Mapping[Hashable, Traced]  # all of them, in order


def compile_fragments(
    emit: Callable[[Fragments], None], setting: Hashable, known: Mapping[Hashable, Results]
) -> Compiled:
    """Compile the fragments that a function asks for, except those known."""
    fragments = Fragments(setting, known)

    def main() -> Any:
        emit(fragments)
        return custom_call(RESULTS, fragments.results, [], tf.int32, "")

    function = tf.function(main, jit_compile=True, autograph=False)
    try:
        read = function.experimental_get_compiler_ir()
        # As text: bytecode of this TensorFlow cannot be read by jaxlib 0.11 and later.
        module = read(stage="stablehlo") if fragments.results else ""
    except ValueError as error:
        raise _compiler_error(error, fragments.traced.values()) from error
    return Compiled(module, fragments.traced)


def _compiler_error(error: ValueError, fragments: Iterable[Traced]) -> Exception:
    """Make the error about the op that TensorFlow could not turn into StableHLO, if it says so."""
    text = str(error)
    for one in fragments:
        if scope_of(one.number) in text and one.owner is not None:
            first = text.split("on XLA_CPU_JIT: ")[-1].splitlines()[0]
            return one.owner.error(
                f"XLA cannot compile it: {first[:300]}",
                *map(str, one.owner.inputs),
                fix=one.owner.lowering_fix,
            )
    return error
