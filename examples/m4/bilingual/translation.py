"""Translation with all bilingual models at once, each from its own language."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from examples.m4.input.batches import evaluation_batches
from examples.m4.input.vocabulary import Vocabularies
from examples.m4.run import Run
from examples.m4.settings import Settings
from namedmesh.runtime import Executable, State, cache_compilations, load
from namedmesh.training import Checkpoints


@dataclass(frozen=True)
class Translators:
    """The best weights of each language in a checkpoint, ready to translate."""

    settings: Settings
    vocabularies: dict[str, Vocabularies]
    executable: Executable
    state: State
    step: int

    @classmethod
    def open(
        cls, run: Run, settings: Settings, which: str = "newest", say: Callable[[str], None] = print
    ) -> Translators:
        """Compile the translate step and restore the weights that a checkpoint holds as the best.

        Of whichever checkpoint: the newest one holds the best weights of all steps before it.
        """
        cache_compilations(run.folder / "compiled")
        executable = load(run.artifact("translate", settings, say))
        with Checkpoints(run.checkpoints) as checkpoints:
            found = checkpoints.latest if which == "best" else checkpoints.find(which)
            step, state, _ = checkpoints.restore(executable, found)
        codes = settings.languages.split(",")
        vocabularies = {code: Vocabularies.load(run.data / code) for code in codes}
        return cls(settings, vocabularies, executable, state, step)

    @property
    def dev_losses(self) -> dict[str, float]:
        """The dev loss of each language's weights."""
        losses = np.asarray(self.state["best_loss"])
        return dict(zip(self.vocabularies, losses.tolist(), strict=True))

    def translate(self, texts: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Translate the texts of each language, in order; what is too long is cut."""
        rows, length = self.settings.translation_rows, self.settings.translation_length
        batches = {
            code: [
                *evaluation_batches(
                    [(ids, []) for ids in vocabularies.source.encode(texts.get(code, ()))],
                    rows,
                    length,
                    length,
                    by_length=True,
                )
            ]
            for code, vocabularies in self.vocabularies.items()
        }
        found = {code: [""] * len(texts.get(code, ())) for code in self.vocabularies}
        empty = np.zeros((rows, length), np.int32)
        names = ("source", "source_segments")
        for number in range(max(map(len, batches.values()))):
            # From the end, so that the longest texts of all languages are together.
            parts = {code: of[-1 - number] for code, of in batches.items() if number < len(of)}
            inputs = {
                name: np.stack(
                    [parts[code].arrays[name] if code in parts else empty for code in batches]
                )
                for name in names
            }
            _, results = self.executable(self.state, **inputs)
            sequences = np.asarray(results["sequences"])
            for place, code in enumerate(batches):
                for row, example in enumerate(parts[code].examples if code in parts else ()):
                    if example >= 0 and texts[code][example].strip():
                        best = sequences[place, row, 0]
                        found[code][example] = self.vocabularies[code].target.decode(best)
        return found
