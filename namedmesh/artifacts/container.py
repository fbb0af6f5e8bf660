"""The file of an Artifact: a zip file of known members, sealed by a checksum over every byte.

The checksum is the zip file's comment, which comes last, so that other tools still read the file.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Mapping, Sequence

from namedmesh.errors.errors import NamedMeshError

LARGEST_FILE = 2**33  # bytes of a file and of what is unpacked from it
LARGEST_RATIO = 100  # how far a member may be compressed: a few bytes can unpack to gigabytes
_SMALL = 2**20  # bytes of a member that may be compressed to any ratio
_MARK = b"namedmesh-sha256:"
_DIGITS = 64
AGAIN = "export it again with nm.export"
# What zipfile raises for files that are not as they should be.
_DAMAGED = (
    zipfile.BadZipFile, KeyError, ValueError, EOFError, OSError, RuntimeError, OverflowError,
)  # fmt: skip


def pack_members(members: Mapping[str, bytes]) -> bytes:
    """Pack members into a sealed file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            # A ZipInfo of its own has a fixed date, so that equal contents give equal bytes.
            file.writestr(zipfile.ZipInfo(name), data, _compression(data))
        file.comment = _MARK + b"0" * _DIGITS
    return seal_file(buffer.getvalue())


def seal_file(data: bytes) -> bytes:
    """Write the checksum of a file's contents into its last bytes."""
    return data[:-_DIGITS] + _checksum(data)


def _checksum(data: bytes) -> bytes:
    """Return the checksum over all of a file but the checksum itself."""
    return hashlib.sha256(memoryview(data)[:-_DIGITS]).hexdigest().encode()


def _compression(data: bytes) -> int:
    """Choose the compression of a member: none if it would exceed the ratio that is read."""
    if len(data) <= _SMALL or len(zlib.compress(data)) * LARGEST_RATIO >= len(data):
        return zipfile.ZIP_DEFLATED
    return zipfile.ZIP_STORED


def unpack_members(data: bytes, names: Sequence[str], label: str) -> dict[str, bytes]:
    """Read the members of a sealed file; nothing is unpacked that is too large."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            _check_seal(data, file, label)
            infos = file.infolist()
            _check_members(infos, names, len(data), label)
            return {info.filename: file.read(info) for info in infos}
    except (zlib.error, MemoryError):
        problem = "its contents cannot be decompressed"
    except NamedMeshError:
        raise
    except _DAMAGED as error:
        problem = str(error.args[0]) if error.args else type(error).__name__
    raise NamedMeshError(
        f"{label!r} is not a namedmesh artifact, or is damaged: {problem}", fix=AGAIN
    )


def _check_seal(data: bytes, file: zipfile.ZipFile, label: str) -> None:
    """Raise unless every byte is as it was written."""
    if not file.comment.startswith(_MARK) or not data.endswith(file.comment):
        raise NamedMeshError(
            f"{label!r} is not a namedmesh artifact, or one of an earlier version: "
            "it has no checksum",
            fix=AGAIN,
        )
    if len(file.comment) != len(_MARK) + _DIGITS or _checksum(data) != data[-_DIGITS:]:
        raise NamedMeshError(
            f"{label!r} is damaged, or was changed: it does not match its checksum", fix=AGAIN
        )


def _check_members(
    infos: Sequence[zipfile.ZipInfo], names: Sequence[str], size: int, label: str
) -> None:
    """Raise unless the members are those of an Artifact, at sizes that can be read."""
    if sorted(info.filename for info in infos) != sorted(names):
        raise NamedMeshError(
            f"{label!r} is not a namedmesh artifact: it has other members than {', '.join(names)}",
            *(f"member: {info.filename[:100]}" for info in infos[:8]),
            fix=AGAIN,
        )
    # The directory may claim anything; certain are the bytes of the file, and what deflate can do.
    claimed = sum(info.compress_size for info in infos)
    others = {info.compress_type for info in infos} - {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
    if claimed > size or others:
        reason = f"its members have {claimed} bytes, and the file {size}"
        raise NamedMeshError(
            f"{label!r} is not a namedmesh artifact, or is damaged: "
            f"{'its members are not packed by deflate' if others else reason}",
            fix=AGAIN,
        )
    swollen = [
        f"{info.filename}: {info.file_size} bytes"
        for info in infos
        if info.file_size > max(_SMALL, LARGEST_RATIO * info.compress_size)
        or info.file_size > LARGEST_FILE
    ]
    if swollen:
        raise NamedMeshError(
            f"{label!r} would unpack to far more than its size", *swollen, fix=AGAIN
        )
