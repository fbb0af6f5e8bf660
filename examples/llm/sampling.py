"""Continuing a prompt with a trained model."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

import namedmesh as nm
from examples.llm import weights
from examples.llm.model import LanguageModel, weights_of
from examples.llm.packing import check_tokens
from examples.llm.settings import Settings
from examples.llm.training import load_settings, place_program
from examples.llm.tuning import load_tuned
from namedmesh.layers import Beam, Sample, use_weights
from namedmesh.training import Checkpoints


def continue_prompt(
    folder: pathlib.Path,
    prompt: str,
    *,
    length: int = 200,
    count: int = 3,
    temperature: float = 0.7,
    top_p: float = 0.95,
    beam: int = 0,
    seed: int = 0,
) -> list[str]:
    """Return texts that start with a prompt: samples, or with a beam's width the best it finds."""
    model = LanguageModel(load_settings(folder))
    # A line ends before the prompt: the model was trained on whole files.
    data = np.frombuffer(b"\n" + (prompt.encode() or b"\n"), np.uint8).astype(np.int32)
    P, B, N, T = nm.dims(
        f"prompt={len(data) - 1} batch={1 if beam else count} hypothesis={beam or 1} step={length}"
    )

    def write(prompt: nm.Tensor, last: nm.Tensor, seed: nm.Tensor) -> nm.Tensor:
        key = nm.random.key_from_seed(seed)
        method = Beam(N) if beam else Sample(key, temperature=temperature, top_p=top_p)
        return model.write_on(prompt, last, [B, N], T, method)["sequences"]

    number = nm.spec([], "int32")
    step = nm.compile(
        write, prompt=nm.spec([P], "int32"), last=number, seed=number, mesh=nm.Mesh(one=1)
    )
    with Checkpoints(folder / "checkpoints") as checkpoints:
        state = checkpoints.restore(step).state
    _, sequences = step(state, prompt=data[:-1], last=data[-1], seed=np.int32(seed))
    rows = np.asarray(sequences).reshape(-1, length).astype(np.uint8)
    return [prompt + row.tobytes().decode(errors="replace") for row in rows[:count]]


def continue_tokens(
    folder: pathlib.Path,
    prompts: list[list[int]],
    *,
    length: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    end: tuple[int, ...] | None = None,
    mesh: str = "one=1",
    layout: str = "",
    **changes: Any,
) -> list[list[int]]:
    """Return what a model of a folder of weights writes after prompts, which may differ in length.

    Temperature 0 takes the likeliest token every time. Other settings, such as `dtype`, `unroll`
    and `tuning` (weights in 8 bits), may be changed.
    """
    architecture, _ = weights.read_model(folder)
    for number, prompt in enumerate(prompts, 1):
        check_tokens([*prompt, *(end or ())], architecture.vocab, f"prompt {number}")
        if not prompt:
            raise nm.NamedMeshError(f"prompt {number} has no tokens", fix="begin with one token")
    if temperature < 0 or not 0 < top_p <= 1:
        raise nm.NamedMeshError(
            f"texts cannot be drawn with temperature={temperature:g} and top_p={top_p:g}",
            fix="give a temperature from 0, which takes the likeliest, and a top_p up to 1",
        )
    longest = max(map(len, prompts))
    settings = Settings(
        architecture, batch=len(prompts), length=longest, capacity_factor=0, mesh=mesh,
        layout=layout, **changes,
    )  # fmt: skip
    model = LanguageModel(settings)
    P, B, N, T = nm.dims(
        f"prompt={max(longest - 1, 1)} batch={len(prompts)} hypothesis=1 step={length}"
    )
    rows = np.zeros([B.size, P.size + 1], np.int32)
    for row, prompt in zip(rows, prompts, strict=True):
        row[len(row) - len(prompt) :] = prompt
    padding = np.array([P.size + 1 - len(prompt) for prompt in prompts], np.int32)

    def write(
        prompt: nm.Tensor, last: nm.Tensor, padding: nm.Tensor, heat: nm.Tensor, share: nm.Tensor,
        seed: nm.Tensor,
    ) -> nm.Tensor:  # fmt: skip
        method = Sample(nm.random.key_from_seed(seed), temperature=heat, top_p=share)
        drawn = model.write_on(prompt, last, [B, N], T, method, padding=padding, end=end)
        return nm.transpose(drawn["sequences"], [N, B, T])

    numbers, scalar = nm.spec([B], "int32"), nm.spec([])
    given = nm.spec([B, P], "int32"), numbers, numbers, scalar, scalar, nm.spec([], "int32")
    with use_weights(weights_of(settings)):
        program = nm.trace(write, *given)
    step = nm.compile(program, **place_program(program, settings))
    state = load_tuned(folder, step, settings, missing="error")
    options = np.float32(temperature), np.float32(top_p), np.int32(seed)
    _, written = step(state, rows[:, :-1], rows[:, -1], padding, *options)
    return np.asarray(written)[0].tolist()
