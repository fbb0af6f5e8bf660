"""State: the variables of a program on their devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from namedmesh.dims.errors import NamedMeshError, did_you_mean
from namedmesh.runtime.description import TensorSpec

if TYPE_CHECKING:
    import jax


def describe_variables(specs: Mapping[str, TensorSpec]) -> str:
    """A state's variables on one line, the first eight of them.

    Args:
        specs: The variables by name.

    Returns:
        The line.
    """
    first = [f"{name}: {spec.text}" for name, spec in list(specs.items())[:8]]
    more = [f"and {len(specs) - 8} more"] if len(specs) > 8 else []
    return f"State({', '.join(first + more)})"


class State(Mapping[str, Any]):
    """Variables by name, sharded as the program wants them. A step takes one and returns a new one.

    `state["w"]` is a jax array, or a numpy array if padding at rest had to be cut off.

    Args:
        arrays: The variables as they are on the devices, padding included.
        specs: What they are.

    Example:
        >>> import namedmesh as nm
        >>> program = nm.trace(lambda: nm.state("count", [], dtype="int32") + 1)
        >>> step = nm.runtime.Executable(nm.export(program, nm.Mesh(data=1), ""))
        >>> state = step.init()
        >>> state
        State(count: int32[])
        >>> int(state["count"])
        0
    """

    def __init__(self, arrays: Mapping[str, jax.Array], specs: Mapping[str, TensorSpec]):
        for what, values in (("arrays", arrays), ("specs", specs)):
            if not isinstance(values, Mapping):
                raise NamedMeshError(
                    f"the {what} of a state are a {type(values).__name__}, expected a dict",
                    fix="make a state with step.init(seed) or step.place({name: array})",
                )
        arrays = dict(arrays)
        self.arrays, self.specs = arrays, specs

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise NamedMeshError(
                f"the state has no variable {name!r}",
                f"state: {self!r}",
                fix=did_you_mean(name, self.arrays),
            )
        array, sizes = self.arrays[name], self.specs[name].sizes
        if array.is_deleted():
            raise NamedMeshError(
                f"variable {name} of this state was used up by an earlier step",
                f"{name}: {self.specs[name].text}",
                fix="read it from the state that step returned",
            )
        if array.shape == sizes:
            return array
        return np.asarray(array)[tuple(slice(0, size) for size in sizes)]

    def get(self, name: str, default: Any = None) -> Any:
        """The variable of a name, or a default if there is none.

        Args:
            name: The name.
            default: What to return if the state has no such variable.

        Returns:
            The array or the default.
        """
        if name not in self:
            return default
        return self[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self.arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def __repr__(self) -> str:
        return describe_variables({name: self.specs[name] for name in self.arrays})
