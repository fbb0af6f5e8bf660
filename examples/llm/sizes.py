"""The published models by name, as their config.json describes them."""

from __future__ import annotations

from typing import Any

from examples.llm.architecture import Architecture
from examples.llm.huggingface import from_config


def _config(base: dict[str, Any], sizes: str, **others: Any) -> dict[str, Any]:
    """Return a config.json of layers, hidden_size, intermediate_size, query and key heads."""
    names = ("num_hidden_layers", "hidden_size", "intermediate_size")
    names += ("num_attention_heads", "num_key_value_heads")
    return {**base, **dict(zip(names, map(int, sizes.split()), strict=True)), **others}


def _stretched(factor: float) -> dict[str, Any]:
    """Return Llama's scaling of rotations."""
    return {
        "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip


_LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128_256,
    "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "max_position_embeddings": 8192,
    "bos_token_id": 128_000, "eos_token_id": 128_001, "tie_word_embeddings": False,
}  # fmt: skip
_LLAMA31 = _LLAMA | {"max_position_embeddings": 131_072, "rope_scaling": _stretched(8.0)}
_LLAMA32 = _LLAMA31 | {"rope_scaling": _stretched(32.0), "tie_word_embeddings": True}
_QWEN = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 151_936,
    "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 40_960,
    "bos_token_id": 151_643, "eos_token_id": 151_645, "tie_word_embeddings": False,
}  # fmt: skip
_TIED = {"tie_word_embeddings": True}
_QWEN_MOE = _QWEN | {
    "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 128,
    "num_experts_per_tok": 8, "norm_topk_prob": True, "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}  # fmt: skip
_MIXTRAL = {
    "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 8,
    "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
    "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
_GEMMA = {
    "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "vocab_size": 262_144,
    "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window_pattern": 6,
    "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    "rope_local_base_freq": 10_000.0, "max_position_embeddings": 32_768,
    "bos_token_id": 2, "eos_token_id": 1, "tie_word_embeddings": True,
}  # fmt: skip
_GEMMA_LONG = _GEMMA | {
    "vocab_size": 262_208, "sliding_window": 1024, "max_position_embeddings": 131_072,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}  # fmt: skip
_DEEPSEEK = {
    "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"],
    "vocab_size": 129_280, "moe_intermediate_size": 2048, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8,
    "topk_group": 4, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 3, "num_nextn_predict_layers": 1, "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0, "max_position_embeddings": 163_840,
    "rope_scaling": {
        "rope_type": "yarn", "factor": 40.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
        "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
    },
    "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": False,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama-3-8b": _config(_LLAMA, "32 4096 14336 32 8"),
    "llama-3-70b": _config(_LLAMA, "80 8192 28672 64 8"),
    "llama-3.1-8b": _config(_LLAMA31, "32 4096 14336 32 8"),
    "llama-3.1-70b": _config(_LLAMA31, "80 8192 28672 64 8"),
    "llama-3.1-405b": _config(_LLAMA31, "126 16384 53248 128 8"),
    "llama-3.2-1b": _config(_LLAMA32, "16 2048 8192 32 8", head_dim=64),
    "llama-3.2-3b": _config(_LLAMA32, "28 3072 8192 24 8", head_dim=128),
    "llama-3.3-70b": _config(_LLAMA31, "80 8192 28672 64 8"),
    "qwen3-0.6b": _config(_QWEN, "28 1024 3072 16 8", **_TIED),
    "qwen3-1.7b": _config(_QWEN, "28 2048 6144 16 8", **_TIED),
    "qwen3-4b": _config(_QWEN, "36 2560 9728 32 8", **_TIED),
    "qwen3-8b": _config(_QWEN, "36 4096 12288 32 8"),
    "qwen3-14b": _config(_QWEN, "40 5120 17408 40 8"),
    "qwen3-32b": _config(_QWEN, "64 5120 25600 64 8"),
    "qwen3-30b-a3b": _config(_QWEN_MOE, "48 2048 6144 32 4", moe_intermediate_size=768),
    "qwen3-235b-a22b": _config(_QWEN_MOE, "94 4096 12288 64 4", moe_intermediate_size=1536),
    "mixtral-8x7b": _config(_MIXTRAL, "32 4096 14336 32 8", vocab_size=32_000),
    "mixtral-8x22b": _config(_MIXTRAL, "56 6144 16384 48 8", vocab_size=32_768),
    "gemma-3-270m": _config(_GEMMA, "18 640 2048 4 1", sliding_window=512),
    "gemma-3-1b": _config(_GEMMA, "26 1152 6912 4 1", sliding_window=512),
    "gemma-3-4b": _config(_GEMMA_LONG, "34 2560 10240 8 4"),
    "gemma-3-12b": _config(_GEMMA_LONG, "48 3840 15360 16 8"),
    "gemma-3-27b": _config(
        _GEMMA_LONG, "62 5376 21504 32 16", head_dim=128, query_pre_attn_scalar=168
    ),
    "deepseek-v3": _config(_DEEPSEEK, "61 7168 18432 128 128"),
}


def published(name: str) -> Architecture:
    """Return the architecture of a published model."""
    return from_config(CONFIGS[name])
