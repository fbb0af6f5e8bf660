"""Everyday mistakes: arguments and attributes of other libraries, with what to write instead."""

import difflib
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from namedmesh.errors.errors import NamedMeshError, did_you_mean, join_names

# Keywords of numpy, jax and PyTorch that are positions of dimensions here.
_POSITIONS = ("axis", "axes", "dim", "dims")
_EXAMPLES = {"mesh": "mesh=nm.Mesh(data=8)", "layout": "layout='batch:data'"}
# Calls that other libraries write in another way.
_CALLS = {
    "nm.einsum": "nm.einsum([x, w], [B, H])",
    "nm.evaluate": "nm.evaluate(function, x=([M], array))",
}
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


def explain_calls(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function that raises a NamedMeshError where Python would refuse its arguments."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except TypeError as error:
            # Python refused the arguments itself if no frame of the function was ever entered.
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            raise _wrong_call(function, name, str(error)) from None

    return call


def _wrong_call(function: Callable[..., Any], name: str, message: str) -> NamedMeshError:
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
    return did_you_mean(keyword, parameters)


class MissingAttribute(NamedMeshError, AttributeError):
    """An attribute that tensors do not have; hasattr() and getattr() see an AttributeError."""


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
    subject = f"{library}'s {function} takes" if function else f"{library}'s functions take"
    fix = "use the functions of nm, e.g. nm.sum"
    if function and _is_public(function):
        fix = f"use nm.{function}"
    if library == "jax":
        fix += "; nm.call_jax runs jax code on tensors"
    return NamedMeshError(
        f"{subject} arrays, and {label} has no value while tracing", text, fix=fix
    )


def _is_public(name: str) -> bool:
    """Return whether nm has a name."""
    return name in dir(sys.modules["namedmesh"])
