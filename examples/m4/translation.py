"""Translation with a trained run: needs jax, orbax and sentencepiece, and no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from examples.m4.input.batches import evaluation_batches
from examples.m4.input.vocabulary import Vocabularies
from examples.m4.run import Run
from examples.m4.settings import Settings
from namedmesh.runtime import Executable, State, cache_compilations, load
from namedmesh.training import Checkpoints


@dataclass(frozen=True)
class Translator:
    """A checkpoint of a run, ready to translate."""

    settings: Settings
    vocabularies: Vocabularies
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
        return cls(settings, run.vocabularies, executable, state, step, say)

    def translate(
        self, texts: Sequence[str], report: Callable[[int], None] = lambda count: None
    ) -> list[str]:
        """Translate each text, in order; what is too long is cut, and what is empty stays empty.

        `report` is called with the number of texts translated so far.
        """
        rows, length = self.settings.translation_rows, self.settings.translation_length
        pairs = [(ids, []) for ids in self.vocabularies.source.encode(texts)]
        cut = sum(len(ids) > length for ids, _ in pairs)
        if cut:
            self.say(
                f"{cut:,} of {len(texts):,} texts are longer than {length} tokens and were cut; "
                "--translation_length allows more"
            )
        translations = [""] * len(texts)
        count = 0
        for batch in evaluation_batches(pairs, rows, length, length, by_length=True):
            inputs = {name: batch.arrays[name] for name in ("source", "source_segments")}
            _, results = self.executable(self.state, **inputs)
            best = np.asarray(results["sequences"])[:, 0]
            for row, example in enumerate(batch.examples):
                if example >= 0 and texts[example].strip():
                    translations[example] = self.vocabularies.target.decode(best[row])
            count += int((batch.examples >= 0).sum())
            report(count)
        return translations
