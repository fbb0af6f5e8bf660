"""Artifact: a program on disk: StableHLO modules and a manifest, in one sealed zip file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from namedmesh.artifacts.container import AGAIN, LARGEST_FILE, pack_members, unpack_members
from namedmesh.artifacts.manifest import PRECISIONS as PRECISIONS
from namedmesh.artifacts.manifest import Manifest, read_manifest, write_manifest
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError
from namedmesh.files import check_path, read_file, write_file
from namedmesh.records.codec import InvalidRecordError, parse_document, report_problems

VERSION = 8
_HEADER = ("namedmesh-artifact", VERSION)
_MEMBERS = ("manifest.json", "step.mlir", "init.mlir")


@dataclass(frozen=True, repr=False)
class Artifact(Manifest):
    """A program, planned and lowered for one mesh and layout, that runs with numpy and jax alone.

    Its modules are run as they are: trust an Artifact as you would trust code.

    Attributes:
        step_module: The step as portable StableHLO.
        init_module: The module that makes the first state from a seed; empty without variables.

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

    def __repr__(self) -> str:
        return (
            f"Artifact of {self.name} on {self.mesh}, layout {self.layout!r}\n"
            f"  {len(self.inputs)} inputs, {len(self.variables)} variables, "
            f"{len(self.outputs)} outputs, {len(self.collectives)} collectives"
        )

    @property
    def digest(self) -> str:
        """A name for the contents: equal artifacts have equal digests."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def with_device_assignment(self, order: Sequence[int] | None) -> Artifact:
        """Return the same program for devices in another order; nothing is lowered again.

        Args:
            order: For each place of the mesh in row-major order, the number of a device as
                `jax.devices()` lists them; None for the listed order itself.

        Returns:
            A new Artifact.
        """
        mesh = Mesh(device_assignment=order, **self.mesh.to_json())
        return dataclasses.replace(self, mesh=mesh)

    def manifest(self) -> dict[str, Any]:
        """Return everything but the modules, as values that JSON has."""
        return {"format": _HEADER[0], "version": VERSION, **write_manifest(self)}

    def to_bytes(self) -> bytes:
        """Return the file's contents, equal for equal artifacts."""
        lines = [
            f"{json.dumps(name)}: {json.dumps(value)}" for name, value in self.manifest().items()
        ]
        manifest = ("{\n" + ",\n".join(lines) + "\n}\n").encode()
        contents = (manifest, self.step_module, self.init_module)
        return pack_members(dict(zip(_MEMBERS, contents, strict=True)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all.

        Args:
            path: The file, by convention `NAME.nmesh`.

        Raises:
            NamedMeshError: It cannot be written; a file that was there is still there then.
        """
        name = check_path(path, "the file of the artifact")
        write_file(name, self.to_bytes(), "artifact")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Artifact:
        """Read a file.

        Args:
            path: A file that `save` wrote.

        Returns:
            The Artifact.

        Raises:
            NamedMeshError: The file cannot be read, is too large, was changed since it was
                written, or is of another version.
        """
        name = check_path(path, "the file of the artifact")
        return cls.from_bytes(read_file(name, "artifact", LARGEST_FILE), name)

    @classmethod
    def from_bytes(cls, data: bytes, label: str = "artifact") -> Artifact:
        """Read an Artifact from a file's contents.

        Args:
            data: What `to_bytes` returned.
            label: The name of the data in errors.

        Returns:
            The Artifact.

        Raises:
            NamedMeshError: The data is damaged, not an Artifact, or of another version; every
                field of the manifest that is missing or wrong is named.
        """
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise NamedMeshError(
                f"an artifact cannot be read from a {type(data).__name__}",
                fix="give the bytes that to_bytes() returned, or use Artifact.load(path)",
            )
        members = unpack_members(bytes(data), _MEMBERS, label)
        document = parse_document(
            members["manifest.json"], label, "a namedmesh artifact", _HEADER, AGAIN
        )
        step, init = members["step.mlir"], members["init.mlir"]
        with report_problems(f"{label!r} has a manifest that is incomplete or wrong", AGAIN):
            manifest = read_manifest(document)
            if bool(manifest.variables) != bool(init):
                raise InvalidRecordError(
                    ["init.mlir is there without variables, or missing with them"]
                )
        return cls(**vars(manifest), step_module=step, init_module=init)


def check_artifact(artifact: object) -> Artifact:
    """Return an Artifact; raise if it is something else, e.g. the path of one."""
    if isinstance(artifact, Artifact):
        return artifact
    fix = "give what nm.export or Artifact.load returned"
    if isinstance(artifact, (str, os.PathLike)):
        fix = "read it first: Artifact.load(path), or use namedmesh.runtime.load(path)"
    raise NamedMeshError(f"expected an Artifact, not a {type(artifact).__name__}", fix=fix)
