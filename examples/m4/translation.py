"""Translation with a trained run: needs jax, orbax and sentencepiece, and no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from examples.m4.checkpoints import Checkpoints
from examples.m4.input.batches import evaluation_batches
from examples.m4.input.vocabulary import Vocabularies
from examples.m4.run import Run
from examples.m4.settings import Settings
from namedmesh.runtime import Executable, cache_compilations, load
from namedmesh.runtime.state import State


@dataclass(frozen=True)
class Translator:
    """A run's checkpoint, ready to translate."""

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
        """Compiles the translate step and reads a checkpoint: the newest, the best on dev data, or of some step."""
        cache_compilations(run.folder / "compiled")
        executable = load(run.artifact("translate", settings, say))
        checkpoints = Checkpoints(run.checkpoints)
        found, state, _ = checkpoints.restore(executable, checkpoints.named(which))
        checkpoints.close()
        return cls(settings, run.vocabularies, executable, state, found, say)

    def translate(
        self, texts: Sequence[str], shown: Callable[[int], None] = lambda count: None
    ) -> list[str]:
        """The best translation of each text, in order; what is too long is cut, what is empty stays so."""
        rows, length = self.settings.translation_rows, self.settings.translation_length
        pairs = [(ids, []) for ids in self.vocabularies.source.encode(texts)]
        cut = sum(len(ids) > length for ids, _ in pairs)
        if cut:
            self.say(
                f"{cut:,} of {len(texts):,} are longer than {length} tokens, and cut; --translation_length takes more"
            )
        found = [""] * len(texts)
        done = 0
        for batch in evaluation_batches(pairs, rows, length, length, by_length=True):
            given = {name: batch.arrays[name] for name in ("source", "source_segments")}
            _, made = self.executable(self.state, **given)
            best = np.asarray(made["sequences"])[:, 0]
            for row, example in enumerate(batch.examples):
                if example >= 0 and texts[example].strip():
                    found[example] = self.vocabularies.target.decode(best[row])
            done += int((batch.examples >= 0).sum())
            shown(done)
        return found
