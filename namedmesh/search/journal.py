"""Journal: what a search has measured so far, in a file from which it can go on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.op import every_op, option_names
from namedmesh.ir.program import Program
from namedmesh.ir.tensor import Tensor
from namedmesh.records.paths import check_path, describe_os_error, write_file
from namedmesh.search.measure import Measure
from namedmesh.version import __version__

FORMAT = 1


def fingerprint(programs: Iterable[Program], *settings: object) -> str:
    """Return what tells one search from another: its programs and what they are planned for."""
    digest = hashlib.sha256(repr(settings).encode())
    for program in programs:
        for line in _describe_program(program):
            digest.update(repr(line).encode())
    return digest.hexdigest()


def _describe_program(program: Program) -> Iterator[object]:
    """Yield all of a program that a plan depends on, with tensors as numbers."""
    numbers: dict[Tensor, int] = {}

    def count(tensors: Iterable[Tensor]) -> list[int]:
        return [numbers.setdefault(one, len(numbers)) for one in tensors]

    for name, spec in program.specs.items():
        yield name, sorted(spec.whole), count([program.inputs[name]])
    for name, one in program.variables.items():
        yield name, sorted(one.whole), one.trainable, one.at_rest, one.owner, count([one.tensor])
    for op in every_op(program.ops):
        options = [_describe_option(getattr(op, name)) for name in option_names(type(op))]
        shapes = [(str(one.shape), one.dtype) for one in op.outputs]
        yield op.kind, op.phase, options, shapes, count(op.inputs), count(op.outputs)
        for body in op.bodies:
            yield count(body.arguments), count(body.captured), count(body.outputs)
    yield count(program.outputs), [*program.updates], count(program.updates.values())


def _describe_option(value: object) -> object:
    """Return what prints alike in every process: contents, or the type of what has an address."""
    if isinstance(value, (str, bool, int, float, complex, Dimension, Shape)) or value is None:
        return repr(value)
    if isinstance(value, (tuple, list)):
        return [_describe_option(one) for one in value]
    if isinstance(value, Mapping):
        return [(_describe_option(key), _describe_option(one)) for key, one in value.items()]
    if isinstance(value, (set, frozenset)):
        return sorted(repr(_describe_option(one)) for one in value)
    return type(value).__name__


class Journal:
    """The measures of a search, written whole or not at all."""

    def __init__(self, path: str | os.PathLike | None, identity: str):
        self._path = None if path is None else check_path(path, "the journal of the search")
        self._identity = identity
        self.measures: dict[str, Measure] = {}
        if self._path is not None and os.path.exists(self._path):
            self.measures = self._read(self._path)

    def _read(self, path: str) -> dict[str, Measure]:
        """Read the measures of an earlier run of the same search."""
        try:
            with open(path, encoding="utf-8") as file:
                document: Any = json.load(file)
            rows: Mapping[str, Mapping[str, Any]] = document["measures"]
            measures = {key: Measure.from_json(row) for key, row in rows.items()}
            identity = document["format"], document["version"], document["search"]
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            reason = describe_os_error(error) if isinstance(error, OSError) else "it is not one"
            raise NamedMeshError(
                f"cannot read {path!r} as the journal of a search: {reason}",
                fix="name another file, or remove this one to start anew",
            ) from None
        if identity != (FORMAT, __version__, self._identity):
            other = "version of namedmesh" if identity[1] != __version__ else "search"
            raise NamedMeshError(
                f"the journal {path!r} belongs to another {other}",
                fix="name another file, remove this one to start anew, or give the same program, "
                "devices, target and pin as before",
            )
        return measures

    def write(self, measures: Mapping[str, Measure]) -> None:
        """Add measures, and writes the file if there is one."""
        self.measures.update(measures)
        if self._path is None:
            return
        document = {
            "format": FORMAT,
            "version": __version__,
            "search": self._identity,
            "measures": {key: one.to_json() for key, one in self.measures.items()},
        }
        write_file(self._path, (json.dumps(document, indent=1) + "\n").encode(), "the journal")
