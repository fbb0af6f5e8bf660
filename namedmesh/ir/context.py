"""Context: what an op's lowering may ask of the lowering around it."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from namedmesh.dims.dimension import Dimension, Shape
from namedmesh.dims.hop import Hop
from namedmesh.errors.errors import NamedMeshError
from namedmesh.ir.placement import Ring

# What TensorFlow logs at any level when it is imported on x86: that it uses oneDNN.
_NOISE = (b"All log messages before absl::InitializeLog()", b"oneDNN custom operations are on")


def import_tensorflow() -> Any:
    """Import TensorFlow; drop what it logs about itself, and let everything else through."""
    if "tensorflow" in sys.modules:
        return sys.modules["tensorflow"]
    if importlib.util.find_spec("tensorflow") is None:
        raise NamedMeshError(
            "lowering a program needs TensorFlow, and Python does not find it here",
            fix="run pip install 'namedmesh[tensorflow]', or export the program where TensorFlow "
            "is: an Artifact is compiled and run without it",
        )
    try:
        stderr = os.dup(2)
    except OSError:  # a process without one
        return importlib.import_module("tensorflow")
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            return importlib.import_module("tensorflow")
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            log.seek(0)
            for line in log:
                if not any(noise in line for noise in _NOISE):
                    os.write(2, line)


class Context:
    """Plain, unsharded lowering; the sharded lowering overrides what differs on a mesh."""

    compiled = False  # whether XLA-only TensorFlow ops may be used
    precision = "default"
    ring: Ring | None = None  # around which a product's slices go

    @property
    def tf(self) -> Any:
        """TensorFlow."""
        return import_tensorflow()

    @property
    def xla(self) -> Any:
        """TensorFlow's XLA-only ops (dot_general, dynamic_update_slice ...)."""
        from tensorflow.compiler.tf2xla.python import xla

        return xla

    @property
    def xla_data(self) -> Any:
        """XLA's protocol buffers."""
        from tensorflow.compiler.xla import xla_data_pb2

        return xla_data_pb2

    def dtype(self, name: str) -> Any:
        """Return TensorFlow's dtype of a name."""
        return self.tf.as_dtype(name)

    def size(self, dim: Dimension) -> int:
        """Return a dimension's size where this op runs: its own, or that of one device's shard."""
        return dim.size

    def sizes(self, dims: Sequence[Dimension] | Shape) -> list[int]:
        """Return the sizes of several dimensions where this op runs."""
        return [self.size(dim) for dim in dims]

    def offset(self, dim: Dimension) -> Any | None:
        """Return where this device's shard of a dimension starts; None when it has all of it."""
        return None

    def ways(self, dim: Dimension) -> int:
        """Return into how many shards a dimension is split where this op runs."""
        return 1

    def position(self, dim: Dimension) -> Any:
        """Return the number of this device's shard of a dimension."""
        return 0

    def permute(self, value: Any, dim: Dimension, hop: Hop) -> Any:
        """Send a value to another device along a dimension's axes; zeros where nothing arrives."""
        raise NotImplementedError

    def place_in_ring(self) -> Any:
        """Return the number of this device in the ring."""
        raise NotImplementedError

    def pass_on(self, value: Any, way: int) -> Any:
        """Send a value to the next device of the ring, or (-1) to the previous one."""
        raise NotImplementedError

    def gather(self, value: Any, dim: Dimension) -> Any:
        """Put the values of all shards of a dimension side by side, in a new first dimension."""
        raise NotImplementedError

    def sum(self, value: Any, dim: Dimension) -> Any:
        """Add up the values of all shards of a dimension; each has the sum."""
        raise NotImplementedError

    def all_to_all(self, value: Any, dim: Dimension, cut: int, join: int) -> Any:
        """Cut a value along one position and join what all shards of a dimension send."""
        raise NotImplementedError

    def place(self, value: Any, tensor: Any) -> Any:
        """Annotate a value with the place of one of an op's results."""
        return value

    def part_sizes(self, tensor: Any) -> list[int]:
        """Return the sizes of the leading dimensions of a result that is a part of a sum."""
        return []

    def count_parts(self, op: Any, i: int) -> int:
        """Count the leading dimensions of an operand that is made of parts of a sum."""
        return 0

    def hold(self, value: Any, op: Any, i: int) -> Any:
        """Annotate a value inside a loop with the place of the loop's operand i, as outside."""
        return value

    def lies_alike(self, tensor: Any, op: Any, i: int) -> bool:
        """Return whether a loop's history may overwrite the loop's operand i, row by row."""
        return False

    def pipeline(self, op: Any) -> Any:
        """Return what a loop gathers an iteration ahead and what it adds up late, as planned."""
        return (), (), (), ()

    def stay_apart(self, value: Any, carry: Sequence[Any], rows: Sequence[Any]) -> Any:
        """Make a value depend on what a loop begins with.

        XLA would move what is gathered by it out of outer loops, or take what was gathered before.
        """
        raise NotImplementedError

    def gather_ahead(self, op: Any, values: Sequence[Any]) -> list[Any]:
        """Gather what an iteration of a loop reads, of its rows and what is captured."""
        raise NotImplementedError

    def run_ahead(
        self, op: Any, values: Sequence[Any], ahead: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Run an iteration; return its results, without late ones, and the sums of those."""
        return self.run(op.loop.body, values), []

    def finish_late(self, op: Any, values: Sequence[Any], waiting: Sequence[Any]) -> list[Any]:
        """Make the late results of an iteration, of its sums, its rows and what is captured."""
        raise NotImplementedError

    def run(self, body: Any, values: Sequence[Any]) -> list[Any]:
        """Lower a loop body or a branch on these values."""
        raise NotImplementedError

    def compute(self, key: Hashable, function: Callable[..., Any], *values: Any) -> Any:
        """Call a TensorFlow function of some values for an op that has a body."""
        return function(*values)

    def while_loop(
        self, test: Callable[..., Any], body: Callable[..., Any], start: Sequence[Any]
    ) -> Sequence[Any]:
        """Repeat a body on what it carries while a test holds."""
        return self.tf.while_loop(test, body, list(start), parallel_iterations=1)

    def cond(self, condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        """Run one of two functions of nothing, each of which returns a list of values."""
        return self.tf.cond(condition, yes, no)

    def calls_kernel(self, op: Any) -> bool:
        """Return whether a backend's own kernel may make an op's results."""
        return False

    def scalar(self, value: float | int | bool, dtype: Any) -> Any:
        """Make a TensorFlow scalar; any number stands for true or false where bool is wanted."""
        return self.tf.constant(bool(value) if dtype == self.tf.bool else value, dtype)

    def align(self, value: Any, shape: Shape, order: Shape) -> Any:
        """Transpose and expand a value so that it broadcasts against dims in that order."""
        present = [dim.name for dim in order if dim.name in shape.names]
        value = self.arrange(value, shape, present)
        if present == [dim.name for dim in order][len(order) - len(present) :]:
            return value  # trailing dimensions broadcast by themselves
        sizes = iter(value.shape.as_list())
        return self.tf.reshape(value, [next(sizes) if dim.name in present else 1 for dim in order])

    def arrange(self, value: Any, shape: Shape, names: Sequence[str]) -> Any:
        """Transpose a value so that its dimensions come in the order of names."""
        permutation = [shape.position(name) for name in names]
        if permutation == sorted(permutation):
            return value
        return self.tf.transpose(value, permutation)
