"""The text: Python's standard library, which is wherever Python is; and two simple models of it."""

from __future__ import annotations

import lzma
import pathlib
import sysconfig
import zlib
from typing import NamedTuple

import numpy as np

SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings"}
DEV_BYTES = (1 << 15) + 1  # the first is only read


class Text(NamedTuple):
    """Bytes to learn from, and bytes of other files to measure with."""

    train: np.ndarray
    dev: np.ndarray


def read_text(most: int = 8 << 20) -> Text:
    """Read the library's modules in the order of their names; every twentieth or so is held out."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    train, dev = bytearray(), bytearray()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if SKIPPED.isdisjoint(name.parts):
            side = dev if zlib.crc32(name.as_posix().encode()) % 20 == 0 else train
            side += path.read_bytes() + b"\n"
    return Text(np.frombuffer(train, np.uint8)[:most], np.frombuffer(dev, np.uint8)[:DEV_BYTES])


def compressed_bits(text: Text) -> float:
    """Measure the held-out text as xz compresses it, in bits per byte."""
    return 8 * len(lzma.compress(text.dev.tobytes(), preset=9)) / len(text.dev)


def measure_baselines(text: Text) -> dict[str, float]:
    """Measure the held-out text by simple models, in bits per byte."""
    ngrams = {f"counts after {order} bytes": ngram_bits(text, order) for order in (2, 3, 5)}
    return {**ngrams, "xz": compressed_bits(text)}


def ngram_bits(text: Text, order: int) -> float:
    """Measure the held-out text by counts of up to so many bytes before each, in bits per byte.

    The counts of each order are added to what the order below says, which weighs as five bytes.
    """
    probability = np.full(len(text.dev), 1 / 256)
    for n in range(order + 1):
        before, whole = (
            _count(_encode(text.train, n, more), _encode(text.dev, n, more)) for more in (0, 1)
        )
        probability[n:] = (whole + 5 * probability[n:]) / (before + 5)
    return float(-np.log2(probability).mean())


def _encode(data: np.ndarray, order: int, more: int) -> np.ndarray:
    """Return a number for the bytes before each position, with the byte itself where more is 1."""
    count = len(data) - order
    codes = np.zeros(count, np.int64)
    for offset in range(order + more):
        codes = codes * 256 + data[offset : offset + count]
    return codes


def _count(codes: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Count how often each wanted number occurs."""
    codes = np.sort(codes)
    return np.searchsorted(codes, wanted, "right") - np.searchsorted(codes, wanted, "left")
