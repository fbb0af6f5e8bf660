"""The grid of an experiment: which models are compared, each with its settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from examples.m4.settings import Settings, make_dense
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError

ALL = "all"  # instead of codes of languages: a baseline for each, trained at once
# What is tried for each bilingual baseline; the one with the lowest dev loss counts.
BILINGUAL_TRIES = {
    "plain": {},
    "dropout": {"dropout": 0.3},
    "narrow": {"dropout": 0.3, "shrink": 2},
}


@dataclass(frozen=True)
class Cell:
    """One model of the grid.

    Attributes:
        name: The name of its folder.
        kind: `"mixture"`, `"dense"` or `"bilingual"`.
        settings: Those of its run.
        depth: How many times as deep as the preset.
        language: The language of a bilingual model, or "".
        attempt: Which of the tries of a bilingual model it is, or "".
    """

    name: str
    kind: str
    settings: Settings
    depth: int = 1
    language: str = ""
    attempt: str = ""


def make_grid(
    settings: Settings,
    *,
    experts: Sequence[int],
    depths: Sequence[int],
    bilingual: Sequence[str] = (),
    bilingual_steps: int = 0,
    bilingual_vocabulary: int = 8_000,
    bilingual_rows: int = 0,
    bilingual_tries: Sequence[str] = (*BILINGUAL_TRIES,),
    seeds: Sequence[int] = (0,),
) -> list[Cell]:
    """Make the cells of a grid, with equal tokens but for the bilingual ones.

    Args:
        settings: Those of a mixture of experts.
        experts: The numbers of experts to compare.
        depths: The depths to compare, as multiples of the number of layers.
        bilingual: The languages of bilingual baselines; `["all"]` trains those of all languages at
            once.
        bilingual_steps: The steps of each try of one; by default as many as of the others.
        bilingual_vocabulary: The pieces of their vocabularies, at most.
        bilingual_rows: The rows of a batch of one; by default as many as of the others.
        bilingual_tries: Which of the tries of each are made; by default all of them.
        seeds: The seeds; all but the first are of mixtures and dense models alone.

    Returns:
        The cells, in the order in which they are to be run.
    """
    if not settings.model.experts:
        raise NamedMeshError(
            f"the preset {settings.preset!r} has no experts", fix="name one of a mixture"
        )
    cells = []
    for number, seed in enumerate(seeds):
        suffix = f"_seed{seed}" if number else ""
        for depth in depths:
            layers = settings.model.layers * depth
            deep = settings.but(layers=layers, seed=seed)
            end = (f"_{depth}x" if depth != 1 else "") + suffix
            cells.append(Cell(f"dense{end}", "dense", make_dense(deep), depth))
            for count in experts:
                mixture = deep.but(experts=count)
                cells.append(Cell(f"moe{count}{end}", "mixture", mixture, depth))
    for code in bilingual:
        for attempt in bilingual_tries:
            changes = BILINGUAL_TRIES[attempt]
            rows = bilingual_rows or settings.rows
            alone = make_bilingual(
                settings.but(seed=seeds[0]),
                code,
                bilingual_steps,
                bilingual_vocabulary,
                rows=rows,
                **changes,
            )
            cells.append(
                Cell(
                    f"bilingual_{code}_{attempt}",
                    "bilingual",
                    alone,
                    language=code,
                    attempt=attempt,
                )
            )
    return cells


def make_bilingual(
    settings: Settings,
    language: str,
    steps: int = 0,
    vocabulary: int = 8_000,
    shrink: int = 1,
    **changes: float,
) -> Settings:
    """Make the settings of a dense model of one language, or of one for each ("all")."""
    dense = make_dense(settings)
    model = dense.model
    sizes = {name: getattr(model, name) // shrink for name in ("model", "hidden", "heads")}
    vocabularies = {
        name: min(vocabulary, getattr(model, name)) for name in ("source_vocab", "target_vocab")
    }
    every = language == ALL
    kind: dict[str, Any] = {"languages": language}
    if every:
        axes = "+".join(Mesh.parse(settings.mesh).axes)
        kind = {"by_language": True, "languages": "", "layout": f"language:{axes}"}
        kind["translation_rows"] = min(settings.translation_rows, 16)  # of each language
    return dense.but(**kind, steps=steps or settings.steps, **sizes, **vocabularies, **changes)
