"""Binding: the specs of a trace, laid on the arguments of the function it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension
from namedmesh.errors.errors import NamedMeshError, check_identifier
from namedmesh.ir.format import format_value
from namedmesh.ir.interface import InputSpec, Specs, is_example, spec_of
from namedmesh.ir.operands import as_tuple


def bind_specs(
    function: Callable[..., Any], name: str, specs: Sequence[Specs], named: Mapping[str, Specs]
) -> inspect.BoundArguments:
    """Bind specs to the arguments of a function, or raises if they do not fit."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise NamedMeshError(
            f"the arguments of {name} cannot be looked up",
            fix="wrap it in a function of your own: lambda x: f(x)",
        ) from None
    try:
        return signature.bind(*specs, **named)
    except TypeError as error:
        raise NamedMeshError(
            f"the inputs do not fit {name}{signature}: {error}",
            fix="give one nm.spec for each argument of the function",
        ) from None


def flatten_specs(
    function: Callable[..., Any], name: str, bound: inspect.BoundArguments
) -> tuple[dict[str, InputSpec], dict[str, tuple[str, ...]]]:
    """The specs by name, and the names of those that come from one argument.

    A dict argument contributes its entries; *args are numbered.
    """
    parameters = inspect.signature(function).parameters
    flat: dict[str, Any] = {}
    groups: dict[str, tuple[str, ...]] = {}
    for key, value in bound.arguments.items():
        if parameters[key].kind is inspect.Parameter.VAR_POSITIONAL:
            items = {f"{key}_{i}": item for i, item in enumerate(value)}
            groups[key] = tuple(items)
        elif isinstance(value, Mapping):
            items = dict(value)
            groups[key] = tuple(items)
        else:
            items = {key: value}
        for inner, item in items.items():
            check_identifier(inner, "input")
            if inner in flat:
                raise NamedMeshError(
                    f"two inputs are named {inner}", fix="give each input its own name"
                )
            flat[inner] = spec_of(item, inner) if is_example(item) else item
    _check_specs(name, flat)
    return flat, groups


def _check_specs(name: str, arguments: Mapping[str, Any]) -> None:
    """Raise for the first argument that is not a spec."""
    for argument, one in arguments.items():
        if not isinstance(one, InputSpec):
            names = [dim.name for dim in as_tuple(one) if isinstance(dim, Dimension)]
            raise NamedMeshError(
                f"input {argument} of {name} is {format_value(one)}, not a spec",
                fix=f"pass {argument}=nm.spec([{', '.join(names) or 'dims'}])",
            )
