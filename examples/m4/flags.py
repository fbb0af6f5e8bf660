"""The flags of the command line: those of the commands, and one for every hyperparameter."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from typing import Any

from absl import flags

from examples.m4 import settings as m4_settings
from examples.m4.settings import PRESETS, Settings
from namedmesh.errors.errors import join_names
from namedmesh.layers import CHOICES, Config

# The help texts of the model's flags; those of the other settings are with their fields.
MODEL_HELP = {
    "layers": "layers of encoder and decoder together, half of them each",
    "experts": "experts in every other layer; 0 for a dense model",
    "expert_sides": "which sides have experts; the other one is dense, of as many FLOPs",
    "model": "size of the model dimension, M in the paper",
    "hidden": "size of the hidden layer of each feed-forward network, H in the paper",
    "heads": "attention heads",
    "key": "size of the keys, queries and values of a head",
    "source_vocab": "pieces of the source vocabulary, at most",
    "target_vocab": "pieces of the target vocabulary, at most",
    "tied": "use the target embedding as the output projection too",
    "positions": "how the model knows positions; relative is a bias on attention scores",
    "longest": "how many positions are learned, with --positions=learned",
    "norm": "normalize before each layer (pre) or after it (post)",
    "normalizer": "layer normalization, or root mean square normalization",
    "activation": "activation function of the feed-forward networks",
    "gated": "multiply the activation with a gate, as in GLU",
    "router": "tokens choose experts (top_k); or, in the encoder, experts choose tokens",
    "k": "experts of a token, with --router=top_k",
    "second": "take the second expert at random by its gate, as in the paper, always, or never",
    "evaluation_second": "--second in evaluation, where random draws the same every time",
    "normalize": "normalize the gates of the chosen experts before or after tokens are dropped",
    "balance": "even out the load of experts by the paper's loss, or by a bias on the choices",
    "jitter": "noise on the input of the router during training, as a share",
    "group_tokens": "tokens that are routed together, of one row or several; divides those of each "
    "batch; by default one row's",
    "capacity_factor": "places of an expert, as a multiple of an even share of its tokens",
    "evaluation_capacity_factor": "--capacity_factor in evaluation; by default as in training",
    "decoding_capacity_factor": "--capacity_factor while decoding; by default no token is dropped",
    "dispatch": "send tokens to experts by index (gather), by one-hot products (einsum), or in "
    "blocks that drop none (blocks)",
    "shared": "hidden size of a network beside the experts that serves every token; 0 for none",
    "remat": "what the backward pass computes again: what fuses, all, or all but matrix products",
    "unroll": "the most iterations of the loop over layers that are written out: faster on a GPU",
    "stages": "stages of a pipeline of the layers of each side, with --layout layer:AXIS, "
    "stage:AXIS; 1 for a plain loop",
    "microbatches": "microbatches that pass the stages; they divide --rows",
    "dropout": "share of activations that training drops",
    "expert_dropout": "share of activations that training drops in the experts' hidden layers",
    "expert_masking": "share of choices whose expert's output training leaves out",
    "word_dropout": "share of source tokens and target inputs that training leaves out",
    "target_word_dropout": "share of target inputs that are left out; by default --word_dropout",
    "smoothing": "label smoothing",
    "aux_weight": "weight of the loss that evens out the load of the experts",
    "z_weight": "weight of the loss on large logits of the router",
    "dtype": "dtype of activations; weights are float32",
}
KINDS = {
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    bool: flags.DEFINE_boolean,
    str: flags.DEFINE_string,
}


def define_flags() -> list[str]:
    """Define every flag; return the names of the hyperparameters."""
    flags.DEFINE_string("run", "runs/m4", "the folder of the run")
    flags.DEFINE_string(
        "data",
        "catalogs",
        "catalogs (downloaded with pip), debian (with apt), synthetic (generated), a directory of "
        "TSV files, or another run, to use its data",
    )
    flags.DEFINE_enum("preset", "small", sorted(PRESETS), "the defaults of all hyperparameters")
    flags.DEFINE_boolean(
        "profile", False, "trace three train steps with jax.profiler, into RUN/trace"
    )
    flags.DEFINE_list("sets", [], "test sets to evaluate; by default all")
    flags.DEFINE_integer(
        "sentences",
        100,
        "sentences of each test file to evaluate, evenly spread over it, at most",
        lower_bound=1,
    )
    flags.DEFINE_string(
        "checkpoint",
        "newest",
        "what to evaluate or translate with: newest, best (on dev data), or a step",
    )
    flags.DEFINE_list(
        "baselines", [], "folders of evaluated runs of single languages, for delta BLEU"
    )
    flags.DEFINE_string(
        "input", "-", "the file to translate, a sentence per line; - is standard input"
    )
    flags.DEFINE_string("output", "-", "the file for translations; - is standard output")
    flags.DEFINE_boolean(
        "details",
        False,
        "write translations as JSON, with languages, scores and the other hypotheses of the beam",
    )
    flags.DEFINE_string("host", "127.0.0.1", "the address to serve on; 0.0.0.0 is all of them")
    flags.DEFINE_integer(
        "port", 8000, "the port to serve on; 0 for any", lower_bound=0, upper_bound=65535
    )
    flags.DEFINE_list(
        "names",
        [],
        "names by which clients know the service besides addresses and this machine's name, with "
        "commas; * is any",
    )
    return [*_define_hyperparameters(Settings), *_define_hyperparameters(Config)]


def read_changes(names: Sequence[str]) -> dict[str, Any]:
    """Read the hyperparameters that the command line gives; the others are the preset's."""
    return {name: flags.FLAGS[name].value for name in names if flags.FLAGS[name].value is not None}


def _define_hyperparameters(owner: type) -> list[str]:
    """Define a flag for every field; the preset gives its default."""
    choices: dict[str, Any] = CHOICES if owner is Config else m4_settings.CHOICES
    hints = typing.get_type_hints(owner)
    names = []
    for field in dataclasses.fields(owner):
        if owner is Settings and field.name in ("preset", "model"):
            continue
        text = field.metadata.get("help") or MODEL_HELP[field.name]
        text = f"{text} ({describe_default(owner, field.name)})"
        if field.name in choices:
            flags.DEFINE_enum(field.name, None, choices[field.name], text)
        else:
            hint = hints[field.name]
            kind = next(iter(typing.get_args(hint)), hint)  # of an optional number, the number
            KINDS[kind](field.name, None, text)
        names.append(field.name)
    return names


def describe_default(owner: type, name: str) -> str:
    """Say what a hyperparameter is in the presets: in all of them, or in each.

    Dense presets are those that they are named after, with other sizes.
    """
    values: dict[str, list[str]] = {}
    for preset, settings in PRESETS.items():
        if not preset.endswith("_dense"):
            value = getattr(settings if owner is Settings else settings.model, name)
            shown = {"": "empty", "None": "none", "True": "on", "False": "off"}
            values.setdefault(shown.get(str(value), str(value)), []).append(preset)
    if len(values) == 1:
        return f"default: {next(iter(values))}"
    return "default: " + ", ".join(
        f"{value} in {_name_presets(presets)}" for value, presets in values.items()
    )


def _name_presets(presets: list[str]) -> str:
    """Name presets, the paper's together."""
    paper = [name for name in PRESETS if name.startswith("moe_")]
    if {*paper} <= {*presets}:
        presets = [*(name for name in presets if name not in paper), "the paper's"]
    return join_names(presets)
