"""Fine-tuning a model of a folder of weights, and writing a folder with the result."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterable

import numpy as np

import namedmesh as nm
from examples.llm import weights
from examples.llm.adapters import convert_program, merge_program
from examples.llm.model import LanguageModel, trace_rows
from examples.llm.packing import Example, pack, shuffle_rows
from examples.llm.settings import Settings
from examples.llm.training import compile_program, save_settings
from namedmesh.runtime import State
from namedmesh.training import Checkpoints, Intervals, Trainer, read_metrics


def tune(
    source: pathlib.Path,
    target: pathlib.Path,
    settings: Settings,
    examples: Iterable[Example],
    say: Callable[[str], None] = print,
) -> list[float]:
    """Train a model of a folder on examples, and write it to another folder.

    Checkpoints and metrics are in the folder `run` of the target, from which an interrupted
    training goes on.

    Returns the losses that were logged.
    """
    save_settings(target / "run", settings)
    model, rows = LanguageModel(settings), pack(examples, settings.length)
    real = int(np.count_nonzero(rows["segments"]))
    say(f"{real:,} tokens in {len(rows['inputs']):,} rows of {settings.length}")
    program = trace_rows(model, model.train, packed=True)
    step = compile_program(program, settings)
    trained = sum(one.shape.elements for one in program.parameters.values())
    say(f"{trained:,} weights are trained on {step.plan.mesh}; {step.audit}")
    intervals = Intervals(
        settings.steps, log_every=max(1, settings.steps // 20), save_every=settings.steps
    )
    metrics = target / "run" / "metrics.jsonl"
    with Checkpoints(target / "run" / "checkpoints", keep=1) as checkpoints:
        trainer = Trainer(
            step,
            shuffle_rows(rows, settings.batch, settings.seed),
            intervals,
            checkpoints=checkpoints,
            metrics=metrics,
            initial=load_tuned(source, step, settings) if checkpoints.latest is None else None,
            count_tokens=lambda batch: int(np.count_nonzero(batch["segments"])),
            say=say,
        )
        trainer.run()
    if trainer.stop:
        raise SystemExit(trainer.stop.exit_status)
    save_tuned(source, target, trainer.state, settings)
    say(f"written: {target}")
    return [row["loss"] for row in read_metrics(metrics) if "loss" in row]


def load_tuned(
    folder: pathlib.Path, step: nm.Step, settings: Settings, *, missing: str = "init"
) -> State:
    """Read the weights of a folder as a step has them: frozen ones in 8 or 4 bits if it does."""
    state = weights.load(folder, step, seed=settings.seed, missing=missing)
    config = json.loads((folder / "config.json").read_text())
    dtype = config.get("dtype") or config.get("torch_dtype") or "float32"
    program = convert_program(_plain_variables(settings), step.variables, dtype)
    if not program.variables:
        return state
    convert = compile_program(program, settings)
    made, _ = convert(weights.load(folder, convert))
    stored = {name: array for name, array in made.arrays.items() if name in step.variables}
    return State({**state.arrays, **stored}, step.variables)


def save_tuned(
    source: pathlib.Path, target: pathlib.Path, state: State, settings: Settings
) -> None:
    """Write a folder of a tuned model's weights, to which its adapters are added."""
    config = json.loads((source / "config.json").read_text())
    if settings.tuning is not None:
        program = merge_program(_plain_variables(settings), state.specs, settings.tuning)
        merge = compile_program(program, settings)
        first, own = merge.init().arrays, state.arrays
        arrays = {name: own.get(name, first[name]) for name in first}
        state, _ = merge(State(arrays, merge.variables))
    weights.save(target, state, config, weights.read_model(source))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (source / name).exists():
            (target / name).write_bytes((source / name).read_bytes())


def _plain_variables(settings: Settings) -> dict[str, nm.Variable]:
    """Return the weights of the model as folders have them."""
    model = LanguageModel(settings.but(tuning=None, batch=settings.microbatches))
    return dict(trace_rows(model, model.loss).parameters)
