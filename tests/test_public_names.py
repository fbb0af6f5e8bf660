"""Every public name has a signature with types, and a docstring with arguments, result and example."""

from __future__ import annotations

import importlib
import inspect
import types
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
        for name, value in vars(module).items():
            if not name.startswith("_") and not isinstance(value, types.ModuleType):
                named[f"{room}.{name}"] = value
    return {
        name: value
        for name, value in named.items()
        if inspect.isclass(value) or inspect.isfunction(value)
    }


OBJECTS = public_objects()
FUNCTIONS = {name: value for name, value in OBJECTS.items() if inspect.isfunction(value)}


@pytest.mark.parametrize("name", OBJECTS)
def test_it_has_a_docstring_with_an_example(name):
    text = inspect.getdoc(OBJECTS[name]) or ""
    assert text and text.splitlines()[0].endswith("."), f"{name}: one sentence first"
    assert ">>>" in text, f"{name}: an example that runs"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_documents_and_types_its_arguments_and_result(name):
    function = FUNCTIONS[name]
    signature, text = inspect.signature(function), inspect.getdoc(function) or ""
    untyped = [one.name for one in signature.parameters.values() if one.annotation is one.empty]
    assert untyped == []
    assert signature.return_annotation is not signature.empty
    assert not signature.parameters or "Args:" in text
    assert signature.return_annotation in (None, "None") or "Returns:" in text
    for parameter in signature.parameters.values():
        assert f"{parameter.name}:" in text, f"{name}: {parameter.name} is not documented"
