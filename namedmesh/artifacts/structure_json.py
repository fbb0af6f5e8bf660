"""The nesting of results as JSON, in both directions."""

from __future__ import annotations

import keyword
from collections import Counter
from typing import Any

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError
from namedmesh.records.json_cursor import JsonCursor
from namedmesh.signature.structure import NamedStructure, ResultStructure

_KINDS = ("dict", "tuple", "list", "named")
_PLAIN_KEYS = (str, int, float, bool, type(None))


def write_structure(structure: ResultStructure) -> Any:
    """A nesting as JSON, which has neither tuples nor keys that are not text."""
    if structure is None or isinstance(structure, int):
        return structure
    if isinstance(structure, dict):
        return {
            "dict": [[_write_key(key), write_structure(value)] for key, value in structure.items()]
        }
    if isinstance(structure, NamedStructure):
        items = [write_structure(item) for item in structure.items]
        return {"named": [structure.name, list(structure.fields), items]}
    kind = "tuple" if isinstance(structure, tuple) else "list"
    return {kind: [write_structure(item) for item in structure]}


def _write_key(key: object) -> Any:
    """A key of a dict as JSON."""
    if isinstance(key, _PLAIN_KEYS):
        return key
    if isinstance(key, Dimension):
        return {"dimension": [key.name, key.size]}
    if type(key) is tuple:
        return {"tuple": [_write_key(item) for item in key]}
    raise NamedMeshError(
        f"the results have a key of type {type(key).__name__}, which an Artifact cannot keep",
        f"key: {key!r}",
        fix="use strings, numbers, Dimensions, or tuples of those as keys of the results",
    )


def read_structure(cursor: JsonCursor, leaves: int) -> ResultStructure:
    """A nesting from its JSON; whatever is wrong is noted in the cursor's problems."""
    known, numbers = len(cursor.problems), Counter[int]()
    structure = _read(cursor, leaves, numbers)
    if len(cursor.problems) == known and numbers != Counter(range(leaves)):
        cursor.note(f"{cursor.path} does not have each of {leaves} outputs once")
    return structure


def _read(cursor: JsonCursor, leaves: int, numbers: Counter[int]) -> ResultStructure:
    """Read one part of a nesting and counts its leaves."""
    value = cursor.value
    if value is None:
        return None
    if isinstance(value, int):
        number = cursor.number()
        if number >= leaves:
            cursor.wrong(f"the number of one of {leaves} outputs")
        numbers[number] += 1
        return number
    if not isinstance(value, dict) or len(value) != 1 or next(iter(value)) not in _KINDS:
        cursor.wrong(f"a number, null, or an object with one of {', '.join(_KINDS)}")
        return None
    kind = next(iter(value))
    items = cursor.member(kind).items()
    if kind == "dict":
        return _read_dict(items, leaves, numbers)
    if kind == "named":
        return _read_named(cursor.member(kind), leaves, numbers)
    parts = [_read(item, leaves, numbers) for item in items]
    return tuple(parts) if kind == "tuple" else parts


def _read_dict(items: list[JsonCursor], leaves: int, numbers: Counter[int]) -> dict[Any, Any]:
    """Read the entries of a dict, written as [key, structure]."""
    entries: dict[Any, Any] = {}
    for item in items:
        if not isinstance(item.value, list) or len(item.value) != 2:
            item.wrong("[key, structure]")
            continue
        key, value = item.items()
        entries[_read_key(key)] = _read(value, leaves, numbers)
    return entries


def _read_key(cursor: JsonCursor) -> Any:
    """Read the key of a dict."""
    value = cursor.value
    if isinstance(value, dict) and [*value] == ["tuple"]:
        return tuple(_read_key(item) for item in cursor.member("tuple").items())
    if isinstance(value, dict) and [*value] == ["dimension"]:
        pair = cursor.member("dimension").items()
        if len(pair) == 2:
            name, size = pair[0].text(), pair[1].number()
            return cursor.build(lambda: Dimension(name, size), None)
    elif isinstance(value, _PLAIN_KEYS):
        return value
    cursor.wrong("the key of a dict")
    return None


def _read_named(cursor: JsonCursor, leaves: int, numbers: Counter[int]) -> ResultStructure:
    """Read a named tuple, written as [name, fields, items]."""
    parts = cursor.items()
    if len(parts) != 3:
        cursor.wrong("[name, fields, items]")
        return None
    name, fields = parts[0].text(), tuple(field.text() for field in parts[1].items())
    items = tuple(_read(item, leaves, numbers) for item in parts[2].items())
    if not name.isidentifier() or keyword.iskeyword(name) or len(fields) != len(items):
        cursor.wrong("the name, the fields and the items of a named tuple")
    return NamedStructure(name, fields, items)
