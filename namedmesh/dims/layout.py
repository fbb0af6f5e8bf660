"""Layout: which dimension names lie on which mesh axes."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from namedmesh.dims.errors import NamedMeshError, check_identifier, did_you_mean
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
        written = f"layout: {rules}"
        shared = Counter(axis for _, axes in entries for axis in axes)
        self.rules: dict[str, tuple[str, ...]] = {}
        for name, axes in entries:
            check_identifier(name, "dimension", written)
            for axis in axes:
                check_identifier(axis, "mesh axis", written)
            if name in self.rules:
                both = "+".join(dict.fromkeys((*self.rules[name], *axes)))
                raise NamedMeshError(
                    f"the layout maps dimension {name} twice: to {'+'.join(self.rules[name])} and to {'+'.join(axes)}",
                    written,
                    fix=f"write it once; several axes are joined with a plus, e.g. {name}:{both}",
                )
            if len(set(axes)) != len(axes):
                raise NamedMeshError(
                    f"the layout puts dimension {name} twice on one axis: {'+'.join(axes)}",
                    written,
                    fix=f"name each axis once, e.g. {name}:{'+'.join(dict.fromkeys(axes))}",
                )
            self.rules[name] = tuple(sorted(axes, key=lambda axis: shared[axis] > 1))

    @classmethod
    def from_yaml(cls, text_or_path: str | os.PathLike) -> "Layout":
        """A layout from YAML text or a file of it: a mapping from dimension to an axis or a list of axes."""
        import yaml

        text, what = str(text_or_path), "the layout"
        if isinstance(text_or_path, os.PathLike) or text.endswith((".yaml", ".yml")):
            what = f"layout file {text!r}"
            try:
                with open(text, encoding="utf-8") as file:
                    text = file.read()
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
                raise NamedMeshError(
                    f"cannot read {what}: {reason}", fix="check the path"
                ) from None
        fix = "write lines such as 'hidden: model'"
        try:
            root, rules = yaml.compose(text, Loader=yaml.SafeLoader), yaml.safe_load(text)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            reason = f"{getattr(error, 'problem', error)}" + (
                f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
            )
            raise NamedMeshError(f"{what} is not YAML: {reason}", fix=fix) from None
        if root is None:
            return cls({})
        if not isinstance(root, yaml.MappingNode):
            raise NamedMeshError(f"{what} is not a YAML mapping: {rules!r}", fix=fix)
        seen: set[str] = set()
        for key, _ in root.value:
            if key.tag != "tag:yaml.org,2002:str":
                kind = key.tag.rpartition(":")[2]
                raise NamedMeshError(
                    f"{what} has the key {key.value!r}, a YAML {kind}", fix="put the name in quotes"
                )
            if key.value in seen:
                raise NamedMeshError(
                    f"{what} maps dimension {key.value} twice",
                    fix=f"write it once; several axes are a list, e.g. '{key.value}: [data, model]'",
                )
            seen.add(key.value)
        return cls(rules)

    def axes(self, name: str) -> tuple[str, ...]:
        """The axes a dimension name lies on."""
        return self.rules.get(name, ())

    def only(self, names: Iterable[str]) -> "Layout":
        """This layout restricted to some names: for a program that uses fewer dimensions."""
        keep = set(names)
        return Layout({name: axes for name, axes in self.rules.items() if name in keep})

    def check(
        self,
        mesh: Mesh,
        sizes: Mapping[str, Sequence[int]],
        label: str = "layout",
        owner: str = "tensor of the program",
        known: str = "program.dims",
    ) -> None:
        """Raises for axes the mesh does not have and names no owner has; sizes are those of each name that some has."""
        for name, axes in self.rules.items():
            for axis in axes:
                mesh.check_axis(axis, f"{label} {name}:{'+'.join(axes)}")
            if name not in sizes:
                having = ", ".join(
                    f"{one}={'|'.join(map(str, found))}" for one, found in sizes.items()
                )
                raise NamedMeshError(
                    f"the {label} maps dimension {name!r}, which no {owner} has",
                    f"{label}: {self.text}",
                    f"dimensions: {having}",
                    fix=did_you_mean(name, sizes) + f" (or leave it out: layout.only({known}))",
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
    listed = list(axes) if isinstance(axes, Iterable) else [axes]
    if not all(isinstance(axis, str) for axis in listed):
        raise NamedMeshError(
            f"the layout maps dimension {name!r} to {axes!r}, which is not the name of a mesh axis",
            fix=f"give the name of a mesh axis, or a list of names, e.g. {{{name!r}: 'data'}}",
        )
    return check_identifier(name, "dimension"), tuple(listed)


def _parse(text: str) -> list[tuple[str, tuple[str, ...]]]:
    entries = []
    for match in re.finditer(r"[^,;\n]+", text):
        part = match.group()
        if not part.strip():
            continue
        found = re.fullmatch(r"\s*([^\s:]+)\s*:\s*([^\s:+]+(?:\s*\+\s*[^\s:+]+)*)\s*", part)
        if not found:
            start = match.start() + len(part) - len(part.lstrip())
            line = text.rfind("\n", 0, start) + 1
            raise NamedMeshError(
                f"cannot read {part.strip()!r} as dimension:axis",
                text[line:].split("\n")[0],
                " " * (start - line) + "^" * len(part.strip()),
                fix="write a layout as 'group:data+expert, hidden:model'",
            )
        entries.append((found.group(1), tuple(re.split(r"\s*\+\s*", found.group(2)))))
    return entries
