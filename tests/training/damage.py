"""Ways to damage the files of a checkpoint."""

import pathlib

PATTERNS = [
    "record.json",
    "arrays/manifest.ocdbt",
    "arrays/d/*",
    "arrays/process_0/d/*",
]


def cut(file: pathlib.Path) -> None:
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[: len(content) // 2])


def remove(file: pathlib.Path) -> None:
    file.unlink()


def flip(file: pathlib.Path) -> None:
    """Changes a bit in the middle."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def fill(file: pathlib.Path) -> None:
    """Puts zeros where a block was not written, as after a crash of the machine."""
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))


WAYS = [cut, remove, flip, fill]
