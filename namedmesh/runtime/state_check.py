"""Whether a state is one that a program can run on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from namedmesh.artifacts.artifact import Artifact
from namedmesh.artifacts.description import TensorSpec, dtype_of
from namedmesh.errors.errors import NamedMeshError
from namedmesh.runtime.state import State, describe_variables

if TYPE_CHECKING:
    import jax
    from jax.sharding import NamedSharding


_START = "start from step.init(seed), or step.place({name: array}) for arrays of your own"


def check_state(
    artifact: Artifact,
    variables: Mapping[str, TensorSpec],
    state: object,
    sharding: Callable[[TensorSpec], NamedSharding],
) -> State:
    """A state that a program can run on, its variables in the program's order."""
    if state is None and not variables:
        return State({}, variables)
    expected = "expected: " + describe_variables(variables)
    if not isinstance(state, State):
        raise NamedMeshError(
            f"the state given to {artifact.name} is a {type(state).__name__}", expected, fix=_START
        )
    missing = [name for name in variables if name not in state.arrays]
    unknown = [name for name in state.arrays if name not in variables]
    if missing or unknown:
        names = [
            f"{label}: {', '.join(names)}"
            for label, names in (("missing", missing), ("unknown", unknown))
            if names
        ]
        raise NamedMeshError(
            f"the state given to {artifact.name} is that of another program",
            f"given: {state}",
            expected,
            *names,
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
    """Raise for every array that was used up, is not what its spec says, or lies elsewhere."""
    used, different, elsewhere = [], [], []
    for name, spec in variables.items():
        array = arrays[name]
        if array.is_deleted():
            used.append(name)
        elif array.shape != spec.padded(artifact.mesh) or array.dtype != dtype_of(spec.dtype):
            different.append(name)
        elif not array.sharding.is_equivalent_to(sharding(spec), array.ndim):
            elsewhere.append(name)
    problems: list[str] = []
    details: list[str] = []
    fixes: list[str] = []
    if used:
        problems.append(f"{_subject(used, 'was', 'were')} used up by an earlier step")
        details += [f"{name}: {variables[name].text}" for name in used]
        fixes.append("use the state that step returned")
    if different:
        problems.append(f"{_subject(different, 'is', 'are')} not what {artifact.name} has")
        for name in different:
            array = arrays[name]
            details.append(
                f"{name} is {array.dtype}{list(array.shape)}, not {variables[name].text}"
            )
        fixes.append("start from this step's own init or place")
    if elsewhere:
        problems.append(f"{_subject(elsewhere, 'lies', 'lie')} elsewhere than in {artifact.name}")
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
    """Raise if memory that a step uses up is given to it a second time.

    Updated variables give their memory to the results; a device that reads the same memory under
    another name would crash.
    """
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
    """The updated variable that shares memory with another array, if there is one."""
    likely = [
        name
        for name in updated
        if variables[name].shape == array.shape and variables[name].dtype == array.dtype
    ]
    if not likely:
        return None
    addresses = _addresses(array)
    return next((name for name in likely if addresses & _addresses(variables[name])), None)


def _addresses(array: jax.Array) -> set[int]:
    """Where the shards of an array lie in memory, as far as this process can tell."""
    try:
        return {shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards}
    except (RuntimeError, NotImplementedError):  # backends that do not say
        return set()


def _subject(names: list[str], one: str, several: str) -> str:
    """Variables as the subject of a sentence, with its verb."""
    if len(names) == 1:
        return f"variable {names[0]} of this state {one}"
    return f"variables {', '.join(names)} of this state {several}"
