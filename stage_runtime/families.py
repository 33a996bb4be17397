"""The model families that are known here: their module names, and how their blocks are built.

A table and nothing else. Torch-free: the planner reads it too. Names are those of transformers'
classes; a family that is not here is refused by name (stage_runtime.model_facts). Each one here is
held equal to one process (tests/oracle/equality_table.py); docs/families.md is its table in words.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Family:
    """How one `model_type` names and builds its parts."""

    layers: str
    """Path of the list of blocks in the causal model class."""
    embeddings: tuple[str, ...]
    """Paths of what only the first stage runs."""
    final_norm: str
    head: str
    attention: tuple[str, ...]
    """Adapter targets in the attention, as peft matches them (by the end of the name)."""
    mlp: tuple[str, ...]
    rms_norm: bool = True
    """RMSNorm computes in float32 and has no bias; else LayerNorm with bias."""
    norms: int = 2
    """Norms on the residual stream in each block."""
    gated: bool = True
    """gate * up; else one projection up and an activation."""
    activation: str = "silu"
    """When config.json does not name one."""
    bias: bool = False
    """Every linear of a block has a bias."""
    qkv_bias: bool = False
    qk_norm: bool = False
    fused_qkv: bool = False
    parallel: bool = False
    """Attention and feed-forward read the block's input side by side."""
    joined_rotary: bool = False
    """Queries and keys are put together from a turned and a plain part, into new tensors."""
    wide_norm: bool = False
    """The norm multiplies its weight in float32."""
    tied_by_default: bool = False
    head_bias: bool = False
    dropout_keys: tuple[str, ...] = ()
    """Configuration keys of dropouts that training here sets to 0."""
    experts: bool = False
    """The feed-forward is a mixture: a router, and experts fused into two weights."""
    clamped_experts: bool = False
    """The experts have biases, and bound gate and up before they multiply (gpt-oss)."""
    wide_mixing: bool = False
    """Experts' outputs are weighed and added up in float32, whatever the layers' format."""
    scores: Literal["", "softcap", "sinks"] = ""
    """Why no fused kernel computes the attention: whole scores exist then. "" = one does."""
    splits_documents: bool = True
    """Its class makes masks from positions: documents in one sequence can be kept apart."""


_QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")
_GATED = ("gate_proj", "up_proj", "down_proj")


def _llama(**changes: object) -> Family:
    values: dict[str, object] = {
        "layers": "model.layers",
        "embeddings": ("model.embed_tokens",),
        "final_norm": "model.norm",
        "head": "lm_head",
        "attention": _QKVO,
        "mlp": _GATED,
        "dropout_keys": ("attention_dropout",),
    }
    return Family(**(values | changes))  # type: ignore[arg-type]


FAMILIES: dict[str, Family] = {
    "llama": _llama(),
    "mistral": _llama(),
    "qwen2": _llama(qkv_bias=True),
    "qwen3": _llama(qk_norm=True),
    "gemma3_text": _llama(
        norms=4, qk_norm=True, wide_norm=True, tied_by_default=True, activation="gelu_pytorch_tanh"
    ),
    "gemma2": _llama(
        norms=4,
        wide_norm=True,
        tied_by_default=True,
        activation="gelu_pytorch_tanh",
        scores="softcap",
    ),
    "mixtral": _llama(
        mlp=(),
        experts=True,
        wide_mixing=True,
        dropout_keys=("attention_dropout", "router_jitter_noise"),
    ),
    "qwen3_moe": _llama(mlp=(), qk_norm=True, experts=True),
    "gpt_oss": _llama(
        mlp=(),
        bias=True,
        wide_norm=True,
        experts=True,
        clamped_experts=True,
        scores="sinks",
        splits_documents=False,
    ),
    "gpt2": Family(
        layers="transformer.h",
        embeddings=("transformer.wte", "transformer.wpe"),
        final_norm="transformer.ln_f",
        head="lm_head",
        attention=("c_attn", "attn.c_proj"),
        mlp=("c_fc", "mlp.c_proj"),
        rms_norm=False,
        gated=False,
        activation="gelu_new",
        bias=True,
        fused_qkv=True,
        tied_by_default=True,
        dropout_keys=("attn_pdrop", "embd_pdrop", "resid_pdrop"),
    ),
    "gpt_neox": Family(
        layers="gpt_neox.layers",
        embeddings=("gpt_neox.embed_in",),
        final_norm="gpt_neox.final_layer_norm",
        head="lm_head",
        attention=("query_key_value", "attention.dense"),
        mlp=("dense_h_to_4h", "dense_4h_to_h"),
        rms_norm=False,
        gated=False,
        activation="gelu",
        bias=True,
        fused_qkv=True,
        parallel=True,
        joined_rotary=True,
        dropout_keys=("attention_dropout", "hidden_dropout"),
    ),
    "phi": Family(
        layers="model.layers",
        embeddings=("model.embed_tokens",),
        final_norm="model.final_layernorm",
        head="lm_head",
        attention=("q_proj", "k_proj", "v_proj", "self_attn.dense"),
        mlp=("fc1", "fc2"),
        rms_norm=False,
        norms=1,
        gated=False,
        activation="gelu_new",
        bias=True,
        parallel=True,
        joined_rotary=True,
        head_bias=True,
        dropout_keys=("attention_dropout", "embd_pdrop", "resid_pdrop"),
    ),
}
