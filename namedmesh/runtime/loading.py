"""Programs from files, and compiled programs kept in a folder."""

from __future__ import annotations

import os

from namedmesh.artifacts.artifact import Artifact
from namedmesh.errors.errors import NamedMeshError
from namedmesh.records.paths import check_path, describe_os_error
from namedmesh.runtime.executable import Executable


def load(
    path: str | os.PathLike[str], *, strict: bool | None = None, partitioner: str | None = None
) -> Executable:
    """Read an Artifact and compiles it for the devices at hand.

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
    from namedmesh.runtime.backend import keep_compilations  # imports jax

    keep_compilations(name)
