"""Programs by reference: `module:function` or `path/file.py:function`, with values for parameters.

A reference names a Program, a Plan, a compiled step, a function whose inputs have specs, or a
function that returns any of these.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from namedmesh.dims.dimension import dims
from namedmesh.errors.errors import NamedMeshError, did_you_mean, join_names
from namedmesh.errors.mistakes import is_function
from namedmesh.errors.source import is_users
from namedmesh.ir.interface import InputSpec, spec
from namedmesh.ir.program import Program, trace
from namedmesh.planning.plan import Plan

FORM = "write module:function or path/file.py:function, e.g. examples.unet.model:train_program"
_MISSING: Any = object()


def find_program(
    reference: str, settings: Iterable[str] = (), specs: Iterable[str] = ()
) -> Program | Plan:
    """Find what a reference names, call it if it is a function, and return its program.

    Parameters get their values from `--set name=value`, from `--spec name=dims`, from their
    defaults, or, where they are annotated with a class that can be made without arguments, from
    that class; `--set name.field=value` are then its arguments.
    """
    found = find_object(reference)
    arguments = _nest(settings)
    arguments.update(map(_read_spec, specs))
    program = _program_in(found)
    if program is None and is_function(found):
        program = _call(found, arguments, reference)
    elif program is not None and arguments:
        raise NamedMeshError(
            f"--set {join_names(list(arguments))}: {reference} is not a function",
            fix="leave --set out, or name a function that returns the program",
        )
    if program is None:
        problem = f"{reference} is a {type(found).__name__}, expected a program or a function"
        raise NamedMeshError(problem, fix=FORM)
    return program


def call_reference(reference: str, settings: Iterable[str]) -> Any:
    """Find what a reference names, and call it with `--set` if it is a function."""
    found = find_object(reference)
    if not is_function(found):
        return found
    values = _bind(found, _nest(settings), reference)
    return run_guarded(lambda: found(**values), f"calling {reference}")


def _read_spec(text: str) -> tuple[str, InputSpec]:
    """Read one --spec: the name of an input, its dimensions and perhaps a dtype."""
    name, equals, words = (part.strip() for part in text.partition("="))
    sizes = [word for word in words.split() if "=" in word]
    dtypes = [word for word in words.split() if "=" not in word]
    if not equals or not name.isidentifier() or len(dtypes) > 1:
        raise NamedMeshError(
            f"cannot read --spec {text!r}",
            fix="write a name, dimensions with sizes and perhaps a dtype, e.g. "
            "--spec 'x=batch=8 model=4 bfloat16'",
        )
    return name, spec(dims(" ".join(sizes)) if sizes else [], dtypes[0] if dtypes else "float32")


def find_object(reference: str) -> Any:
    """Find an object by attributes and keys of mappings, one after the other."""
    where, colon, path = reference.rpartition(":")
    if not colon or not where or not path:
        fix = f"write {reference}:function" if reference.endswith(".py") else FORM
        raise NamedMeshError(f"{reference!r} does not name a program", fix=fix)
    found: Any = _load_module(where)
    for name in path.split("."):
        inside = found
        if isinstance(inside, Mapping) and name in inside:
            found = inside[name]
            continue
        found = getattr(inside, name, _MISSING)
        if found is _MISSING:
            names = inside if isinstance(inside, Mapping) else vars(inside)
            known = [str(one) for one in names if not str(one).startswith("_")]
            raise NamedMeshError(f"{where} has no {name!r}", fix=did_you_mean(name, known))
    return found


def _load_module(where: str) -> types.ModuleType:
    """Import a module by its name or its file, from the working folder if it is there."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if where.endswith(".py") or os.sep in where:
        return _load_file(where)
    try:
        found = importlib.util.find_spec(where) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        near = where.replace(".", os.sep) + ".py"
        fix = f"{FORM}; or write {near}:..." if os.path.exists(near) else FORM
        raise NamedMeshError(f"there is no module {where!r}", fix=fix)
    return run_guarded(lambda: importlib.import_module(where), f"importing {where}")


def _load_file(where: str) -> types.ModuleType:
    """Import a file; one of a package as a part of it."""
    if not os.path.isfile(where):
        raise NamedMeshError(f"there is no file {where!r}", fix="check the path")
    folder, file = os.path.split(os.path.abspath(where))
    names = [os.path.splitext(file)[0]]
    while os.path.exists(os.path.join(folder, "__init__.py")):
        folder, name = os.path.split(folder)
        names.insert(0, name)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if len(names) > 1:
        module = ".".join(names)
        return run_guarded(lambda: importlib.import_module(module), f"importing {where}")
    loader = importlib.machinery.SourceFileLoader(names[0], os.path.join(folder, file))
    spec = importlib.util.spec_from_loader(names[0], loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(names[0], module)  # dataclasses look their module up
    run_guarded(lambda: loader.exec_module(module), f"running {where}")
    return module


def run_guarded(function: Callable[[], Any], what: str) -> Any:
    """Run code of the user's, and turn whatever it raises into one error."""
    try:
        return function()
    except NamedMeshError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        last = ([one for one in frames if is_users(one.filename)] or frames)[-1]
        file, number, code = last.filename, last.lineno, last.line
        text = str(error).partition("\n")[0][:200]
        if isinstance(error, SyntaxError) and error.filename:
            file, number, text = error.filename, error.lineno, error.msg
            code = (error.text or "").strip()
        line = f"at {os.path.basename(file)}:{number}: {code}"
        fix = "run that line in Python to see the whole traceback, and fix it"
        if isinstance(error, SystemExit):
            fix = (
                'put what a script does under `if __name__ == "__main__":`, or the model in a file'
            )
        raise NamedMeshError(
            f"{what} raised {type(error).__name__}: {text}",
            line,
            fix=fix,
        ) from error


def _program_in(value: Any) -> Program | Plan | None:
    """Return the program that a value is or has."""
    if isinstance(value, (Program, Plan)):
        return value
    plan = getattr(value, "plan", None)
    return plan if isinstance(plan, Plan) else None


class _Fields(dict[str, Any]):
    """Values of `--set name.field=value`: arguments of the class of the parameter."""


def _nest(settings: Iterable[str]) -> _Fields:
    """Read name=value texts; names with dots become arguments of arguments."""
    arguments = _Fields()
    for text in settings:
        name, equals, value = text.partition("=")
        parts = name.strip().split(".")
        if not equals or not all(part.isidentifier() for part in parts):
            fix = "write --set name=value, e.g. --set layers=4"
            raise NamedMeshError(f"cannot read --set {text!r}", fix=fix)
        inner = arguments
        for part in parts[:-1]:
            outer, inner = inner, inner.setdefault(part, _Fields())
            if not isinstance(inner, _Fields):
                raise NamedMeshError(
                    f"--set {name}: {part} is given as a whole too: {outer[part]!r}",
                    fix="give either the whole or its parts",
                )
        if parts[-1] in inner:
            raise NamedMeshError(f"--set {name.strip()} is given twice", fix="give it once")
        inner[parts[-1]] = _read_value(value.strip())
    return arguments


def read_literal(text: str) -> Any:
    """Read a literal of Python; any other text is itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _read_value(text: str) -> Any:
    """Read a literal, @module:name, a switch, or a text."""
    if text.startswith("@"):
        return find_object(text[1:])
    return {"true": True, "false": False, "none": None}.get(text.lower(), read_literal(text))


def _call(function: Any, arguments: _Fields, reference: str) -> Program | Plan:
    """Trace a function whose inputs have specs, or call one that returns a program."""
    values = _bind(function, arguments, reference)
    if any(isinstance(value, InputSpec) for value in values.values()):
        return run_guarded(lambda: _trace_at_definition(function, values), f"tracing {reference}")
    result = run_guarded(lambda: function(**values), f"calling {reference}")
    program = _program_in(result)
    if program is None:
        raise NamedMeshError(
            f"{reference} returned a {type(result).__name__}, expected a Program",
            fix="return nm.trace(function, x=nm.spec(...)), or give the inputs of the function "
            "specs as defaults: def step(x=nm.spec([B, M]))",
        )
    return program


def _trace_at_definition(function: Any, values: dict[str, Any]) -> Program:
    """Trace a function so that its inputs have the line of its definition as their source."""
    specs = {name: value for name, value in values.items() if isinstance(value, InputSpec)}
    rest = {name: value for name, value in values.items() if name not in specs}
    body = function
    if rest:
        body = functools.partial(function, **rest)
        body.__name__ = function.__name__  # type: ignore[attr-defined]
    code = inspect.unwrap(function).__code__
    text = "\n" * (code.co_firstlineno - 1) + "trace(body, **specs)"
    names = {"trace": trace, "body": body, "specs": specs}
    return eval(compile(text, code.co_filename, "eval"), names)


def _bind(function: Any, arguments: _Fields, reference: str) -> dict[str, Any]:
    """Find a value for every parameter of a function."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise NamedMeshError(f"{reference} has no parameters that can be read", fix=FORM) from None
    every = signature.parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = {one.name: one for one in every if one.kind not in variadic}
    unknown = [name for name in arguments if name not in parameters]
    if unknown and all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in every):
        fix = did_you_mean(unknown[0], parameters)
        raise NamedMeshError(f"{reference} has no parameter {unknown[0]!r}", fix=fix)
    annotations = _annotations_of(function)
    values = {name: arguments[name] for name in unknown}
    missing = []
    for name, parameter in parameters.items():
        value = _value_of(parameter, annotations.get(name), arguments.get(name, _MISSING))
        if value is not _MISSING:
            values[name] = value
        elif parameter.default is parameter.empty:
            missing.append(name)
    if missing:
        raise NamedMeshError(
            f"{reference} needs {join_names(missing)}",
            f"its parameters: {signature}",
            fix=f"add --set {missing[0]}=..., where @module:name stands for an object, or for an "
            f"input tensor --spec '{missing[0]}=batch=8 model=4'",
        )
    return values


def _annotations_of(function: Any) -> dict[str, Any]:
    """Return a function's annotations, or none if they cannot be evaluated."""
    if inspect.isclass(function):
        function = function.__init__
    try:
        return inspect.get_annotations(function, eval_str=True)
    except Exception:  # annotations are code, which may be there for editors alone
        return {}


def _value_of(parameter: inspect.Parameter, annotation: Any, given: Any) -> Any:
    """Return the value of one parameter: as given, its spec, or an instance of its class."""
    if isinstance(given, _Fields):
        return _make(parameter, annotation, given)
    if given is not _MISSING:
        return given
    for value in (parameter.default, annotation):
        if isinstance(value, InputSpec):
            return value
    if parameter.default is parameter.empty and _needs_nothing(annotation):
        return run_guarded(annotation, f"making {parameter.name}")
    return _MISSING


def _make(parameter: inspect.Parameter, annotation: Any, fields: _Fields) -> Any:
    """Make an argument of its fields: its default with some changed, or a new instance."""
    what = f"making {parameter.name} with {join_names(list(fields))}"
    if dataclasses.is_dataclass(parameter.default) and not isinstance(parameter.default, type):
        default = parameter.default
        return run_guarded(lambda: dataclasses.replace(default, **fields), what)
    if not inspect.isclass(annotation) or annotation.__module__ == "builtins":
        raise NamedMeshError(
            f"--set {parameter.name}.{next(iter(fields))}: {parameter.name} is not annotated with "
            "a class to make it of",
            fix=f"give all of it: --set {parameter.name}=@module:name",
        )
    return run_guarded(lambda: annotation(**_bind(annotation, fields, parameter.name)), what)


def _needs_nothing(annotation: Any) -> bool:
    """Return True for a class of the user's that can be made without arguments."""
    if not inspect.isclass(annotation) or annotation.__module__ == "builtins":
        return False
    try:
        inspect.signature(annotation).bind()
    except (TypeError, ValueError):
        return False
    return True
