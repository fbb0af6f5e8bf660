"""The layer of benchmarks.moe in Mesh TensorFlow 0.1.21, if that is installed.

Install it with `pip install --no-deps mesh-tensorflow`, and gin-config.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.moe import Sizes

tf1: Any = importlib.import_module("tensorflow.compat.v1")


def import_mesh_tensorflow() -> Any:
    """Import Mesh TensorFlow, after restoring two names that TensorFlow no longer has.

    Raises ImportError if it is not installed.
    """
    if importlib.util.find_spec("mesh_tensorflow") is None:
        raise ImportError("mesh_tensorflow is not installed")
    tf1.estimator = SimpleNamespace(CheckpointSaverListener=object, SessionRunHook=object)
    ops: Any = importlib.import_module("tensorflow.python.framework.ops")
    ops.register_tensor_conversion_function = tf.register_tensor_conversion_function
    return importlib.import_module("mesh_tensorflow")


def top2_gating(mtf: Any, gates: Any, S: Any, E: Any, C: Any) -> tuple[Any, Any, Any]:
    """Return combine weights and dispatch mask (GSEC), and the groups' mean auxiliary loss."""
    first = mtf.one_hot(mtf.argmax(gates, E), E)  # GSE
    density, proxy = (mtf.reduce_mean(tensor, reduced_dim=S) for tensor in (first, gates))  # GE
    without = gates * (1.0 - first) - first
    second = mtf.one_hot(mtf.argmax(without, E), E)
    gate1, gate2 = (mtf.reduce_sum(gates * mask, reduced_dim=E) for mask in (first, second))  # GS
    total = gate1 + gate2 + 1e-9
    place1 = mtf.cumsum(first, S, exclusive=True)  # GSE: how many came before
    place2 = mtf.cumsum(second, S, exclusive=True) + mtf.reduce_sum(first, reduced_dim=S)

    def place_gates(mask: Any, place: Any, gate: Any) -> Any:
        kept = mask * mtf.to_float(mtf.less(place, float(C.size)))  # GSE
        position = mtf.to_int32(mtf.reduce_sum(place * kept, reduced_dim=E))  # GS
        return mtf.einsum([gate, kept, mtf.one_hot(position, C)], [*gates.shape.dims, C])  # GSEC

    combine = place_gates(first, place1, gate1 / total)
    combine = combine + place_gates(second, place2, gate2 / total)
    return combine, mtf.to_float(mtf.greater(combine, 0.0)), mtf.reduce_mean(density * proxy)


def step(
    sizes: Sizes, devices: int, values: dict[str, np.ndarray]
) -> tuple[Callable[[], Any], Callable[[], list[np.ndarray]]]:
    """Return two functions: one runs the step on the devices, the other also fetches its results.

    The results are y and the gradients of x, wg, wi and wo.
    """
    mtf = import_mesh_tensorflow()
    G, S, M = (mtf.Dimension(name, getattr(sizes, name)) for name in ("group", "seq", "model"))
    E, H, C = (
        mtf.Dimension(name, getattr(sizes, name)) for name in ("expert", "hidden", "capacity")
    )
    whole_G, whole_E = mtf.Dimension("whole_group", G.size), mtf.Dimension("whole_expert", E.size)
    shapes = {"x": [G, S, M], "dy": [G, S, M], "wg": [M, whole_E], "wi": [E, M, H], "wo": [E, H, M]}
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        variables = {
            name: mtf.get_variable(
                mesh, name, shape, initializer=tf1.constant_initializer(values[name])
            )
            for name, shape in shapes.items()
        }
        x, dy, wg, wi, wo = variables.values()
        gates = mtf.softmax(mtf.einsum([x, wg], [G, S, whole_E]), whole_E)
        combine, dispatch, aux = top2_gating(mtf, gates, S, whole_E, C)
        xe = mtf.einsum([dispatch, x], [whole_E, G, C, M])
        xe = mtf.reshape(xe, [E, whole_G, C, M])  # one AllToAll
        h = mtf.relu(mtf.einsum([xe, wi], [E, whole_G, C, H]))
        ye = mtf.einsum([h, wo], [E, whole_G, C, M])
        ye = mtf.reshape(ye, [whole_E, G, C, M])  # and one back
        y = mtf.einsum([combine, ye], [G, S, M])
        results = [y, *mtf.gradients([mtf.reduce_sum(y * dy) + aux], [x, wg, wi, wo])]
        places = [f"cpu:{i}" for i in range(devices)]
        placement = mtf.placement_mesh_impl.PlacementMeshImpl(
            f"all:{devices}", "group:all;expert:all", places
        )
        lowering = mtf.Lowering(graph, {mesh: placement})
        shards = [
            shard.op
            for result in results
            for shard in lowering.tensors[result].to_laid_out_tensor().tensor_list
        ]
        whole = [lowering.export_to_tf_tensor(result) for result in results]
        starting = [tf1.global_variables_initializer(), lowering.copy_masters_to_slices()]
        session = tf1.Session(config=tf1.ConfigProto(device_count={"CPU": devices}))
        for operation in starting:
            session.run(operation)
    return session.make_callable(shards), session.make_callable(whole)
