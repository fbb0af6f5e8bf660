"""Batches of packed rows: an endless stream that continues from any position, whatever the number of processes."""

from __future__ import annotations

import hashlib
import json
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from examples.m4.input.packing import Packed, assemble, fitting, pack
from examples.m4.input.sampling import Sampler, permutation
from examples.m4.input.tokens import Ragged, Tokens
from examples.m4.input.vocabulary import END
from namedmesh.dims.errors import NamedMeshError, checked_size

Item = TypeVar("Item")


@dataclass(frozen=True)
class Position:
    """A place in the stream: the next row is this row of this chunk; dataclasses.asdict(position) is its JSON."""

    chunk: int = 0
    row: int = 0


class Step(NamedTuple):
    """A batch, the position after it, and of each row's segments the language's number (-1 past the last segment)."""

    arrays: dict[str, np.ndarray]
    position: Position
    languages: np.ndarray


class Batches:
    """The training stream, as pairs of a batch and the position after it.

    A batch has `group` rows of `source` and `target` tokens. Process p of n gets the p-th n-th of them, so that the
    batches of all processes one after another are the batch of a single one. Examples that do not fit into a row are
    left out before languages are weighed; `dropped` says how many of each.
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
        process: int = 0,
        processes: int = 1,
        start: Position = Position(),
        most: int | None = None,
        chunk: int = 8192,
    ):
        self.group, self.source, self.target = (
            checked_size(size, "a batch") for size in (group, source, target)
        )
        self.tokens, self.start, self.most = tokens, start, most
        if (
            group % checked_size(processes, "the number of processes")
            or not 0 <= process < processes
        ):
            raise NamedMeshError(
                f"process {process} of {processes} cannot have its share of {group} rows",
                fix="give a group that is a multiple of the processes, and processes numbered from 0",
            )
        self._mine = slice(process * group // processes, (process + 1) * group // processes)
        fits = fitting(tokens.source.lengths, tokens.target.lengths, source, target)
        if not fits.any():
            needed = np.maximum(tokens.source.lengths / source, tokens.target.lengths / target)
            closest = int(needed.argmin()) if len(tokens) else None
            raise NamedMeshError(
                f"none of the {len(tokens)} examples fits into a row of {source} source and {target} target tokens",
                *(
                    [
                        f"the closest has {tokens.source.lengths[closest]} and {tokens.target.lengths[closest]}"
                    ]
                    if closest is not None
                    else []
                ),
                fix="make the rows longer, or give shorter examples",
            )
        pools = {language: tokens.examples(language) for language in tokens.languages}
        self.dropped = {language: int((~fits[pool]).sum()) for language, pool in pools.items()}
        kept = {language: pool[fits[pool]] for language, pool in pools.items()}
        self.sampler = Sampler(kept, seed=seed, temperature=temperature, size=chunk)
        settings = [
            tokens.digest,
            source,
            target,
            self.sampler.seed,
            float(temperature),
            most,
            chunk,
        ]
        self.digest = hashlib.blake2b(
            json.dumps(settings).encode(), digest_size=16
        ).hexdigest()  # of the stream of rows

    def __iter__(self) -> Iterator[tuple[dict[str, np.ndarray], Position]]:
        return ((step.arrays, step.position) for step in self.steps())

    def steps(self) -> Iterator[Step]:
        """The stream with the languages of the segments."""
        rows, position = self._rows(), self.start
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
        """The packed rows of one chunk, as they come in the stream, with how full they are."""
        examples = self.sampler.chunk(number)
        source, target = self.tokens.source.lengths[examples], self.tokens.target.lengths[examples]
        packed = pack(source, target, self.source, self.target, most=self.most)
        order = permutation(len(packed), self.sampler.seed, "rows", number)
        return Packed(
            [examples[packed.rows[row]] for row in order], packed.source_fill, packed.target_fill
        )

    def _rows(self) -> Iterator[tuple[np.ndarray, Position]]:
        number, row = self.start.chunk, self.start.row
        packed = self.chunk(number)
        if number < 0 or not 0 <= row <= len(packed):
            raise NamedMeshError(
                f"the stream has no row {row} in chunk {number}, which has {len(packed)}",
                fix="continue with the tokens, row lengths, seed and temperature that the position was made with",
            )
        while True:
            for row in range(row, len(packed)):  # noqa: B020
                yield packed.rows[row], Position(number, row + 1)
            number, row = number + 1, 0
            packed = self.chunk(number)

    def _languages(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        languages = np.full((len(rows), max(map(len, rows))), -1, np.int32)
        for place, row in enumerate(rows):
            languages[place, : len(row)] = self.tokens.language[row]
        return languages


def token_languages(languages: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """The language of each token, from those of a step's segments: -1 for padding."""
    return np.where(
        segments > 0, np.take_along_axis(languages, np.maximum(segments - 1, 0), axis=1), -1
    )


class EvaluationBatch(NamedTuple):
    """A batch of one example a row: which ones (-1 for an empty row), and how many were too long and cut."""

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
    """Every example once, one a row, in order or the shortest source first; the last batch ends with empty rows.

    A source that is too long is cut and still ends with the end of sentence; a target that is too long is only cut.
    Pairs of token ids may have an empty target: there is nothing to compare with.
    """
    rows, source, target = (checked_size(size, "a batch") for size in (rows, source, target))
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


def prefetched(items: Iterable[Item], depth: int = 2) -> Iterator[Item]:
    """The same items, up to depth of them made ahead in a thread, which ends when this iterator is closed or dropped."""
    checked_size(depth, "the number of items made ahead")
    return _prefetched(items, depth)


def _prefetched(items: Iterable[Item], depth: int) -> Iterator[Item]:
    made: queue.SimpleQueue = queue.SimpleQueue()
    room, closed = threading.Semaphore(depth), threading.Event()

    def work() -> None:
        try:
            iterator = iter(items)
            while room.acquire() and not closed.is_set():
                made.put((next(iterator), None))
        except BaseException as error:
            made.put((None, error))

    thread = threading.Thread(target=work, name="prefetched", daemon=True)
    thread.start()
    try:
        while True:
            item, error = made.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            room.release()
            yield item
    finally:
        closed.set()
        room.release()
        thread.join()
