"""How checkpoints use orbax: what it keeps, what each item is, and errors of damaged files."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN

from namedmesh.dims.errors import NamedMeshError
from namedmesh.runtime import Executable


def manager_options(keep: int | None, metric: str, mode: str) -> ocp.CheckpointManagerOptions:
    """How orbax keeps and deletes checkpoints; without a number to keep it only reads."""
    rank = lambda metrics: metrics[metric]
    policy = None
    if keep is not None:
        best = BestN(
            get_metric_fn=rank,
            reverse=mode == "min",
            n=1,
            keep_checkpoints_without_metrics=False,
        )
        policy = AnyPreservationPolicy([LatestN(keep), best])
    return ocp.CheckpointManagerOptions(
        preservation_policy=policy,
        best_fn=rank,
        best_mode=mode,
        read_only=keep is None,
        create=keep is not None,
        cleanup_tmp_directories=keep is not None,
    )


def item_handlers() -> dict[str, Any]:
    """The orbax handler of each item of a checkpoint."""
    return {
        "state": ocp.PyTreeCheckpointHandler(),
        "variables": ocp.JsonCheckpointHandler(),
        "extra": ocp.JsonCheckpointHandler(),
    }


@contextmanager
def report_damage(folder: pathlib.Path, step: int) -> Iterator[None]:
    """Raise a NamedMeshError for what orbax and tensorstore raise when files are damaged."""
    try:
        yield
    except NamedMeshError:
        raise
    except (ValueError, OSError, LookupError, TypeError, AttributeError) as error:
        # tensorstore appends its whole configuration to a message
        reason = str(error).split(" [tensorstore_spec=")[0].split(" [source locations=")[0]
        raise NamedMeshError(
            f"the checkpoint of step {step} in {folder} is damaged",
            f"{type(error).__name__}: {reason}",
            fix=f"delete {folder / str(step)} to continue from an older one, or train again",
        ) from None


def read_arrays(
    manager: ocp.CheckpointManager, step: int, executable: Executable, names: list[str]
) -> dict[str, jax.Array]:
    """Read some variables, each device its own piece, with the padding that the program has."""
    if not names:
        return {}
    mesh, specs = executable.artifact.mesh, executable.variables
    metadata = manager.item_metadata(step)["state"]
    metadata = getattr(metadata, "tree", metadata)
    saved = {name: tuple(metadata[name].shape) for name in names}
    restore, structure = {}, {}
    for name in names:
        shape, dtype = specs[name].padded(mesh), jnp.dtype(specs[name].dtype)
        sharding = executable.sharding(specs[name])
        # Not strict: orbax cuts an array or extends it with zeros to fit the shape, piece by
        # piece, so that another padding needs no array whole on one device.
        restore[name] = ocp.ArrayRestoreArgs(
            sharding=sharding, global_shape=shape, strict=False, dtype=dtype
        )
        structure[name] = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
    items = ocp.args.Composite(
        state=ocp.args.PyTreeRestore(item=structure, restore_args=restore, partial_restore=True)
    )
    arrays = manager.restore(step, args=items)["state"]
    return {
        name: _clear_padding(arrays[name], tuple(specs[name].sizes), saved[name]) for name in names
    }


def _clear_padding(array: jax.Array, sizes: tuple[int, ...], saved: tuple[int, ...]) -> jax.Array:
    """Set to zero what was padding when the array was saved and is padding of another size now.

    Padding of the same size stays as it was, so that a resumed run continues bit for bit.
    """
    common = [min(now, before) for now, before in zip(array.shape, saved, strict=True)]
    cut = all(count <= size for count, size in zip(common, sizes, strict=True))
    if cut or array.shape == saved:
        return array

    def clear(values: jax.Array) -> jax.Array:
        inside = jnp.ones((), bool)
        for axis, size in enumerate(sizes):
            inside &= jax.lax.broadcasted_iota(jnp.int32, values.shape, axis) < size
        return jnp.where(inside, values, jnp.zeros((), values.dtype))

    return jax.jit(clear, out_shardings=array.sharding)(array)
