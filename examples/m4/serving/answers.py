"""Answers of the service: translations with languages, alternatives and experts of tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from examples.m4.input.batches import evaluation_batches
from examples.m4.input.vocabulary import Vocabulary
from examples.m4.run import Run
from examples.m4.settings import Settings
from examples.m4.translation import Translation, Translator
from namedmesh.runtime import Executable, load
from namedmesh.training import share_state


class Question(NamedTuple):
    """A text to translate, and whether to tell the experts of its tokens."""

    text: str
    experts: bool = False


@dataclass(frozen=True)
class Answers:
    """A model that answers questions, several at a time.

    Attributes:
        translator: Translates.
        choices: Tells the experts of tokens; None for a model without any.
    """

    translator: Translator
    choices: Executable | None

    @classmethod
    def open(
        cls, run: Run, settings: Settings, which: str = "newest", say: Callable[[str], None] = print
    ) -> Answers:
        """Compile the programs and restore the weights of a checkpoint."""
        translator = Translator.open(run, settings, which, say)
        # Answers say themselves that a text was cut.
        translator = dataclasses.replace(translator, say=lambda text: None)
        choices = load(run.artifact("choices", settings, say)) if settings.model.experts else None
        return cls(translator, choices)

    @property
    def most(self) -> int:
        """The number of questions that are answered in the time of one."""
        return self.translator.settings.translation_rows

    def __call__(self, questions: Sequence[Question]) -> list[dict[str, Any]]:
        """Answer questions, in order, each as a value for JSON."""
        found = self.translator.translate([question.text for question in questions])
        guess = self.translator.languages.guess
        answers = [one.to_record(guess(one.source)) for one in found]
        wanted = [place for place, question in enumerate(questions) if question.experts]
        if wanted and self.choices is not None:
            tokens = self._find_experts([found[place] for place in wanted])
            for place, of_text in zip(wanted, tokens, strict=True):
                answers[place]["tokens"] = of_text
        return answers

    def _find_experts(self, translations: Sequence[Translation]) -> list[dict[str, Any]]:
        """Return the pieces of sources and of their best translations, with the experts of each."""
        assert self.choices is not None
        settings, vocabularies = self.translator.settings, self.translator.vocabularies
        length = settings.translation_length
        pairs = [
            (source, target)
            for source, target in zip(
                vocabularies.source.encode(one.source for one in translations),
                vocabularies.target.encode(one.text for one in translations),
                strict=True,
            )
        ]
        state = share_state(self.translator.state, self.choices)
        found: list[dict[str, Any]] = [{} for _ in pairs]
        for batch in evaluation_batches(pairs, settings.translation_rows, length, length):
            _, results = self.choices(state, **batch.arrays)
            values = {name: np.asarray(value) for name, value in results.items()}
            for row, example in enumerate(batch.examples):
                if example < 0:
                    continue
                for side, key, vocabulary in (
                    ("encoder", "source", vocabularies.source),
                    ("decoder", "target", vocabularies.target),
                ):
                    count = int((batch.arrays[f"{key}_segments"][row] > 0).sum())
                    chosen = {
                        name: values[f"{side}_{name}"][:, row, :count]
                        for name in ("expert", "weight")
                        if f"{side}_{name}" in values
                    }
                    ids = batch.arrays[key][row, :count]
                    found[example][key] = list_tokens(vocabulary, ids, chosen)
        return found


def list_tokens(
    vocabulary: Vocabulary, ids: np.ndarray, chosen: dict[str, np.ndarray]
) -> list[dict[str, Any]]:
    """List the pieces of a text, and for each layer the experts that served it with weights.

    Args:
        vocabulary: The vocabulary of the text.
        ids: The tokens.
        chosen: `expert` and `weight` of each layer, token and choice; empty without experts.
    """
    tokens: list[dict[str, Any]] = [{"piece": piece} for piece in vocabulary.pieces(ids)]
    for place, token in enumerate(tokens):
        token["layers"] = [
            [
                {"expert": int(expert), "weight": round(float(weight), 4)}
                for expert, weight in zip(experts[place], weights[place], strict=True)
                if weight > 0
            ]
            for experts, weights in zip(
                chosen.get("expert", ()), chosen.get("weight", ()), strict=True
            )
        ]
    return tokens
