"""Sizes of known models, so that an inventory can be planned for without asking any hub.

Only what prices need of each config.json: shapes, never weights.
"""

from typing import Any


def _qwen3(hidden: int, ffn: int, layers: int, heads: int, *, tied: bool = False) -> dict[str, Any]:
    return {
        "model_type": "qwen3", "hidden_size": hidden, "intermediate_size": ffn,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": tied,
        "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
    }  # fmt: skip


def _qwen2(hidden: int, ffn: int, layers: int, heads: int, vocab: int = 152064) -> dict[str, Any]:
    return {
        "model_type": "qwen2", "hidden_size": hidden, "intermediate_size": ffn,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": 8,
        "vocab_size": vocab, "tie_word_embeddings": False, "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
    }  # fmt: skip


def _llama(hidden: int, ffn: int, layers: int, heads: int, *, tied: bool = False) -> dict[str, Any]:
    return {
        "model_type": "llama", "hidden_size": hidden, "intermediate_size": ffn,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": 8,
        "vocab_size": 128256, "tie_word_embeddings": tied, "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
    }  # fmt: skip


_SMOLLM2_135M = {
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
    "tie_word_embeddings": True, "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
}  # fmt: skip

CONFIGS: dict[str, dict[str, Any]] = {
    "HuggingFaceTB/SmolLM2-135M": _SMOLLM2_135M,
    "Qwen/Qwen3-0.6B": _qwen3(1024, 3072, 28, 16, tied=True),
    "Qwen/Qwen3-1.7B": _qwen3(2048, 6144, 28, 16, tied=True),
    "Qwen/Qwen3-4B": _qwen3(2560, 9728, 36, 32, tied=True),
    "Qwen/Qwen3-8B": _qwen3(4096, 12288, 36, 32),
    "Qwen/Qwen3-14B": _qwen3(5120, 17408, 40, 40),
    "Qwen/Qwen3-32B": _qwen3(5120, 25600, 64, 64),
    "Qwen/Qwen2.5-14B": _qwen2(5120, 13824, 48, 40),
    "nvidia/OpenReasoning-Nemotron-14B": _qwen2(5120, 13824, 48, 40),
    "meta-llama/Llama-3.2-1B": _llama(2048, 8192, 16, 32, tied=True),
    "meta-llama/Llama-3.1-8B": _llama(4096, 14336, 32, 32),
    "meta-llama/Llama-3.1-70B": _llama(8192, 28672, 80, 64),
}
BY_NAME = {name.casefold(): name for name in CONFIGS}
