"""Random changes of files and of JSON documents, as bad disks and bad people make them."""

from __future__ import annotations

import copy
import random


def change_bytes(contents: bytes, rng: random.Random) -> bytes:
    """Bytes flipped, taken out, put in, moved or repeated somewhere."""
    data = bytearray(contents)
    at, size = rng.randrange(len(data)), rng.choice([1, 1, 1, 2, 4, 8, 100, 1000])
    kind = rng.randrange(5)
    if kind == 0:
        data[at] ^= rng.randrange(1, 256)
    elif kind == 1:
        del data[at : at + size]
    elif kind == 2:
        data[at:at] = rng.randbytes(size)
    elif kind == 3:
        data[at : at + size] = rng.randbytes(len(data[at : at + size]))
    else:
        other = rng.randrange(len(data))
        data[at : at + size] = data[other : other + size]
    return bytes(data)


VALUES = (
    None, True, False, 0, 1, -1, 3, 2**31, 10**30, 1.5, "", "x", "data", "w", "float64", "bfloat16",
    "O", "AllReduce", "a.py:3", [], [0], ["data"], ["data", "data"], {}, {"dict": []}, {"x": 1},
    {"tuple": [0, 1]}, {"named": ["a", [], []]}, [["batch", 4]], "\0", "\ud800", "é" * 300,
)  # fmt: skip


def change_field(document: object, rng: random.Random) -> None:
    """A field somewhere in a document replaced, taken out, repeated or put in another's place."""
    places: list[tuple] = []
    pending = [document]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            places += [(value, key) for key in value]
            pending += value.values()
        elif isinstance(value, list):
            places += [(value, i) for i in range(len(value))]
            pending += value
    parent, key = rng.choice(places)
    kind = rng.randrange(5)
    if kind == 0:
        del parent[key]
    elif kind == 1:
        other, place = rng.choice(places)
        parent[key] = copy.deepcopy(other[place])
    elif kind == 2 and isinstance(parent, list):
        parent.append(copy.deepcopy(parent[key]))
    elif kind == 3 and isinstance(parent, dict):
        parent[rng.choice(["data", "x", "", "batch", "extra"])] = parent.pop(key)
    else:
        parent[key] = rng.choice(VALUES)
