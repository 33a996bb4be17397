"""Small configurations of every family, as parsed config.json files."""

from typing import Any

_BASE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 6,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_OLD = {key: value for key, value in _BASE.items() if key != "num_key_value_heads"}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_BASE},
    "mistral": {"model_type": "mistral", "sliding_window": 64, **_BASE},
    "qwen2": {"model_type": "qwen2", **_BASE},
    "qwen3": {"model_type": "qwen3", "head_dim": 64, **_BASE},
    "gemma3_text": {
        "model_type": "gemma3_text",
        "head_dim": 64,
        "sliding_window": 128,
        **_BASE,
        "tie_word_embeddings": True,
    },
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 256,
        "n_head": 4,
        "n_layer": 6,
        "vocab_size": 1024,
        "n_positions": 512,
        "resid_pdrop": 0,
        "embd_pdrop": 0,
        "attn_pdrop": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "gpt_neox": {"model_type": "gpt_neox", **_OLD},
    "phi": {"model_type": "phi", **_OLD},
}
SMOLLM2: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 9,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
UNFUSED: dict[str, dict[str, Any]] = {
    "gemma2": {
        "model_type": "gemma2",
        "head_dim": 64,
        "sliding_window": 128,
        **_BASE,
        "tie_word_embeddings": True,
    },
    "mixtral": {
        "model_type": "mixtral",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": None,
        **_BASE,
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "head_dim": 64,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        **_BASE,
    },
    "gpt_oss": {
        "model_type": "gpt_oss",
        "head_dim": 64,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 64,
        **_BASE,
    },
}
"""Families whose attention or experts need more than a fused kernel and dense projections."""
