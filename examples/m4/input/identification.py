"""The language of a text, among those of a run: naive Bayes over short runs of characters."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from examples.m4.input.sampling import permutation
from examples.m4.input.vocabulary import LARGEST_FILE
from namedmesh.errors.errors import NamedMeshError
from namedmesh.files import read_bytes, write_file

BUCKETS = 1 << 15  # that runs of characters are hashed into
LENGTHS = (1, 2, 3, 4)  # of the runs, in characters
SENTENCES = 2000  # of a language that are counted, at most
_FACTORS = np.array([1, 0x01000193, 0x85EBCA6B, 0xC2B2AE35], np.uint32)

Pairs = Mapping[str, Sequence[tuple[str, str]]]


class Guess(NamedTuple):
    """A language that a text may be in, and how probable that is."""

    language: str
    probability: float


class Languages:
    """Tells languages apart.

    Args:
        codes: Their codes.
        log_probabilities: Of each language (rows) and bucket.
    """

    def __init__(self, codes: Sequence[str], log_probabilities: np.ndarray):
        self.codes, self.log_probabilities = [*codes], log_probabilities

    @classmethod
    def train(cls, pairs: Pairs, seed: int = 0) -> Languages:
        """Count runs of characters in the sources of each language."""
        codes = sorted(code for code in pairs if pairs[code])
        counts = np.zeros((len(codes), BUCKETS), np.float32)
        for row, code in enumerate(codes):
            chosen = permutation(len(pairs[code]), seed, "languages", code)[:SENTENCES]
            text = "  ".join(pairs[code][index][0] for index in chosen)
            counts[row] = np.bincount(hash_runs(text), minlength=BUCKETS)
        counts += 0.05
        return cls(codes, np.log(counts / counts.sum(1, keepdims=True)).astype(np.float16))

    def guess(self, text: str, most: int = 3) -> list[Guess]:
        """Guess the languages of a text, the most probable first; none for one without letters."""
        runs = hash_runs(text)
        if not any(character.isalpha() for character in text):
            return []
        # Runs overlap, so that as many of them as characters say about as much as one of each.
        scores = self.log_probabilities[:, runs].astype(np.float64).sum(1) / len(LENGTHS)
        probabilities = np.exp(scores - scores.max())
        probabilities /= probabilities.sum()
        order = np.argsort(-probabilities, kind="stable")[:most]
        return [Guess(self.codes[row], float(probabilities[row])) for row in order]

    def save(self, path: str | os.PathLike) -> None:
        """Write a file, completely or not at all."""
        data = io.BytesIO()
        np.savez_compressed(
            data, codes=np.array(self.codes), log_probabilities=self.log_probabilities
        )
        write_file(os.fspath(path), data.getvalue(), "the languages")

    @classmethod
    def load(cls, path: str | os.PathLike) -> Languages:
        """Load what `save` wrote."""
        try:
            data = io.BytesIO(read_bytes(path, LARGEST_FILE))
            with np.load(data, allow_pickle=False) as file:
                return cls(file["codes"].tolist(), file["log_probabilities"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise NamedMeshError(
                f"{os.fspath(path)!r} does not tell languages apart: {error}",
                fix="start a run again, with train or export",
            ) from None


def hash_runs(text: str) -> np.ndarray:
    """Hash every run of one to four characters of a text into a bucket."""
    codes = np.frombuffer(f" {text.casefold()} ".encode("utf-32-le", "replace"), np.uint32)
    found = []
    for length in LENGTHS:
        count = len(codes) - length + 1
        if count > 0:
            parts = [codes[start : start + count] * _FACTORS[start] for start in range(length)]
            mixed = np.bitwise_xor.reduce(parts) + np.uint32(length * 0x9E3779B9 & 0xFFFFFFFF)
            mixed = (mixed ^ (mixed >> np.uint32(15))) * np.uint32(0x2C1B3C6D)
            found.append((mixed ^ (mixed >> np.uint32(12))) % np.uint32(BUCKETS))
    return np.concatenate(found).astype(np.int64) if found else np.zeros(0, np.int64)
