"""Families of examples/llm against transformers: logits, generation, and weights in and out.

python -m benchmarks.llm_families --json benchmarks/results/llm/families.json   all variants
python -m benchmarks.llm_families --keep tests/examples/families.json           one of each, kept

Needs transformers and torch (namedmesh[llm]); nothing is downloaded. Weights are random numbers of
a seed, written to a folder as transformers names them, and read from there by both. `--keep` writes
what tests compare with where transformers is not installed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pathlib
import tempfile
import zlib
from typing import Any

import numpy as np

ROWS, LENGTH, STEPS, VOCAB = 2, 9, 6, 40
PADDING = (3, 0)  # of the prompts
SMALL = {
    "vocab_size": VOCAB, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "factor": 4.0, "beta_fast": 32, "beta_slow": 1,
    "original_max_position_embeddings": 16,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "factor": 4.0}
_MOE = {"head_dim": 8, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 10}
_GEMMA = {"head_dim": 8, "num_hidden_layers": 7, "sliding_window": 4, "query_pre_attn_scalar": 12}
_DEEP = {
    "num_key_value_heads": 4, "num_hidden_layers": 3, "moe_intermediate_size": 10,
    "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "v_head_dim": 6, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4,
    "topk_group": 2, "first_k_dense_replace": 1, "n_shared_experts": 2,
    "rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7},
}  # fmt: skip
TENSOR = ("tensor=2", "heads:tensor, hidden:tensor, vocab:tensor")
FSDP = ("data=2", "batch:data")
# The class of a configuration, what differs from SMALL, the mesh and the layout, and the dtype.
VARIANTS: dict[str, tuple[str, dict[str, Any], tuple[str, str], str]] = {
    "llama": ("LlamaConfig", {"rope_scaling": LLAMA3}, TENSOR, "float32"),
    "llama tied, biases, linear": (
        "LlamaConfig",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": 10,
         "rope_scaling": LINEAR},
        FSDP, "float32",
    ),
    "llama one head of keys, yarn, bfloat16": (
        "LlamaConfig", {"num_key_value_heads": 1, "rope_scaling": YARN}, FSDP, "bfloat16"),
    "llama three heads, gelu": (
        "LlamaConfig", {"num_attention_heads": 3, "num_key_value_heads": 3, "hidden_act": "gelu"},
        FSDP, "float32"),
    "qwen3": ("Qwen3Config", {"head_dim": 8}, TENSOR, "float32"),
    "qwen3 tied, biases, windows": (
        "Qwen3Config",
        {"head_dim": 8, "tie_word_embeddings": True, "attention_bias": True,
         "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
        FSDP, "float32",
    ),
    "qwen3_moe": ("Qwen3MoeConfig", {**_MOE, "norm_topk_prob": True}, FSDP, "float32"),
    "qwen3_moe dense layers between, gates as they are": (
        "Qwen3MoeConfig",
        {**_MOE, "num_hidden_layers": 4, "decoder_sparse_step": 2, "tie_word_embeddings": True,
         "attention_bias": True},
        TENSOR, "float32",
    ),
    "qwen3_moe one dense, windows": (
        "Qwen3MoeConfig",
        {**_MOE, "num_hidden_layers": 3, "mlp_only_layers": [1], "use_sliding_window": True,
         "sliding_window": 4},
        FSDP, "bfloat16",
    ),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4}, TENSOR, "float32"),
    "mixtral tied, windows": (
        "MixtralConfig",
        {"num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 3, "head_dim": 10,
         "tie_word_embeddings": True},
        FSDP, "float32",
    ),
    "gemma3": ("Gemma3TextConfig", {**_GEMMA, "rope_scaling": LINEAR}, TENSOR, "float32"),
    "gemma3 biases, capped logits, untied": (
        "Gemma3TextConfig",
        {**_GEMMA, "num_key_value_heads": 1, "attention_bias": True, "final_logit_softcapping": 2.0,
         "tie_word_embeddings": False},
        FSDP, "float32",
    ),
    "deepseek_v3": ("DeepseekV3Config", _DEEP, TENSOR, "float32"),
    "deepseek_v3 plain queries, biases, halves, one group": (
        "DeepseekV3Config",
        {**_DEEP, "q_lora_rank": None, "attention_bias": True, "rope_interleave": False,
         "n_group": 1, "topk_group": 1, "norm_topk_prob": False, "rope_scaling": None,
         "first_k_dense_replace": 0},
        FSDP, "float32",
    ),
    "deepseek_v3 tied, bfloat16": (
        "DeepseekV3Config", {**_DEEP, "tie_word_embeddings": True}, FSDP, "bfloat16"),
}  # fmt: skip


def make_tensors(shapes: dict[str, tuple[list[int], str]]) -> dict[str, np.ndarray]:
    """Draw the weights of a folder, each by its name; norms are around one, others around zero."""
    import ml_dtypes

    dtypes = {"F32": np.float32, "BF16": ml_dtypes.bfloat16}
    tensors = {}
    for name, (shape, dtype) in shapes.items():
        random = np.random.default_rng(zlib.crc32(name.encode()))
        values = random.normal(size=shape) * (0.1 if len(shape) < 2 else shape[-1] ** -0.5)
        if "norm" in name:
            values += 1.0
        tensors[name] = values.astype(dtypes[dtype])
    return tensors


def make_inputs() -> tuple[np.ndarray, np.ndarray]:
    """Return prompts of different lengths, padded in front, and how much each is padded."""
    tokens = np.random.default_rng(0).integers(3, VOCAB, (ROWS, LENGTH)).astype(np.int32)
    padding = np.array(PADDING, np.int32)
    return np.where(np.arange(LENGTH) < padding[:, None], 0, tokens), padding


def run_ours(
    folder: pathlib.Path, place: tuple[str, str], back: pathlib.Path | None = None
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the logits of the prompts, what greedy decoding writes, and the number of weights."""
    import namedmesh as nm
    from examples.llm import weights
    from examples.llm.model import LanguageModel
    from examples.llm.settings import Settings
    from namedmesh.layers import Greedy

    architecture, prefix = weights.read_model(folder)
    settings = Settings(architecture, batch=ROWS, length=LENGTH, capacity_factor=0, layout="one")
    model = LanguageModel(settings)
    B, S, P, N, T = (
        model.B, model.S, *nm.dims(f"prompt={LENGTH - 1} hypothesis=1 step={STEPS}"),
    )  # fmt: skip

    def both(tokens: nm.Tensor, prompt: nm.Tensor, last: nm.Tensor, padding: nm.Tensor) -> Any:
        logits, _ = model.logits(tokens, padding)
        written = model.write_on(prompt, last, [B, N], T, Greedy(), padding=padding)
        return logits, nm.transpose(written["sequences"], [N, B, T])

    specs = {
        "tokens": nm.spec([B, S], "int32"), "prompt": nm.spec([B, P], "int32"),
        "last": nm.spec([B], "int32"), "padding": nm.spec([B], "int32"),
    }  # fmt: skip
    program = nm.trace(both, **specs)
    mesh, layout = nm.Mesh.parse(place[0]), nm.Layout(place[1]).only(program.dims)
    params = "model:data" if "data" in mesh.axes else None
    step = nm.compile(program, mesh=mesh, layout=layout, params=params)
    state = weights.load(folder, step, missing="error")
    tokens, padding = make_inputs()
    inputs = {"prompt": tokens[:, :-1], "last": tokens[:, -1], "padding": padding}
    _, (logits, written) = step(state, tokens=tokens, **inputs)
    if back is not None:
        config = json.loads((folder / "config.json").read_text())
        weights.save(back, state, config, (architecture, prefix))
    count = sum(one.shape.elements for one in program.parameters.values())
    return np.asarray(logits), np.asarray(written)[0], count


def run_theirs(folder: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the logits of the prompts, and what greedy decoding writes, of transformers."""
    torch, transformers = map(importlib.import_module, ("torch", "transformers"))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, experts_implementation="eager"
    ).eval()
    tokens, padding = make_inputs()
    ids = torch.tensor(tokens.astype(np.int64))
    mask = (torch.arange(LENGTH) >= torch.tensor(padding)[:, None]).long()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        logits = model(ids, attention_mask=mask, position_ids=positions).logits
        written = model.generate(
            ids, attention_mask=mask, max_new_tokens=STEPS, do_sample=False, eos_token_id=None
        )
    return logits.numpy(), written.numpy()[:, LENGTH:]


def write_folder(folder: pathlib.Path, config: dict[str, Any], shapes: dict[str, Any]) -> None:
    """Write a folder of random weights."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file(make_tensors(shapes), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))


def describe(variant: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the config.json of a variant, and the shapes and dtypes of its files' tensors."""
    from safetensors import safe_open

    torch, transformers = map(importlib.import_module, ("torch", "transformers"))

    kind, options, _, dtype = VARIANTS[variant]
    config = getattr(transformers, kind)(**SMALL, **options) if not {*SMALL} & {*options} else (
        getattr(transformers, kind)(**{**SMALL, **options}))  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        model = transformers.AutoModelForCausalLM.from_config(config)
        model.to(getattr(torch, dtype)).save_pretrained(folder)
        shapes = {}
        with safe_open(pathlib.Path(folder) / "model.safetensors", framework="numpy") as file:
            for name in sorted(file.keys()):
                entry = file.get_slice(name)
                wide = dtype == "float32" or "correction_bias" in name
                shapes[name] = (list(entry.get_shape()), "F32" if wide else "BF16")
        return json.loads((pathlib.Path(folder) / "config.json").read_text()), shapes


def valid(logits: np.ndarray) -> np.ndarray:
    """Return the logits of tokens that are not padding."""
    return logits[np.arange(LENGTH) >= np.array(PADDING)[:, None]]


def measure(variant: str) -> dict[str, Any]:
    """Compare a variant."""
    from safetensors.numpy import load_file

    config, shapes = describe(variant)
    with tempfile.TemporaryDirectory() as root:
        folder, back = pathlib.Path(root) / "in", pathlib.Path(root) / "out"
        write_folder(folder, config, shapes)
        theirs, their_tokens = run_theirs(folder)
        ours, our_tokens, count = run_ours(folder, VARIANTS[variant][2], back)
        one, other = (load_file(path / "model.safetensors") for path in (folder, back))
        same = {*one} == {*other} and all(
            one[name].dtype == other[name].dtype and one[name].tobytes() == other[name].tobytes()
            for name in one
        )
        again, _ = run_theirs(back)
    return {
        "family": config["model_type"],
        "variant": variant,
        "weights": count,
        "layout": ", ".join(VARIANTS[variant][2]),
        "dtype": VARIANTS[variant][3],
        "max_logit_difference": float(abs(valid(ours) - valid(theirs)).max()),
        "largest_logit": float(abs(valid(theirs)).max()),
        "round_trip": bool(same and np.array_equal(again, theirs)),
        "generated_equal": bool(np.array_equal(our_tokens, their_tokens)),
    }


def keep(path: pathlib.Path) -> None:
    """Write what transformers makes of the first variant of each family."""
    kept = {}
    for variant in (one for one in VARIANTS if " " not in one):
        config, shapes = describe(variant)
        with tempfile.TemporaryDirectory() as folder:
            write_folder(pathlib.Path(folder), config, shapes)
            logits, written = run_theirs(pathlib.Path(folder))
        numbers = np.round(valid(logits)[-1].astype(float), 6).tolist()
        kept[variant] = {
            "config": config, "shapes": shapes, "logits": numbers, "written": written.tolist(),
        }  # fmt: skip
    path.write_text(json.dumps(kept, separators=(",", ":")) + "\n")


def main() -> None:
    """Measure every variant in turn, and write each row as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variants", nargs="*", default=[])
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path)
    options = parser.parse_args()
    if options.keep:
        return keep(options.keep)
    from namedmesh.runtime import use_cpu_devices

    use_cpu_devices(2)
    rows = []
    for variant in VARIANTS:
        if options.variants and variant not in options.variants:
            continue
        rows.append(measure(variant))
        print(json.dumps(rows[-1]), flush=True)
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
