"""Executable: an Artifact read, compiled for the devices at hand, audited, ready to run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from namedmesh.artifacts.artifact import Artifact, check_artifact
from namedmesh.artifacts.description import TensorSpec
from namedmesh.audit.audit import Audit, audit
from namedmesh.audit.hlo.module import parse_module
from namedmesh.display.html import html_block, html_text
from namedmesh.errors.errors import NamedMeshError, did_you_mean, whole_number
from namedmesh.errors.mistakes import ByName, Explained
from namedmesh.errors.source import Source
from namedmesh.files import check_path, describe_os_error
from namedmesh.processes.collective_trace import current_trace
from namedmesh.records.collective import Collective
from namedmesh.runtime.partitioner import choose_partitioner
from namedmesh.runtime.state import State, check_state, check_used_once, describe_specs, own_state
from namedmesh.signature.inputs import name_inputs
from namedmesh.signature.nest import fill_structure, is_plain
from namedmesh.signature.printed import unwrap_results

if TYPE_CHECKING:
    import jax
    from jax.sharding import NamedSharding

_ndarray = np.ndarray


@dataclass(frozen=True)
class Report(Explained):
    """Compile time and memory of a compiled step, as the compiler counts it.

    Attributes:
        compile_seconds: The time it took to compile.
        argument_bytes: Inputs and state, per device.
        output_bytes: Results and the next state, per device.
        temporary_bytes: Buffers that live only within a step, per device.
        aliased_bytes: The part of the outputs in donated buffers, per device.
        code_bytes: The program itself.

    Example:
        >>> from namedmesh.runtime import Report
        >>> report = Report(1.0, argument_bytes=100, output_bytes=60, temporary_bytes=30,
        ...                 aliased_bytes=50, code_bytes=7)
        >>> report.peak_bytes
        140
    """

    compile_seconds: float
    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    aliased_bytes: int
    code_bytes: int

    @classmethod
    def of(cls, compiled: jax.stages.Compiled, seconds: float) -> Report:
        """Make the report of a compiled step.

        Args:
            compiled: The step.
            seconds: The time it took to compile.

        Returns:
            The report.
        """
        memory = compiled.memory_analysis()
        assert memory is not None, "CPU, GPU and TPU compilers all count memory"
        names = ("argument", "output", "temp", "alias", "generated_code")
        return cls(seconds, *(getattr(memory, f"{name}_size_in_bytes") for name in names))

    @property
    def peak_bytes(self) -> int:
        """Arguments, results and temporaries; what is updated in place counts once."""
        return self.argument_bytes + self.output_bytes + self.temporary_bytes - self.aliased_bytes


class Executable(Explained):
    """A step on devices: call it with a state and inputs, get the next state and the results.

    Args:
        artifact: The program to compile, for as many devices as its mesh has.
        strict: Whether collectives other than those planned, in a step or in initialisation, are
            an error rather than a warning; None follows the environment's NAMEDMESH_STRICT.
        partitioner: `gspmd` or `shardy`; None follows the environment's NAMEDMESH_PARTITIONER.

    Attributes:
        artifact: The program.
        partitioner: The partitioner of the program.
        mesh: Its devices, as a jax mesh.
        variables: The specs of the state, by name.
        inputs: The specs of the inputs, by name.
        report: Compile time and memory.
        audit: The compiler's collectives against the plan's.
        initial_audit: The same for initialisation; None before `init` has compiled it.

    Raises:
        NamedMeshError: There are too few devices, other processes run another program, or the
            compiled step is not as planned and strict.

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
        # They need jax, which `step: nm.Step` in an annotation does not.
        import jax

        import namedmesh.runtime.arrays as arrays
        import namedmesh.runtime.compiling as compiling

        self._compiling, self._arrays = compiling, arrays
        self.artifact = check_artifact(artifact)
        self.partitioner = choose_partitioner(partitioner)
        self.mesh = compiling.choose_devices(artifact, self.partitioner)
        self.variables = ByName({spec.name: spec for spec in artifact.variables})
        self.inputs = ByName({spec.name: spec for spec in artifact.inputs})
        start = time.perf_counter()
        self._step = compiling.compile_step(artifact, self.mesh, self.partitioner)
        self.report = Report.of(self._step, time.perf_counter() - start)
        self._init: jax.stages.Compiled | None = None
        self._strict = strict
        self.initial_audit: Audit | None = None
        self.audit: Audit = self._audit(self._step, artifact.collectives)
        trace = current_trace()
        if trace is not None:
            trace.learn(artifact.name, self.text, self.audit.matched)
        updated = [spec for spec in artifact.variables if spec.updated]
        self._updated = [spec.name for spec in updated]
        self._quiet = jax.process_index() > 0  # the first process prints
        self._input_texts = {name: spec.text for name, spec in self.inputs.items()}
        where = (artifact.mesh, self.sharding)
        self._place_inputs = arrays.ArrayPlacer(artifact.name, "input", self.inputs, *where)
        self._place_state = arrays.ArrayPlacer(artifact.name, "variable", self.variables, *where)
        on_cpu = self.mesh.devices.flat[0].platform == "cpu"
        self._ready = arrays.ReadyInputs(self._place_inputs, updated, on_cpu)
        self._kept = [i for i, spec in enumerate(artifact.variables) if not spec.updated]
        sizes = (
            (i, one.sizes, one.padded(artifact.mesh)) for i, one in enumerate(artifact.outputs)
        )
        self._padded = [(i, true) for i, true, padded in sizes if true != padded]
        plain = is_plain(artifact.structure) and not self._padded
        structure = artifact.structure if plain else [*range(len(artifact.outputs))]
        block = on_cpu and self.mesh.devices.size > 1
        self._usual = (  # what a call needs, in one place
            [*self.inputs],
            self._ready.plain,
            self._ready.copies,
            compiling.bind_step(artifact, self._step, structure, block),
            block,
            self.variables,
            [i for i, spec in enumerate(artifact.variables) if spec.updated],
            self._kept,
            plain,
        )

    def _audit(self, program: jax.stages.Compiled, planned: Sequence[Collective]) -> Audit:
        """Audit a compiled program; warn or raise if it is not as planned."""
        result = audit(
            parse_module(program.as_text() or ""),
            self.artifact.mesh,
            planned,
            backend=self.mesh.devices.flat[0].platform,
            precision=self.artifact.precision,
            ops=self.artifact.ops,
            orders=self.artifact.orders,
        )
        result.enforce(self._strict, self._list_sources() if not result.exact else None)
        return result

    def _list_sources(self) -> dict[str, Source]:
        """List the user's line of each op by its name in compiled code; an Artifact has none."""
        return {}

    def __repr__(self) -> str:
        artifact = self.artifact
        layout = f"{artifact.mesh}, layout {artifact.layout!r}"
        return (
            f"step {artifact.name} on {layout}, by {self.partitioner}\n"
            f"  inputs: {describe_specs(self.inputs)}\n"
            f"  state: {describe_specs(self.variables)}\n"
            f"  peak {self.report.peak_bytes:,} bytes per device, compiled in "
            f"{self.report.compile_seconds:.1f} s"
        )

    def _repr_html_(self) -> str:
        title, *lines = repr(self).splitlines()
        return html_block(title, html_text(*lines, *str(self.audit).splitlines()))

    def __reduce__(self) -> NoReturn:
        raise NamedMeshError(
            f"step {self.artifact.name} is compiled for these devices, and cannot be pickled",
            fix="save it with step.artifact.save(path), and load it with nm.runtime.load(path)",
        )

    @property
    def text(self) -> str:
        """The program as the compiler made it: optimized HLO."""
        return self._step.as_text() or ""

    def sharding(self, spec: TensorSpec) -> NamedSharding:
        """Return the sharding of an input, a variable or a result over the devices.

        Args:
            spec: One of `inputs`, `variables` or `artifact.outputs`.

        Returns:
            Its sharding.
        """
        if not isinstance(spec, TensorSpec):
            raise NamedMeshError(
                f"{type(spec).__name__} is not a TensorSpec",
                fix="give one of step.inputs, step.variables or step.artifact.outputs, "
                "e.g. step.inputs['x']",
            )
        return self._compiling.named_sharding(self.mesh, spec)

    def init(self, seed: int = 0) -> State:
        """Make the first state; every device makes its own shards, nothing is ever gathered.

        Args:
            seed: The seed of random initial values, an int32.

        Returns:
            The state.

        Raises:
            NamedMeshError: The compiled initialisation is not as planned and strict.
        """
        number = whole_number(seed)
        if number is None or not -(2**31) <= number < 2**31:
            raise NamedMeshError(
                f"the seed {seed!r} is not an int32",
                fix="give a whole number from -2**31 to 2**31 - 1, e.g. init(0)",
            )
        if not self.variables:
            return State({}, self.variables)
        if self._init is None:
            compiled = self._compiling.compile_init(self.artifact, self.mesh, self.partitioner)
            self.initial_audit = self._audit(compiled, self.artifact.initial_collectives)
            self._init = compiled
        arrays = self._compiling.run_init(self._init, self.mesh, seed)
        return own_state(self, arrays, self.variables)

    def place(self, values: Mapping[str, Any]) -> State:
        """Make a state from whole arrays, of which each device reads its own shard.

        The arrays stay the caller's: those that a step would donate are copied.

        Args:
            values: An array for each variable, by name; a State of another Executable will do.

        Returns:
            The state.

        Raises:
            NamedMeshError: Variables are unknown or missing, or arrays do not fit.
        """
        _check_mapping(values, "place", "whole arrays by name: place({name: array})")
        if isinstance(values, State):
            for name, spec in values.specs.items():
                if name in values.arrays:
                    self._arrays.remember_sizes(values.arrays[name], spec.sizes)
            values = values.arrays
        arrays = self._place_state.put(values, self._updated)
        state = State(arrays, self.variables)  # others may have the arrays
        state.accept_for(self, [*arrays.values()])
        return state

    def put(self, /, **inputs: Any) -> dict[str, jax.Array]:
        """Lay inputs out on the devices ahead of a step.

        Args:
            **inputs: A whole array for each input, by name, or a dict of them for an argument
                that is one.

        Returns:
            Arrays to call the step with.

        Raises:
            NamedMeshError: Inputs are unknown or missing, or arrays do not fit.
        """
        return self._place_inputs.put(self._name_inputs((), inputs))

    def rows(self, name: str) -> slice:
        """Return the rows of an input that this process feeds: those that its devices read.

        Args:
            name: The input.

        Returns:
            The rows along the first dimension; all of them where there is one process.
        """
        if not isinstance(name, str) or name not in self.inputs:
            raise NamedMeshError(
                f"{self.artifact.name} has no input {name!r}", fix=did_you_mean(name, self.inputs)
            )
        return self._place_inputs.own_rows(self.inputs[name])

    def feed(self, batch: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Make inputs of which each process gives its own rows; every process must call it.

        Args:
            batch: For each input by name the rows `rows(name)` of it, whole along the other
                dimensions; scalars are the same in every process.

        Returns:
            Arrays over all processes, to call the step with.

        Raises:
            NamedMeshError: Inputs are unknown or missing, or arrays do not fit.
        """
        _check_mapping(batch, "feed", "this process's rows by name: feed({name: rows})")
        return self._place_inputs.put(self._name_inputs((), batch), rows_only=True)

    def fetch(self, results: Any) -> Any:
        """Fetch results as whole numpy arrays; every process must call it, and gets all of them.

        Args:
            results: What a step returned besides the state, or a part of it.

        Returns:
            The same nesting of numpy arrays.
        """
        return self._arrays.fetch_nested(results)

    def __call__(
        self, state: Mapping[str, Any] | None = None, /, *inputs: Any, **named: Any
    ) -> tuple[State, Any]:
        """Run one step."""
        # The usual case: a state that this program made and nobody has seen, and numpy arrays that
        # fit. Between two steps the processor's caches hold other things, so that Python is several
        # times slower here than in a loop: there is as little of it as possible.
        names, types, copies, call, block, variables, updated, kept, nested = self._usual
        arrays, wait = None, True
        if type(state) is State and state._maker is self and not kept:
            operands: Iterable[Any] = inputs
            if named:
                operands = named.values()
                if [*named] != names:
                    operands = (*inputs, *map(named.get, names[len(inputs) :]))
            for value, (dtype, sizes) in zip(operands, types, strict=False):
                # An equal dtype may be another object: then the array is checked below.
                if type(value) is not _ndarray or value.dtype is not dtype or value.shape != sizes:
                    break
            else:
                if len(inputs) + len(named) == len(names):
                    arrays = state._flat
                    state._maker = None  # they are donated
                    if copies:
                        operands, wait = [value.copy() for value in operands], False
        if arrays is None:
            operands, wait, arrays = self._prepare(state, inputs, named)
        try:
            results, following = call(*operands, *arrays)
            # Two steps in flight on virtual CPU devices may deadlock: they share one thread pool.
            if not (wait or block):
                pass
            elif following:  # all that a step returns is ready at once
                following[0].block_until_ready()
            else:
                self._compiling.jax.block_until_ready(results)
        except (RuntimeError, ValueError) as error:
            self._explain_failure(error, arrays)
        if kept:
            following, changed = [*arrays], following
            for i, array in zip(updated, changed, strict=True):
                following[i] = array
        if not nested:
            for i, sizes in self._padded:
                results[i] = self._arrays.PaddedResult(results[i], sizes)
            results = self._nest(results)
        return own_state(self, following, variables), results

    def _prepare(
        self, state: object, inputs: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[Sequence[Any], bool, Sequence[jax.Array]]:
        """Return the inputs, whether they are read in place, and the variables; or raise."""
        values = self._name_inputs(inputs, named)
        ready: tuple[Sequence[Any], bool] | None = self._ready.take(values)
        variables: Sequence[jax.Array] | None = None
        if ready is not None and isinstance(state, State):
            variables = state.take(self, self.variables, self._kept, bool(self._updated))
        elif ready is not None and state is None and not self.variables:
            variables = ()
        if ready is None or variables is None:
            checked = check_state(self.artifact, self.variables, state, self.sharding)
            arrays = self._place_inputs.put(values)
            check_used_once(self.artifact.name, arrays, checked.arrays, self._updated)
            ready, variables = ([*arrays.values()], False), [*checked.arrays.values()]
            if isinstance(state, State) and not self._updated:
                state.accept_for(self, variables)  # an evaluation takes one state many times
        return ready[0], ready[1], variables

    def _explain_failure(self, error: Exception, arrays: Sequence[jax.Array]) -> NoReturn:
        """Raise for a step that failed; variables that were deleted behind its back are named."""
        failure = self._compiling.describe_step_failure(self.artifact.name, error)
        if "deleted" in str(error):  # jax says so of what a step has used up
            state = State(dict(zip(self.variables, arrays, strict=True)), self.variables)
            check_state(self.artifact, self.variables, state, self.sharding)
        raise failure from (error.__cause__ if failure is error else error)

    def _name_inputs(self, values: Sequence[Any], named: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values of a call by the names of the inputs."""
        artifact = self.artifact
        if not values and not artifact.groups:
            return named
        return name_inputs(artifact.name, self._input_texts, artifact.groups, values, named)

    def _nest(self, leaves: Sequence[Any]) -> Any:
        """Return the results as the traced function nests them."""
        return self._print(fill_structure(self.artifact.structure, leaves))

    def _print(self, results: Any) -> Any:
        """Print what nm.print was called with; return the function's own results."""
        return unwrap_results(results, quiet=self._quiet)


def _check_mapping(values: object, function: str, expected: str) -> None:
    """Raise unless arrays are given by name."""
    if not isinstance(values, Mapping):
        raise NamedMeshError(
            f"{function} was given a {type(values).__name__}", fix=f"give {expected}"
        )


def load(
    path: str | os.PathLike[str], *, strict: bool | None = None, partitioner: str | None = None
) -> Executable:
    """Read an Artifact and compile it for the devices at hand.

    Args:
        path: A file that `Artifact.save` wrote.
        strict: As for Executable.
        partitioner: As for Executable.

    Returns:
        The step, ready to run.

    Example:
        >>> from namedmesh.runtime import load
        >>> import tempfile
        >>> import numpy as np
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
    """Keep compiled programs in a folder, so that the next process starts without compiling.

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
    name = check_path(folder, "the folder of compiled programs")
    try:
        os.makedirs(name, exist_ok=True)
    except (OSError, ValueError) as error:
        raise NamedMeshError(
            f"cannot make the folder {name!r}: {describe_os_error(error)}", fix="check the path"
        ) from None
    import jax

    jax.config.update("jax_compilation_cache_dir", name)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
