"""State: the variables of a program on their devices, and the check that a step can take them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from namedmesh.artifacts.artifact import Artifact
from namedmesh.artifacts.description import TensorSpec, dtype_of
from namedmesh.display.html import html_block, html_table
from namedmesh.errors.errors import NamedMeshError, did_you_mean
from namedmesh.errors.mistakes import Explained

if TYPE_CHECKING:
    import jax
    from jax.sharding import NamedSharding

    from namedmesh.runtime.arrays import Shard

_is_deleted = operator.methodcaller("is_deleted")
_START = "start from step.init(seed), or step.place({name: array}) for arrays of your own"


def describe_specs(specs: Mapping[str, TensorSpec]) -> str:
    """Format the first eight tensors on one line."""
    first = [f"{name}: {spec.text}" for name, spec in list(specs.items())[:8]]
    more = [f"and {len(specs) - 8} more"] if len(specs) > 8 else []
    return ", ".join(first + more)


class State(Explained, Mapping[str, Any], methods=False):
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

    # The program that made the state, as long as nobody else has seen its arrays: then no check is
    # needed when the program takes them back.
    _maker: object = None
    _flat: Sequence[jax.Array] = ()  # the arrays that it made, in the order of the specs
    _by_name = None  # what is in their place once they were asked for
    _fits: Mapping[object, Sequence[jax.Array]] = {}  # programs, and the arrays they accepted

    def __init__(self, arrays: Mapping[str, jax.Array], specs: Mapping[str, TensorSpec]):
        self._by_name: dict[str, jax.Array] | None = dict(arrays)
        self.specs = specs

    @property
    def _arrays(self) -> dict[str, jax.Array]:
        """The variables by name."""
        if self._by_name is None:
            self._by_name = dict(zip(self.specs, self._flat, strict=True))
        return self._by_name

    @property
    def arrays(self) -> dict[str, jax.Array]:
        """The variables as they are on the devices, padding included."""
        if self._maker is not None:  # from now on others may donate, delete or exchange them
            self._fits, self._maker = {self._maker: self._flat}, None
        return self._arrays

    def accept_for(self, program: object, arrays: Sequence[jax.Array]) -> None:
        """Note that arrays of this state fit a program, which has checked them.

        Args:
            program: The program.
            arrays: The arrays in its order.
        """
        self._fits = {**self._fits, program: arrays}

    def take(
        self, program: object, names: Collection[str], kept: Sequence[int], donates: bool
    ) -> Sequence[jax.Array] | None:
        """Return the arrays for a step; None if it is not known that they still fit.

        Args:
            program: The program.
            names: Its variables in order.
            kept: The places of those that it does not update, which states have in common.
            donates: Whether the step donates the others.

        Returns:
            The arrays in the program's order, or None.
        """
        known = doubtful = self._flat if self._maker is program else self._fits.get(program)
        if known is None or doubtful is None:
            return None
        if self._maker is program:
            doubtful = [known[i] for i in kept]
        else:
            own = map(self._arrays.get, names)
            if len(self._arrays) != len(known) or not all(map(operator.is_, own, known)):
                return None
        # On several devices jax does not notice memory that was donated: the process would crash.
        if any(map(_is_deleted, doubtful)):
            return None
        if donates:
            self._maker, self._fits = None, {}
        return known

    def _array(self, name: str) -> jax.Array:
        """Return the array of a variable as it is on the devices."""
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
        """Return the variable of a name, or a default if there is none.

        Args:
            name: The name.
            default: The default.

        Returns:
            The array or the default.
        """
        if name not in self:
            return default
        return self[name]

    def fetch(self, name: str) -> np.ndarray:
        """Fetch a variable; every process must call it, and gets all of it.

        Args:
            name: The variable.

        Returns:
            Its elements as a numpy array, without padding.
        """
        from namedmesh.runtime.arrays import fetch_array  # imports jax

        return fetch_array(self._array(name), self.specs[name].sizes)

    def shards(self, name: str) -> list[Shard]:
        """Return the different shards of a variable that devices of this process have.

        Args:
            name: The variable.

        Returns:
            The shards in order, without padding.
        """
        from namedmesh.runtime.arrays import own_shards  # imports jax

        return own_shards(self._array(name), self.specs[name].sizes)

    def digest(self) -> str:
        """Return a digest of all variables; every process must call it, and gets the same.

        It depends on names, types and bits alone, not on the mesh, the layout or the number of
        processes.

        Returns:
            Sixteen hexadecimal digits.

        Raises:
            NamedMeshError: Replicas of a shard differ between devices.
        """
        from namedmesh.runtime.digest import digest_state  # imports jax

        return digest_state({name: self._array(name) for name in self.arrays}, self.specs)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __deepcopy__(self, memo: object = None) -> State:
        copies = {name: self._array(name).copy() for name in self._arrays}
        return State(copies, self.specs)

    __copy__ = __deepcopy__  # a step donates the arrays of a state, whoever else has them

    def __reduce__(self) -> NoReturn:
        raise NamedMeshError(
            "a state is on devices, and is neither pickled nor made into one array",
            f"state: {self!r}",
            fix="save it with nm.training.Checkpoints, nm.save_weights(path, state) or "
            "np.savez(path, **state); copy.deepcopy(state) copies it",
        )

    def __array__(self, *unused: Any, **options: Any) -> NoReturn:
        self.__reduce__()

    def _repr_html_(self) -> str:
        rows = [(name, self.specs[name].sharded_text) for name in self._arrays]
        return html_block("State", html_table(("variable", "sharding"), rows))

    def __repr__(self) -> str:
        return f"State({describe_specs({name: self.specs[name] for name in self._arrays})})"


def own_state(
    program: object, arrays: Sequence[jax.Array], specs: Mapping[str, TensorSpec]
) -> State:
    """Make the state of arrays that a program has made, in its order, and nobody else has."""
    state = object.__new__(State)
    state._maker, state._flat, state.specs = program, arrays, specs
    return state


def check_state(
    artifact: Artifact,
    variables: Mapping[str, TensorSpec],
    state: object,
    sharding: Callable[[TensorSpec], NamedSharding],
) -> State:
    """Return a state that a program can run on, its variables in the program's order."""
    if state is None and not variables:
        return State({}, variables)
    expected = f"expected: State({describe_specs(variables)})"
    if not isinstance(state, State):
        problem = f"the state given to {artifact.name} is a {type(state).__name__}"
        if state is None:
            problem = f"{artifact.name} was called without a state"
        fix = _START if variables else f"write step(None, ...): {artifact.name} has no variables"
        raise NamedMeshError(problem, expected, fix=fix)
    missing = [name for name in variables if name not in state.arrays]
    unknown = [name for name in state.arrays if name not in variables]
    if missing or unknown:
        lists = {"missing": missing, "unknown": unknown}.items()
        raise NamedMeshError(
            f"the state given to {artifact.name} is that of another program",
            f"given: {state}",
            expected,
            *(f"{label}: {', '.join(names)}" for label, names in lists if names),
            fix=_START,
        )
    _check_arrays(artifact, variables, state.arrays, sharding)
    return State({name: state.arrays[name] for name in variables}, variables)


def _check_arrays(
    artifact: Artifact,
    variables: Mapping[str, TensorSpec],
    arrays: Mapping[str, jax.Array],
    sharding: Callable[[TensorSpec], NamedSharding],
) -> None:
    """Raise for every array that was donated, has another type, or is sharded otherwise."""
    donated, different, elsewhere = [], [], []
    for name, spec in variables.items():
        array = arrays[name]
        if array.is_deleted():
            donated.append(name)
        elif array.shape != spec.padded(artifact.mesh) or array.dtype != dtype_of(spec.dtype):
            different.append(name)
        elif not array.sharding.is_equivalent_to(sharding(spec), array.ndim):
            elsewhere.append(name)
    problems: list[str] = []
    details: list[str] = []
    fixes: list[str] = []
    if donated:
        problems.append(f"{_subject(donated, 'was', 'were')} used up by an earlier step")
        details += [f"{name}: {variables[name].text}" for name in donated]
        fixes.append("use the state that step returned")
    if different:
        problems.append(f"{_subject(different, 'is', 'are')} not what {artifact.name} has")
        types = {name: f"{arrays[name].dtype}{list(arrays[name].shape)}" for name in different}
        details += [f"{name} is {text}, not {variables[name].text}" for name, text in types.items()]
        fixes.append("start from this step's own init or place")
    if elsewhere:
        verb = _subject(elsewhere, "is", "are")
        problems.append(f"{verb} sharded otherwise than in {artifact.name}")
        details += [f"{name}: {variables[name].sharded_text}" for name in elsewhere]
        details.append(f"mesh: {artifact.mesh}")
        fixes.append("move it with step.place(state)")
    if problems:
        raise NamedMeshError("; ".join(problems), *details, fix="; ".join(fixes))


def check_used_once(
    program: str,
    inputs: Mapping[str, jax.Array],
    variables: Mapping[str, jax.Array],
    updated: Collection[str],
) -> None:
    """Raise if memory that a step donates is given to it a second time."""
    # A device that reads memory under one name while another name's result is written there would
    # crash.
    owners = {id(variables[name]): name for name in updated}
    problems = []
    for name, array in variables.items():
        owner = owners.get(id(array), name)
        if owner != name:
            problems.append(f"variables {name} and {owner} are one array")
    for name, array in inputs.items():
        owner = owners.get(id(array)) or _find_alias(array, variables, updated)
        if owner is not None:
            problems.append(f"input {name} is the array of variable {owner}")
    if problems:
        raise NamedMeshError(
            f"{'; '.join(problems)}, which {program} uses up",
            fix="give a copy, e.g. jax.numpy.copy(array), or a numpy array",
        )


def _find_alias(
    array: jax.Array, variables: Mapping[str, jax.Array], updated: Collection[str]
) -> str | None:
    """Return the updated variable that shares memory with an array, if there is one."""
    kind = array.shape, array.dtype
    likely = [one for one in updated if (variables[one].shape, variables[one].dtype) == kind]
    if not likely:
        return None
    addresses = _addresses(array)
    return next((name for name in likely if addresses & _addresses(variables[name])), None)


def _addresses(array: jax.Array) -> set[int]:
    """Return the memory addresses of the shards of an array on this process."""
    try:
        return {shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards}
    except (RuntimeError, NotImplementedError):  # backends that do not say
        return set()


def _subject(names: list[str], one: str, several: str) -> str:
    """Format variables as the subject of a sentence, with its verb."""
    if len(names) == 1:
        return f"variable {names[0]} of this state {one}"
    return f"variables {', '.join(names)} of this state {several}"
