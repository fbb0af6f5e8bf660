"""Errors for everyday mistakes in the arguments of layers: every mistake of a call at once."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Annotated, Any

from namedmesh.errors.errors import NamedMeshError, did_you_mean
from namedmesh.errors.source import caller
from namedmesh.ir.format import describe_type
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import current

Mistake = tuple[str, str]  # what is wrong, and how to fix it


@dataclasses.dataclass(frozen=True)
class Within:
    """The values that a numeric option may have, as a condition and in words."""

    allows: Callable[[Any], bool]
    text: str


Count = Annotated[int, Within(lambda value: value >= 1, "a positive integer")]
CountOrZero = Annotated[int, Within(lambda value: value >= 0, "a non-negative integer")]
Share = Annotated[float, Within(lambda value: 0 <= value < 1, "a number in [0, 1)")]
Positive = Annotated[float, Within(lambda value: 0 < value < math.inf, "a positive number")]
NonNegative = Annotated[float, Within(lambda value: 0 <= value < math.inf, "a non-negative number")]


def raise_mistakes(owner: str, mistakes: Iterable[Mistake], *details: str) -> None:
    """Raise one error that lists every mistake; return when there are none."""
    mistakes = list(mistakes)
    if len(mistakes) == 1:
        ((problem, fix),) = mistakes
        raise NamedMeshError(problem, *details, fix=fix)
    if mistakes:
        raise NamedMeshError(
            f"{owner}: {len(mistakes)} arguments are wrong",
            *(f"{problem}; {fix}" for problem, fix in mistakes),
            *details,
            fix="correct each of the arguments listed above",
        )


def check_options(owner: str, options: Any) -> list[Mistake]:
    """Check the numbers and flags of a dataclass against its annotations."""
    hints = typing.get_type_hints(type(options), include_extras=True)
    mistakes: list[Mistake] = []
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        mistakes += check_option(owner, field.name, value, hints[field.name])
    return mistakes


def check_option(owner: str, name: str, value: Any, hint: Any) -> list[Mistake]:
    """Check a number or a flag against its annotation."""
    optional = type(None) in typing.get_args(hint)
    kind = typing.get_args(hint)[0] if optional else hint
    text = ""
    if kind is bool and not isinstance(value, bool):
        text = "True or False"
    elif typing.get_origin(kind) is Sequence and not isinstance(value, (list, tuple)):
        text = "a list"
    elif typing.get_origin(kind) is Annotated and not (optional and value is None):
        number, within = typing.get_args(kind)
        known = isinstance(value, Integral if number is int else Real)
        if not known or isinstance(value, bool) or not within.allows(value):
            text = within.text + " or None" * optional
    return [(f"{owner}{name}={value!r} is not {text}", f"pass {text}")] if text else []


def check_choice(owner: str, name: str, value: Any, choices: Iterable[str]) -> list[Mistake]:
    """Check that an option is one of its choices."""
    choices = list(choices)
    if value in choices:
        return []
    return [(f"{owner}{name}={value!r} is not a choice", did_you_mean(str(value), choices))]


def claim_name(layer: str, name: str, *, named: bool = False) -> str:
    """Return the default name of a layer's weight; raise if another layer of the scope has it."""
    # Otherwise two layers would share a weight silently. Weights are shared on purpose by a name
    # that is passed to both layers, or by a scope that is entered again for each.
    trace = current(layer)
    if name in trace.claimed:
        first = trace.claimed[name]
        fix = "put each in its own nm.scope, or, to share the weights, enter one scope for each"
        if named:
            fix = "pass each its own name=, or, to share the weight, the same name= to both"
        raise NamedMeshError(
            f"{layer}: an earlier layer has the weight {trace.scope}{name}, "
            "which this one would share by default",
            f"first at {first}: {first.code}",
            fix=fix,
        )
    trace.claimed[name] = caller()
    return name


def check_dims(option: str, dims: Iterable[Any], parameters: Mapping[str, Any]) -> list[Mistake]:
    """Check that an optimizer's option has dimensions of parameters."""
    known = {dim for one in parameters.values() for dim in one.shape}
    names = [dim.name for dim in known]
    wrong = [getattr(dim, "name", str(dim)) for dim in dims if dim not in known]
    problem = f"{option}={{!r}} is not a dimension of any parameter".format
    return [(problem(name), did_you_mean(name, names)) for name in wrong]


def check_grads(what: str, grads: object) -> Mapping[str, Tensor]:
    """Return gradients by parameter name, or raise."""
    fix = "pass what nm.grad(loss) returns, or a dict of gradients by parameter name"
    if not isinstance(grads, Mapping):
        raise NamedMeshError(f"{what}: the gradients are {describe_type(grads)}", fix=fix)
    for name, grad in grads.items():
        if not isinstance(grad, Tensor) or not grad.floating:
            raise NamedMeshError(
                f"{what}: the gradient of {name} is {describe_type(grad)}, "
                "not a floating point tensor",
                fix=fix,
            )
    return grads
