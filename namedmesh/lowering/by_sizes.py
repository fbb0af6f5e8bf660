"""Steps for arrays of any size: one is compiled for each, when it is first called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from namedmesh.errors.errors import NamedMeshError
from namedmesh.errors.mistakes import Explained
from namedmesh.ir.interface import bind_specs, is_example, named, replace_leaves, spec_of
from namedmesh.signature.inputs import name_leaves


class StepBySizes(Explained):
    """A function that is compiled for the sizes and dtypes of the arrays it is called with.

    It is called as a step is, with arrays by `nm.named`; once the names are known, arrays alone
    will do. All else is that of the step of the last call: `plan`, `audit`, `report`.

    Args:
        function: A function of named tensors.
        compile: Makes the step for specs of the function.

    Example:
        >>> import numpy as np
        >>> double = nm.compile(lambda x: x * 2.0, mesh=nm.Mesh(data=1))
        >>> double(None, nm.named(np.float32([1, 2]), "batch"))[1]
        Array([2., 4.], dtype=float32)
        >>> double(None, np.float32([1, 2, 3]))[1]
        Array([2., 4., 6.], dtype=float32)
        >>> len(double.steps)
        2
    """

    def __init__(self, function: Callable[..., Any], compile: Callable[..., Any]):
        self.function, self.compile = function, compile
        self.steps: dict[Any, Any] = {}
        self.names: dict[str, tuple[str, ...]] = {}
        self.last: Any = None

    def step_for(self, *inputs: Any, **by_name: Any) -> Any:
        """Return the step for inputs of these names, sizes and dtypes; compile it if there is none.

        Args:
            *inputs: Arrays by `nm.named`, nested as the function takes them.
            **by_name: The same, by the argument's name.
        """
        return self._find(inputs, by_name)[0]

    def init(self, *inputs: Any, seed: int = 0, **by_name: Any) -> Any:
        """Return the first state of the step for some inputs, by default those of the last call.

        Args:
            *inputs: Arrays by `nm.named`, nested as the function takes them; a seed may come first,
                as for any step.
            seed: The seed of the random values.
            **by_name: The same, by the argument's name.
        """
        if inputs and isinstance(inputs[0], int):
            seed, inputs = inputs[0], inputs[1:]
        if not inputs and not by_name and self.last is not None:
            return self.last.init(seed)
        return self._find(inputs, by_name)[0].init(seed)

    def __call__(self, state: Any, *inputs: Any, **by_name: Any) -> tuple[Any, Any]:
        """Run the step for the inputs; return the next state and the results."""
        step, arrays = self._find(inputs, by_name)
        return step(state, **arrays)

    def __getattr__(self, name: str) -> Any:
        step = vars(self).get("last")
        if name.startswith("_") or step is None:
            raise AttributeError(f"{name}: nothing is compiled yet; call it, or step_for(inputs)")
        return getattr(step, name)

    def _find(self, inputs: Sequence[Any], by_name: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the step for some inputs, and their arrays by name."""
        fix = "call it as state, results = step(state, *inputs), with None for a state of nothing"
        bound = bind_specs(self.function, self.function.__name__, inputs, by_name, fix)
        parameters = inspect.signature(self.function).parameters
        arrays: dict[str, Any] = {}
        shapes: list[Any] = []
        is_leaf = lambda _, value: is_example(value)
        for key, value in bound.arguments.items():
            starred = parameters[key].kind is inspect.Parameter.VAR_POSITIONAL
            flat = {f"{key}_{i}": one for i, one in enumerate(value)} if starred else value
            specs = []
            for name, leaf in name_leaves(flat, key, is_leaf).items():
                leaf = self._give_names(name, leaf)
                specs.append(spec_of(leaf, name))
                arrays[name] = leaf[1]
            shapes += [(one.shape, one.dtype) for one in specs]
            bound.arguments[key] = replace_leaves(value, is_leaf, iter(specs))
        kind = tuple(shapes)
        if kind not in self.steps:
            self.steps[kind] = self.compile(self.function, *bound.args, **bound.kwargs)
        self.last = self.steps[kind]
        return self.last, arrays

    def _give_names(self, name: str, value: Any) -> Any:
        """Return an array with its dimensions' names, which it has had before if not now."""
        if is_example(value):
            self.names[name] = tuple(dim.name for dim in value[0])
            return value
        if name not in self.names:
            raise NamedMeshError(
                f"the dimensions of input {name} have no names",
                fix=f"pass nm.named({name}, 'batch ...') in the first call, or an nm.spec to "
                "nm.compile",
            )
        return named(value, self.names[name])
