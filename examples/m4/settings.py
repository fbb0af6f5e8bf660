"""Settings: every hyperparameter of a run in one place, with presets; needs no TensorFlow."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from namedmesh.dims.errors import NamedMeshError, did_you_mean
from namedmesh.dims.layout import Layout
from namedmesh.dims.mesh import Mesh
from namedmesh.layers import CONFIGS, Config
from namedmesh.runtime.artifact import PRECISIONS

OPTIMIZERS = ("adafactor", "adam")


@dataclass(frozen=True)
class Settings:
    """A run: its model, its batches, how it learns, how it is laid out, and how it translates."""

    preset: str
    model: Config
    source_length: int = 128  # tokens in a packed row
    target_length: int = 96
    rows: int = 64  # in a batch: the groups of the paper
    languages: str = ""  # codes with commas between them; empty: all
    temperature: float = 5.0  # of sampling languages
    vocabulary_sentences: int = 50_000  # that vocabularies are trained on
    steps: int = 1000
    minutes: float = 0.0  # of training at most, compiling not counted; 0: no limit
    optimizer: str = "adafactor"
    learning_rate: float = 1.0
    warmup: int = 100
    decay_after: int = 10_000  # steps, after which the rate falls with the square root
    clip_norm: float = 1.0
    seed: int = 0
    mesh: str = "all=8"
    layout: str = "group:all, expert:all"
    params: str = ""  # how parameters and their slots rest, where it differs from the layout
    precision: str = "default"
    log_every: int = 10
    save_every: int = 200
    keep: int = 3  # checkpoints
    dev_every: int = 200
    dev_batches: int = 4
    beam: int = 4
    alpha: float = 0.6
    translation_rows: int = 64  # sentences translated side by side
    translation_length: int = 48  # tokens of a translation at most, and of its source

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise NamedMeshError(
                f"optimizer={self.optimizer!r} is not a choice",
                fix=did_you_mean(self.optimizer, OPTIMIZERS),
            )
        for name in ("source_length", "target_length", "rows", "steps", "warmup", "decay_after", "log_every", "save_every",
                     "keep", "beam", "translation_rows", "translation_length", "vocabulary_sentences"):  # fmt: skip
            if getattr(self, name) < 1:
                raise NamedMeshError(f"{name}={getattr(self, name)}", fix="give one or more")
        if not self.minutes >= 0:
            raise NamedMeshError(
                f"minutes={self.minutes}", fix="give a positive number, or 0 for no limit"
            )
        if not 0 <= self.alpha <= 10:
            raise NamedMeshError(
                f"alpha={self.alpha}", fix="give a number from 0 (no length normalisation) to 10"
            )
        if self.precision not in PRECISIONS:
            raise NamedMeshError(
                f"precision={self.precision!r} is not a choice",
                fix=did_you_mean(self.precision, PRECISIONS),
            )
        mesh = Mesh.parse(self.mesh)
        for name in ("layout", "params"):
            for axes in Layout(getattr(self, name)).rules.values():
                for axis in axes:
                    mesh.check_axis(axis, f"{name} {getattr(self, name)}")
        for name in ("temperature", "learning_rate", "clip_norm"):
            if not getattr(self, name) > 0:
                raise NamedMeshError(f"{name}={getattr(self, name)}", fix="give a positive number")

    def but(self, **changes: Any) -> Settings:
        """The same settings with some changed; those of the model by their own names."""
        own = {one.name for one in dataclasses.fields(self)} - {"model"}
        inner = {name: value for name, value in changes.items() if name not in own}
        outer = {name: value for name, value in changes.items() if name in own}
        return dataclasses.replace(self, **outer, model=self.model.but(**inner))

    def to_json(self) -> str:
        """The settings as a file holds them."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """The settings a file holds."""
        values = json.loads(text)
        return cls(**{**values, "model": Config(**values["model"])})


SMALL = Config(
    layers=4, experts=8, model=64, hidden=256, heads=4, key=16, source_vocab=12_000, target_vocab=4_000, remat="none", dropout=0.0
)  # fmt: skip
PRESETS: dict[str, Settings] = {
    # What `make m4` trains: minutes on two cores.
    "small": Settings(
        "small", SMALL, source_length=64, target_length=48, rows=32, temperature=1.5, steps=4000, minutes=8.0, optimizer="adam",
        learning_rate=5e-3, warmup=100, decay_after=600, mesh="all=4", save_every=500, dev_every=500, dev_batches=2,
        translation_length=64,
    ),
    # Seconds, for tests.
    "tiny": Settings(
        "tiny", CONFIGS["tiny"].but(source_vocab=400, target_vocab=400), source_length=64, target_length=48, rows=8, steps=20,
        optimizer="adam", learning_rate=3e-3, warmup=5, decay_after=100, mesh="all=4", log_every=5, save_every=5, dev_every=10,
        dev_batches=1, beam=2, translation_rows=8, translation_length=16,
    ),
    # For one GPU.
    "base": Settings(
        "base",
        CONFIGS["base"].but(
            source_vocab=32_000, target_vocab=16_000, dtype="bfloat16", remat="none", dropout=0.3, word_dropout=0.2
        ),
        rows=256, temperature=1.5, steps=20_000, learning_rate=1.0, warmup=400, decay_after=2_000, mesh="all=1", layout="",
        log_every=50, save_every=1000, dev_every=500, dev_batches=8, translation_rows=256, translation_length=96,
    ),
    # The paper's, for TPU v3: a group for each core.
    **{
        name: Settings(
            name, CONFIGS[name], source_length=1024, target_length=1024, rows=cores, steps=100_000, warmup=1_000,
            mesh=f"all={cores}", log_every=100, save_every=1000, dev_every=1000, translation_rows=cores, translation_length=256,
        )
        for name, cores in (("moe_128e_12l", 128), ("moe_512e_12l", 512), ("moe_2048e_12l", 2048), ("moe_128e_36l", 128),
                            ("moe_512e_36l", 512), ("moe_2048e_36l", 2048))
    },
}  # fmt: skip
# Dense models of equal FLOPs per token: where two layers have one and two networks of size H, here each has 1.5 H.
PRESETS |= {
    f"{name}_dense": dataclasses.replace(
        PRESETS[name],
        preset=f"{name}_dense",
        model=PRESETS[name].model.but(experts=0, hidden=PRESETS[name].model.hidden * 3 // 2),
    )
    for name in ("small", "tiny", "base")
}


def preset(name: str) -> Settings:
    """The settings of a name."""
    if name not in PRESETS:
        raise NamedMeshError(f"there is no preset {name!r}", fix=did_you_mean(name, PRESETS))
    return PRESETS[name]
