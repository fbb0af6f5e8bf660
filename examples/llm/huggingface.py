"""Models of Hugging Face's format: a config.json, and the names that families give to weights."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import namedmesh as nm
from examples.llm.architecture import Architecture, Experts, Latent, Rotary

Rules = dict[str, nm.WeightRule]
ACTIVATIONS = {
    "silu": "swish", "swish": "swish", "gelu": "gelu", "relu": "relu",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh",
}  # fmt: skip
# The names of a mixture's experts, by family: what gates, what is gated, and back.
MIXTURES = {
    "mixtral": ("block_sparse_moe", ("w1", "w3", "w2")),
    "qwen3_moe": ("mlp", ("gate_proj", "up_proj", "down_proj")),
    "deepseek_v3": ("mlp", ("gate_proj", "up_proj", "down_proj")),
}
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text", *MIXTURES)
WIDE = "float32"  # the dtype of what is not rounded with the other weights


def read_config(folder: pathlib.Path) -> Architecture:
    """Read the architecture of a model's folder."""
    config = json.loads((folder / "config.json").read_text())
    return from_config(config.get("text_config", config))


def from_config(config: dict[str, Any]) -> Architecture:
    """Return the architecture that a config.json describes."""
    family, get = config["model_type"], config.get
    if family not in FAMILIES:
        raise nm.NamedMeshError(
            f"a model of the family {family!r}", fix=f"choose one of {', '.join(FAMILIES)}"
        )
    for option in ("use_bidirectional_attention", "attention_sink"):
        if get(option):
            raise nm.NamedMeshError(f"config.json: {option} is not supported", fix="unset it")
    activation = get("hidden_activation") or get("hidden_act") or "silu"
    if activation not in ACTIVATIONS:
        raise nm.NamedMeshError(
            f"config.json: the activation {activation!r}", fix=f"one of {', '.join(ACTIVATIONS)}"
        )
    queries, layers, model = (
        config[f"num_{name}"] if name != "hidden_size" else config[name]
        for name in ("attention_heads", "hidden_layers", "hidden_size")
    )
    heads, gemma = get("num_key_value_heads") or queries, family == "gemma3_text"
    bias = bool(get("attention_bias")) or family == "qwen2"
    window, local = _windows(config, family, layers)
    whole, near = _rotations(config, family)
    deep = family == "deepseek_v3"
    if deep:
        heads = queries
    return Architecture(
        family=family,
        vocab=config["vocab_size"],
        layers=layers,
        model=model,
        hidden=config["intermediate_size"],
        heads=heads,
        group=queries // heads,
        key=config["qk_nope_head_dim"] if deep else get("head_dim") or model // queries,
        latent=_latent(config) if deep else None,
        experts=_experts(config, family, layers),
        tied=get("tie_word_embeddings", gemma),
        activation=ACTIVATIONS[activation],
        epsilon=get("rms_norm_eps", 1e-5 if family == "mixtral" else 1e-6),
        qkv_bias=bias,
        output_bias=bias and family != "qwen2",
        network_bias=bool(get("mlp_bias")),
        key_norms=family in ("qwen3", "qwen3_moe", "gemma3_text"),
        scaled=gemma,
        gemma=gemma,
        rotary=whole,
        local_rotary=near,
        interleaved=deep and get("rope_interleave", True),
        window=window,
        local=local,
        score_size=get("query_pre_attn_scalar", 256) if gemma else 0,
        logit_cap=(get("final_logit_softcapping") or 0) if gemma else 0,
    )


def _latent(config: dict[str, Any]) -> Latent:
    """Return the sizes of latent attention."""
    names = ("kv_lora_rank", "qk_rope_head_dim", "v_head_dim")
    return Latent(config.get("q_lora_rank") or 0, *(config[name] for name in names))


def _experts(config: dict[str, Any], family: str, layers: int) -> Experts | None:
    """Return the mixture of experts, or None."""
    get = config.get
    if family == "mixtral":
        count = get("num_local_experts", get("num_experts", 8))
        return Experts(count, get("num_experts_per_tok", 2), config["intermediate_size"])
    if family == "qwen3_moe":
        count, dense = get("num_experts", get("num_local_experts", 128)), get("mlp_only_layers")
        step = get("decoder_sparse_step", 1)
        mixed = [count > 0 and (i + 1) % step == 0 for i in range(layers)]
        mixed = tuple(one and i not in (dense or ()) for i, one in enumerate(mixed))
        if not any(mixed):
            return None
        return Experts(
            count, get("num_experts_per_tok", 8), config["moe_intermediate_size"],
            layers=mixed, normalize=bool(get("norm_topk_prob")),
        )  # fmt: skip
    if family == "deepseek_v3":
        hidden, count = config["moe_intermediate_size"], get("n_routed_experts", 256)
        first = get("first_k_dense_replace", 3)
        first = 3 if first is None else first
        mixed = tuple(i >= first for i in range(layers))
        if not any(mixed):
            return None
        return Experts(
            count, get("num_experts_per_tok") or 8, hidden,
            shared=hidden * get("n_shared_experts", 1), layers=mixed, score="sigmoid",
            normalize=bool(get("norm_topk_prob", True)),
            scale=get("routed_scaling_factor", 2.5),
            groups=(get("n_group") or 1, get("topk_group") or 1), balance="bias",
        )  # fmt: skip
    return None


def _windows(config: dict[str, Any], family: str, layers: int) -> tuple[int, tuple[bool, ...]]:
    """Return the size of windows, and whether each layer has one."""
    window, types = config.get("sliding_window") or 0, config.get("layer_types")
    if family in ("qwen2", "qwen3", "qwen3_moe") and not config.get("use_sliding_window"):
        window = 0
    if family in ("llama", "deepseek_v3") or not window:
        return 0, ()
    if types:
        return window, tuple(one == "sliding_attention" for one in types)
    if family == "gemma3_text":
        step = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or 6
        return window, tuple(bool((i + 1) % step) for i in range(layers))
    if family in ("qwen2", "qwen3"):
        first = config.get("max_window_layers", 28)
        return window, tuple(i >= first for i in range(layers))
    return window, (True,) * layers


def _rotations(config: dict[str, Any], family: str) -> tuple[Rotary, Rotary | None]:
    """Return the rotary positions, and those of layers with a window, in either way to say them."""
    longest = config.get("max_position_embeddings")

    def make(numbers: dict[str, Any] | None, base: float) -> Rotary:
        numbers = dict(numbers or {})
        base = numbers.pop("rope_theta", None) or base
        kind = numbers.get("rope_type") or numbers.get("type") or "default"
        if kind == "default":
            return Rotary(float(base))
        if numbers.get("partial_rotary_factor", 1.0) != 1.0:
            raise nm.NamedMeshError(
                "config.json: rotations of a part of a key are not supported", str(numbers),
                fix="convert the model to rotations of whole keys",
            )  # fmt: skip
        outside = config.get("original_max_position_embeddings")
        original = outside or numbers.get("original_max_position_embeddings") or longest
        scaling = {**numbers, "rope_type": kind, "original_max_position_embeddings": original}
        return Rotary(float(base), {**scaling, "max_position_embeddings": longest})

    numbers = config.get("rope_parameters") or {}
    if family == "gemma3_text":
        whole = numbers.get("full_attention") or config.get("rope_scaling")
        near = numbers.get("sliding_attention")
        bases = config.get("rope_theta") or 1e6, config.get("rope_local_base_freq") or 1e4
        return make(whole, bases[0]), make(near, bases[1])
    base = config.get("rope_theta") or (1e6 if family == "mixtral" else 1e4)
    return make(config.get("rope_scaling") or numbers, base), None


def weight_rules(a: Architecture, prefix: str = "model.") -> Rules:
    """Return where each parameter of a model is in the files of its family."""
    rules = {
        "embedding": nm.WeightRule(f"{prefix}embed_tokens.weight", "vocab model"),
        "final_scale": nm.WeightRule(f"{prefix}norm.weight", "model"),
    }
    if not a.tied:
        head = prefix.removesuffix("model.") + "lm_head.weight"
        rules["output"] = nm.WeightRule(head, "vocab model")
    for start, _, mixed in a.runs:
        scope = f"layers{start}/" if len(a.runs) > 1 else ""
        layer = f"{{layer+{start}}}"
        for name, (place, axes, *dtype) in _layer_rules(a, mixed).items():
            rules[scope + name] = nm.WeightRule(f"{prefix}layers.{layer}.{place}", axes, *dtype)
    for i in range(a.predictions):
        layer, M = f"{{layer+{a.layers + i}}}", a.model
        own = {
            "token_scale": ("enorm.weight", "model"),
            "hidden_scale": ("hnorm.weight", "model"),
            "w_token": ("eh_proj.weight", f"model model_before+{M}"),
            "w_hidden": ("eh_proj.weight", f"model {M}+model_before"),
        }
        for name, (place, axes, *dtype) in _layer_rules(a, a.runs[-1][2]).items():
            rules[f"further{i}/{name}"] = nm.WeightRule(
                f"{prefix}layers.{layer}.{place}", axes, *dtype
            )
        place = f"{prefix}layers.{a.layers + i}."
        for name, (end, axes) in own.items():
            rules[f"further{i}/{name}"] = nm.WeightRule(place + end, axes)
        rules[f"further{i}/final_scale"] = nm.WeightRule(place + "shared_head.norm.weight", "model")
    return rules


def _layer_rules(a: Architecture, mixed: bool) -> dict[str, tuple[str, ...]]:
    """Return the name and the axes of each parameter of a layer."""
    rules: dict[str, tuple[str, ...]] = {}

    def add(name: str, place: str, axes: str, bias: bool = False) -> None:
        rules[name] = (f"{place}.weight", axes)
        if bias:
            first = axes[: axes.index(")") + 1] if axes.startswith("(") else axes.split()[0]
            rules[f"{name}_bias"] = (f"{place}.bias", first)

    add("attention/norm_scale", "input_layernorm", "model")
    after = "post_attention_layernorm"
    add("network/norm_scale", "pre_feedforward_layernorm" if a.gemma else after, "model")
    if a.gemma:
        add("attention/after_scale", after, "model")
        add("network/after_scale", "post_feedforward_layernorm", "model")
    own = "self_attn"
    if a.latent is None:
        add("attention/wq", f"{own}.q_proj", "(heads group key) model", a.qkv_bias)
        add("attention/wk", f"{own}.k_proj", "(heads key) model", a.qkv_bias)
        add("attention/wv", f"{own}.v_proj", "(heads key) model", a.qkv_bias)
        add("attention/wo", f"{own}.o_proj", "model (heads group key)", a.output_bias)
        if a.key_norms:
            add("attention/query_scale", f"{own}.q_norm", "key")
            add("attention/key_scale", f"{own}.k_norm", "key")
    else:
        K, R, W, C = a.key, a.latent.rotated, a.latent.value, a.latent.keys
        over, q = ("query_latent", "q_b_proj") if a.latent.queries else ("model", "q_proj")
        if a.latent.queries:
            add("attention/wq_latent", f"{own}.q_a_proj", "query_latent model", a.qkv_bias)
            add("attention/query_latent_scale", f"{own}.q_a_layernorm", "query_latent")
        add("attention/wq", f"{own}.{q}", f"(heads key+{R}) {over}")
        add("attention/wq_rotated", f"{own}.{q}", f"(heads {K}+rotated) {over}")
        down = f"{own}.kv_a_proj_with_mqa"
        add("attention/wk_latent", down, f"latent+{R} model", a.qkv_bias)
        add("attention/wk_rotated", down, f"{C}+rotated model", a.qkv_bias)
        add("attention/latent_scale", f"{own}.kv_a_layernorm", "latent")
        add("attention/wk", f"{own}.kv_b_proj", f"(heads key+{W}) latent")
        add("attention/wv", f"{own}.kv_b_proj", f"(heads {K}+value) latent")
        add("attention/wo", f"{own}.o_proj", "model (heads value)", a.output_bias)
    names, H = ("gate_proj", "up_proj", "down_proj"), "hidden"
    if not mixed:
        for name, place in zip(("wi", "wi_gate", "wo"), names, strict=True):
            axes = f"model {H}" if name == "wo" else f"{H} model"
            add(f"network/{name}", f"mlp.{place}", axes, a.network_bias)
        return rules
    assert a.experts is not None
    block, inside = MIXTURES[a.family]
    add("network/wg", f"{block}.gate", "expert model")
    for name, place, shared in zip(("wi", "wi_gate", "wo"), inside, names, strict=True):
        axes = "model {}" if name == "wo" else "{} model"
        add(f"network/{name}", block + ".experts.{expert}." + place, axes.format("expert_hidden"))
        if a.experts.shared:
            at = f"{block}.shared_experts.{shared}"
            add(f"network/shared/{name}", at, axes.format("shared_hidden"))
    if a.experts.balance == "bias":
        rules["network/bias"] = (f"{block}.gate.e_score_correction_bias", "expert", WIDE)
    return rules
