"""Weights in folders of Hugging Face's format: read for a mesh, and written back."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import namedmesh as nm
from examples.llm.adapters import OURS, REFERENCE
from examples.llm.architecture import Architecture
from examples.llm.huggingface import read_config, weight_rules
from namedmesh.runtime import State

LARGEST = 5 * 2**30  # bytes of a file


def read_model(folder: pathlib.Path) -> tuple[Architecture, str]:
    """Read the architecture of a folder, and what the names of its weights begin with.

    Further predictions are part of it if the files have their weights.
    """
    names, architecture = _tensor_names(folder), read_config(folder)
    ends = "embed_tokens.weight"
    (prefix,) = {name.removesuffix(ends) for name in names if name.endswith(f"model.{ends}")} or {
        "model."
    }
    further = sum(name.endswith(".eh_proj.weight") for name in names)
    return architecture.but(predictions=further), prefix


def read_ends(folder: pathlib.Path) -> tuple[int, ...]:
    """Return the tokens that end a text, as `transformers` reads them in a folder."""
    files = [folder / name for name in ("generation_config.json", "config.json")]
    configs = [json.loads(path.read_text()) for path in files if path.exists()]
    found = next((one["eos_token_id"] for one in configs if "eos_token_id" in one), None)
    return tuple(found) if isinstance(found, list) else () if found is None else (found,)


def load(folder: pathlib.Path, step: nm.Step, *, seed: int = 0, missing: str = "init") -> State:
    """Read the weights that a step has from a folder, each device its own shards.

    Other variables, such as an optimizer's slots, are initialized.
    """
    rules = _rules_of(step.variables, *read_model(folder))
    lost = [
        name for name, one in step.variables.items()
        if one.parameter and name not in rules
        and not (name.endswith(OURS) or name.startswith(REFERENCE))
    ]  # fmt: skip
    if lost:
        raise nm.NamedMeshError(
            f"{folder} has no rule for {len(lost)} parameters", *lost, fix="use its architecture"
        )
    others = {name: None for name in step.variables if name not in rules}
    return nm.load_weights(folder, step, rules | others, missing=missing, cast=True, seed=seed)


def save(folder: pathlib.Path, state: State, config: dict[str, Any], like: tuple[Architecture, str],
         dtype: str | None = None) -> None:  # fmt: skip
    """Write the weights of a state and their config.json, as transformers reads them."""
    dtype = dtype or config.get("dtype") or config.get("torch_dtype")
    rules = _rules_of(state.specs, *like)
    own = (name for name, one in state.specs.items() if one.parameter)
    others = {name: None for name in own if name not in rules}
    nm.save_weights(folder, state, rules | others, dtype=dtype, largest=LARGEST)
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def _rules_of(variables: Any, architecture: Architecture, prefix: str) -> dict[str, Any]:
    """Return the rules of the variables that a program has."""
    rules = weight_rules(architecture, prefix)
    if not any(name.startswith("further") for name in variables):
        rules = weight_rules(dataclasses.replace(architecture, predictions=0), prefix)
    return {name: rule for name, rule in rules.items() if name in variables}


def _tensor_names(folder: pathlib.Path) -> set[str]:
    """Return the names of the tensors of a folder."""
    from safetensors import safe_open

    names: set[str] = set()
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            names |= {*file.keys()}
    return names
