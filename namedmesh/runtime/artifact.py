"""Artifact: a program on disk: StableHLO modules and a manifest, in one zip file."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from namedmesh.dims.errors import NamedMeshError
from namedmesh.dims.mesh import Mesh
from namedmesh.runtime.json_cursor import JsonCursor
from namedmesh.runtime.manifest import PRECISIONS as PRECISIONS
from namedmesh.runtime.manifest import Manifest, read_manifest, write_manifest

FORMAT = "namedmesh-artifact"
VERSION = 4
_AGAIN = "export it again with nm.export"


@dataclass(frozen=True)
class Artifact(Manifest):
    """A program, planned and lowered for one mesh and layout, with all that is known of it.

    It knows nothing of Python code or TensorFlow: numpy and jax are enough to run it. Its modules
    are run as they are, so trust an Artifact as you would trust code.

    Attributes:
        step_module: The step as portable StableHLO.
        init_module: What makes the first state from a seed; empty if there are no variables.

    Example:
        >>> import namedmesh as nm
        >>> (B,) = nm.dims("batch=4")
        >>> program = nm.trace(lambda x: nm.sum(x), x=nm.spec([B]))
        >>> artifact = nm.export(program, nm.Mesh(data=2), "batch:data")
        >>> [(one.kind, one.axes) for one in artifact.collectives]
        [('AllReduce', ('data',))]
        >>> nm.Artifact.from_bytes(artifact.to_bytes()) == artifact
        True
    """

    step_module: bytes
    init_module: bytes

    @property
    def digest(self) -> str:
        """A name for the contents: equal artifacts have equal digests."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def with_device_assignment(self, order: Sequence[int] | None) -> Artifact:
        """The same program on other devices: a run lays its mesh over them in this order.

        Nothing is planned or lowered again: the modules speak of places in the mesh, and the
        order says which device takes which place.

        Args:
            order: For each place of the mesh in row-major order, the number of a device as
                `jax.devices()` lists them; None for the listed order itself.

        Returns:
            A new Artifact.

        Raises:
            NamedMeshError: If the order does not name each of the mesh's devices once.
        """
        mesh = Mesh(device_assignment=order, **self.mesh.axes)
        return dataclasses.replace(self, mesh=mesh)

    def manifest(self) -> dict[str, Any]:
        """Everything but the modules, as JSON.

        Returns:
            The contents of the file's manifest.json.
        """
        sums = {name: hashlib.sha256(module).hexdigest() for name, module in self._modules()}
        return {
            "format": FORMAT,
            "version": VERSION,
            "sha256": sums,
            **write_manifest(self),
        }

    def _modules(self) -> list[tuple[str, bytes]]:
        """The modules by name."""
        return [("step", self.step_module), ("init", self.init_module)]

    def to_bytes(self) -> bytes:
        """The file's contents.

        Returns:
            Bytes that are equal for equal artifacts.
        """
        buffer = io.BytesIO()
        lines = [
            f"{json.dumps(name)}: {json.dumps(value)}" for name, value in self.manifest().items()
        ]
        members = [("manifest.json", ("{\n" + ",\n".join(lines) + "\n}\n").encode())]
        members += [(f"{name}.mlir", module) for name, module in self._modules()]
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
            for name, data in members:
                # A ZipInfo of its own has a fixed date, so that equal contents give equal bytes.
                file.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        return buffer.getvalue()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file, whole or not at all.

        Args:
            path: The file, by convention `NAME.nmesh`.

        Raises:
            OSError: If it cannot be written.
        """
        temporary = f"{os.fspath(path)}.{os.getpid()}.partial"
        with open(temporary, "wb") as file:
            file.write(self.to_bytes())
        os.replace(temporary, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Artifact:
        """Reads a file.

        Args:
            path: A file that `save` wrote.

        Returns:
            The Artifact.

        Raises:
            NamedMeshError: If the file cannot be read, is damaged, or is of another version.
        """
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            raise NamedMeshError(
                f"cannot read artifact {os.fspath(path)!r}: {error.strerror}", fix="check the path"
            ) from None
        return cls.from_bytes(data, os.fspath(path))

    @classmethod
    def from_bytes(cls, data: bytes, label: str = "artifact") -> Artifact:
        """The Artifact that a file's contents hold.

        Args:
            data: What `to_bytes` returned.
            label: What errors call it.

        Returns:
            The Artifact.

        Raises:
            NamedMeshError: If the data is damaged, not an Artifact, or of another version; every
                field of the manifest that is missing or wrong is named.
        """
        manifest, modules = _unzip(data, label)
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise NamedMeshError(f"{label!r} is not a namedmesh artifact", fix=_AGAIN)
        if manifest.get("version") != VERSION:
            version = manifest.get("version")
            raise NamedMeshError(
                f"{label!r} has artifact version {version!r}; this namedmesh reads {VERSION}",
                fix=_AGAIN,
            )
        document = JsonCursor(manifest)
        checksums = document.member("sha256").members()
        sums = {name: checksum.text() for name, checksum in checksums.items()}
        described = read_manifest(document)
        if document.problems:
            raise NamedMeshError(
                f"{label!r} has a manifest that is incomplete or wrong",
                *document.problems,
                fix=_AGAIN,
            )
        damaged = [
            name
            for name, module in modules.items()
            if hashlib.sha256(module).hexdigest() != sums.get(name)
        ]
        if damaged:
            raise NamedMeshError(
                f"{label!r} is damaged: the {' and the '.join(damaged)} module does not match "
                "its checksum",
                fix=_AGAIN,
            )
        return cls(**vars(described), step_module=modules["step"], init_module=modules["init"])


def _unzip(data: bytes, label: str) -> tuple[Any, dict[str, bytes]]:
    """The manifest as JSON, and the modules by name."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            manifest = json.loads(file.read("manifest.json"))
            return manifest, {name: file.read(f"{name}.mlir") for name in ("step", "init")}
    except zlib.error:
        raise NamedMeshError(
            f"{label!r} is damaged: its contents cannot be decompressed", fix=_AGAIN
        ) from None
    except (
        zipfile.BadZipFile,
        KeyError,
        ValueError,
        EOFError,
        OSError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        reason = error.args[0] if error.args else type(error).__name__
        raise NamedMeshError(
            f"{label!r} is not a namedmesh artifact, or is damaged: {reason}", fix=_AGAIN
        ) from None
