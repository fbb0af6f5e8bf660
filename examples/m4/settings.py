"""Settings: every hyperparameter of a run in one place, with presets; needs no TensorFlow."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

from examples.m4.input.sampling import REPEATS
from namedmesh.artifacts.artifact import PRECISIONS
from namedmesh.dims.layout import Layout
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError, did_you_mean
from namedmesh.layers import CONFIGS, Config

CHOICES = {
    "optimizer": ("adafactor", "adam"),
    "precision": PRECISIONS,
    "repeat": REPEATS,
}
# What a layout can place: the dimensions of the model, and those of decoding.
DIMENSIONS = (
    "group", "source", "target", "source_memory", "target_memory", "source_vocab", "target_vocab",
    "layer", "stage", "model", "hidden", "heads", "key", "expert", "capacity", "position",
    "distance_bucket", "hypothesis", "hypothesis_slot", "step", "cache_row", "language",
)  # fmt: skip
POSITIVE = (
    "source_length", "target_length", "rows", "steps", "warmup", "decay_after", "log_every",
    "save_every", "keep", "beam", "translation_rows", "translation_length", "vocabulary_sentences",
    "temperature", "learning_rate", "clip_norm", "patience",
)  # fmt: skip


def setting(default: Any, help: str) -> Any:
    """Return a field with a default and the help text of its flag."""
    return dataclasses.field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Settings:
    """A run: its model, its batches, how it learns, how it is laid out, and how it translates."""

    preset: str
    model: Config
    source_length: int = setting(128, "source tokens in a packed row")
    target_length: int = setting(96, "target tokens in a packed row")
    rows: int = setting(64, "packed rows in a batch; the groups of the paper")
    languages: str = setting("", "codes of languages to train on, with commas; all if empty")
    by_language: bool = setting(
        False, "train a model of its own for each language, all of them in one step"
    )
    patience: int = setting(
        5, "measurements without a lower dev loss after which a bilingual model learns no more"
    )
    pairs: int = setting(0, "train pairs of --data debian, about; 0 for all")
    repeat: str = setting(
        "pair", "what comes once before any of it comes back: a pair, or an English sentence"
    )
    temperature: float = setting(
        5.0, "temperature of sampling languages: 1 is by size, more is more evenly"
    )
    vocabulary_sentences: int = setting(50_000, "sentences to train each vocabulary on, at most")
    subword_alpha: float = setting(
        0.0,
        "draw how each train text is cut into pieces, once for each pair: the smaller, the more "
        "freely; 0 cuts each at its best",
    )
    steps: int = setting(1000, "train steps")
    minutes: float = setting(0.0, "time limit of training, compilation excluded; 0 for none")
    optimizer: str = setting("adafactor", "the optimizer")
    learning_rate: float = setting(
        1.0, "peak learning rate; Adafactor's is relative to the size of a parameter"
    )
    warmup: int = setting(100, "steps during which the learning rate grows linearly")
    decay_after: int = setting(
        10_000, "steps after which the learning rate falls with the square root of the steps"
    )
    cooldown: float = setting(
        0.0, "share of the steps, the last ones, in which the learning rate falls to nothing"
    )
    clip_norm: float = setting(1.0, "largest norm of all gradients together")
    average: float = setting(
        0.0,
        "share that stays of a moving average of the weights in a step, which evaluation and "
        "translation then use; 0 for none",
    )
    r_drop: float = setting(
        0.0, "weight of R-drop: how far apart two passes with own dropout are, e.g. 1; 0 for one"
    )
    seed: int = setting(0, "seed of weights, dropout, routing and the order of the data")
    mesh: str = setting("all=8", 'device mesh, e.g. "data=2 expert=4"')
    layout: str = setting(
        "group:all, expert:all",
        'which dimensions lie on which mesh axes, e.g. "group:data+expert, expert:expert"',
    )
    params: str = setting(
        "", "layout of parameters and optimizer slots at rest; the layout if empty"
    )
    precision: str = setting("default", "precision of matrix products")
    log_every: int = setting(10, "steps between two rows of metrics")
    save_every: int = setting(200, "steps between two checkpoints")
    keep: int = setting(3, "newest checkpoints to keep; the best one is kept as well")
    dev_every: int = setting(200, "steps between two measurements of the dev loss; 0 for none")
    dev_batches: int = setting(4, "batches that the dev loss is measured on")
    beam: int = setting(4, "hypotheses of beam search")
    alpha: float = setting(0.6, "length normalization of beam search; 0 for none")
    translation_rows: int = setting(64, "sentences to translate side by side")
    translation_length: int = setting(48, "tokens of a translation, and of its source, at most")

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise NamedMeshError(
                    f"{name}={value!r} is not a choice", fix=did_you_mean(value, choices)
                )
        low = [f"{name}={getattr(self, name)}" for name in POSITIVE if not getattr(self, name) > 0]
        if low:
            raise NamedMeshError(", ".join(low), fix="give positive numbers")
        if not 0 <= self.subword_alpha <= 1:
            raise NamedMeshError(
                f"subword_alpha={self.subword_alpha}", fix="give a number from 0 to 1, e.g. 0.3"
            )
        for name in ("minutes", "pairs"):
            if not getattr(self, name) >= 0:
                raise NamedMeshError(
                    f"{name}={getattr(self, name)}", fix="give a positive number, or 0 for no limit"
                )
        if not self.r_drop >= 0:
            raise NamedMeshError(
                f"r_drop={self.r_drop}", fix="give a positive number, or 0 for none"
            )
        if not 0 <= self.average < 1:
            raise NamedMeshError(f"average={self.average}", fix="give a number in [0, 1)")
        if not 0 <= self.cooldown <= 1:
            raise NamedMeshError(f"cooldown={self.cooldown}", fix="give a share from 0 to 1")
        if not 0 <= self.alpha <= 10:
            raise NamedMeshError(
                f"alpha={self.alpha}", fix="give a number from 0 (no length normalization) to 10"
            )
        if self.by_language and (self.model.experts or self.r_drop or not self.dev_every):
            raise NamedMeshError(
                "bilingual models have no experts and no r_drop, and are measured on dev data",
                fix="use a dense preset, and --dev_every of at least 1",
            )
        self._check_groups()
        self._check_layouts()

    def _check_groups(self) -> None:
        """Raise if the tokens of a batch do not make whole groups on a side that has experts."""
        model, size = self.model, self.model.group_tokens
        if not model.experts or size is None:
            return
        tokens = {}
        if model.expert_sides in ("both", "encoder"):
            tokens["source"] = self.rows * self.source_length
            tokens["translation"] = self.translation_rows * self.translation_length
        if model.expert_sides in ("both", "decoder"):
            tokens["target"] = self.rows * self.target_length
        if any(count % size for count in tokens.values()):
            raise NamedMeshError(
                f"group_tokens={size} does not divide the tokens of every batch",
                *(f"{name}: {count} tokens" for name, count in tokens.items()),
                fix=f"choose a divisor of {math.gcd(*tokens.values())}",
            )

    def _check_layouts(self) -> None:
        """Raise for axes that the mesh does not have, and for dimensions that no model has.

        A program uses only some of the dimensions, so that its own check cannot tell a misspelt
        name from one that is another program's.
        """
        mesh = Mesh.parse(self.mesh)
        for label in ("layout", "params"):
            layout = Layout(getattr(self, label))
            for axes in layout.rules.values():
                for axis in axes:
                    mesh.check_axis(axis, f"{label} {layout.text}")
            unknown = [name for name in layout.rules if name not in DIMENSIONS]
            if unknown:
                raise NamedMeshError(
                    f"--{label} names {', '.join(map(repr, unknown))}, which no model has",
                    f"{label}: {layout.text}",
                    f"dimensions: {', '.join(DIMENSIONS)}",
                    fix=did_you_mean(unknown[0], DIMENSIONS),
                )

    def but(self, **changes: Any) -> Settings:
        """Return the same settings with some changed; those of the model by their own names."""
        own = {field.name for field in dataclasses.fields(self)} - {"model"}
        inner = {name: value for name, value in changes.items() if name not in own}
        outer = {name: value for name, value in changes.items() if name in own}
        return dataclasses.replace(self, **outer, model=self.model.but(**inner))

    def to_json(self) -> str:
        """Format the settings as the text of a file."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Parse the text of a file."""
        values = json.loads(text)
        return cls(**{**values, "model": Config(**values["model"])})


SMALL = Config(
    layers=4, experts=8, model=64, hidden=256, heads=4, key=16, source_vocab=32_000,
    target_vocab=4_000, second="all", capacity_factor=1.25, remat="none", dropout=0.0,
    target_word_dropout=0.2,
)  # fmt: skip
PRESETS: dict[str, Settings] = {
    # What `make m4` trains: minutes on two cores.
    "small": Settings(
        "small", SMALL, source_length=64, target_length=40, rows=16, temperature=3.0, steps=4200,
        minutes=7.5, optimizer="adam", learning_rate=6e-3, warmup=200, cooldown=0.7,
        average=0.99, mesh="all=4", save_every=500, dev_every=500, dev_batches=4,
        translation_length=64,
    ),
    # Seconds, for tests.
    "tiny": Settings(
        "tiny", CONFIGS["tiny"].but(source_vocab=400, target_vocab=400), source_length=64,
        target_length=48, rows=8, steps=20, optimizer="adam", learning_rate=3e-3, warmup=5,
        decay_after=100, mesh="all=4", log_every=5, save_every=5, dev_every=10, dev_batches=1,
        beam=2, translation_rows=8, translation_length=16,
    ),
    # For one GPU: minutes on millions of pairs.
    "base": Settings(
        "base",
        CONFIGS["base"].but(
            source_vocab=32_000, target_vocab=16_000, dtype="bfloat16", remat="none", unroll=12,
            experts=128, expert_sides="encoder", second="all", group_tokens=8192,
            evaluation_capacity_factor=3.0, dropout=0.1,
        ),
        target_length=80, rows=256, temperature=1.4, repeat="english", steps=13_000, cooldown=0.6,
        learning_rate=1.0, warmup=400, decay_after=2_000, mesh="all=1", layout="", log_every=50,
        save_every=1000, dev_every=500, dev_batches=8, translation_rows=256, translation_length=96,
    ),
    # The paper's, for TPU v3: a group for each core.
    **{
        name: Settings(
            name, CONFIGS[name], source_length=1024, target_length=1024, rows=cores, steps=100_000,
            warmup=1_000, mesh=f"all={cores}", log_every=100, save_every=1000, dev_every=1000,
            translation_rows=cores, translation_length=256,
        )
        for name, cores in (
            ("moe_128e_12l", 128), ("moe_512e_12l", 512), ("moe_2048e_12l", 2048),
            ("moe_128e_36l", 128), ("moe_512e_36l", 512), ("moe_2048e_36l", 2048),
        )
    },
}  # fmt: skip


def make_dense(settings: Settings) -> Settings:
    """Make the settings of a dense model of equal FLOPs per token."""
    return settings.but(experts=0, expert_sides="both", hidden=settings.model.dense_hidden)


PRESETS |= {
    f"{name}_dense": make_dense(PRESETS[name]).but(preset=f"{name}_dense")
    for name in ("small", "tiny", "base")
}


def preset(name: str) -> Settings:
    """Look up the settings of a name."""
    if name not in PRESETS:
        raise NamedMeshError(f"there is no preset {name!r}", fix=did_you_mean(name, PRESETS))
    return PRESETS[name]
