"""SentencePiece vocabularies: one of all source languages together, one of English."""

from __future__ import annotations

import hashlib
import io
import os
import pathlib
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import sentencepiece

from examples.m4.input.sampling import permutation, shares
from namedmesh.errors.errors import NamedMeshError, check_size
from namedmesh.files import read_bytes, write_file

PADDING, END, UNKNOWN = 0, 1, 2

Pairs = Mapping[str, Sequence[tuple[str, str]]]

# Fixed, since sums in the training depend on it: another number changes the vocabulary.
LARGEST_FILE = 2**30  # bytes of a file that is read whole
_THREADS = 4
_BEST = 8  # segmentations to draw from


class Vocabulary:
    """Text to token ids and back: 0 is padding, 1 the end of a sentence, 2 unknown."""

    def __init__(self, model: bytes):
        self.model = model
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError:
            raise NamedMeshError(
                "these bytes are not a SentencePiece model", fix="train the vocabulary again"
            ) from None
        special = self._processor.pad_id(), self._processor.eos_id(), self._processor.unk_id()
        if special != (PADDING, END, UNKNOWN):
            raise NamedMeshError(
                f"this SentencePiece model has padding, end of sentence and unknown at {special}",
                fix=f"train it with Vocabulary.train, which puts them at {(PADDING, END, UNKNOWN)}",
            )

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        size: int,
        *,
        byte_fallback: bool = True,
        character_coverage: float = 0.9998,
    ) -> Vocabulary:
        """Train a unigram vocabulary, the same whatever the order of the texts.

        It is smaller if the texts have fewer pieces. With byte_fallback, 256 of the pieces are
        bytes and no text is unknown: characters too rare for
        character_coverage are spelt in them. Text is normalised (NFKC, one space between words).
        """
        size, lines = (
            check_size(size, "a vocabulary"),
            sorted(text for text in texts if text.strip()),
        )
        if not lines:
            raise NamedMeshError(
                "a vocabulary cannot be trained on no text",
                fix="give at least one sentence that is not empty",
            )
        written = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines),
                model_writer=written,
                vocab_size=size,
                hard_vocab_limit=False,
                pad_id=PADDING,
                eos_id=END,
                unk_id=UNKNOWN,
                bos_id=-1,
                byte_fallback=byte_fallback,
                character_coverage=character_coverage,
                max_sentence_length=1 << 20,
                num_threads=_THREADS,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise _training_error(size, len(lines), str(error), byte_fallback) from None
        vocabulary = cls(written.getvalue())
        if vocabulary.size < size:
            warnings.warn(
                f"{len(lines)} sentences make a vocabulary of {vocabulary.size}, not {size}",
                stacklevel=2,
            )
        return vocabulary

    @classmethod
    def load(cls, path: str | os.PathLike) -> Vocabulary:
        """Load the vocabulary of a .model file."""
        try:
            return cls(read_bytes(path, LARGEST_FILE))
        except OSError as error:
            raise NamedMeshError(
                f"cannot read vocabulary {os.fspath(path)!r}: {error.strerror}",
                fix="train vocabularies and save them there first, or check the path",
            ) from None
        except NamedMeshError as error:
            raise NamedMeshError(
                f"{os.fspath(path)!r} is not a vocabulary: {error.problem}", fix=error.fix
            ) from None

    def save(self, path: str | os.PathLike) -> None:
        """Write the .model file, completely or not at all."""
        path = pathlib.Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(str(path), self.model, "the vocabulary")

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """Encode each text as token ids, with the end of sentence."""
        return self._processor.encode(list(texts), add_eos=True, out_type=int)

    def sample(self, texts: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        """Encode each text as one of its best segmentations, drawn by our own random numbers.

        A segmentation is as likely as its probability to the power of alpha: the smaller alpha is,
        the more of them come. SentencePiece's own sampling differs from process to process.
        """
        draws, drawn = np.random.default_rng(seed).random(len(texts)), []
        for text, draw in zip(texts, draws, strict=True):
            found = self._processor.nbest_encode(text, nbest_size=_BEST, out_type=int) or [[]]
            logs = alpha * np.array([self._scores[ids].sum() for ids in found])
            sums = np.cumsum(np.exp(logs - logs.max()))
            drawn.append([*found[int(np.searchsorted(sums, draw * sums[-1]))], END])
        return drawn

    @cached_property
    def _scores(self) -> np.ndarray:
        """The logarithm of each piece's probability."""
        return np.array([self._processor.get_score(piece) for piece in range(self.size)])

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Decode token ids up to the end of sentence; ids past the last piece are unknown."""
        kept = []
        for token in np.asarray(ids, dtype=np.int64).reshape(-1).tolist():
            if token == END:
                break
            if token != PADDING:
                kept.append(token if 0 <= token < self.size else UNKNOWN)
        return self._processor.decode(kept) if kept else ""

    def pieces(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        """Spell each token as a reader sees it; the end of a sentence is ⏎.

        A byte that is a character by itself is that character; others are spelt like <0xC3>.
        """
        spelt = []
        for token in np.asarray(ids, dtype=np.int64).tolist():
            known = 0 <= token < self.size
            piece = self._processor.id_to_piece(token if known else UNKNOWN)
            byte = int(piece[3:5], 16) if known and self._processor.is_byte(token) else 0
            text = chr(byte) if 32 < byte < 127 else piece.replace("▁", " ")
            spelt.append("⏎" if token == END else text)
        return spelt

    @property
    def size(self) -> int:
        """The number of pieces, the three special ones among them."""
        return self._processor.get_piece_size()

    @cached_property
    def digest(self) -> str:
        """A name of the vocabulary that no other has."""
        return hashlib.sha256(self.model).hexdigest()[:32]

    def __repr__(self) -> str:
        return f"Vocabulary({self.size} pieces, {self.digest[:8]})"


class Vocabularies(NamedTuple):
    """The vocabularies of sources and targets; in a folder, source.model and target.model."""

    source: Vocabulary
    target: Vocabulary

    @classmethod
    def train(
        cls,
        pairs: Pairs,
        source_size: int = 64_000,
        target_size: int = 32_000,
        *,
        temperature: float = 5.0,
        sentences: int = 50_000,
        seed: int = 0,
        byte_fallback: bool = True,
        character_coverage: float = 0.9998,
    ) -> Vocabularies:
        """Train both, each on at most so many sentences; languages are sampled by temperature."""
        options = {"byte_fallback": byte_fallback, "character_coverage": character_coverage}
        source = sample_sources(
            pairs, temperature, check_size(sentences, "the sample for a vocabulary"), seed
        )
        english = sorted({english for language in pairs.values() for _, english in language})
        chosen = permutation(len(english), seed, "english")[:sentences]
        target = [english[index] for index in chosen]
        vocabularies = []
        for side, texts, size in (("source", source, source_size), ("target", target, target_size)):
            try:
                vocabularies.append(Vocabulary.train(texts, size, **options))
            except NamedMeshError as error:
                raise NamedMeshError(
                    f"{side}: {error.problem}", *error.details, fix=f"{error.fix} (--{side}_vocab)"
                ) from None
        return cls(*vocabularies)

    @classmethod
    def load(cls, folder: str | os.PathLike) -> Vocabularies:
        """Load both vocabularies of a folder."""
        return cls(
            *(Vocabulary.load(pathlib.Path(folder) / f"{side}.model") for side in cls._fields)
        )

    def save(self, folder: str | os.PathLike) -> None:
        """Write both into a folder."""
        for side, vocabulary in zip(self._fields, self, strict=True):
            vocabulary.save(pathlib.Path(folder) / f"{side}.model")


def sample_sources(pairs: Pairs, temperature: float, sentences: int, seed: int) -> list[str]:
    """Sample source sentences, languages by temperature; fewer if a language has too few.

    None comes twice to make up a share: SentencePiece takes very long over repeated sentences.
    """
    counts = {name: len(pairs[name]) for name in sorted(pairs) if pairs[name]}
    if not counts:
        raise NamedMeshError(
            "a vocabulary cannot be trained on an empty corpus",
            fix="give at least one language with one pair",
        )
    sample = []
    for name, share in shares(counts, temperature).items():
        order = permutation(counts[name], seed, "vocabulary", name)
        sample += [pairs[name][index][0] for index in order[: max(1, round(sentences * share))]]
    return sample


def _training_error(size: int, sentences: int, message: str, byte_fallback: bool) -> NamedMeshError:
    found = re.search(r"required_chars\D*\d+ vs (\d+)", message)
    if found is None:
        return NamedMeshError(
            f"SentencePiece could not train a vocabulary of {size} on {sentences} sentences",
            message,
            fix="check the sentences",
        )
    bytes_taken = ", 256 of them bytes" if byte_fallback else ""
    return NamedMeshError(
        f"a vocabulary of {size} is too small: the characters of the {sentences} sentences alone "
        f"need {found[1]}{bytes_taken}",
        fix=f"give a size of at least {found[1]}",
    )
