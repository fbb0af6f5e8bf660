"""Executable: an Artifact compiled for the devices at hand, ready to run."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh as JaxMesh
from jax.sharding import NamedSharding, PartitionSpec

from namedmesh.dims.errors import NamedMeshError, did_you_mean
from namedmesh.dims.mesh import Mesh
from namedmesh.runtime.artifact import Artifact, TensorSpec, unpacked
from namedmesh.runtime.audit import Audit, audit
from namedmesh.runtime.bridge import caller, dtype_of, gspmd
from namedmesh.runtime.devices import device_mesh
from namedmesh.runtime.state import State, described


@dataclass(frozen=True)
class Report:
    """What a compiled step takes: bytes are per device."""

    compile_seconds: float
    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    aliased_bytes: int
    code_bytes: int

    @classmethod
    def of(cls, compiled: Any, seconds: float) -> Report:
        """The compiler's own account of a compiled step."""
        memory = compiled.memory_analysis()
        return cls(
            seconds,
            memory.argument_size_in_bytes,
            memory.output_size_in_bytes,
            memory.temp_size_in_bytes,
            memory.alias_size_in_bytes,
            memory.generated_code_size_in_bytes,
        )

    @property
    def peak_bytes(self) -> int:
        """Arguments, results and temporaries, what is updated in place counted once."""
        return self.argument_bytes + self.output_bytes + self.temporary_bytes - self.aliased_bytes


def placed(devices: JaxMesh, spec: TensorSpec) -> NamedSharding:
    """Where an entry or a result lies."""
    axes = [tuple(spec.held.get(name, ())) or None for name, _ in spec.dims]
    return NamedSharding(devices, PartitionSpec(*axes))


def lowered(
    module: bytes,
    mesh: Mesh,
    devices: JaxMesh,
    given: Sequence[TensorSpec],
    results: Sequence[TensorSpec],
    donated: Sequence[int] = (),
) -> Any:
    """A module that takes and gives tensors where their specs say, ready to compile for devices."""
    function = jax.jit(
        caller(module, tuple((spec.padded(mesh), dtype_of(spec.dtype)) for spec in results)),
        in_shardings=tuple(placed(devices, spec) for spec in given),
        out_shardings=[placed(devices, spec) for spec in results],
        donate_argnums=tuple(donated),
        keep_unused=True,
    )
    shapes = (
        jax.ShapeDtypeStruct(
            spec.padded(mesh), dtype_of(spec.dtype), sharding=placed(devices, spec)
        )
        for spec in given
    )
    with gspmd():
        return function.lower(*shapes)


def lowered_step(artifact: Artifact, devices: JaxMesh) -> Any:
    """An Artifact's step for devices; variables that it updates are given up to their next values."""
    results = [*artifact.outputs, *(spec for spec in artifact.variables if spec.updated)]
    donated = [
        len(artifact.inputs) + i for i, spec in enumerate(artifact.variables) if spec.updated
    ]
    return lowered(
        artifact.step_module,
        artifact.mesh,
        devices,
        [*artifact.inputs, *artifact.variables],
        results,
        donated,
    )


def compiled(lowering: Any, options: Mapping[str, str | bool] | None = None) -> Any:
    """A lowered module compiled, with options of the backend's compiler where given."""
    with gspmd():
        return lowering.compile(compiler_options=dict(options or {}))


class Executable:
    """A step on devices: call it with a state and inputs, get the next state and the results."""

    def __init__(self, artifact: Artifact, *, strict: bool | None = None):
        self.artifact = artifact
        self.mesh = device_mesh(artifact.mesh)
        self.variables = {spec.name: spec for spec in artifact.variables}
        self.inputs = {spec.name: spec for spec in artifact.inputs}
        self._updated = [spec.name for spec in artifact.variables if spec.updated]
        self._block = self.mesh.devices.flat[0].platform == "cpu" and self.mesh.devices.size > 1
        start = time.perf_counter()
        self._step = compiled(lowered_step(artifact, self.mesh))
        seconds = time.perf_counter() - start
        self._init: Any = None
        self.report = Report.of(self._step, seconds)
        self.audit: Audit = audit(self.text, artifact.mesh, artifact.collectives)
        self.audit.enforce(strict)

    @property
    def text(self) -> str:
        """The program as the compiler made it: optimized HLO."""
        return self._step.as_text()

    def sharding(self, spec: TensorSpec) -> NamedSharding:
        """Where an entry or a result lies."""
        return placed(self.mesh, spec)

    def init(self, seed: int = 0) -> State:
        """The first state; every device makes its own pieces, nothing is ever whole in one place."""
        if not self.variables:
            return State({}, self.variables)
        if self._init is None:
            seed_spec = TensorSpec("seed", (), "int32", {})
            module, made = self.artifact.init_module, list(self.variables.values())
            self._init = compiled(lowered(module, self.artifact.mesh, self.mesh, [seed_spec], made))
            audit(
                self._init.as_text(), self.artifact.mesh, self.artifact.initial_collectives
            ).enforce(None)
        if (
            isinstance(seed, bool)
            or not hasattr(seed, "__index__")
            or not -(2**31) <= int(seed) < 2**31
        ):
            raise NamedMeshError(
                f"the seed {seed!r} is no int32",
                fix="give a whole number from -2**31 to 2**31 - 1, e.g. init(0)",
            )
        made = self._init(jax.device_put(np.int32(seed), NamedSharding(self.mesh, PartitionSpec())))
        return State(
            dict(zip(self.variables, jax.block_until_ready(made), strict=True)), self.variables
        )

    def place(self, values: Mapping[str, Any]) -> State:
        """A state from whole arrays: each device reads its own piece."""
        if not isinstance(values, Mapping):
            raise NamedMeshError(
                f"place was given a {type(values).__name__}",
                fix="give whole arrays by name: place({name: array})",
            )
        self._same_names("variable", values, self.variables)
        return State(
            {
                name: self._put(self.variables[name], values[name], "variable")
                for name in self.variables
            },
            self.variables,
        )

    def put(self, /, **inputs: Any) -> dict[str, jax.Array]:
        """Inputs laid out on the devices ahead of a step."""
        self._same_names("input", inputs, self.inputs)
        return {name: self._put(spec, inputs[name], "input") for name, spec in self.inputs.items()}

    def _put(self, spec: TensorSpec, value: Any, what: str) -> jax.Array:
        sharding, sizes = self.sharding(spec), spec.padded(self.artifact.mesh)
        fix = f"give an array of shape {spec.sizes} and dtype {spec.dtype}"
        if isinstance(value, jax.Array) and value.is_deleted():
            raise NamedMeshError(
                f"{what} {spec.name} is an array that an earlier step used up",
                f"due: {spec.text}",
                fix=fix,
            )
        alike = (
            isinstance(value, jax.Array)
            and value.shape == sizes
            and value.dtype == dtype_of(spec.dtype)
        )
        if alike and value.sharding.is_equivalent_to(sharding, value.ndim):
            return value
        try:
            array = np.asarray(value)
        except ValueError:
            raise NamedMeshError(
                f"{what} {spec.name} is a {type(value).__name__} of no one shape, not {spec.text}",
                fix=fix,
            ) from None
        if array.shape != spec.sizes or not (
            array.dtype == dtype_of(spec.dtype) or _fits(value, spec.dtype)
        ):
            raise NamedMeshError(
                f"{what} {spec.name} was given as {array.dtype}{list(array.shape)}, not {spec.text}",
                fix=fix,
            )
        array = array.astype(dtype_of(spec.dtype), copy=False)
        if sizes != spec.sizes:
            array = np.pad(
                array, [(0, more - size) for more, size in zip(sizes, spec.sizes, strict=True)]
            )
        return jax.make_array_from_callback(sizes, sharding, lambda index: array[index])

    def __call__(
        self, state: Mapping[str, Any] | None, /, *inputs: Any, **named: Any
    ) -> tuple[State, Any]:
        """One step: (state, inputs) -> (next state, results). The state given is used up where it is updated."""
        state = self._checked_state(state)
        if len(inputs) > len(self.inputs):
            raise NamedMeshError(
                f"{len(inputs)} inputs were given, {self.artifact.name} takes {len(self.inputs)}",
                *(f"{name}: {spec.text}" for name, spec in self.inputs.items()),
                fix=f"give the state, then: {', '.join(self.inputs)}",
            )
        positional = dict(zip(self.inputs, inputs, strict=False))
        twice = [name for name in named if name in positional]
        if twice:
            raise NamedMeshError(
                f"input {twice[0]} was given twice", fix="give it by position or by name"
            )
        ready = self.put(**positional, **named)
        made = self._step(*ready.values(), *state.arrays.values())
        if self._block:
            jax.block_until_ready(made)
        count = len(self.artifact.outputs)
        updated = dict(zip(self._updated, made[count:], strict=True))
        return State(state.arrays | updated, self.variables), unpacked(
            self.artifact.structure, list(made[:count])
        )

    def _checked_state(self, state: Mapping[str, Any] | None) -> State:
        state = State({}, self.variables) if state is None and not self.variables else state
        fix = "start from step.init(seed), or step.place({name: array}) for arrays of your own"
        due = "due: " + described(self.variables)
        if not isinstance(state, State):
            raise NamedMeshError(
                f"the state given to {self.artifact.name} is a {type(state).__name__}", due, fix=fix
            )
        if {*state.arrays} != {*self.variables}:
            raise NamedMeshError(
                f"the state given to {self.artifact.name} is that of another program",
                f"given: {state}",
                due,
                fix=fix,
            )
        for name, array in state.arrays.items():
            spec = self.variables[name]
            if array.is_deleted():
                raise NamedMeshError(
                    f"variable {name} of this state was used up by an earlier step",
                    f"{name}: {spec.text}",
                    fix="use the state that step returned",
                )
            if array.shape != spec.padded(self.artifact.mesh) or array.dtype != dtype_of(
                spec.dtype
            ):
                raise NamedMeshError(
                    f"variable {name} of this state is {array.dtype}{list(array.shape)}, not {spec.text}",
                    fix="start from this step's own init or place",
                )
            if not array.sharding.is_equivalent_to(self.sharding(spec), array.ndim):
                raise NamedMeshError(
                    f"variable {name} of this state lies elsewhere than {self.artifact.name} has it",
                    f"{name}: {spec.sharded_text}",
                    f"mesh: {self.artifact.mesh}",
                    fix="move it with step.place(state)",
                )
        return State({name: state.arrays[name] for name in self.variables}, self.variables)

    def _same_names(
        self, what: str, given: Mapping[str, Any], wanted: Mapping[str, TensorSpec]
    ) -> None:
        known = [f"{name}: {spec.text}" for name, spec in list(wanted.items())[:8]]
        for name in given:
            if name not in wanted:
                raise NamedMeshError(
                    f"{self.artifact.name} has no {what} {name!r}",
                    *known,
                    fix=did_you_mean(str(name), wanted),
                )
        for name in wanted:
            if name not in given:
                raise NamedMeshError(
                    f"{what} {name!r} of {self.artifact.name} is missing",
                    *known,
                    fix=f"give all of: {', '.join(wanted)}",
                )


def _fits(value: Any, dtype: str) -> bool:
    """Whether a plain Python number can stand for a scalar of a dtype."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if not dtype.lstrip("u").startswith("int"):
        return dtype != "bool"
    limits = np.iinfo(dtype)
    return float(value).is_integer() and limits.min <= value <= limits.max


def load(path: str | os.PathLike, *, strict: bool | None = None) -> Executable:
    """Reads an Artifact and compiles it for the devices at hand."""
    return Executable(Artifact.load(path), strict=strict)


def cache_compilations(folder: str | os.PathLike) -> None:
    """Keeps compiled programs in a folder, so that the next process starts without compiling."""
    os.makedirs(folder, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", os.fspath(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
