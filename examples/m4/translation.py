"""Translation with a trained run: needs jax, tensorstore and sentencepiece, and no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from examples.m4.input.batches import evaluation_batches
from examples.m4.input.identification import Guess, Languages
from examples.m4.input.vocabulary import Vocabularies
from examples.m4.run import Run
from examples.m4.settings import Settings
from namedmesh.runtime import Executable, State, cache_compilations, load
from namedmesh.training import Checkpoints


class Scored(NamedTuple):
    """A translation, and the logarithm of its probability, normalized by its length."""

    text: str
    score: float


@dataclass(frozen=True)
class Translation:
    """A text with its translations, the best first; cut says that it was too long."""

    source: str
    translations: list[Scored]
    cut: bool

    @property
    def text(self) -> str:
        """The best translation; empty for an empty source."""
        return self.translations[0].text if self.translations else ""

    def to_record(self, languages: Sequence[Guess]) -> dict[str, Any]:
        """Return a record for JSON, with the languages that its source may be in."""
        return {
            "source": self.source,
            "languages": [guess._asdict() for guess in languages],
            "translations": [scored._asdict() for scored in self.translations],
            "cut": self.cut,
        }


@dataclass(frozen=True)
class Translator:
    """A checkpoint of a run, ready to translate."""

    settings: Settings
    vocabularies: Vocabularies
    languages: Languages
    executable: Executable
    state: State
    step: int
    say: Callable[[str], None] = print

    @classmethod
    def open(
        cls, run: Run, settings: Settings, which: str = "newest", say: Callable[[str], None] = print
    ) -> Translator:
        """Compile the translate step and restore its weights from a checkpoint.

        The checkpoint is the newest one, the best one on dev data, or that of a step.
        """
        cache_compilations(run.folder / "compiled")
        executable = load(run.artifact("translate", settings, say))
        with Checkpoints(run.checkpoints) as checkpoints:
            step, state, _ = checkpoints.restore(executable, checkpoints.find(which))
        return cls(settings, run.vocabularies, run.languages, executable, state, step, say)

    def translate(
        self, texts: Sequence[str], report: Callable[[int], None] = lambda count: None
    ) -> list[Translation]:
        """Translate each text, in order; what is too long is cut, and what is empty stays empty.

        `report` is called with the number of texts translated so far.
        """
        rows, length = self.settings.translation_rows, self.settings.translation_length
        pairs = [(ids, []) for ids in self.vocabularies.source.encode(texts)]
        cut = [len(ids) > length for ids, _ in pairs]
        if any(cut):
            self.say(
                f"{sum(cut):,} of {len(texts):,} texts are longer than {length} tokens and were "
                "cut; --translation_length allows more"
            )
        found: list[list[Scored]] = [[] for _ in texts]
        count = 0
        for batch in evaluation_batches(pairs, rows, length, length, by_length=True):
            inputs = {name: batch.arrays[name] for name in ("source", "source_segments")}
            _, results = self.executable(self.state, **inputs)
            sequences, scores = (np.asarray(results[name]) for name in ("sequences", "scores"))
            for row, example in enumerate(batch.examples):
                if example >= 0 and texts[example].strip():
                    found[example] = self._decode(sequences[row], scores[row])
            count += int((batch.examples >= 0).sum())
            report(count)
        return [
            Translation(text, translations, long)
            for text, translations, long in zip(texts, found, cut, strict=True)
        ]

    def _decode(self, sequences: np.ndarray, scores: np.ndarray) -> list[Scored]:
        """Return the different texts of a beam, the best first."""
        best: dict[str, float] = {}
        for sequence, score in zip(sequences, scores, strict=True):
            text = self.vocabularies.target.decode(sequence)
            if np.isfinite(score):
                best[text] = max(float(score), best.get(text, float(score)))
        return [Scored(text, best[text]) for text in sorted(best, key=lambda text: -best[text])]
