"""Tokenized pairs in memory-mapped files: written once, opened at once, checked by digests."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import multiprocessing
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from examples.m4.input.vocabulary import LARGEST_FILE, Pairs, Vocabulary
from namedmesh.errors.errors import NamedMeshError
from namedmesh.files import open_file, read_bytes

_VERSION = 2
_BLOCK = 10_000  # examples encoded at a time
_MANY = 200_000  # texts that are worth the start of processes
_ATTEMPTS = 10  # to put a folder in its place


@dataclass(frozen=True)
class Ragged:
    """Sequences of token ids end to end, with where each begins."""

    tokens: np.ndarray
    offsets: np.ndarray  # one more than sequences, from 0

    @classmethod
    def of(cls, sequences: Iterable[Sequence[int]], dtype: type = np.int32) -> Ragged:
        """Put sequences end to end."""
        kept = [*sequences]
        return cls(
            np.fromiter(itertools.chain.from_iterable(kept), dtype),
            _offsets([len(sequence) for sequence in kept]),
        )

    def take(self, indices: np.ndarray) -> Ragged:
        """Put some of the sequences end to end."""
        first, lengths = self.offsets[indices], self.lengths[indices]
        offsets = _offsets(lengths)
        places = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], lengths)
        return Ragged(self.tokens[places], offsets)

    @cached_property
    def lengths(self) -> np.ndarray:
        """The length of each sequence."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]


@dataclass(frozen=True)
class Tokens:
    """The examples of a split: source and target ids, and the numbers of language and English text.

    Examples are sorted by language, those of a language in the order of its pairs. Those with the
    same English have the same number of it. The index tells how the split was made: counts, digests
    and longest lengths.
    """

    languages: tuple[str, ...]
    source: Ragged
    target: Ragged
    language: np.ndarray
    english: np.ndarray
    index: dict[str, Any]

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike,
        source: Vocabulary | None = None,
        target: Vocabulary | None = None,
    ) -> Tokens:
        """Open the tokens in a folder; raise if they are damaged, or of other vocabularies."""
        folder = pathlib.Path(folder)
        index = _read_index(folder)
        for side, vocabulary in (("source", source), ("target", target)):
            if vocabulary is not None and index[side]["vocabulary"] != vocabulary.digest:
                raise NamedMeshError(
                    f"the tokens in {folder.name!r} were made with another {side} vocabulary",
                    f"theirs: {index[side]['vocabulary']}",
                    f"given: {vocabulary.digest}",
                    fix="make them again with write_tokens, or give their own vocabulary",
                )
        tokens = cls(
            tuple(index["languages"]),
            Ragged(_map_file(folder, "source"), _map_file(folder, "source_offsets")),
            Ragged(_map_file(folder, "target"), _map_file(folder, "target_offsets")),
            _map_file(folder, "language"),
            _map_file(folder, "english"),
            index,
        )
        for side, ragged in (("source", tokens.source), ("target", tokens.target)):
            ends = (0, len(ragged.tokens)) if len(ragged.offsets) else None
            if (
                ends is None
                or (ragged.offsets[0], ragged.offsets[-1]) != ends
                or (ragged.lengths < 0).any()
            ):
                raise _damage_error(folder, f"{side}_offsets.npy does not fit {side}.npy")
            if len(ragged) != sum(index["counts"]):
                raise _damage_error(
                    folder,
                    f"{side}_offsets.npy has {len(ragged)} examples, "
                    f"index.json {sum(index['counts'])}",
                )
        if len(tokens.english) != len(tokens.source):
            raise _damage_error(folder, "english.npy does not fit source.npy")
        if not np.array_equal(
            tokens.language, np.repeat(np.arange(len(tokens.languages)), index["counts"])
        ):
            raise _damage_error(folder, "language.npy does not fit index.json")
        return tokens

    @property
    def counts(self) -> dict[str, int]:
        """The number of examples of each language."""
        return dict(zip(self.languages, self.index["counts"], strict=True))

    @property
    def digest(self) -> str:
        """A name of these tokens that those of other pairs or vocabularies do not have."""
        return self.index["digest"]

    def examples(self, language: str) -> np.ndarray:
        """Return the indices of a language's examples."""
        place = self.languages.index(language)
        first = sum(self.index["counts"][:place])
        return np.arange(first, first + self.index["counts"][place])

    def __len__(self) -> int:
        return len(self.language)


@dataclass(frozen=True)
class Segmentation:
    """The cut of texts into pieces: each at its best, or, if alpha is not 0, drawn for each pair.

    See `Vocabulary.sample`.
    """

    alpha: float = 0.0
    seed: int = 0


BEST = Segmentation()


def write_tokens(
    folder: str | os.PathLike,
    pairs: Pairs,
    source: Vocabulary,
    target: Vocabulary,
    segmentation: Segmentation = BEST,
) -> Tokens:
    """Write the tokens of all pairs and open them.

    The folder appears whole or not at all, in the place of any that was there. An English text
    that several pairs have is encoded once, unless segmentations are drawn.
    """
    folder = pathlib.Path(folder)
    languages = sorted(pairs)
    counts = [len(pairs[language]) for language in languages]
    if not any(counts):
        raise NamedMeshError(
            f"there is no example to write into {folder.name!r}",
            fix="give at least one language with one pair",
        )
    numbers: dict[str, int] = {}
    english = np.fromiter(
        (
            numbers.setdefault(text, len(numbers))
            for language in languages
            for _, text in pairs[language]
        ),
        np.int32,
        sum(counts),
    )
    sources, targets = (
        [pair[side] for language in languages for pair in pairs[language]] for side in (0, 1)
    )
    if segmentation.alpha:
        encoded = encode_texts(target, targets, segmentation)
    else:
        encoded = encode_texts(target, [*numbers]).take(english)
    sides = {"source": encode_texts(source, sources, segmentation), "target": encoded}
    index: dict[str, Any] = {
        "version": _VERSION,
        "digest": tokens_digest(pairs, source, target, segmentation),
        "languages": languages,
        "counts": counts,
    }
    arrays = {
        "language": np.repeat(np.arange(len(languages), dtype=np.int32), counts),
        "english": english,
    }
    for side, vocabulary in (("source", source), ("target", target)):
        arrays[side], arrays[f"{side}_offsets"] = sides[side].tokens, sides[side].offsets
        index[side] = {
            "vocabulary": vocabulary.digest,
            "tokens": len(sides[side].tokens),
            "longest": int(sides[side].lengths.max()),
        }
    _write_folder(folder, lambda place: _write_files(place, arrays, index))
    return Tokens.open(folder, source, target)


def encode_texts(
    vocabulary: Vocabulary, texts: Sequence[str], segmentation: Segmentation = BEST
) -> Ragged:
    """Encode texts, many of them on all cores; the numbers of tokens have the fewest bits."""
    blocks = [texts[start : start + _BLOCK] for start in range(0, len(texts), _BLOCK)]
    if len(texts) < _MANY:
        _load_encoder(vocabulary.model, segmentation)
        parts = [*map(_encode_block, itertools.count(), blocks)]
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(
            mp_context=context, initializer=_load_encoder, initargs=(vocabulary.model, segmentation)
        ) as pool:
            parts = [*pool.map(_encode_block, itertools.count(), blocks, chunksize=4)]
    dtype = _token_dtype(vocabulary)
    return Ragged(
        np.concatenate([np.zeros(0, dtype), *(part.tokens for part in parts)]),
        _offsets(np.concatenate([np.zeros(0, np.int64), *(part.lengths for part in parts)])),
    )


def _token_dtype(vocabulary: Vocabulary) -> type:
    """Return the smallest dtype that has room for every token."""
    return np.uint16 if vocabulary.size <= 1 << 16 else np.int32


def _load_encoder(model: bytes, segmentation: Segmentation) -> None:
    """Make a process ready to encode."""
    global _encoder
    _encoder = Vocabulary(model), segmentation


def _encode_block(number: int, texts: Sequence[str]) -> Ragged:
    """Encode a block of texts in a process that is ready to."""
    vocabulary, segmentation = _encoder
    if segmentation.alpha:
        seed = (segmentation.seed * 1_000_003 + number) % 2**31
        encoded = vocabulary.sample(texts, segmentation.alpha, seed)
    else:
        encoded = vocabulary.encode(texts)
    return Ragged.of(encoded, _token_dtype(vocabulary))


def open_or_write_tokens(
    folder: str | os.PathLike,
    pairs: Pairs,
    source: Vocabulary,
    target: Vocabulary,
    segmentation: Segmentation = BEST,
) -> Tokens:
    """Open the tokens in a folder if they are of these pairs and vocabularies, else write them."""
    try:
        tokens = Tokens.open(folder)
        if tokens.digest == tokens_digest(pairs, source, target, segmentation):
            return tokens
    except NamedMeshError:
        pass
    return write_tokens(folder, pairs, source, target, segmentation)


def tokens_digest(
    pairs: Pairs, source: Vocabulary, target: Vocabulary, segmentation: Segmentation = BEST
) -> str:
    """Compute the digest of the tokens of these pairs and vocabularies."""
    made_with = [_VERSION, source.digest, target.digest]
    if segmentation.alpha:
        made_with += [segmentation.alpha, segmentation.seed]
    state = hashlib.blake2b(json.dumps(made_with).encode(), digest_size=16)
    for language in sorted(pairs):
        state.update(json.dumps([language, len(pairs[language])]).encode())
        for block in _blocks(pairs[language]):
            for side in (0, 1):
                texts = [pair[side] for pair in block]
                state.update(json.dumps([*map(len, texts)]).encode())
                state.update("".join(texts).encode(errors="surrogatepass"))
    return state.hexdigest()


def _blocks(examples: Sequence[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    return (list(examples[start : start + _BLOCK]) for start in range(0, len(examples), _BLOCK))


def _offsets(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def _write_files(
    folder: pathlib.Path, arrays: dict[str, np.ndarray], index: dict[str, Any]
) -> None:
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    (folder / "index.json").write_text(
        json.dumps(index, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def _write_folder(folder: pathlib.Path, write: Callable[[pathlib.Path], None]) -> None:
    if (
        folder.exists()
        and not (folder / "index.json").exists()
        and (not folder.is_dir() or any(folder.iterdir()))
    ):
        raise NamedMeshError(
            f"{folder.name!r} exists and has no tokens, so it is not replaced",
            fix="name a folder of tokens, or a new one",
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
        made = pathlib.Path(scratch) / "made"
        made.mkdir()
        write(made)
        for attempt in range(_ATTEMPTS):
            with contextlib.suppress(FileNotFoundError):
                os.rename(folder, pathlib.Path(scratch) / f"former{attempt}")
            try:
                return os.rename(made, folder)
            except OSError:  # another process has just put its own there
                if attempt == _ATTEMPTS - 1:
                    raise


def _read_index(folder: pathlib.Path) -> dict[str, Any]:
    try:
        index = json.loads(read_bytes(folder / "index.json", LARGEST_FILE))
        if index["version"] != _VERSION:
            raise _damage_error(
                folder,
                f"they are of version {index['version']}, this program reads version {_VERSION}",
            )
        return index
    except OSError as error:
        raise NamedMeshError(
            f"there are no tokens in {folder.name!r}: {error.strerror}",
            fix="make them with write_tokens, or check the path",
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, NamedMeshError):
            raise
        raise _damage_error(folder, "index.json cannot be read") from None


def _map_file(folder: pathlib.Path, name: str) -> np.ndarray:
    try:
        os.close(open_file(folder / f"{name}.npy", 2**44))  # a pipe would be waited for
        return np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r"))
    except (OSError, ValueError, EOFError):
        raise _damage_error(folder, f"{name}.npy is missing or not whole") from None


def _damage_error(folder: pathlib.Path, reason: str) -> NamedMeshError:
    return NamedMeshError(
        f"the tokens in {folder.name!r} are damaged: {reason}",
        fix="delete the folder and make them again",
    )
