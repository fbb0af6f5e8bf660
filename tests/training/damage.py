"""Ways to damage the files of a checkpoint."""

import pathlib

import jax
import numpy as np

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


def flip_bit(array: jax.Array, device: int, byte: int = 3) -> jax.Array:
    """The array with one bit of one device's copy flipped, in a byte of its first element."""
    shards = []
    for shard in array.addressable_shards:
        data = np.array(shard.data)
        if shard.device.id == device:
            data.reshape(-1).view(np.uint8)[byte] ^= 16
        shards.append(jax.device_put(data, shard.device))
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, shards)
