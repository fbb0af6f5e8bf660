"""SavedModel: a program with its state as TensorFlow Serving and TensorFlow itself load it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from namedmesh.errors.errors import NamedMeshError
from namedmesh.files import check_path, describe_os_error
from namedmesh.ir.evaluate import Eager, convert_value
from namedmesh.ir.op import Op
from namedmesh.ir.program import Program


class Graph(Eager):
    """Lowering into a graph, in which every value has the shape of its tensor."""

    compiled = True

    def lower(self, op: Op, values: Sequence[Any]) -> tuple[Any, ...]:
        """Lower an op on its operands."""
        results = super().lower(op, values)
        # TensorFlow forgets some shapes, and would not enter a loop then.
        for tensor, value in zip(op.outputs, results, strict=True):
            value.set_shape(tensor.shape.sizes)
        return results


class ServedProgram(tf.Module):
    """A program whose variables are TensorFlow's, unsharded."""

    def __init__(self, program: Program, state: Mapping[str, Any], assets: Sequence[str]):
        super().__init__(name=re.sub(r"\W", "_", program.name))
        self.weights = []
        for name, variable in program.variables.items():
            whole = {name: np.asarray(state[name])} if name in state else {}
            value = convert_value("variable", name, variable.tensor, whole)
            weight = tf.Variable(value, trainable=False, name=name.replace("/", "."))
            self.weights.append(weight)
        self.assets = [tf.saved_model.Asset(path) for path in assets]

        @tf.function(jit_compile=True, autograph=False)
        def run(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            values = [inputs[name] for name in program.inputs]
            results = Graph().run(program.body, [*values, *self.weights])
            return dict(zip(_name_outputs(program), results, strict=True))

        inputs = program.inputs.items()
        specs = {name: tf.TensorSpec(x.shape.sizes, x.dtype, name) for name, x in inputs}
        self.serve = run.get_concrete_function(**specs)


def write_saved_model(
    program: Program,
    state: Mapping[str, Any],
    folder: str | os.PathLike[str],
    *,
    assets: Sequence[str | os.PathLike[str]] = (),
) -> None:
    """Write a program and its state as a SavedModel, for TensorFlow Serving and TensorFlow.

    The program runs on one device, compiled by XLA; its inputs and outputs have their names.

    Args:
        program: A traced program that changes no variable, e.g. one that predicts.
        state: A value for each variable; a State will do.
        folder: Where to write; a SavedModel that is there is replaced.
        assets: Files that go with it, e.g. vocabularies.

    Raises:
        NamedMeshError: The program changes variables, or the state does not fit it.

    Example:
        >>> import tempfile
        >>> import namedmesh as nm
        >>> M = nm.Dimension("model", 3)
        >>> program = nm.trace(lambda x: {"y": x * nm.param("w", [M])}, x=nm.spec([M]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     nm.write_saved_model(program, {"w": [1.0, 2.0, 3.0]}, folder)
        ...     loaded = tf.saved_model.load(folder)
        ...     loaded.signatures["serving_default"](x=tf.constant([1.0, 1.0, 2.0]))["y"].numpy()
        array([1., 2., 6.], dtype=float32)
    """
    if not isinstance(program, Program):
        raise NamedMeshError(
            f"write_saved_model: a {type(program).__name__} is not a program",
            fix="pass what nm.trace returned",
        )
    if program.updates:
        raise NamedMeshError(
            f"{program.name} changes {', '.join([*program.updates][:3])}, "
            "and what is served changes nothing",
            fix="trace a function that only predicts",
        )
    _name_outputs(program)
    target = check_path(folder, "the folder of the SavedModel")
    files = [check_path(path, "an asset") for path in assets]
    absent = [path for path in files if not os.path.isfile(path)]
    if absent:
        raise NamedMeshError(f"there is no file {absent[0]!r}", fix="give the paths of files")
    served = ServedProgram(program, state, files)
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    try:
        tf.saved_model.save(served, target, signatures=served.serve, options=options)
    except (OSError, tf.errors.OpError) as error:
        problem = f"cannot write a SavedModel to {target!r}: {describe_os_error(error)}"
        raise NamedMeshError(problem, fix="name a folder that you may write to") from None


def _name_outputs(program: Program) -> list[str]:
    """Name a program's outputs; a single one that has no name is `output`."""
    structure = program.structure
    if isinstance(structure, dict) and len(structure) == len(program.outputs):
        return [str(name) for name in structure]
    if len(program.outputs) == 1:
        return ["output"]
    raise NamedMeshError(
        f"{program.name} returns {len(program.outputs)} tensors that have no names of their own",
        fix="return a dict of tensors",
    )
