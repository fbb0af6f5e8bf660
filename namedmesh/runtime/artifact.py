"""Artifact: a compiled-from program on disk: StableHLO modules and a manifest, in one zip file."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any

from namedmesh.dims.errors import NamedMeshError
from namedmesh.dims.mesh import Mesh

FORMAT = "namedmesh-artifact"
VERSION = 2
PRECISIONS = ("default", "high", "highest")


@dataclass(frozen=True)
class TensorSpec:
    """One entry or result of a module: its named dimensions, dtype, and the axes each dimension holds."""

    name: str
    dims: tuple[tuple[str, int], ...]
    dtype: str
    held: dict[str, list[str]]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes the user sees."""
        return tuple(size for _, size in self.dims)

    def padded(self, mesh: Mesh) -> tuple[int, ...]:
        """The sizes at rest: rounded up to what divides over the devices."""
        ways = [mesh.size(self.held.get(name, ())) for name, _ in self.dims]
        return tuple(-(-size // n) * n for (_, size), n in zip(self.dims, ways, strict=True))

    @property
    def text(self) -> str:
        """dtype[name=size, ...] as errors print it."""
        return f"{self.dtype}[{', '.join(f'{name}={size}' for name, size in self.dims)}]"

    @property
    def sharded_text(self) -> str:
        """The same with the axes each dimension holds: float32[group=64/data+expert, model=512]."""
        held = {name: "/" + "+".join(axes) for name, axes in self.held.items() if axes}
        return f"{self.dtype}[{', '.join(f'{name}={size}{held.get(name, str())}' for name, size in self.dims)}]"


@dataclass(frozen=True)
class VariableSpec(TensorSpec):
    """A variable: a tensor with a role."""

    trainable: bool
    updated: bool


@dataclass(frozen=True)
class Artifact:
    """A program, planned and lowered for one mesh and layout; knows nothing of Python code or TensorFlow."""

    name: str
    mesh: Mesh
    layout: str
    params: str
    precision: str
    inputs: tuple[TensorSpec, ...]
    variables: tuple[VariableSpec, ...]
    outputs: tuple[TensorSpec, ...]
    structure: Any  # nested lists, tuples and dicts of indices into outputs, as JSON
    collectives: tuple[dict[str, Any], ...]  # of the step, as the plan has them
    initial_collectives: tuple[dict[str, Any], ...]
    ops: dict[str, list[str]]  # the tensors that each named op of the step makes, and its line
    activation_bytes: int  # what one device keeps of the forward pass's loops for the backward pass
    flops: int
    made_with: dict[str, str]
    step_module: bytes
    init_module: bytes

    @property
    def digest(self) -> str:
        """A name for the contents."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def manifest(self) -> dict[str, Any]:
        """Everything but the modules, as JSON."""
        fields = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("mesh", "step_module", "init_module")
        }
        for name in ("inputs", "variables", "outputs"):
            fields[name] = [dataclasses.asdict(one) for one in fields[name]]
        mesh = {"axes": self.mesh.axes, "device_assignment": self.mesh.device_assignment}
        sums = {
            "step": hashlib.sha256(self.step_module).hexdigest(),
            "init": hashlib.sha256(self.init_module).hexdigest(),
        }
        return {"format": FORMAT, "version": VERSION, "mesh": mesh, "sha256": sums, **fields}

    def to_bytes(self) -> bytes:
        """The file's contents; equal artifacts give equal bytes."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
            for name, data in (
                ("manifest.json", json.dumps(self.manifest(), indent=1).encode()),
                ("step.mlir", self.step_module),
                ("init.mlir", self.init_module),
            ):
                file.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        return buffer.getvalue()

    def save(self, path: str | os.PathLike) -> None:
        """Writes the file, whole or not at all."""
        temporary = f"{path}.{os.getpid()}.partial"
        with open(temporary, "wb") as file:
            file.write(self.to_bytes())
        os.replace(temporary, path)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Artifact:
        """Reads a file, checking that it is whole and of a version we know."""
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
        """The artifact a file's contents hold."""
        again = "export it again with nm.export"
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as file:
                manifest = json.loads(file.read("manifest.json"))
                modules = {"step": file.read("step.mlir"), "init": file.read("init.mlir")}
        except zlib.error:
            raise NamedMeshError(
                f"{label!r} is damaged: its contents cannot be decompressed", fix=again
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
                f"{label!r} is not a namedmesh artifact, or is damaged: {reason}", fix=again
            ) from None
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise NamedMeshError(f"{label!r} is not a namedmesh artifact", fix=again)
        if manifest.get("version") != VERSION:
            raise NamedMeshError(
                f"{label!r} has artifact version {manifest.get('version')!r}; this namedmesh reads {VERSION}",
                fix=again,
            )
        try:
            for name, module in modules.items():
                if hashlib.sha256(module).hexdigest() != manifest["sha256"][name]:
                    raise NamedMeshError(
                        f"{label!r} is damaged: the {name} module does not match its checksum",
                        fix=again,
                    )
            return cls._from_manifest(manifest, modules)
        except NamedMeshError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NamedMeshError(
                f"{label!r} has an incomplete manifest: {error}", fix=again
            ) from None

    @classmethod
    def _from_manifest(cls, manifest: dict[str, Any], modules: dict[str, bytes]) -> Artifact:
        def tensor(kind: type, entry: dict[str, Any]) -> Any:
            return kind(**{**entry, "dims": tuple((name, size) for name, size in entry["dims"])})

        mesh = Mesh(
            device_assignment=manifest["mesh"]["device_assignment"], **manifest["mesh"]["axes"]
        )
        return cls(
            mesh=mesh,
            inputs=tuple(tensor(TensorSpec, entry) for entry in manifest["inputs"]),
            variables=tuple(tensor(VariableSpec, entry) for entry in manifest["variables"]),
            outputs=tuple(tensor(TensorSpec, entry) for entry in manifest["outputs"]),
            collectives=tuple(manifest["collectives"]),
            initial_collectives=tuple(manifest["initial_collectives"]),
            step_module=modules["step"],
            init_module=modules["init"],
            **{
                key: manifest[key]
                for key in (
                    "name",
                    "layout",
                    "params",
                    "precision",
                    "structure",
                    "ops",
                    "activation_bytes",
                    "flops",
                    "made_with",
                )
            },
        )


def packed(structure: Any, counter: list[int] | None = None) -> Any:
    """A nested result as JSON, each leaf an index."""
    counter = counter if counter is not None else [0]
    if structure is None:
        return None
    if isinstance(structure, dict):
        return {"dict": [[key, packed(value, counter)] for key, value in structure.items()]}
    if isinstance(structure, (tuple, list)):
        return {
            "tuple" if isinstance(structure, tuple) else "list": [
                packed(item, counter) for item in structure
            ]
        }
    counter[0] += 1
    return counter[0] - 1


def unpacked(structure: Any, leaves: list[Any]) -> Any:
    """The nested result again, with values for leaves."""
    if structure is None:
        return None
    if isinstance(structure, int):
        return leaves[structure]
    ((kind, items),) = structure.items()
    if kind == "dict":
        return {key: unpacked(value, leaves) for key, value in items}
    made = [unpacked(item, leaves) for item in items]
    return tuple(made) if kind == "tuple" else made
