"""Writes tiny random checkpoints of each family: real sharded safetensors with an index.

A byte-level tokenizer.json lies beside them (260 entries: 256 bytes, <pad>, <bos>, <eos>, <sep>).
"""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB = 260
PAD, BOS, EOS, SEP = 256, 257, 258, 259
SPECIAL = ("<pad>", "<bos>", "<eos>", "<sep>")
POSITIONS = 64

_LLAMA = {
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": POSITIONS,
    "tie_word_embeddings": False,
}
# model name -> (model_type, configuration). Each has one trait that a cut can get wrong.
TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {**_LLAMA, "tie_word_embeddings": True}),
    "llama-untied-72": ("llama", {**_LLAMA, "hidden_size": 72, "num_hidden_layers": 5}),
    "mistral": ("mistral", {**_LLAMA, "sliding_window": 8}),
    "qwen2": (
        "qwen2",
        {**_LLAMA, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3},
    ),
    "qwen3": ("qwen3", {**_LLAMA, "head_dim": 16, "tie_word_embeddings": True}),
    "gemma3": (
        "gemma3_text",
        {
            **_LLAMA,
            "head_dim": 16,
            "sliding_window": 8,
            "sliding_window_pattern": 3,
            "final_logit_softcapping": 20.0,
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": 16,
        },
    ),
    "gpt2": (
        "gpt2",
        {
            "n_embd": 64,
            "n_layer": 6,
            "n_head": 4,
            "n_positions": POSITIONS,
            "scale_attn_by_inverse_layer_idx": True,
        },
    ),
    "gemma2": (
        "gemma2",
        {
            **_LLAMA,
            "head_dim": 16,
            "sliding_window": 8,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 20.0,
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": 16,
        },
    ),
    "mixtral": (
        "mixtral",
        {**_LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    ),
    "qwen3_moe": (
        "qwen3_moe",
        {
            **_LLAMA,
            "head_dim": 16,
            "moe_intermediate_size": 32,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
        },
    ),
    "gpt_oss": (
        "gpt_oss",
        {
            **_LLAMA,
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 8,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 2.0,
                "original_max_position_embeddings": POSITIONS // 2,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
            },
        },
    ),
    "gpt_neox": ("gpt_neox", {**_LLAMA}),
    "phi": ("phi", {**_LLAMA, "num_key_value_heads": 4}),
}


# The same with rows of whole blocks of 64 weights: no others does bitsandbytes' own kernel undo
# rightly on a processor, and it is what packed weights are compared with.
_BLOCKS = {"intermediate_size": 128, "moe_intermediate_size": 64}
BLOCKS: dict[str, tuple[str, dict[str, Any]]] = {
    f"{name}-64": (kind, {key: _BLOCKS.get(key, value) for key, value in values.items()})
    for name, (kind, values) in TINY.items()
    if values.get("hidden_size", 64) == 64
}


def config_of(name: str) -> tuple[str, dict[str, Any]]:
    """(model_type, configuration) of a tiny model of either kind."""
    return (TINY | BLOCKS)[name]


def write_tiny_model(folder: Path, name: str, *, seed: int = 0, shard_kb: int = 120) -> Path:
    """Write the named tiny model into `folder`, as files of about shard_kb kilobytes."""
    model_type, values = config_of(name)
    config = AutoConfig.for_model(
        model_type,
        vocab_size=VOCAB,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        **values,
    )
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    _make_lively(model)
    model.save_pretrained(folder, max_shard_size=f"{shard_kb}KB")
    write_byte_tokenizer(folder)
    return folder


def _make_lively(model: torch.nn.Module) -> None:
    """Random weights of a fresh model hardly differ: widen them, so that a wrong cut shows."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.mul_(2.5)
            elif "norm" in name or "ln_" in name:
                weight.add_(torch.randn_like(weight) * 0.1)
            else:
                weight.add_(torch.randn_like(weight) * 0.05)


def write_byte_tokenizer(folder: Path) -> None:
    """A tokenizer whose tokens are bytes, with a chat template of one line."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: index for index, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "chat_template": "{% for m in messages %}{{ m['role'] }}<sep>{{ m['content'] }}<eos>"
        "{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
