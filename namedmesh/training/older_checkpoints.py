"""Checkpoints that orbax wrote, before namedmesh wrote its own with checksums: read only."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from namedmesh.training.checkpoint_record import (
    Record,
    StoredArray,
    check_file_size,
    parse_content,
    read_limited,
)
from namedmesh.training.chunk_reading import ArrayTarget

STATE = "state"


def is_older(path: pathlib.Path) -> bool:
    """Whether orbax wrote the checkpoint at a path."""
    return (path / STATE).is_dir()


def read_older_record(path: pathlib.Path, step: int) -> Record:
    """Read what is in an older checkpoint, which has no checksums."""
    variables = {}
    for name, entry in _read_item(path, "variables").items():
        sizes = tuple(entry["sizes"])
        variables[name] = StoredArray(sizes, entry["dtype"], sizes, sizes)
    measured = (path / "metrics").is_dir()
    metrics = _read_item(path, "metrics", "metrics") if measured else {}
    return Record(step, variables, metrics, _read_item(path, "extra"))


def read_older_arrays(
    path: pathlib.Path, targets: Mapping[str, ArrayTarget]
) -> tuple[dict[str, jax.Array], dict[str, tuple[int, ...]]]:
    """Read arrays of an older checkpoint."""
    import orbax.checkpoint as ocp

    logging.getLogger("absl").setLevel(logging.CRITICAL)  # what is damaged is an error of ours
    for file in (path / STATE).rglob("*"):
        if file.is_file() and file.parent.name != "d":  # the others are read as a whole
            check_file_size(file)
    restore, structure = {}, {}
    for name, target in targets.items():
        shape, sharding = target.shape, target.sharding
        dtype = jnp.dtype(target.stored.dtype)
        # Not strict: orbax cuts an array or extends it with zeros to fit the shape, shard by
        # shard, so that another padding needs no array whole on one device.
        restore[name] = ocp.ArrayRestoreArgs(
            sharding=sharding, global_shape=shape, strict=False, dtype=dtype
        )
        structure[name] = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
    with ocp.PyTreeCheckpointer() as reader:
        metadata: Any = reader.metadata(path / STATE)
        metadata = getattr(metadata, "item_metadata", metadata)
        metadata = getattr(metadata, "tree", metadata)
        saved = {name: tuple(metadata[name].shape) for name in targets}
        arguments = ocp.args.PyTreeRestore(
            item=structure, restore_args=restore, partial_restore=True
        )
        return reader.restore(path / STATE, args=arguments), saved


def _read_item(path: pathlib.Path, item: str, file: str = "metadata") -> dict[str, Any]:
    """One of the JSON items."""
    content = parse_content(read_limited(path / item / file))
    if not isinstance(content, dict):
        raise ValueError(f"{item} is a {type(content).__name__}, expected an object")
    return content
