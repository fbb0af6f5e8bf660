"""Public names have signatures with types, and docstrings with arguments, result and example."""

from __future__ import annotations

import functools
import importlib
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import namedmesh as nm

ROOMS = ("aot", "runtime", "training")


def public_objects() -> dict[str, Any]:
    """The functions and classes that users meet, by the name they are documented under."""
    named = {f"nm.{name}": getattr(nm, name) for name in dir(nm) if not name.startswith("_")}
    for name, value in vars(nm.random).items():
        here = getattr(value, "__module__", None) == nm.random.__name__
        if here and not name.startswith("_"):
            named[f"nm.random.{name}"] = value
    for room in ROOMS:
        module = importlib.import_module(f"namedmesh.{room}")
        for name in dir(module):
            value = getattr(module, name)  # some rooms serve names when they are asked for
            if not name.startswith("_") and not isinstance(value, types.ModuleType):
                named[f"{room}.{name}"] = value
    return {
        name: value
        for name, value in named.items()
        if inspect.isclass(value) or inspect.isfunction(value)
    }


def public_members(owner: type) -> Iterator[tuple[str, Any]]:
    """The public members that a class defines or inherits from a class of namedmesh."""
    seen: set[str] = set()
    for base in owner.__mro__:
        if not base.__module__.startswith("namedmesh"):
            continue
        for name, member in vars(base).items():
            if not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, member


def method_of(member: Any) -> Callable[..., Any] | None:
    """The function behind a method; None for attributes and properties."""
    function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
    return function if inspect.isfunction(function) else None


def getter_of(member: Any) -> Callable[..., Any] | None:
    """The function behind a property; None for everything else."""
    if isinstance(member, functools.cached_property):
        return member.func
    return member.fget if isinstance(member, property) else None


def members_by_name(select: Callable[[Any], Callable[..., Any] | None]) -> dict[str, Any]:
    """The selected members of public classes, by class and name."""
    members: dict[str, Any] = {}
    for name, owner in CLASSES.items():
        for member_name, member in public_members(owner):
            function = select(member)
            if function is not None and function not in members.values():
                members[f"{name}.{member_name}"] = function
    return members


OBJECTS = public_objects()
FUNCTIONS = {name: value for name, value in OBJECTS.items() if inspect.isfunction(value)}
CLASSES = {name: value for name, value in OBJECTS.items() if inspect.isclass(value)}
METHODS = members_by_name(method_of)
PROPERTIES = members_by_name(getter_of)


def check_first_sentence(name: str, documented: Any) -> None:
    """A docstring starts with one sentence."""
    text = inspect.getdoc(documented) or ""
    assert text and text.splitlines()[0].endswith("."), f"{name}: one sentence first"


def check_types(name: str, function: Callable[..., Any]) -> None:
    """Every argument and the result have a type."""
    signature = inspect.signature(function)
    untyped = [one.name for one in arguments_of(function) if one.annotation is one.empty]
    assert untyped == [], f"{name}: arguments without a type"
    assert signature.return_annotation is not signature.empty, f"{name}: the type of its result"


def check_sections(name: str, function: Callable[..., Any]) -> None:
    """The docstring lists every argument, and says what comes back."""
    text = inspect.getdoc(function) or ""
    lines = [line.strip() for line in text.splitlines()]
    arguments = arguments_of(function)
    assert not arguments or "Args:" in lines, f"{name}: its arguments"
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    for argument in arguments:
        label = f"{stars.get(argument.kind, '')}{argument.name}: "
        documented = any(line.startswith(label) for line in lines)
        assert documented, f"{name}: {argument.name} is not documented"
    # A context manager made of a generator documents what it yields.
    generator = inspect.isgeneratorfunction(inspect.unwrap(function))
    result = "Yields:" if generator else "Returns:"
    nothing = inspect.signature(function).return_annotation in (None, "None")
    in_summary = text.startswith("Return ")
    assert nothing or in_summary or result in lines, f"{name}: its result"


def arguments_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters that a caller gives: all but self and cls."""
    parameters = inspect.signature(function).parameters.values()
    return [one for one in parameters if one.name not in ("self", "cls")]


@pytest.mark.parametrize("name", OBJECTS)
def test_it_has_a_docstring_with_an_example(name):
    check_first_sentence(name, OBJECTS[name])
    assert ">>>" in (inspect.getdoc(OBJECTS[name]) or ""), f"{name}: an example that runs"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_documents_and_types_its_arguments_and_result(name):
    check_types(name, FUNCTIONS[name])
    check_sections(name, FUNCTIONS[name])


@pytest.mark.parametrize("name", METHODS)
def test_a_method_documents_and_types_its_arguments_and_result(name):
    check_first_sentence(name, METHODS[name])
    check_types(name, METHODS[name])
    function = FUNCTIONS.get(_called(name))
    if function and inspect.getdoc(METHODS[name]) == f"`{_called(name)}` of this tensor.":
        own, other = arguments_of(METHODS[name]), arguments_of(function)[1:]
        assert [(one.name, one.default, one.kind) for one in own] == [
            (one.name, one.default, one.kind) for one in other
        ], f"{name}: arguments other than those of the function"
    elif arguments_of(METHODS[name]):
        check_sections(name, METHODS[name])


def _called(method: str) -> str:
    """The function that a method of tensors is named after."""
    return f"nm.{method.removeprefix('nm.Tensor.')}"


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_property_has_a_docstring_and_a_type(name):
    check_first_sentence(name, PROPERTIES[name])
    check_types(name, PROPERTIES[name])


def test_the_members_of_the_main_classes_are_covered():
    expected = {
        "nm.Tensor.describe", "nm.Program.evaluate", "nm.Plan.save", "nm.Layout.only",
        "nm.Mesh.parse", "nm.Dimension.resized", "nm.Shape.without", "nm.Step.init",
        "nm.Artifact.save", "runtime.State.get", "runtime.Audit.count", "runtime.Report.of",
    }  # fmt: skip
    assert expected <= set(METHODS)
    assert {"nm.Program.dims", "nm.Mesh.devices", "aot.Torus.hops"} <= set(PROPERTIES)
