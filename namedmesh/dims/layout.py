"""Layout: which dimensions are sharded over which mesh axes."""

import fnmatch
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TypeAlias

from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError, check_identifier, name_all, suggest_names
from namedmesh.errors.mistakes import Explained
from namedmesh.files import parse_yaml, read_file

_LARGEST_FILE = 2**16  # bytes
_PATTERN = re.compile(r"(?:^|(?<=[,;\n]))\s*!\s*([^\s,;]+)")  # of names, such as !*scale
_LIMIT = re.compile(r"(?:^|(?<=[,;\n]))\s*slices\s*=([^,;\n]*)")
_PREFETCH = re.compile(r"(?:^|(?<=[,;\n]))(\s*prefetch\s*)(?=[,;\n]|$)")
_ASK_ALONE = "write the word alone, in params=, e.g. 'model:data, prefetch'"
_UNITS = ("", "Ki", "Mi", "Gi", "Ti")  # of bytes, each 1,024 of the one before
LayoutLike: TypeAlias = "Layout | str | Mapping[str, str | Iterable[str]]"


class Layout(Explained):
    """A map from dimension names to the mesh axes they are sharded over.

    A layout of parameters at rest adds axes to those in use; there `hidden:-model` takes one away,
    and `!*scale` exempts the parameters of such names. `slices=64MiB` in a line is a limit: what a
    product would have to gather, or to scatter, beyond it goes round the devices in slices. One of
    parameters at rest may have the word `prefetch`: loops then gather weights for the next
    iteration beside the present one, and scatter its gradients beside the next one.

    Args:
        rules: A line such as 'group:data+expert, hidden:model', a dict, or a Layout.
        exempt: Patterns of parameters' names, beside a dict.
        slices: The limit of slices, in bytes, beside a dict; 4 GiB by default.
        prefetch: Whether loops gather ahead, beside a dict.

    Attributes:
        rules: The axes of each dimension, by name.
        removed: The axes that a layout of parameters at rest takes away, by dimension.
        exempt: The patterns of exempt parameters' names.
        slices: The limit of slices, in bytes; None if it is not given.
        prefetch: Whether loops gather parameters at rest an iteration ahead.

    Example:
        >>> nm.Layout("group:data+expert, expert:expert")
        Layout('group:data+expert, expert:expert')
        >>> nm.Layout({"hidden": "model"}).axes("hidden")
        ('model',)
        >>> nm.Layout("hidden:data, !*scale").exempts("encoder/norm_scale")
        True
        >>> nm.Layout("hidden:model, slices=64MiB").slices
        67108864
    """

    def __init__(
        self,
        rules: LayoutLike = "",
        exempt: Iterable[str] = (),
        slices: int | None = None,
        prefetch: bool = False,
    ):
        patterns = [exempt] if isinstance(exempt, str) else exempt
        if not isinstance(patterns, (list, tuple)):
            raise NamedMeshError(
                f"a layout cannot exempt {type(exempt).__name__} {exempt!r}",
                fix="give a list of patterns of parameters' names, e.g. exempt=['*scale']",
            )
        self.slices, self.prefetch = slices, prefetch
        self.exempt = tuple(map(str, patterns))
        if isinstance(rules, Layout):
            entries = [
                (name, (*axes, *(f"-{axis}" for axis in rules.removed.get(name, ()))))
                for name, axes in rules.rules.items()
            ]
            self.exempt += rules.exempt
            self.slices = rules.slices if slices is None else slices
            self.prefetch |= rules.prefetch
        elif isinstance(rules, str):
            words, limits = _split_words(_LIMIT, rules)
            words, patterns = _split_words(_PATTERN, words)
            words, ahead = _split_words(_PREFETCH, words)
            self.prefetch |= bool(ahead)
            if limits:
                self.slices = _read_bytes(limits[-1], rules)
            entries = _parse(words)
            self.exempt += patterns
        elif isinstance(rules, Mapping):
            for word in ("prefetch", "slices"):
                if isinstance(value := rules.get(word), int):
                    raise NamedMeshError(
                        f"the dict of a layout has {word}={value}: no dimension, and no axes",
                        f"layout: {rules}",
                        fix=f"give it beside the dict: nm.Layout({{...}}, {word}={value})",
                    )
            entries = [_check_entry(name, axes) for name, axes in rules.items()]
        else:
            raise NamedMeshError(
                f"a layout cannot be made from {type(rules).__name__} {rules!r}",
                fix="give a string such as 'batch:data, hidden:model', a dict, "
                "or Layout.from_yaml(path)",
            )
        written = f"layout: {rules}"
        # Axes that several dimensions share come last: moving the last axis of a dimension to
        # another one is an AllToAll, moving an earlier one costs a CollectivePermute as well.
        shared = Counter(axis for _, axes in entries for axis in axes)
        self.rules: dict[str, tuple[str, ...]] = {}
        self.removed: dict[str, tuple[str, ...]] = {}
        for name, axes in entries:
            check_identifier(name, "dimension", written)
            signs = [(isinstance(axis, str) and axis.startswith("-"), axis) for axis in axes]
            for minus, axis in signs:
                check_identifier(axis[1:] if minus else axis, "mesh axis", written)
            if name in self.rules:
                first = self.rules[name]
                both = "+".join(dict.fromkeys((*first, *axes)))
                raise NamedMeshError(
                    f"the layout maps dimension {name} twice: "
                    f"to {'+'.join(first)} and to {'+'.join(axes)}",
                    written,
                    fix=f"write it once; several axes are joined with a plus, e.g. {name}:{both}",
                )
            if len(set(axes)) != len(axes):
                raise NamedMeshError(
                    f"the layout puts dimension {name} twice on one axis: {'+'.join(axes)}",
                    written,
                    fix=f"name each axis once, e.g. {name}:{'+'.join(dict.fromkeys(axes))}",
                )
            added = [axis for minus, axis in signs if not minus]
            self.rules[name] = tuple(sorted(added, key=lambda axis: shared[axis] > 1))
            if len(added) < len(axes):
                self.removed[name] = tuple(axis[1:] for minus, axis in signs if minus)

    @classmethod
    def from_yaml(cls, text_or_path: str | os.PathLike) -> "Layout":
        """Return a layout from YAML: a mapping from dimension to an axis or a list of axes.

        Args:
            text_or_path: The text, or a path: a Path, or a string that ends in .yaml or .yml.

        Example:
            >>> nm.Layout.from_yaml("group: [data, expert]")
            Layout('group:data+expert')
        """
        import yaml

        text, what = str(text_or_path), "the layout"
        if isinstance(text_or_path, os.PathLike) or text.endswith((".yaml", ".yml")):
            what = f"layout file {text!r}"
            data = read_file(text, "layout file", _LARGEST_FILE)
            try:
                text = data.decode()
            except UnicodeDecodeError:
                problem = f"cannot read {what}: it is not UTF-8 text"
                raise NamedMeshError(problem, fix="check the path") from None
        fix = "write lines such as 'hidden: model'"
        root, rules = parse_yaml(text, what, fix)
        if root is None:
            return cls({})
        if not isinstance(root, yaml.MappingNode):
            raise NamedMeshError(f"{what} is not a YAML mapping: {repr(rules)[:200]}", fix=fix)
        seen: set[str] = set()
        for key, _ in root.value:
            if key.tag != "tag:yaml.org,2002:str":
                kind = key.tag.rpartition(":")[2]
                raise NamedMeshError(
                    f"{what} has the key {str(key.value)[:60]!r}, a YAML {kind}",
                    fix="put the name in quotes",
                )
            if key.value in seen:
                raise NamedMeshError(
                    f"{what} maps dimension {key.value} twice",
                    fix="write it once; several axes are a list, "
                    f"e.g. '{key.value}: [data, model]'",
                )
            seen.add(key.value)
        return cls(rules)

    def axes(self, name: str) -> tuple[str, ...]:
        """Return the mesh axes that a dimension is sharded over; none if it is not mapped.

        Args:
            name: The name of a dimension.
        """
        return self.rules.get(name, ())

    def only(self, names: Iterable[str]) -> "Layout":
        """Return the layout of some dimensions, for a program that has fewer.

        Args:
            names: The names to keep, such as `program.dims`.

        Example:
            >>> nm.Layout("batch:data, hidden:model").only(["batch"])
            Layout('batch:data')
        """
        wanted = set(names)
        layout = Layout(self)
        for kept in (layout.rules, layout.removed):
            for name in {*kept} - wanted:
                del kept[name]
        return layout

    def at_rest(self, params: "Layout") -> "Layout":
        """Return this layout with the axes that a layout of parameters at rest adds or takes away.

        Axes in use come first, so that gathering a dimension for use is one AllGather.

        Args:
            params: The layout of parameters at rest.

        Example:
            >>> nm.Layout("batch:data, hidden:model").at_rest(nm.Layout("hidden:data"))
            Layout('batch:data, hidden:model+data')
        """
        layout = Layout({}, params.exempt)
        for name in dict.fromkeys((*self.rules, *params.rules)):
            in_use = [a for a in self.axes(name) if a not in params.removed.get(name, ())]
            layout.rules[name] = tuple(dict.fromkeys((*in_use, *params.axes(name))))
        return layout

    def exempts(self, name: str) -> bool:
        """Return whether a pattern such as `!*scale` exempts a parameter.

        Args:
            name: The parameter's name, scopes included.
        """
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.exempt)

    def check(
        self,
        mesh: Mesh,
        sizes: Mapping[str, Sequence[int]],
        label: str = "layout",
        owner: str = "tensor of the program",
        known: str = "program.dims",
    ) -> None:
        """Check the layout against a mesh and the dimensions of a program.

        Args:
            mesh: The mesh whose axes it may name.
            sizes: The sizes of every dimension it may name.
            label: The layout's name in errors.
            owner: What the dimensions belong to, in errors.
            known: The expression that the fix names for those dimensions.
        """
        without_axis = {
            name: [axis for axis in axes if axis not in mesh.axes]
            for name, axes in self._named_axes()
            if not {*axes} <= {*mesh.axes}
        }
        if without_axis:
            entries = [self._format_rule(name) for name in without_axis]
            absent = list(dict.fromkeys(axis for axes in without_axis.values() for axis in axes))
            raise NamedMeshError(
                f"{label} {', '.join(entries)}: "
                f"the mesh has no {name_all('axis', [repr(axis) for axis in absent], 'axes')}",
                f"mesh: {mesh}",
                fix=suggest_names(absent, mesh.axes),
            )
        unknown = [name for name in self.rules if name not in sizes]
        if unknown:
            listed = (f"{name}={'|'.join(map(str, several))}" for name, several in sizes.items())
            pronoun = "it" if len(unknown) == 1 else "them"
            raise NamedMeshError(
                f"the {label} maps {name_all('dimension', [repr(name) for name in unknown])}, "
                f"which no {owner} has",
                f"{label}: {self.text}",
                f"dimensions: {', '.join(listed)}",
                fix=_ASK_ALONE
                if "prefetch" in unknown
                else f"{suggest_names(unknown, sizes)} "
                f"(or leave {pronoun} out: layout.only({known}))",
            )

    @property
    def text(self) -> str:
        """The layout as one line, which parses back to it."""
        mapped = [self._format_rule(name) for name, axes in self._named_axes() if axes]
        limit = [] if self.slices is None else [f"slices={_format_bytes(self.slices)}"]
        ahead = ["prefetch"] if self.prefetch else []
        return ", ".join([*mapped, *(f"!{pattern}" for pattern in self.exempt), *limit, *ahead])

    def _named_axes(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return the axes that each rule names, those it takes away too."""
        return [(name, (*axes, *self.removed.get(name, ()))) for name, axes in self.rules.items()]

    def _format_rule(self, name: str) -> str:
        """Format one rule as it is written."""
        removed = (f"-{axis}" for axis in self.removed.get(name, ()))
        return f"{name}:{'+'.join((*self.rules[name], *removed))}"

    def __eq__(self, other: object) -> bool:
        alike = isinstance(other, Layout) and self.rules == other.rules
        return alike and self._rest == other._rest

    @property
    def _rest(self) -> tuple[object, ...]:
        """All that it has besides rules."""
        return self.removed, self.exempt, self.slices, self.prefetch

    def __hash__(self) -> int:
        return hash((frozenset(self.rules.items()), self.exempt))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Layout({self.text!r})"


def _check_entry(name: object, axes: object) -> tuple[str, tuple[str, ...]]:
    """Return one entry of a mapping as a name and its axes, or raise."""
    if isinstance(axes, str):
        axes = [axis for axis in re.split(r"\s*\+\s*", axes.strip()) if axis]
    axes = () if axes is None else axes
    names = list(axes) if isinstance(axes, Iterable) else [axes]
    return check_identifier(name, "dimension"), tuple(names)


def _split_words(word: re.Pattern[str], text: str) -> tuple[str, tuple[str, ...]]:
    """Split a line into what is left of it and words, such as patterns of names."""
    rest = word.sub(lambda match: " " * len(match.group()), text)
    return rest, tuple(word.findall(text))


def _read_bytes(size: str, text: str) -> int:
    """Read a number of bytes, such as 64MiB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]i)?B?", size.strip())
    if match is None:
        fix = "write e.g. slices=64MiB, or slices=0 for slices everywhere"
        raise NamedMeshError(f"slices={size.strip()} is not a size", f"layout: {text}", fix=fix)
    return int(float(match[1]) * 1024 ** _UNITS.index(match[2] or ""))


def _format_bytes(size: int) -> str:
    """Format a number of bytes exactly, in the largest unit that it is a multiple of."""
    power = 0
    while size and size % 1024 == 0 and power + 1 < len(_UNITS):
        size, power = size // 1024, power + 1
    return f"{size}{_UNITS[power]}B"


def _parse(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """Read one line such as 'group:data+expert, hidden:model', or raise with a caret."""
    entries: list[tuple[str, tuple[str, ...]]] = []
    for match in re.finditer(r"[^,;\n]+", text):
        part = match.group()
        if not part.strip():
            continue
        entry = re.fullmatch(r"\s*([^\s:]+)\s*:\s*([^\s:+]+(?:\s*\+\s*[^\s:+]+)*)\s*", part)
        if not entry:
            start = match.start() + len(part) - len(part.lstrip())
            line = text.rfind("\n", 0, start) + 1
            raise NamedMeshError(
                f"cannot read {part.strip()!r} as dimension:axis",
                text[line:].split("\n")[0],
                " " * (start - line) + "^" * len(part.strip()),
                fix=_ASK_ALONE
                if get_close_matches(part.strip().lower(), ["prefetch"])
                else "write a layout as 'group:data+expert, hidden:model'",
            )
        entries.append((entry.group(1), tuple(re.split(r"\s*\+\s*", entry.group(2)))))
    return entries
