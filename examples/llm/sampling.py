"""Continuing a prompt with a trained model."""

from __future__ import annotations

import pathlib

import numpy as np

import namedmesh as nm
from examples.llm.model import LanguageModel
from examples.llm.training import load_settings
from namedmesh.layers import Beam, Sample
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
