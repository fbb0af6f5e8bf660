"""The data of all bilingual models: of each language its vocabularies and its packed rows.

A language's pairs are packed once. A step takes the next rows of each, in an order drawn by the
seed, the language and the epoch, so that a batch is a function of its number alone.
"""

from __future__ import annotations

import hashlib
import itertools
import pathlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from examples.m4.corpus.debian.workers import open_pool
from examples.m4.input.packing import assemble, fits_in_row, pack
from examples.m4.input.sampling import permutation, walk
from examples.m4.input.tokens import Ragged
from examples.m4.input.vocabulary import Vocabularies
from examples.m4.settings import Settings
from namedmesh.training import NumberedBatches

Pairs = Sequence[tuple[str, str]]
Arrays = dict[str, np.ndarray]
_BLOCK = 8192  # pairs that are packed together
_FEW = 8  # languages that are not worth the start of processes


def hold_out_dev(train: Pairs, dev: Pairs, least: int = 30) -> tuple[Pairs, Pairs]:
    """Return the train and dev pairs of a language, of which some may move to dev.

    A language with few or no dev sentences could not tell when to stop. It gives at most a tenth of
    its train pairs, evenly spread.

    >>> pairs = [(f"s{number}", f"t{number}") for number in range(40)]
    >>> [len(part) for part in hold_out_dev(pairs, [("a", "b")])]
    [36, 5]
    >>> [len(part) for part in hold_out_dev(pairs, pairs)]
    [40, 40]
    """
    count = min(max(least - len(dev), 0), len(train) // 10)
    moved = {len(train) * place // count for place in range(count)}
    kept = [pair for place, pair in enumerate(train) if place not in moved]
    return kept, [*dev, *(train[place] for place in sorted(moved))]


def write_languages(
    folder: pathlib.Path,
    train: Mapping[str, Pairs],
    dev: Mapping[str, Pairs],
    settings: Settings,
    say: Callable[[str], None],
) -> None:
    """Write vocabularies and packed rows of every language into folders of their own."""
    work = partial(write_language, folder, settings=settings)
    jobs = [*train], [train[code] for code in train], [dev[code] for code in train]
    if len(train) <= _FEW:
        found = [*map(work, *jobs)]
    else:
        with open_pool(None) as pool:
            found = [*pool.map(work, *jobs)]
    for code, (rows, left_out) in zip(train, found, strict=True):
        long = f"; {left_out:,} pairs are too long for one" if left_out else ""
        say(f"{code}: {len(train[code]):,} pairs in {rows:,} rows{long}")


def write_language(
    folder: pathlib.Path, code: str, train: Pairs, dev: Pairs, settings: Settings
) -> tuple[int, int]:
    """Write the data of a language; return its train rows, and the train pairs that fit in none."""
    sizes = settings.model.source_vocab, settings.model.target_vocab
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a small language has fewer pieces
        vocabularies = Vocabularies.train(
            {code: train}, *sizes, sentences=settings.vocabulary_sentences, seed=settings.seed
        )
    (folder / code).mkdir(parents=True, exist_ok=True)
    vocabularies.save(folder / code)
    counts = []
    for split, pairs in (("train", train), ("dev", dev)):
        arrays, left_out = pack_rows(pairs, vocabularies, settings)
        with open(folder / code / f"{split}.npz", "wb") as file:
            kept: dict[str, Any] = {name: one.astype(np.uint16) for name, one in arrays.items()}
            np.savez(file, **kept)
        counts.append((len(arrays["source"]), left_out))
    return counts[0]


def pack_rows(pairs: Pairs, vocabularies: Vocabularies, settings: Settings) -> tuple[Arrays, int]:
    """Pack pairs into rows, once; return the arrays, and how many pairs fit in no row."""
    texts = zip(*pairs, strict=True)
    source, target = (
        Ragged.of(vocabulary.encode(side))
        for vocabulary, side in zip(vocabularies, texts, strict=True)
    )
    shape = settings.source_length, settings.target_length
    fits = np.flatnonzero(fits_in_row(source.lengths, target.lengths, *shape))
    order = fits[permutation(len(fits), settings.seed, "pack")]
    rows = []
    for first in range(0, len(order), _BLOCK):
        block = order[first : first + _BLOCK]
        packed = pack(source.lengths[block], target.lengths[block], *shape)
        rows += [block[row] for row in packed.rows]
    sides = (("source", source, shape[0]), ("target", target, shape[1]))
    arrays: Arrays = {}
    for side, ragged, width in sides:
        arrays |= assemble(side, ragged, rows, width)
    return arrays, len(pairs) - len(fits)


def read_rows(folder: pathlib.Path, codes: Sequence[str], split: str) -> list[Arrays]:
    """Read the packed rows of languages."""
    found = []
    for code in codes:
        with np.load(folder / code / f"{split}.npz") as file:
            found.append({name: file[name] for name in file.files})
    return found


def make_stream(
    languages: Sequence[Arrays], codes: Sequence[str], rows: int, seed: int
) -> NumberedBatches:
    """Make the stream of batches: so many rows of each language, `[language, rows, length]`.

    Every row of a language comes once before any comes back.
    """
    orders: dict[str, tuple[int, np.ndarray]] = {}

    def order(place: int, epoch: int) -> np.ndarray:
        code = codes[place]
        if orders.get(code, (-1,))[0] != epoch:
            size = len(languages[place]["source"])
            orders[code] = epoch, permutation(size, seed, "order", code, epoch)
        return orders[code][1]

    def make_batch(number: int) -> Arrays:
        chosen = [
            walk(
                np.arange(len(arrays["source"])),
                number * rows,
                (number + 1) * rows,
                partial(order, place),
            )
            for place, arrays in enumerate(languages)
        ]
        return {
            name: np.stack(
                [arrays[name][some] for arrays, some in zip(languages, chosen, strict=True)]
            ).astype(np.int32)
            for name in languages[0]
        }

    state = hashlib.blake2b(f"{rows} {seed} {','.join(codes)}".encode(), digest_size=16)
    for arrays, name in itertools.product(languages, ("source", "target")):
        state.update(arrays[name].tobytes())
    return NumberedBatches(make_batch, state.hexdigest())


def dev_batches(languages: Sequence[Arrays], rows: int, most: int) -> list[Arrays]:
    """Return the first rows of each language in batches, at most so many; what is empty is zero."""
    count = min(most, max(-(-len(arrays["source"]) // rows) for arrays in languages))

    def cut(array: np.ndarray) -> np.ndarray:
        kept = array[: count * rows]
        empty = np.zeros((count * rows - len(kept), array.shape[1]), np.int32)
        return np.concatenate([kept, empty]).astype(np.int32)

    whole = {name: np.stack([cut(arrays[name]) for arrays in languages]) for name in languages[0]}
    return [
        {name: array[:, first : first + rows] for name, array in whole.items()}
        for first in range(0, count * rows, rows)
    ]
