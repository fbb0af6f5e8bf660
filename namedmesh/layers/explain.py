"""Wrong arguments of layers, explained by the annotations of the function they were passed to.

A call that fails in Python's own terms (an attribute that a string lacks) is looked at again: where
arguments are not what the signature says, all of them are named in one error.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.format import format_value
from namedmesh.ir.literal import plain_number
from namedmesh.layers.mistakes import Mistake, raise_mistakes

T = TypeVar("T", bound=Callable[..., Any])
LARGEST = 2**63  # of numbers that stand for a size, a count or a rate


def explain_mistakes(function: T) -> T:
    """Make a public function or class name its wrong arguments where they made it fail."""
    if isinstance(function, type):
        function.__init__ = _explain(function.__init__, function.__name__)  # type: ignore[misc]
        return typing.cast(T, function)
    return typing.cast(T, _explain(function, function.__name__))


def _explain(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Wrap a function so that a raw exception is followed by a look at its arguments."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except NamedMeshError:
            raise
        except Exception as error:
            mistakes = _find_mistakes(function, name, arguments, named)
            if not mistakes:
                raise
            try:
                raise_mistakes(name, mistakes)
            except NamedMeshError as explained:
                raise explained from error

    return call


def _find_mistakes(
    function: Callable[..., Any], name: str, arguments: Sequence[Any], named: Mapping[str, Any]
) -> list[Mistake]:
    """Return a mistake for each argument that is not what its annotation says."""
    try:
        bound = inspect.signature(function).bind(*arguments, **named)
    except TypeError:
        return []  # Python's own error says what the signature lacks
    hints = typing.get_type_hints(function)
    mistakes = []
    for key, value in bound.arguments.items():
        hint = hints.get(key, Any)
        if not _matches(value, hint):
            kind = _describe(hint)
            mistakes.append((f"{name}: {key}={format_value(value)} is not {kind}", f"pass {kind}"))
    return mistakes


def _matches(value: Any, hint: Any) -> bool:
    """Return whether a value is what an annotation says, as far as it can be told."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_matches(value, option) for option in options)
    if origin is tuple and options and options[-1] is not Ellipsis:
        pairs = zip(value, options, strict=False) if isinstance(value, Collection) else ()
        return isinstance(value, Sequence) and all(_matches(*pair) for pair in pairs)
    if isinstance(origin, type) and issubclass(origin, Collection):
        items = value.values() if isinstance(value, Mapping) else value
        of = options[-1] if options and options[-1] is not Ellipsis else (options or (Any,))[0]
        return (
            isinstance(value, origin)
            and not isinstance(value, (str, bytes))
            and all(_matches(item, of) for item in items)
        )
    if hint in (int, float, bool):
        return _is_number(value, hint)
    if hint is None or hint is type(None):
        return value is None
    if origin is Callable or hint is Callable:
        return callable(value)
    if getattr(hint, "_is_protocol", False):
        return all(hasattr(value, name) for name in typing.get_type_hints(hint))
    return isinstance(value, hint) if isinstance(hint, type) else True


def _is_number(value: Any, kind: type) -> bool:
    """Return whether a value is a number of a kind, small enough to count or measure with."""
    number = plain_number(value)
    if kind is bool or isinstance(number, bool) or number is None:
        return kind is bool and isinstance(number, bool)
    return (kind is float or isinstance(number, int)) and -LARGEST < number < LARGEST


def _describe(hint: Any) -> str:
    """Describe what an annotation asks for."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        kinds = list(dict.fromkeys(_describe(option) for option in options))
        return f"{', '.join(kinds[:-1])} or {kinds[-1]}" if len(kinds) > 1 else kinds[0]
    if origin is Callable or hint is Callable:
        return "a function"
    if origin is not None:
        noun = "a dict" if issubclass(origin, Mapping) else "a list"
        names = {getattr(option, "__name__", "") for option in options} - {"", "Any", "ellipsis"}
        return f"{noun} of {' and '.join(sorted(names))} values" if names else noun
    names = {int: "a whole number", float: "a number", bool: "True or False", str: "a string"}
    if hint is None or hint is type(None):
        return "None"
    return names.get(hint, f"a {getattr(hint, '__name__', hint)}")
