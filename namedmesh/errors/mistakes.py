"""Everyday mistakes: arguments and attributes of other libraries, with what to write instead."""

import difflib
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any

from namedmesh.errors.errors import NamedMeshError, did_you_mean, join_names
from namedmesh.errors.source import find_user_line, is_of_jax

# Keywords of numpy, jax and PyTorch that are positions of dimensions here.
_POSITIONS = ("axis", "axes", "dim", "dims")
_EXAMPLES = {"mesh": "mesh=nm.Mesh(data=8)", "layout": "layout='batch:data'"}
# Calls that other libraries write in another way.
_CALLS = {
    "nm.einsum": "nm.einsum([x, w], [B, H])",
    "nm.evaluate": "nm.evaluate(function, x=([M], array))",
    "nm.Mesh": "nm.Mesh(data=2, tensor=4)",
}
# Keywords of other libraries, and ours: no spelling is close to these.
_KEYWORDS = {
    "lr": "learning_rate", "betas": "beta1", "b1": "beta1", "b2": "beta2", "eps": "epsilon",
    "max_to_keep": "keep", "save_total_limit": "keep", "directory": "folder", "type": "dtype",
    "mean": "over", "devices": "mesh", "in_shardings": "layout", "out_shardings": "layout",
    "rules": "layout", "shape": "dims", "initializer": "init", "rng": "key", "out_features": "to",
}  # fmt: skip
# Attributes of arrays, and what to write for a tensor x.
_ATTRIBUTES = {
    "ndim": "write len(x.shape)",
    "size": "write x.shape.elements",
    "astype": "write x.cast('bfloat16')",
    "to": "write x.cast('bfloat16'), or nm.reshard for another placement",
    "numpy": "return it from the traced function and run the step",
    "item": "return it from the traced function and run the step",
    "tolist": "return it from the traced function and run the step",
}


def explain_calls(function: FunctionType, name: str) -> FunctionType:
    """Return a function that raises a NamedMeshError where Python would refuse its arguments."""
    explain = _wrong_call

    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except TypeError as error:
            # Python refused the arguments itself if no frame of the function was ever entered.
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            raise explain(function, name, str(error), named) from None

    # With the globals of the function's own module, where doctest looks for its examples.
    wrapper = FunctionType(call.__code__, function.__globals__, closure=call.__closure__)
    functools.update_wrapper(wrapper, function)
    return wrapper


def explain_methods(owner: type) -> None:
    """Explain wrong calls of the public methods of a class."""
    for name, method in list(vars(owner).items()):
        kind = type(method)
        function = getattr(method, "__func__", method)
        if isinstance(function, FunctionType) and not name.startswith("_"):
            explained = explain_calls(function, f"{owner.__name__}.{name}")
            setattr(owner, name, explained if kind is FunctionType else kind(explained))


def explain_public(value: Any, name: str) -> Any:
    """Return a public function with its wrong calls explained; explain those of a class in it."""
    if isinstance(value, FunctionType):
        return explain_calls(value, name)
    # Tensors and ops are made by the thousand, and by us.
    if not isinstance(value, type) or name in ("nm.Tensor", "nm.Op"):
        return value
    made = vars(value).get("__init__")
    protocol = getattr(value, "_is_protocol", False)  # never made, and has an __init__ of Python's
    if isinstance(made, FunctionType) and not protocol and not hasattr(made, "__wrapped__"):
        setattr(value, "__init__", explain_calls(made, name))  # noqa: B010
    return value


def _wrong_call(
    function: Callable[..., Any], name: str, message: str, named: Iterable[str]
) -> NamedMeshError:
    """Explain Python's message about the arguments of a call."""
    parameters = [one for one in inspect.signature(function).parameters if one != "self"]
    signature = _CALLS.get(name) or f"{name}({_list_arguments(function)})"
    unexpected = re.search(r"unexpected keyword argument '(\w+)'", message)
    if unexpected:
        keyword = unexpected[1]
        return NamedMeshError(
            f"{name} has no argument {keyword}",
            signature,
            fix=_replace_keyword(keyword, parameters),
        )
    missing = re.search(r"missing \d+ required .*arguments?: (.*)", message)
    if missing:
        absent = re.findall(r"'(\w+)'", missing[1])
        for keyword in named:
            if keyword not in parameters and difflib.get_close_matches(keyword, absent):
                fix = did_you_mean(keyword, absent)
                return NamedMeshError(f"{name} has no argument {keyword}", signature, fix=fix)
        examples = [_EXAMPLES[one] for one in absent if one in _EXAMPLES]
        advice = ", ".join(examples) or signature
        return NamedMeshError(f"{name} needs {join_names(absent)}", fix=f"write {advice}")
    # What is left is Python's "takes 1 positional argument but 2 were given".
    reason = re.sub(r"^[\w.]+(\(\))? ", "", message)
    return NamedMeshError(f"{name} {reason}", signature, fix=f"write {signature}")


def _list_arguments(function: Callable[..., Any]) -> str:
    """Return the arguments of a function as a definition has them, without types and defaults."""
    words = []
    for one in inspect.signature(function).parameters.values():
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        if one.kind is one.KEYWORD_ONLY and not any(word.startswith("*") for word in words):
            words.append("*")
        if one.name != "self":
            words.append(stars + one.name)
    return ", ".join(words)


def check_keywords(
    name: str, named: Iterable[str], function: Callable[..., Any], options: Sequence[str]
) -> None:
    """Raise for a keyword that the function lacks and that looks like an option of its caller."""
    parameters = inspect.signature(function).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return
    for keyword in named:
        close = difflib.get_close_matches(keyword, options, n=1)
        if close and keyword not in parameters:
            raise NamedMeshError(
                f"{name} has no argument {keyword}, nor has the function",
                fix=f"did you mean {close[0]}=?",
            )


def _replace_keyword(keyword: str, parameters: list[str]) -> str:
    """Suggest the argument to write in place of an unknown keyword."""
    if keyword in ("keepdim", "keepdims"):
        return "leave it out: x - nm.mean(x, over=H) broadcasts by name"
    for role in ("over", "dim", "dims", "along"):
        if keyword in _POSITIONS and role in parameters:
            example = "[H, W]" if role == "dims" else "H"
            verb = "reduces over" if role == "over" else "takes"
            return f"namedmesh {verb} names, not positions: write {role}={example}"
    if keyword in _POSITIONS:
        return "leave it out: dimensions are matched by name"
    if _KEYWORDS.get(keyword) in parameters:
        return f"did you mean {_KEYWORDS[keyword]!r}?"
    return did_you_mean(keyword, parameters)


class MissingAttribute(NamedMeshError, AttributeError):
    """An attribute that is not there; hasattr() and getattr() see an AttributeError."""


class MissingKey(NamedMeshError, KeyError):
    """A key that is not there; `in` and `get` are as ever."""

    __str__ = NamedMeshError.__str__


class Explained:
    """The base of public classes: explains attributes they lack, and wrong calls of methods."""

    __slots__ = ()

    def __init_subclass__(cls, methods: bool = True, **options: Any) -> None:
        super().__init_subclass__(**options)
        if methods:
            explain_methods(cls)

    if not TYPE_CHECKING:  # editors are to see which attributes there are

        def __getattr__(self, name: str) -> Any:
            kind = type(self)
            if hasattr(kind, name):  # a property raised an AttributeError: raise it again
                return object.__getattribute__(self, name)
            if name.startswith("_"):  # Python and notebooks probe for methods
                raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
            fix = did_you_mean(name, [one for one in dir(self) if not one.startswith("_")])
            if isinstance(self, Mapping) and name in self:
                fix = f"index it by name: [{name!r}]"
            raise MissingAttribute(f"{kind.__name__} has no attribute {name}", fix=fix)


class ByName(Explained, dict[str, Any]):
    """Values by the names of variables; a name that is not among them is explained."""

    def __missing__(self, name: object) -> Any:
        problem = f"there is no parameter {name!r} here"
        raise MissingKey(problem, fix=did_you_mean(name, self))


def missing_attribute(
    label: str, text: str, dims: Sequence[str], methods: Sequence[str], name: str
) -> MissingAttribute:
    """Describe an attribute that a tensor does not have."""
    fix = _ATTRIBUTES.get(name)
    if name in ("T", "mT"):
        order = ", ".join(reversed(dims))
        fix = f"dimensions match by name; to reorder them write nm.transpose(x, [{order}])"
    elif fix is None:
        fix = f"write nm.{name}(x, ...)" if _is_public(name) else did_you_mean(name, methods)
    return MissingAttribute(f"{label} has no attribute {name}", text, fix=fix)


def foreign_call(library: str, function: str | None, label: str, text: str) -> NamedMeshError:
    """Describe a call of a function of numpy or jax with a tensor."""
    if is_of_jax(sys._getframe(2).f_code.co_filename):  # jax asks numpy for shapes, and the like
        library, function = "jax", None
    subject = f"{library}'s {function} takes" if function else f"{library}'s functions take"
    fix = "use the functions of nm, e.g. nm.sum"
    if function and _is_public(function):
        fix = f"use nm.{function}"
    if library == "jax":
        fix += "; nm.call_jax runs jax code on tensors"
    return NamedMeshError(
        f"{subject} arrays, and {label} has no value while tracing", text, fix=fix
    )


def explain_refusal(error: TypeError, trace: TracebackType | None) -> None:
    """Raise for a TypeError of jax about a tensor, at the user's line."""
    if "namedmesh.ir.tensor.Tensor" in str(error) and "JAX" in str(error):
        raise NamedMeshError(
            "jax's functions take arrays, and a tensor has no value while tracing",
            fix="use the functions of nm, e.g. nm.relu; nm.call_jax runs jax code on tensors",
            source=find_user_line(trace),
        ) from None


def _is_public(name: str) -> bool:
    """Return whether nm has a name."""
    return name in dir(sys.modules["namedmesh"])
