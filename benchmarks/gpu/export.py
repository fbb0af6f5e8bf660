"""Exports the train steps of namedmesh as Artifacts, for `python -m benchmarks.gpu` to measure.

Run as `python -m benchmarks.gpu.export FOLDER [MODEL ...]`; it writes FOLDER/MODEL.nmesh. This
needs TensorFlow and no GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
from typing import Any

import namedmesh as nm
from benchmarks.gpu.llama import DECAY_STEPS, LEARNING_RATE, WARM_UP_STEPS, Llama
from benchmarks.gpu.models import ALL_MODELS, RATE_CONSTANT_STEPS, Model, make_batch
from examples.llm.architecture import Architecture, Experts, Rotary
from examples.llm.model import train_program
from examples.llm.settings import Settings
from namedmesh.layers import Adafactor, Config, Transformer, batch_of, config, inverse_square_root

BATCH = ("rows", "source", "target")  # what a Model says of its batch; the rest is configuration


def make_config(model: Model, unroll: int | None = None) -> Config:
    """Return namedmesh's configuration of a model: bfloat16, and nothing computed again.

    By default all layers are written out.
    """
    options = dataclasses.asdict(model)
    sizes = {name: value for name, value in options.items() if name not in BATCH}
    return config("base").but(
        **sizes, dtype="bfloat16", remat="none", unroll=unroll or model.iterations
    )


def make_settings(model: Llama) -> Settings:
    """Return the settings of examples/llm for a model: layers written out, nothing again."""
    mixture = Experts(model.experts, 2, model.hidden, weight=model.aux_weight)
    architecture = Architecture(
        family="mixtral" if model.experts else "llama",
        **{name: getattr(model, name) for name in ("vocab", "layers", "model", "hidden")},
        **{name: getattr(model, name) for name in ("heads", "group", "key", "tied", "epsilon")},
        experts=mixture if model.experts else None,
        scaled=False,
        rotary=Rotary(model.base, model.scaling),
    )
    return Settings(
        architecture,
        capacity_factor=model.capacity_factor,
        batch=model.rows,
        length=model.length,
        steps=DECAY_STEPS,
        learning_rate=LEARNING_RATE,
        warmup=WARM_UP_STEPS,
        unroll=True,
        dtype=model.dtype,
        layout="one",
    )


def trace(model: Model | Llama, unroll: int | None = None) -> nm.Program:
    """Trace the train step of a model."""
    if isinstance(model, Llama):
        return train_program(make_settings(model))
    transformer = Transformer(
        make_config(model, unroll), group=model.rows, source=model.source, target=model.target
    )

    def step(batch: dict[str, nm.Tensor], seed: nm.Tensor) -> dict[str, Any]:
        loss, metrics = transformer.loss(batch_of(batch), nm.random.key_from_seed(seed))
        optimizer = Adafactor(
            inverse_square_root(1.0, after=RATE_CONSTANT_STEPS),
            unfactored=[transformer.E] if model.experts else [],
        )
        optimizer.apply(nm.grad(loss))
        return metrics

    specs = transformer.specs()
    assert specs.keys() == make_batch(model).keys(), "the batch must have the step's inputs"
    return nm.trace(step, batch=specs, seed=nm.spec([], "int32"))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    names = ", ".join(ALL_MODELS)
    parser.add_argument("models", nargs="*", default=["wide", "wide_dense", "base"], help=names)
    parser.add_argument("--layers", type=int, help="another number of layers")
    parser.add_argument(
        "--unroll", type=int, help="of encoder-decoders: iterations to write out; by default all"
    )
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.models:
        path = arguments.folder / f"{name}.nmesh"
        model = ALL_MODELS[name]
        model = dataclasses.replace(model, layers=arguments.layers or model.layers)
        nm.export(trace(model, arguments.unroll), nm.Mesh(all=1), "").save(path)
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB", flush=True)


if __name__ == "__main__":
    main()
