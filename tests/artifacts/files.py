"""Artifact files changed on purpose, with a checksum that fits the change, or does not."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

from namedmesh.artifacts.container import pack_members
from namedmesh.runtime import Artifact


def read_members(contents: bytes) -> dict[str, bytes]:
    """The members of a file."""
    with zipfile.ZipFile(io.BytesIO(contents)) as file:
        return {name: file.read(name) for name in file.namelist()}


def replace_members(contents: bytes, members: Mapping[str, bytes]) -> bytes:
    """The file with some members replaced, sealed again as somebody who means harm would."""
    return pack_members(read_members(contents) | dict(members))


def replace_manifest(artifact: Artifact, manifest: Any) -> bytes:
    """The file of an artifact with another manifest, sealed again."""
    return replace_members(artifact.to_bytes(), {"manifest.json": json.dumps(manifest).encode()})
