"""Layout: which dimension names lie on which mesh axes."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping

import yaml

from namedmesh.dims.errors import NamedMeshError, checked_identifier, did_you_mean
from namedmesh.dims.mesh import Mesh


class Layout:
    """A function from dimension name to zero or more mesh axes.

    >>> Layout("group:data+expert, expert:expert")
    Layout('group:data+expert, expert:expert')
    >>> Layout({"hidden": "model"}).axes("hidden")
    ('model',)

    Where a dimension lies on several axes, those that other dimensions share come last whatever order they
    were written in: moving the last axis to another dimension is one AllToAll, moving an earlier one costs a
    CollectivePermute as well.
    """

    def __init__(self, rules: "str | Mapping[str, str | Iterable[str]] | Layout" = ""):
        if isinstance(rules, Layout):
            entries = list(rules.rules.items())
        elif isinstance(rules, str):
            entries = _parse(rules)
        elif isinstance(rules, Mapping):
            entries = [_entry(name, axes) for name, axes in rules.items()]
        else:
            raise NamedMeshError(
                f"a layout cannot be made from {type(rules).__name__} {rules!r}",
                fix="give a string such as 'batch:data, hidden:model', a dict, or Layout.from_yaml(path)",
            )
        shared = Counter(axis for _, axes in entries for axis in axes)
        self.rules: dict[str, tuple[str, ...]] = {}
        for name, axes in entries:
            checked_identifier(name, "dimension")
            for axis in axes:
                checked_identifier(axis, "mesh axis")
            if name in self.rules:
                raise NamedMeshError(
                    f"the layout maps dimension {name} twice: to {'+'.join(self.rules[name])} and to {'+'.join(axes)}",
                    fix=f"write it once; several axes are joined with a plus, e.g. {name}:{'+'.join((*self.rules[name], *axes))}",
                )
            if len(set(axes)) != len(axes):
                raise NamedMeshError(
                    f"the layout puts dimension {name} twice on one axis: {'+'.join(axes)}", fix="name each axis once"
                )
            self.rules[name] = tuple(sorted(axes, key=lambda axis: shared[axis] > 1))

    @classmethod
    def from_yaml(cls, text_or_path: str | os.PathLike) -> "Layout":
        """A layout from YAML text or a file of it: a mapping from dimension to an axis or a list of axes."""
        text = str(text_or_path)
        if isinstance(text_or_path, os.PathLike) or text.endswith((".yaml", ".yml")):
            if not os.path.exists(text):
                raise NamedMeshError(f"there is no layout file {text!r}", fix="check the path")
            with open(text, encoding="utf-8") as file:
                text = file.read()
        try:
            rules = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise NamedMeshError(
                f"the layout is not YAML: {' '.join(str(error).split())}", fix="write lines such as 'hidden: model'"
            ) from None
        if rules is not None and not isinstance(rules, dict):
            raise NamedMeshError(f"the YAML layout is no mapping: {rules!r}", fix="write lines such as 'hidden: model'")
        return cls(rules or {})

    def axes(self, name: str) -> tuple[str, ...]:
        """The axes a dimension name lies on."""
        return self.rules.get(name, ())

    def only(self, names: Iterable[str]) -> "Layout":
        """This layout restricted to some names: for a program that uses fewer dimensions."""
        keep = set(names)
        return Layout({name: axes for name, axes in self.rules.items() if name in keep})

    def check(self, mesh: Mesh, names: Iterable[str], label: str = "layout") -> None:
        """Raises for axes the mesh does not have and names no tensor has."""
        names = set(names)
        for name, axes in self.rules.items():
            for axis in axes:
                mesh.check_axis(axis, f"{label} {name}:{'+'.join(axes)}")
            if name not in names:
                raise NamedMeshError(
                    f"the {label} maps dimension {name!r}, which no tensor of the program has",
                    f"{label}: {self.text}",
                    fix=did_you_mean(name, names) + f" (or restrict it: layout.only({sorted(names)!r}))",
                )

    @property
    def text(self) -> str:
        """The layout as one line, which parses back to it."""
        return ", ".join(f"{name}:{'+'.join(axes)}" for name, axes in self.rules.items() if axes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.rules == other.rules

    def __hash__(self) -> int:
        return hash(tuple(self.rules.items()))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Layout({self.text!r})"


def _entry(name: object, axes: object) -> tuple[str, tuple[str, ...]]:
    if axes is None:
        axes = ()
    if isinstance(axes, str):
        axes = [axis for axis in re.split(r"\s*\+\s*", axes.strip()) if axis]
    if not isinstance(axes, Iterable) or not all(isinstance(axis, str) for axis in axes):
        raise NamedMeshError(
            f"the layout maps dimension {name!r} to {axes!r}", fix="give the name of a mesh axis, or a list of names"
        )
    return checked_identifier(name, "dimension"), tuple(axes)


def _parse(text: str) -> list[tuple[str, tuple[str, ...]]]:
    entries = []
    for match in re.finditer(r"[^,;\n]+", text):
        part = match.group()
        if not part.strip():
            continue
        found = re.fullmatch(r"\s*([^\s:]+)\s*:\s*([^\s:+]+(?:\s*\+\s*[^\s:+]+)*)\s*", part)
        if not found:
            start = match.start() + len(part) - len(part.lstrip())
            raise NamedMeshError(
                f"cannot read {part.strip()!r} as dimension:axis",
                text,
                " " * start + "^" * len(part.strip()),
                fix="write a layout as 'group:data+expert, hidden:model'",
            )
        entries.append((found.group(1), tuple(re.split(r"\s*\+\s*", found.group(2)))))
    return entries
