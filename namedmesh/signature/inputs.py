"""The inputs of a call by name, passed one by one or as the dicts that the function takes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from namedmesh.errors.errors import NamedMeshError, did_you_mean, join_names
from namedmesh.signature.nest import fields_of

# For each argument that is a dict (or *args) of inputs, the names of those inputs.
InputGroups = Mapping[str, tuple[str, ...]]


def name_inputs(
    program: str,
    inputs: Mapping[str, str],
    groups: InputGroups,
    values: Sequence[Any],
    named: Mapping[str, Any],
) -> dict[str, Any]:
    """Give every value of a call the name of the input it is for."""
    names, starts = list(inputs), {group[0]: key for key, group in groups.items() if group}
    by_name: dict[str, Any] = {}
    position = 0
    for value in values:
        if isinstance(value, Mapping) and not value and () in groups.values():
            continue  # a dict argument without entries
        if position >= len(names):
            raise NamedMeshError(
                f"{len(values)} inputs were given, {program} takes {len(inputs)}",
                *(f"{name}: {text}" for name, text in inputs.items()),
                fix=f"give the state, then: {', '.join(inputs)}",
            )
        argument = starts.get(names[position])
        if argument is not None and _is_nested(value, argument, groups[argument]):
            by_name.update(_take_group(program, argument, groups[argument], value))
            position += len(groups[argument])
        else:
            by_name[names[position]] = value
            position += 1
    twice = []
    for name, value in named.items():
        entries = {name: value}
        if name in groups and _is_nested(value, name, groups[name]):
            entries = _take_group(program, name, groups[name], value)
        elif name in groups and name not in inputs and isinstance(value, (tuple, list)):
            entries = dict(zip(groups[name], value, strict=False))
        twice += [entry for entry in entries if entry in by_name]
        by_name.update(entries)
    if twice:
        subject = f"input {twice[0]} was" if len(twice) == 1 else f"inputs {', '.join(twice)} were"
        raise NamedMeshError(f"{subject} given twice", fix="give each input by position or by name")
    return by_name


def name_leaves(
    value: Any, name: str, is_leaf: Callable[[str, Any], bool], taken: Collection[str] = ()
) -> dict[str, Any]:
    """Name what is nested in an argument: keys, then numbers and keys of what is in them."""
    leaves: dict[str, Any] = {}

    def visit(value: Any, path: str, prefix: str) -> None:
        entries = value if isinstance(value, Mapping) else fields_of(value)
        if isinstance(value, (list, tuple)):
            entries, prefix = dict(enumerate(value)), f"{path}_"
        if is_leaf(path, value) or entries is None:
            if path in leaves or path in taken:
                fix = "give each input its own name"
                raise NamedMeshError(f"two inputs are named {path}", fix=fix)
            leaves[path] = value
            return
        for key, inner in entries.items():
            visit(inner, f"{prefix}{key}", f"{prefix}{key}_")

    visit(value, name, "")
    return leaves


def _is_nested(value: Any, argument: str, names: Sequence[str]) -> bool:
    """Return whether a value is the whole of an argument that is nested, not its first input."""
    if isinstance(value, Mapping) or fields_of(value) is not None:
        return True
    plain = not isinstance(value, (list, tuple)) or all(isinstance(x, (int, float)) for x in value)
    return not plain and [*name_leaves(value, argument, lambda path, _: path in names)] == [*names]


def _take_group(program: str, argument: str, names: Sequence[str], value: Any) -> dict[str, Any]:
    """Return the inputs in a nested argument in order, or raise for all that do not fit."""
    whole = value
    value = name_leaves(value, argument, lambda path, one: path in names and one is not whole)
    unknown = [key for key in value if key not in names]
    missing = [name for name in names if name not in value]
    if not unknown and not missing:
        return {name: value[name] for name in names}
    problems = [f"lacks {join_names(missing)}"] if missing else []
    if unknown:
        problems.append(f"has {join_names([repr(key) for key in unknown])} besides")
    raise NamedMeshError(
        f"argument {argument} of {program} {', and '.join(problems)}",
        f"{argument}: {{{', '.join(names)}}}",
        fix=did_you_mean(str(unknown[0]), names) if unknown else f"give all of: {', '.join(names)}",
    )
