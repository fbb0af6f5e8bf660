"""Dimensions by name: in a public call, a text stands for the dimension of that name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape, read_sizes
from namedmesh.errors import mistakes
from namedmesh.errors.errors import NamedMeshError, did_you_mean
from namedmesh.ir.recorder import active_recorder
from namedmesh.ir.tensor import Tensor

_BY_ARRAY = ("constant", "named")  # functions that take the sizes of an array


def resolve_arguments(
    function: Callable[..., Any], what: str, arguments: Sequence[Any], named: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments of a call with dimensions in place of their names."""
    function = inspect.unwrap(function)
    if function.__name__ in _BY_ARRAY:
        return arguments, named
    code, types = function.__code__, function.__annotations__
    names, extra = code.co_varnames[: code.co_argcount], code.co_flags & 4  # *args
    rest = code.co_varnames[code.co_argcount + code.co_kwonlyargcount] if extra else ""
    known = {dim.name: dim for dim in _list_dims([*arguments, *named.values()])}

    def convert(parameter: str, value: Any) -> Any:
        kind = str(types.get(parameter, ""))
        by_key = re.search(r"\b(?:Mapping|dict)\[(\w+\.)?Dimension\b", kind)
        # A plain value is never a key: `padding` takes words, or dicts by dimension.
        kind = kind if isinstance(value, dict) else re.sub(r"\b(Mapping|dict)\[.*\]", "", kind)
        takes_names = isinstance(value, str) and "str" in kind  # by itself
        if takes_names or not re.search(r"\b(Dimension|Over|Dims)\b", kind):
            return value
        if isinstance(value, dict) and not by_key:
            return value
        find = lambda one: _find(what, function.__name__, one, known)
        if isinstance(value, str):
            words = re.findall(r"[^\s,]+", value)
            if not words or not re.search("Sequence|Over|Dims", kind):
                return find(value)
            found = [find(word) for word in words]
            single = len(found) == 1 and not kind.startswith(("Sequence", "Dims"))
            value = found[0] if single else found
        elif isinstance(value, (list, tuple)):
            value = [find(one) for one in value]
        elif isinstance(value, dict):
            both = "Dimension, Dimension" in kind
            value = {find(key): find(one) if both else one for key, one in value.items()}
        known.update({dim.name: dim for dim in _list_dims(value)})
        return value

    before = zip([*names, *[rest] * len(arguments)], arguments, strict=False)
    changed = [convert(name, value) for name, value in before]
    return changed, {name: convert(name, value) for name, value in named.items()}


def _list_dims(value: Any) -> Iterator[Dimension]:
    """Yield the dimensions in an argument, those of tensors included."""
    if isinstance(value, Dimension):
        yield value
    elif isinstance(value, Tensor):
        yield from value.shape
    elif isinstance(value, (list, tuple, Shape)):
        for one in value:
            yield from _list_dims(one)
    elif isinstance(value, dict):
        yield from _list_dims([*value, *value.values()])


def _find(what: str, function: str, text: Any, known: Mapping[str, Dimension]) -> Any:
    """Return the dimension of a name: of the call's tensors, or else of the program so far."""
    if not isinstance(text, str):
        return text
    if "=" in text:
        ((name, size),) = read_sizes(text, "dimension", "batch=8").items()
        return Dimension(name, size)
    if text in known:
        return known[text]
    trace: Any = active_recorder()
    found: dict[Dimension, None] = {}
    while trace is not None:
        found.update(dict.fromkeys(dim for x in trace.owned for dim in x.shape))
        trace = trace.parent
    alike = [dim for dim in found if dim.name == text]
    if len(alike) == 1:
        return alike[0]
    if function == "rename":  # which knows the size
        return text
    problem = f"{what}: there is no dimension {text!r} here"
    if alike:
        problem = f"{what}: dimension {text!r} has several sizes: {', '.join(map(str, alike))}"
    advice = did_you_mean(text, {*known, *(dim.name for dim in found)} - {text})
    raise NamedMeshError(problem, fix=f"{advice}, or give a size: '{text}=8'")


mistakes.RESOLVERS.append(resolve_arguments)
