"""Batches of packed rows: an endless stream that continues from any position.

The stream is the same whatever the number of processes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from examples.m4.input.packing import Packed, assemble, fits_in_row, pack
from examples.m4.input.sampling import REPEATS, Sampler, permutation
from examples.m4.input.sentences import SentenceSampler
from examples.m4.input.tokens import Ragged, Tokens
from examples.m4.input.vocabulary import END
from namedmesh.errors.errors import NamedMeshError, check_size, did_you_mean


@dataclass(frozen=True)
class Position:
    """A position in the stream: the chunk and the row in it that come next."""

    chunk: int = 0
    row: int = 0


class Step(NamedTuple):
    """A batch, the position after it, and the language of each segment of each row.

    Languages are numbers; -1 is past the last segment of a row.
    """

    arrays: dict[str, np.ndarray]
    position: Position
    languages: np.ndarray


class Batches:
    """The training stream: pairs of a batch and the position after it.

    A batch has `group` rows of `source` and `target` tokens. Each process gets an equal part of the
    rows, so that the batches of all processes, one after another, are the batch of a single one.
    With repeat="pair" every pair of a language comes once before any comes back; with "english"
    every English sentence does, each time with one of its languages. Examples that do not fit into
    a row are left out before languages are weighed; `dropped` has their numbers by language.
    """

    def __init__(
        self,
        tokens: Tokens,
        group: int,
        source: int,
        target: int,
        *,
        seed: int,
        temperature: float,
        repeat: str = "pair",
        process: int = 0,
        processes: int = 1,
        start: Position = Position(),
        most: int | None = None,
        chunk: int = 8192,
    ):
        self.group, self.source, self.target = (
            check_size(size, "a batch") for size in (group, source, target)
        )
        self.tokens, self.start, self.most = tokens, start, most
        if group % check_size(processes, "the number of processes") or not 0 <= process < processes:
            raise NamedMeshError(
                f"process {process} of {processes} cannot have its share of {group} rows",
                fix="give a multiple of the processes as group, and number processes from 0",
            )
        self._mine = slice(process * group // processes, (process + 1) * group // processes)
        fits = fits_in_row(tokens.source.lengths, tokens.target.lengths, source, target)
        if not fits.any():
            needed = np.maximum(tokens.source.lengths / source, tokens.target.lengths / target)
            closest = [
                f"the closest has {tokens.source.lengths[index]} and {tokens.target.lengths[index]}"
                for index in ([int(needed.argmin())] if len(tokens) else [])
            ]
            raise NamedMeshError(
                f"none of the {len(tokens)} examples fits into a row of {source} source "
                f"and {target} target tokens",
                *closest,
                fix="make the rows longer, or give shorter examples",
            )
        pools = {language: tokens.examples(language) for language in tokens.languages}
        self.dropped = {language: int((~fits[pool]).sum()) for language, pool in pools.items()}
        kept = {language: pool[fits[pool]] for language, pool in pools.items()}
        order = {"seed": seed, "temperature": temperature, "size": chunk}
        self.sampler: Sampler | SentenceSampler
        if repeat == "pair":
            self.sampler = Sampler(kept, **order)
        elif repeat == "english":
            numbers = tokens.language, tokens.english
            self.sampler = SentenceSampler(*numbers, np.flatnonzero(fits), **order)
        else:
            raise NamedMeshError(
                f"repeat={repeat!r} is not a choice", fix=did_you_mean(repeat, REPEATS)
            )
        settings = [
            tokens.digest,
            source,
            target,
            self.sampler.seed,
            float(temperature),
            repeat,
            most,
            chunk,
        ]
        self.digest = hashlib.blake2b(
            json.dumps(settings).encode(), digest_size=16
        ).hexdigest()  # of the stream of rows

    def __iter__(self) -> Iterator[tuple[dict[str, np.ndarray], Position]]:
        return ((step.arrays, step.position) for step in self.steps())

    def read_from(
        self, position: dict[str, int] | None
    ) -> Iterator[tuple[dict[str, np.ndarray], dict[str, Any]]]:
        """Iterate over batches and the positions after them, as JSON, from a position on."""
        start = self.start if position is None else Position(**position)
        for step in self.steps(start):
            yield step.arrays, dataclasses.asdict(step.position)

    def steps(self, start: Position | None = None) -> Iterator[Step]:
        """Iterate over batches with the languages of their segments, from a position."""
        position = self.start if start is None else start
        rows = self._rows(position)
        while True:
            batch = []
            for _ in range(self.group):
                row, position = next(rows)
                batch.append(row)
            mine = batch[self._mine]
            arrays = assemble("source", self.tokens.source, mine, self.source)
            arrays |= assemble("target", self.tokens.target, mine, self.target)
            yield Step(arrays, position, self._languages(mine))

    def chunk(self, number: int) -> Packed:
        """Pack the rows of one chunk, in the order of the stream."""
        examples = self.sampler.chunk(number)
        source, target = self.tokens.source.lengths[examples], self.tokens.target.lengths[examples]
        packed = pack(source, target, self.source, self.target, most=self.most)
        order = permutation(len(packed), self.sampler.seed, "rows", number)
        return Packed(
            [examples[packed.rows[row]] for row in order], packed.source_fill, packed.target_fill
        )

    def _rows(self, start: Position) -> Iterator[tuple[np.ndarray, Position]]:
        """Iterate over packed rows with the positions after them."""
        number, row = start.chunk, start.row
        packed = self.chunk(number)
        if number < 0 or not 0 <= row <= len(packed):
            raise NamedMeshError(
                f"the stream has no row {row} in chunk {number}, which has {len(packed)}",
                fix="use the tokens, row lengths, seed and temperature that the position came from",
            )
        while True:
            for row in range(row, len(packed)):  # noqa: B020
                yield packed.rows[row], Position(number, row + 1)
            number, row = number + 1, 0
            packed = self.chunk(number)

    def _languages(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        """Return the language of each segment of each row."""
        languages = np.full((len(rows), max(map(len, rows))), -1, np.int32)
        for place, row in enumerate(rows):
            languages[place, : len(row)] = self.tokens.language[row]
        return languages


def token_languages(languages: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """Look up the language of each token from those of a step's segments; -1 for padding."""
    return np.where(
        segments > 0, np.take_along_axis(languages, np.maximum(segments - 1, 0), axis=1), -1
    )


class EvaluationBatch(NamedTuple):
    """A batch with one example per row: which ones (-1 for an empty row), and how many were cut."""

    arrays: dict[str, np.ndarray]
    examples: np.ndarray
    cut_sources: int
    cut_targets: int


def evaluation_batches(
    examples: Tokens | Sequence[tuple[Sequence[int], Sequence[int]]],
    rows: int,
    source: int,
    target: int,
    *,
    by_length: bool = False,
) -> Iterator[EvaluationBatch]:
    """Iterate over all examples once, one per row, in order or with the shortest source first.

    The last batch ends with empty rows. A source that is too long is cut and still ends with the
    end of sentence; a target is only cut. Pairs of token ids may have an empty target.
    """
    rows, source, target = (check_size(size, "a batch") for size in (rows, source, target))
    if isinstance(examples, Tokens):
        sides = examples.source, examples.target
    else:
        sides = Ragged.of(pair[0] for pair in examples), Ragged.of(pair[1] for pair in examples)
    order = np.argsort(sides[0].lengths, kind="stable") if by_length else np.arange(len(sides[0]))
    for start in range(0, len(order), rows):
        chosen = order[start : start + rows]
        places = [chosen[place : place + 1] for place in range(rows)]
        arrays = assemble("source", sides[0], places, source) | assemble(
            "target", sides[1], places, target
        )
        long = np.flatnonzero(sides[0].lengths[chosen] > source)
        arrays["source"][long, -1] = END
        indices = np.full(rows, -1, np.int64)
        indices[: len(chosen)] = chosen
        yield EvaluationBatch(
            arrays, indices, len(long), int((sides[1].lengths[chosen] > target).sum())
        )
