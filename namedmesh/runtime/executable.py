"""Executable: an Artifact compiled for the devices at hand, ready to run."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from namedmesh.dims.errors import NamedMeshError
from namedmesh.hlo.parse import parse_module
from namedmesh.runtime.arrays import put_arrays
from namedmesh.runtime.artifact import Artifact
from namedmesh.runtime.audit import Audit, audit
from namedmesh.runtime.description import TensorSpec
from namedmesh.runtime.devices import device_mesh
from namedmesh.runtime.partitioner import choose_partitioner
from namedmesh.runtime.stages import SEED, compile_lowered, lower_init, lower_step, named_sharding
from namedmesh.runtime.state import State
from namedmesh.runtime.state_check import check_state
from namedmesh.runtime.structure import fill_structure
from namedmesh.runtime.usage import Report


class Executable:
    """A step on devices: call it with a state and inputs, get the next state and the results.

    Args:
        artifact: The program to compile, for as many devices as its mesh has.
        strict: Whether a collective that the plan does not have is an error rather than a
            warning; None follows the environment variable NAMEDMESH_STRICT.
        partitioner: What splits the program over the devices, `gspmd` or `shardy`; None follows the
            environment variable NAMEDMESH_PARTITIONER, and without it the default.

    Attributes:
        artifact: The program.
        partitioner: What split it over the devices.
        mesh: Its devices, as a jax mesh.
        variables: What the state consists of, by name.
        inputs: What a step takes besides, by name.
        report: Compile time and memory.
        audit: The compiler's collectives against the plan's.

    Raises:
        NamedMeshError: If there are too few devices or no such partitioner, or if strict and the
            compiler made a collective that was not planned.

    Example:
        >>> import namedmesh as nm
        >>> (B,) = nm.dims("batch=4")
        >>> def count(x):
        ...     total = nm.state("total", [])
        ...     nm.assign(total, total + nm.sum(x))
        ...     return nm.mean(x)
        >>> artifact = nm.export(nm.trace(count, x=nm.spec([B])), nm.Mesh(data=1), "")
        >>> step = nm.runtime.Executable(artifact)
        >>> state = step.init(seed=0)
        >>> state, mean = step(state, x=np.array([1, 2, 3, 6], np.float32))
        >>> float(state["total"]), float(mean)
        (12.0, 3.0)
    """

    def __init__(
        self, artifact: Artifact, *, strict: bool | None = None, partitioner: str | None = None
    ):
        self.artifact = artifact
        self.partitioner = choose_partitioner(partitioner)
        self.mesh = device_mesh(artifact.mesh)
        self.variables = {spec.name: spec for spec in artifact.variables}
        self.inputs = {spec.name: spec for spec in artifact.inputs}
        self._updated = [spec.name for spec in artifact.variables if spec.updated]
        # Two steps in flight on virtual CPU devices may deadlock: they share one thread pool.
        self._block = self.mesh.devices.flat[0].platform == "cpu" and self.mesh.devices.size > 1
        start = time.perf_counter()
        self._step = compile_lowered(lower_step(artifact, self.mesh, self.partitioner))
        self.report = Report.of(self._step, time.perf_counter() - start)
        self._init: jax.stages.Compiled | None = None
        self.audit: Audit = audit(parse_module(self.text), artifact.mesh, artifact.collectives)
        self.audit.enforce(strict)

    @property
    def text(self) -> str:
        """The program as the compiler made it: optimized HLO."""
        return self._step.as_text() or ""

    def sharding(self, spec: TensorSpec) -> NamedSharding:
        """Where an input, a variable or a result lies.

        Args:
            spec: One of `inputs`, `variables` or `artifact.outputs`.

        Returns:
            Its sharding over the devices.
        """
        return named_sharding(self.mesh, spec)

    def init(self, seed: int = 0) -> State:
        """The first state; every device makes its own pieces, nothing is ever whole in one place.

        Args:
            seed: What random initial values follow from.

        Returns:
            The state.

        Raises:
            NamedMeshError: If the seed is not an int32.
        """
        _check_seed(seed)
        if not self.variables:
            return State({}, self.variables)
        if self._init is None:
            self._init = compile_lowered(lower_init(self.artifact, self.mesh, self.partitioner))
            module = parse_module(self._init.as_text() or "")
            audit(module, self.artifact.mesh, self.artifact.initial_collectives).enforce(None)
        arrays = self._init(jax.device_put(np.int32(seed), self.sharding(SEED)))
        return State(
            dict(zip(self.variables, jax.block_until_ready(arrays), strict=True)), self.variables
        )

    def place(self, values: Mapping[str, Any]) -> State:
        """A state from whole arrays, of which each device reads its own piece.

        Args:
            values: An array for each variable, by name; a State of another Executable will do.

        Returns:
            The state.

        Raises:
            NamedMeshError: If variables are unknown or missing, or arrays do not fit; all of them
                are named.
        """
        if not isinstance(values, Mapping):
            raise NamedMeshError(
                f"place was given a {type(values).__name__}",
                fix="give whole arrays by name: place({name: array})",
            )
        return State(self._put("variable", self.variables, values), self.variables)

    def put(self, /, **inputs: Any) -> dict[str, jax.Array]:
        """Inputs laid out on the devices ahead of a step.

        Args:
            **inputs: A whole array for each input, by name.

        Returns:
            Arrays to call the step with.

        Raises:
            NamedMeshError: If inputs are unknown or missing, or arrays do not fit; all of them
                are named.
        """
        return self._put("input", self.inputs, inputs)

    def _put(
        self, what: str, specs: Mapping[str, TensorSpec], values: Mapping[str, Any]
    ) -> dict[str, jax.Array]:
        """Checks arrays and lays them out."""
        mesh = self.artifact.mesh
        return put_arrays(self.artifact.name, what, specs, values, mesh, self.sharding)

    def __call__(
        self, state: Mapping[str, Any] | None, /, *inputs: Any, **named: Any
    ) -> tuple[State, Any]:
        """Runs one step.

        Args:
            state: What `init`, `place` or the step before returned; variables that are updated
                are used up. None will do for a program without variables.
            *inputs: Inputs by position.
            **named: Inputs by name.

        Returns:
            The next state, and the results as the traced function nests them.

        Raises:
            NamedMeshError: If the state or the inputs do not fit; the state is still usable then.
        """
        checked = check_state(self.artifact, self.variables, state, self.sharding)
        arrays = self.put(**self._by_name(inputs, named))
        results = self._step(*arrays.values(), *checked.arrays.values())
        if self._block:
            jax.block_until_ready(results)
        count = len(self.artifact.outputs)
        updated = dict(zip(self._updated, results[count:], strict=True))
        outputs = fill_structure(self.artifact.structure, results[:count])
        return State(checked.arrays | updated, self.variables), outputs

    def _by_name(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """All inputs by name, each given once."""
        if len(inputs) > len(self.inputs):
            raise NamedMeshError(
                f"{len(inputs)} inputs were given, {self.artifact.name} takes {len(self.inputs)}",
                *(f"{name}: {spec.text}" for name, spec in self.inputs.items()),
                fix=f"give the state, then: {', '.join(self.inputs)}",
            )
        positional = dict(zip(self.inputs, inputs, strict=False))
        twice = [name for name in named if name in positional]
        if twice:
            subject = (
                f"input {twice[0]} was" if len(twice) == 1 else f"inputs {', '.join(twice)} were"
            )
            raise NamedMeshError(
                f"{subject} given twice", fix="give each input by position or by name"
            )
        return positional | named


def _check_seed(seed: object) -> None:
    """Raises unless a seed is an int32."""
    whole = hasattr(seed, "__index__") and not isinstance(seed, bool)
    if not whole or not -(2**31) <= int(seed) < 2**31:  # type: ignore[call-overload]
        raise NamedMeshError(
            f"the seed {seed!r} is not an int32",
            fix="give a whole number from -2**31 to 2**31 - 1, e.g. init(0)",
        )


def load(
    path: str | os.PathLike[str], *, strict: bool | None = None, partitioner: str | None = None
) -> Executable:
    """Reads an Artifact and compiles it for the devices at hand.

    Args:
        path: A file that `Artifact.save` wrote.
        strict: As for Executable.
        partitioner: As for Executable.

    Returns:
        The step, ready to run.

    Raises:
        NamedMeshError: If the file cannot be read, or the program cannot run here.

    Example:
        >>> from namedmesh.runtime import load
        >>> import tempfile
        >>> import namedmesh as nm
        >>> (B,) = nm.dims("batch=4")
        >>> program = nm.trace(lambda x: nm.square(x), x=nm.spec([B]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     nm.export(program, nm.Mesh(data=1), "").save(f"{folder}/square.nmesh")
        ...     step = load(f"{folder}/square.nmesh")
        >>> _, squares = step(None, np.arange(4, dtype=np.float32))
        >>> squares.tolist()
        [0.0, 1.0, 4.0, 9.0]
    """
    return Executable(Artifact.load(path), strict=strict, partitioner=partitioner)


def cache_compilations(folder: str | os.PathLike[str]) -> None:
    """Keeps compiled programs in a folder, so that the next process starts without compiling.

    Args:
        folder: Where to keep them; it is made if it is not there.

    Example:
        >>> import tempfile
        >>> import jax
        >>> from namedmesh.runtime import cache_compilations
        >>> options = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs",
        ...            "jax_persistent_cache_min_entry_size_bytes")
        >>> previous = {name: getattr(jax.config, name) for name in options}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cache_compilations(folder)
        ...     jax.config.jax_compilation_cache_dir == folder
        True
        >>> for name, value in previous.items():  # jax's own settings again
        ...     jax.config.update(name, value)
    """
    os.makedirs(folder, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", os.fspath(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
