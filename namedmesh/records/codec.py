"""The codec of every file: records to JSON values and back, each wrong value named with its path.

The types say what a file may have; types that are not written as their fields have hooks here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.hop import Hop
from namedmesh.dims.mesh import Mesh
from namedmesh.dims.sharding import Sharding
from namedmesh.errors.errors import CONTROLS, NamedMeshError
from namedmesh.errors.source import Source
from namedmesh.records.collective import Collective
from namedmesh.records.tensor import TensorRecord

if TYPE_CHECKING:
    from cattrs import Converter

T = TypeVar("T")
LARGEST_SIZE = 2**40  # of a dimension: compilers count elements in 63 bits
LARGEST_NUMBER = 10**30  # of anything that is counted
MOST_PROBLEMS = 20


class InvalidRecordError(Exception):
    """Values of a document that are missing or wrong: a sentence each, beginning with its path."""

    def __init__(self, problems: list[str]):
        super().__init__("; ".join(problems))
        self.problems = problems


class WrongValueError(Exception):
    """One value that is not what its type allows."""

    def __init__(self, value: object, expected: str):
        super().__init__(expected)
        self.value, self.expected = value, expected


def write_value(value: Any, kind: Any = None) -> Any:
    """Return a record as values that JSON has."""
    return _converter().unstructure(value, kind)


def read_value(value: Any, kind: type[T], path: str = "") -> T:
    """Return the record that JSON values describe; raise InvalidRecordError with all problems."""
    converter = _converter()
    try:
        return converter.structure(value, kind)
    except Exception as error:  # whatever a constructor raises is a problem of the file
        raise InvalidRecordError(list(dict.fromkeys(_list_problems(error, path)))) from None


@contextlib.contextmanager
def report_problems(problem: str, fix: str) -> Iterator[None]:
    """Turn an InvalidRecordError raised inside into a NamedMeshError."""
    try:
        yield
    except InvalidRecordError as error:
        more = len(error.problems) > MOST_PROBLEMS
        details = error.problems[:MOST_PROBLEMS] + ["and more"] * more
        raise NamedMeshError(problem, *details, fix=fix) from None


def parse_document(
    data: str | bytes, label: str, what: str, header: tuple[str, int], fix: str
) -> dict[str, Any]:
    """Parse the JSON of a file, which must have a format's name and version."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NamedMeshError(
            f"{label!r} is not {what}, or is damaged: {str(error)[:200]}", fix=fix
        ) from None
    name, version = header
    if not isinstance(document, dict) or document.get("format") != name:
        raise NamedMeshError(f"{label!r} is not {what}", fix=fix)
    if document.get("version") != version:
        raise NamedMeshError(
            f"{label!r} has version {repr(document.get('version'))[:60]} of {name}; "
            f"this namedmesh reads version {version}",
            fix=fix,
        )
    return document


def _list_problems(error: Exception, path: str) -> Iterator[str]:
    """Yield a sentence for each error of a tree of them."""
    from cattrs.errors import ClassValidationError

    if isinstance(error, ClassValidationError):
        noted, others = error.group_exceptions()
        for inner, note in noted:
            yield from _list_problems(inner, f"{path}.{note.name}" if path else note.name)
        for inner in others:
            yield from _list_problems(inner, path)
    elif isinstance(error, InvalidRecordError):
        yield from (path + problem for problem in error.problems)
    elif isinstance(error, KeyError):
        yield f"{path} is missing"
    elif isinstance(error, WrongValueError):
        yield format_wrong(path, error.value, error.expected)
    else:
        yield f"{path}: {getattr(error, 'problem', error)}"


def format_wrong(path: str, value: object, expected: str) -> str:
    """Format what a value is, and what was expected."""
    text = ""
    for part in json.JSONEncoder().iterencode(value):  # no more of a large value than is shown
        text += part
        if len(text) > 60:
            text = text[:57] + "..."
            break
    return f"{path or 'it'} is {text}, expected {expected}"


def _expect(test: Callable[[Any], bool], expected: str) -> Callable[[Any, Any], Any]:
    """Make a hook that passes a value on if it is as expected."""

    def read(value: Any, _: Any) -> Any:
        if not test(value):
            raise WrongValueError(value, expected)
        return value

    return read


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST_NUMBER


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not CONTROLS.search(value)


def _read_text(value: Any, _: Any) -> str:
    if not _is_text(value):
        extra = " without control characters" if isinstance(value, str) else ""
        raise WrongValueError(value, f"text{extra}")
    return value


def _is_real(value: object) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return 0 <= value < 1e300  # false for nan


def _read_items(target: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    """Make a hook for the values of a list or an object, which stops after some problems."""
    kind = typing.get_args(target)[-1 if typing.get_origin(target) is not tuple else 0]
    read_item = converter.get_structure_hook(kind)

    def read(value: Any, _: Any) -> Any:
        items, problems = {}, []
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in pairs:
            try:
                items[key if isinstance(key, int) else _read_text(key, str)] = read_item(item, kind)
            except Exception as error:
                step = f"[{key}]" if isinstance(key, int) else f".{key}"
                problems += _list_problems(error, step)
                if len(problems) > MOST_PROBLEMS:
                    break
        if problems:
            raise InvalidRecordError(problems)
        return items if isinstance(value, dict) else tuple(items.values())

    return read


def _checked(kind: type, expected: str, make: Callable[[Any, Any], Any]) -> Any:
    """Make a factory of hooks that check the sort of a JSON value before it is read."""

    def factory(target: Any, converter: Converter) -> Callable[[Any, Any], Any]:
        inner = make(target, converter)

        def read(value: Any, _: Any) -> Any:
            if not isinstance(value, kind):
                raise WrongValueError(value, expected)
            return inner(value, target)

        return read

    return factory


@functools.cache
def _converter() -> Converter:
    """Return the one converter."""
    from cattrs import Converter
    from cattrs.cols import is_mapping
    from cattrs.gen import make_dict_structure_fn

    converter = Converter()
    read = converter.register_structure_hook
    write = converter.register_unstructure_hook
    read(int, _expect(_is_number, "a non-negative whole number"))
    read(float, _expect(_is_real, "a non-negative number"))
    read(str, _read_text)
    read(bool, _expect(lambda value: isinstance(value, bool), "true or false"))

    factory = converter.register_structure_hook_factory
    factory(dataclasses.is_dataclass, _checked(dict, "an object", make_dict_structure_fn))
    factory(is_mapping, _checked(dict, "an object", _read_items))
    factory(
        lambda kind: typing.get_origin(kind) is tuple,
        _checked(list, "a list", _read_items),
    )
    factory(lambda kind: typing.get_origin(kind) is typing.Literal, _choices_factory)

    read(Source, _read_source)
    write(Source, str)
    read(Hop | None, _read_hop)
    write(Hop | None, lambda hop: str(hop or ""))
    read(Dimension, _read_dimension)
    read(Shape, lambda value, _: Shape(converter.structure(value, tuple[Dimension, ...])))
    write(Shape, lambda shape: [[dim.name, dim.size] for dim in shape])
    read(Sharding, lambda value, _: Sharding.of(converter.structure(value, _Axes)))
    write(Sharding, lambda sharding: {name: list(axes) for name, axes in sharding.held})
    read(Mesh, _read_mesh)
    write(Mesh, lambda mesh: converter.unstructure(_MeshFields.of(mesh)))
    for kind in (Collective, TensorRecord):
        _register_with_source(converter, kind)
    return converter


def _choices_factory(kind: Any, _: Converter) -> Callable[[Any, Any], Any]:
    choices = typing.get_args(kind)
    return _expect(lambda value: value in choices, f"one of {', '.join(choices)}")


def _register_with_source(converter: Converter, kind: type) -> None:
    """Write the function of a record's source, and its bytes on the wire, beside its fields."""
    from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

    options: dict[str, Any] = {}
    if kind is Collective:
        options["measured_wire_bytes"] = override(omit=True)
        options["copies"] = override(omit_if_default=True)
    fields_of = make_dict_unstructure_fn(kind, converter, **options)
    record_of = make_dict_structure_fn(kind, converter, **options)

    def write(record: Any) -> dict[str, Any]:
        sent = {"wire_bytes": record.wire_bytes} if kind is Collective else {}
        return {**fields_of(record), "function": record.function, **sent}

    def read(value: Any, _: Any) -> Any:
        if not isinstance(value, dict):
            raise WrongValueError(value, "an object")
        record = record_of(value, kind)
        function = converter.structure(value.get("function", ""), str)
        record = dataclasses.replace(
            record, source=dataclasses.replace(record.source, function=function)
        )
        sent = converter.structure(value.get("wire_bytes", 0), int)
        # Compilers' reports count what is sent; of a plan it follows from the kind.
        if "wire_bytes" not in value or sent == record.wire_bytes:
            return record
        return dataclasses.replace(record, measured_wire_bytes=sent)

    converter.register_unstructure_hook(kind, write)
    converter.register_structure_hook(kind, read)


def _read_source(value: Any, _: Any) -> Source:
    """Read file:line, or a file alone."""
    if not _is_text(value):
        raise WrongValueError(value, "file:line")
    match = re.fullmatch("(.*):([0-9]{1,9})", value, re.DOTALL)
    return Source(match[1], int(match[2])) if match else Source(value, 0)


def _read_hop(value: Any, _: Any) -> Hop | None:
    if value == "":
        return None
    try:
        return Hop.read(value)
    except (NamedMeshError, TypeError):
        raise WrongValueError(value, "a hop, such as '1-3 from -1 along space'") from None


_Axes = Mapping[str, tuple[str, ...]]
_read_pair = _expect(
    lambda value: isinstance(value, list) and len(value) == 2 and isinstance(value[0], str),
    "[name, size]",
)
_read_size = _expect(
    lambda value: _is_number(value) and value <= LARGEST_SIZE, f"at most {LARGEST_SIZE}"
)


def _read_dimension(value: Any, _: Any) -> Dimension:
    name, size = _read_pair(value, None)
    return Dimension(name, _read_size(size, None))


@dataclasses.dataclass(frozen=True)
class _MeshFields:
    axes: Mapping[str, int]
    device_assignment: tuple[int, ...] | None
    hosts: int = 1
    slices: int = 1

    @classmethod
    def of(cls, mesh: Mesh) -> _MeshFields:
        return cls(mesh.axes, mesh.device_assignment, mesh.hosts, mesh.slices)


def _read_mesh(value: Any, _: Any) -> Mesh:
    fields = _converter().structure(value, _MeshFields)
    reserved = [field.name for field in dataclasses.fields(fields) if field.name in fields.axes]
    if reserved:
        raise InvalidRecordError([f".axes: {name} is not the name of an axis" for name in reserved])
    return Mesh(fields.device_assignment, hosts=fields.hosts, slices=fields.slices, **fields.axes)
