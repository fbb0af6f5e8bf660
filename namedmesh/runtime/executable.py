"""Executable: an Artifact compiled for the devices at hand, ready to run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from namedmesh.artifacts.artifact import Artifact, check_artifact
from namedmesh.artifacts.description import TensorSpec
from namedmesh.audit.audit import Audit, audit
from namedmesh.audit.hlo.module import parse_module
from namedmesh.errors.errors import NamedMeshError, did_you_mean, whole_number
from namedmesh.records.collective import Collective
from namedmesh.runtime.padding import remember_sizes
from namedmesh.runtime.partitioner import choose_partitioner
from namedmesh.runtime.state import State
from namedmesh.runtime.state_check import check_state, check_used_once
from namedmesh.runtime.usage import Report
from namedmesh.signature.inputs import name_inputs
from namedmesh.signature.nest import fill_structure
from namedmesh.signature.printed import unwrap_results

if TYPE_CHECKING:
    import jax
    from jax.sharding import NamedSharding


def _load_backend() -> ModuleType:
    """The part that needs jax: `step: nm.Step` in an annotation does not."""
    from namedmesh.runtime import backend

    return backend


class Executable:
    """A step on devices: call it with a state and inputs, get the next state and the results.

    Args:
        artifact: The program to compile, for as many devices as its mesh has.
        strict: Whether it is an error rather than a warning if the compiler makes a collective
            that the plan does not have, does not make one that it has, or makes one otherwise, in
            a step or in initialisation; None follows the environment variable NAMEDMESH_STRICT.
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
        initial_audit: The same for initialisation; None before `init` has compiled it.

    Raises:
        NamedMeshError: If there are too few devices or no such partitioner, if other processes
            run another program, or if strict and the compiled step is not as planned.

    Example:
        >>> import numpy as np
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
        self._backend = _load_backend()
        self.artifact = check_artifact(artifact)
        self.partitioner = choose_partitioner(partitioner)
        self._backend.agree_on_program(artifact, self.partitioner)
        self.mesh = self._backend.device_mesh(artifact.mesh)
        self._backend.check_span(artifact, self.mesh)
        self.variables = {spec.name: spec for spec in artifact.variables}
        self.inputs = {spec.name: spec for spec in artifact.inputs}
        self._updated = [spec.name for spec in artifact.variables if spec.updated]
        self._input_texts = {name: spec.text for name, spec in self.inputs.items()}
        self._ready = self._backend.ReadyInputs(
            self.inputs,
            {name: self.sharding(spec) for name, spec in self.inputs.items()},
            artifact.mesh,
            [spec for spec in artifact.variables if spec.updated],
        )
        # Two steps in flight on virtual CPU devices may deadlock: they share one thread pool.
        self._block = self.mesh.devices.flat[0].platform == "cpu" and self.mesh.devices.size > 1
        start = time.perf_counter()
        self._step = self._backend.compile_step(artifact, self.mesh, self.partitioner)
        self.report = Report.of(self._step, time.perf_counter() - start)
        self._init: jax.stages.Compiled | None = None
        self._strict = strict
        self.initial_audit: Audit | None = None
        self.audit: Audit = self._audit(self._step, artifact.collectives)
        self._backend.learn_collectives(artifact.name, self._step, self.audit)

    def _audit(self, program: jax.stages.Compiled, planned: Sequence[Collective]) -> Audit:
        """Audits a compiled program, and warns or raises if it is not as planned."""
        result = audit(
            parse_module(program.as_text() or ""),
            self.artifact.mesh,
            planned,
            backend=self.mesh.devices.flat[0].platform,
            precision=self.artifact.precision,
        )
        result.enforce(self._strict)
        return result

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
        if not isinstance(spec, TensorSpec):
            raise NamedMeshError(
                f"{type(spec).__name__} is not a TensorSpec",
                fix="give one of step.inputs, step.variables or step.artifact.outputs, "
                "e.g. step.inputs['x']",
            )
        return self._backend.named_sharding(self.mesh, spec)

    def init(self, seed: int = 0) -> State:
        """The first state; every device makes its own shards, nothing is ever whole in one place.

        Args:
            seed: What random initial values follow from.

        Returns:
            The state.

        Raises:
            NamedMeshError: If the seed is not an int32, or if strict and the compiled
                initialisation is not as planned.
        """
        _check_seed(seed)
        if not self.variables:
            return State({}, self.variables)
        if self._init is None:
            compiled = self._backend.compile_init(self.artifact, self.mesh, self.partitioner)
            self.initial_audit = self._audit(compiled, self.artifact.initial_collectives)
            self._init = compiled
        arrays = self._backend.run_init(self._init, self.mesh, seed)
        made = dict(zip(self.variables, arrays, strict=True))
        return State.made_by(self, made, self.variables)

    def place(self, values: Mapping[str, Any]) -> State:
        """A state from whole arrays, of which each device reads its own shard.

        The arrays stay the caller's: those that a step would use up are copied.

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
        if isinstance(values, State):
            for name, spec in values.specs.items():
                if name in values.arrays:
                    remember_sizes(values.arrays[name], spec.sizes)
            values = values.arrays
        arrays = self._put("variable", self.variables, values, self._updated)
        return State.made_by(self, arrays, self.variables)

    def put(self, /, **inputs: Any) -> dict[str, jax.Array]:
        """Inputs laid out on the devices ahead of a step.

        Args:
            **inputs: A whole array for each input, by name, or a dict of them for an argument
                that is one.

        Returns:
            Arrays to call the step with.

        Raises:
            NamedMeshError: If inputs are unknown or missing, or arrays do not fit; all of them
                are named.
        """
        return self._put("input", self.inputs, self._name_inputs((), inputs))

    def rows(self, name: str) -> slice:
        """Which rows of an input this process feeds: those that its devices read.

        Args:
            name: The input.

        Returns:
            The rows along the first dimension; all of them where there is one process.

        Raises:
            NamedMeshError: If there is no such input, or it is a scalar.
        """
        if not isinstance(name, str) or name not in self.inputs:
            raise NamedMeshError(
                f"{self.artifact.name} has no input {name!r}", fix=did_you_mean(name, self.inputs)
            )
        spec = self.inputs[name]
        return self._backend.own_rows(spec, self.artifact.mesh, self.sharding(spec))

    def feed(self, batch: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Inputs of which each process gives its own rows; every process must call it.

        Args:
            batch: For each input by name the rows `rows(name)` of it, whole along the other
                dimensions; scalars are the same in every process.

        Returns:
            Arrays over all processes, to call the step with.

        Raises:
            NamedMeshError: If inputs are unknown or missing, or arrays do not fit; all of them
                are named.
        """
        if not isinstance(batch, Mapping):
            raise NamedMeshError(
                f"feed was given a {type(batch).__name__}",
                fix="give this process's rows by name: feed({name: rows})",
            )
        values = self._name_inputs((), batch)
        name, mesh = self.artifact.name, self.artifact.mesh
        return self._backend.feed_arrays(name, self.inputs, values, mesh, self.sharding)

    def fetch(self, results: Any) -> Any:
        """Results as whole numpy arrays; every process must call it, and gets all of them.

        Args:
            results: What a step returned besides the state, or a part of it.

        Returns:
            The same nesting of numpy arrays.

        Raises:
            NamedMeshError: If they cannot be brought together, e.g. since a process is gone.
        """
        return self._backend.fetch_nested(results)

    def _put(
        self,
        what: str,
        specs: Mapping[str, TensorSpec],
        values: Mapping[str, Any],
        used_up: Sequence[str] = (),
    ) -> dict[str, jax.Array]:
        """Check arrays and lays them out."""
        name, mesh = self.artifact.name, self.artifact.mesh
        return self._backend.put_arrays(name, what, specs, values, mesh, self.sharding, used_up)

    def __call__(
        self, state: Mapping[str, Any] | None, /, *inputs: Any, **named: Any
    ) -> tuple[State, Any]:
        """Run one step."""
        values = self._name_inputs(inputs, named)
        operands = self._ready.take(values)
        variables = None
        if operands is not None and type(state) is State:
            variables = state.take(self, self.variables, bool(self._updated))
        if operands is None or variables is None:
            checked = check_state(self.artifact, self.variables, state, self.sharding)
            arrays = self._put("input", self.inputs, values)
            check_used_once(self.artifact.name, arrays, checked.arrays, self._updated)
            operands, variables = list(arrays.values()), tuple(checked.arrays.values())
            if isinstance(state, State) and not self._updated:
                state.accept_for(self, variables)  # an evaluation takes one state many times
        results = self._run(operands, variables)
        count = len(self.artifact.outputs)
        updated = dict(zip(self._updated, results[count:], strict=True))
        if len(updated) < len(variables):
            updated = dict(zip(self.variables, variables, strict=True)) | updated
        return State.made_by(self, updated, self.variables), self._nest(results[:count])

    def _run(self, operands: Sequence[Any], variables: Sequence[jax.Array]) -> Sequence[Any]:
        """Run the compiled step; variables that were deleted behind its back are named."""
        name = self.artifact.name
        try:
            return self._backend.run_step(name, self._step, [*operands, *variables], self._block)
        except (RuntimeError, NamedMeshError) as error:
            if isinstance(error, self._backend.LostProcess):
                raise
            state = State(dict(zip(self.variables, variables, strict=True)), self.variables)
            check_state(self.artifact, self.variables, state, self.sharding)
            raise

    def _name_inputs(self, values: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """What was given, by the names of the inputs."""
        artifact = self.artifact
        if not values and named.keys() == self._input_texts.keys() and not artifact.groups:
            return dict(named)
        return name_inputs(artifact.name, self._input_texts, artifact.groups, values, named)

    def _nest(self, leaves: Sequence[Any]) -> Any:
        """The results as the traced function nests them."""
        return self._print(fill_structure(self.artifact.structure, leaves))

    def _print(self, results: Any) -> Any:
        """Print what nm.print was called with, and returns the function's own results."""
        import jax

        return unwrap_results(results, quiet=jax.process_index() > 0)


def _check_seed(seed: object) -> None:
    """Raise unless a seed is an int32."""
    number = whole_number(seed)
    if number is None or not -(2**31) <= number < 2**31:
        raise NamedMeshError(
            f"the seed {seed!r} is not an int32",
            fix="give a whole number from -2**31 to 2**31 - 1, e.g. init(0)",
        )
