"""State: the variables of a program on their devices."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from namedmesh.artifacts.description import TensorSpec
from namedmesh.errors.errors import NamedMeshError, did_you_mean

if TYPE_CHECKING:
    import jax

    from namedmesh.runtime.fetching import Shard


def describe_variables(specs: Mapping[str, TensorSpec]) -> str:
    """A state's variables on one line, the first eight of them."""
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
        self.arrays: dict[str, jax.Array] = dict(arrays)
        self.specs = specs
        self._fits: dict[object, tuple[jax.Array, ...]] = {}  # programs, and what they accepted

    @classmethod
    def made_by(
        cls, program: object, arrays: dict[str, jax.Array], specs: Mapping[str, TensorSpec]
    ) -> State:
        """A state whose arrays a program made, which need not be checked when it takes them back.

        Args:
            program: The program.
            arrays: The variables in its order.
            specs: What they are.

        Returns:
            The state.
        """
        state = cls.__new__(cls)
        state.arrays, state.specs = arrays, specs
        state._fits = {program: tuple(arrays.values())}
        return state

    def accept_for(self, program: object, arrays: tuple[jax.Array, ...]) -> None:
        """Note that arrays of this state fit a program, which has checked them.

        Args:
            program: The program.
            arrays: The arrays in its order.
        """
        self._fits[program] = arrays

    def take(
        self, program: object, names: Collection[str], uses_up: bool
    ) -> tuple[jax.Array, ...] | None:
        """The arrays for a step, if it is known that they fit and nobody has touched them since.

        Args:
            program: The program.
            names: Its variables in order.
            uses_up: Whether the step uses them up.

        Returns:
            The arrays in the program's order; None if they are to be checked.
        """
        known = self._fits.get(program)
        if known is None or len(self.arrays) != len(known):
            return None
        if not all(map(operator.is_, map(self.arrays.get, names), known)):
            return None
        if uses_up:
            self._fits = {}
        return known

    def _array(self, name: str) -> jax.Array:
        """The array of a variable as it is on the devices."""
        if name not in self:
            raise NamedMeshError(
                f"the state has no variable {name!r}",
                f"state: {self!r}",
                fix=did_you_mean(name, self.arrays),
            )
        if self.arrays[name].is_deleted():
            raise NamedMeshError(
                f"variable {name} of this state was used up by an earlier step",
                f"{name}: {self.specs[name].text}",
                fix="read it from the state that step returned",
            )
        return self.arrays[name]

    def __getitem__(self, name: str) -> Any:
        array, sizes = self._array(name), self.specs[name].sizes
        if array.shape == sizes:
            return array
        if not array.is_fully_addressable:
            raise NamedMeshError(
                f"variable {name} is padded, and other processes have shards of it",
                f"{name}: {self.specs[name].sharded_text}",
                fix=f"call state.fetch({name!r}) in every process, or state.shards({name!r})",
            )
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

    def fetch(self, name: str) -> np.ndarray:
        """A variable as a whole numpy array; every process must call it, and gets all of it.

        Args:
            name: The variable.

        Returns:
            Its elements, without padding.

        Raises:
            NamedMeshError: If there is no such variable, or it cannot be brought together.
        """
        from namedmesh.runtime.fetching import fetch_array  # imports jax

        return fetch_array(self._array(name), self.specs[name].sizes)

    def shards(self, name: str) -> list[Shard]:
        """The different shards of a variable that devices of this process have.

        Args:
            name: The variable.

        Returns:
            The shards in order, without padding.

        Raises:
            NamedMeshError: If there is no such variable.
        """
        from namedmesh.runtime.fetching import own_shards  # imports jax

        return own_shards(self._array(name), self.specs[name].sizes)

    def digest(self) -> str:
        """A digest of all variables; every process must call it, and gets the same.

        It depends on names, types and bits alone, not on the mesh, the layout or the number of
        processes. All copies of a shard are compared on the way.

        Returns:
            Sixteen hexadecimal digits.

        Raises:
            NamedMeshError: If devices that should have the same shard have different ones.
        """
        from namedmesh.runtime.digest import digest_state  # imports jax

        return digest_state({name: self._array(name) for name in self.arrays}, self.specs)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self.arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def __repr__(self) -> str:
        return describe_variables({name: self.specs[name] for name in self.arrays})
