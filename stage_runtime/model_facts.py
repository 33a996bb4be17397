"""What a model's configuration says of its size and shape, before any weight is read.

Pure: a parsed config.json (and, for the files, the names and sizes in safetensors headers) in,
facts out. No torch, no files, no network. The planner prices with these facts and the loader
builds a stage with them, so both speak of the same layers, modules and parameters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stage_runtime.families import FAMILIES, Family
from transport.errors import SwarmError

MAX_LAYERS = 1024
MAX_WIDTH = 1 << 20
MAX_VOCAB = 1 << 24


@dataclass(frozen=True)
class Linear:
    """One projection of a block: `outputs` x `inputs` weights, adaptable under `name`."""

    name: str
    """As peft matches it: the end of the module's path."""
    inputs: int
    outputs: int
    bias: bool

    @property
    def params(self) -> int:
        """Weights and bias."""
        return self.inputs * self.outputs + (self.outputs if self.bias else 0)


@dataclass(frozen=True)
class ExpertFacts:
    """The mixture in a block's feed-forward."""

    count: int
    per_token: int
    """Experts that each token runs."""
    width: int
    """Feed-forward width of one expert."""
    bias: bool

    def weight_params(self, hidden: int) -> int:
        """Of all experts of a block, without biases: gate, up and down, fused into two tensors."""
        return 3 * self.count * self.width * hidden

    def params(self, hidden: int) -> int:
        """Of a block: experts, their biases, and the router."""
        biases = self.count * (2 * self.width + hidden) + self.count if self.bias else 0
        return self.weight_params(hidden) + biases + self.count * hidden


@dataclass(frozen=True)
class ModelFacts:
    """One causal language model: sizes, layers, and the names of its modules."""

    model_type: str
    family: Family
    num_layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_size: int
    vocab: int
    max_positions: int | None
    """Longest sequence that the positions allow; None when the configuration does not say."""
    learned_positions: bool
    """Positions are an embedding table (GPT-2): max_positions cannot be passed."""
    activation: str
    """Of the feed-forward, as config.json names it."""
    parallel: bool
    """Attention and feed-forward read the block's input side by side."""
    tied: bool
    """The head is the input embedding."""
    layer_types: tuple[str, ...]
    """One a layer: full_attention or sliding_attention."""
    window: int | None
    """Tokens that a sliding layer sees."""
    linears: tuple[Linear, ...]
    """Of each block, in the order in which it runs them."""
    layer_params: tuple[int, ...]
    """Parameters of each layer, norms and biases included."""
    embedding_params: int
    """Of what only the first stage runs (token and position tables)."""
    final_norm_params: int
    head_params: int
    """Of the output head, counted also when it is tied."""
    stored_dtype: str | None
    """Number format that the configuration names for the files."""
    experts: ExpertFacts | None = None
    """Of every block; None when the feed-forward is dense."""

    @property
    def query_width(self) -> int:
        """Heads x head size."""
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        """Key-value heads x head size."""
        return self.kv_heads * self.head_size

    @property
    def total_params(self) -> int:
        """Of the whole model; a tied head counts once."""
        head = self.head_params - (self.vocab * self.hidden if self.tied else 0)
        return sum(self.layer_params) + self.embedding_params + self.final_norm_params + head

    @property
    def attention_targets(self) -> tuple[str, ...]:
        """Module names that attention adapters go on."""
        return self.family.attention

    @property
    def mlp_targets(self) -> tuple[str, ...]:
        """Module names that feed-forward adapters go on."""
        return self.family.mlp

    def linear(self, target: str) -> list[Linear]:
        """The projections of a block that an adapter target names; empty when it names none.

        A target is matched as peft does: the whole name, or the end of the path after a dot.
        """
        return [one for one in self.linears if _matches(one.name, target)]


def _matches(name: str, target: str) -> bool:
    return name == target or name.endswith("." + target) or target.endswith("." + name)


def facts_from_config(config: Mapping[str, Any]) -> ModelFacts:
    """Read a parsed config.json.

    Raises:
        SwarmError: invalid-input; the family is not offered, the repository brings its own code,
            or a size is missing or absurd. Names the families that work.
    """
    config = _text_part(config)
    model_type, family = _family(config)
    hidden = _size(config, ("hidden_size", "n_embd"), MAX_WIDTH)
    heads = _size(config, ("num_attention_heads", "n_head"), 4096)
    kv_heads = _size(config, ("num_key_value_heads",), 4096, default=heads)
    head_size = _size(config, ("head_dim",), 8192, default=_default_head(model_type, hidden, heads))
    ffn = _size(config, ("intermediate_size", "n_inner"), MAX_WIDTH, default=4 * hidden)
    experts = _experts(config, family, ffn) if family.experts else None
    layers = _size(config, ("num_hidden_layers", "n_layer"), MAX_LAYERS)
    vocab = _size(config, ("vocab_size",), MAX_VOCAB)
    positions = _optional_size(config, ("max_position_embeddings", "n_positions"))
    _refuse_odd_heads(heads, kv_heads)
    widths = _Widths(hidden, ffn, heads * head_size, kv_heads * head_size, head_size)
    linears = tuple(_linears(family, widths, config))
    window, layer_types = _attention_layout(config, model_type, layers)
    norm = hidden * (1 if family.rms_norm else 2)
    layer = sum(one.params for one in linears) + family.norms * norm
    layer += 2 * head_size if family.qk_norm else 0
    layer += experts.params(hidden) if experts else 0
    layer += heads if family.scores == "sinks" else 0
    learned = model_type == "gpt2"
    return ModelFacts(
        model_type=model_type,
        family=family,
        num_layers=layers,
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        vocab=vocab,
        max_positions=positions,
        learned_positions=learned,
        activation=_activation(config, family),
        parallel=family.parallel and bool(config.get("use_parallel_residual", True)),
        tied=bool(config.get("tie_word_embeddings", family.tied_by_default)),
        layer_types=layer_types,
        window=window,
        linears=linears,
        layer_params=(layer,) * layers,
        embedding_params=vocab * hidden + (hidden * (positions or 0) if learned else 0),
        final_norm_params=norm,
        head_params=vocab * hidden + (vocab if family.head_bias else 0),
        stored_dtype=_stored_dtype(config),
        experts=experts,
    )


@dataclass(frozen=True)
class _Widths:
    hidden: int
    ffn: int
    query: int
    kv: int
    head: int


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text model's configuration of a Gemma 3 that also sees pictures."""
    text = config.get("text_config")
    if config.get("model_type") == "gemma3" and isinstance(text, Mapping):
        own = {key: config[key] for key in ("auto_map", "dtype", "torch_dtype") if key in config}
        return {**own, **text, "model_type": "gemma3_text"}
    return config


def _family(config: Mapping[str, Any]) -> tuple[str, Family]:
    works = ", ".join(sorted(FAMILIES))
    if config.get("auto_map"):
        raise SwarmError(
            "invalid-input",
            "this repository brings its own model code (auto_map), which is never run here",
            hint=f"take a model of one of these families: {works}",
        )
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise SwarmError(
            "invalid-input",
            f"models of the family {str(model_type)[:64]!r} cannot be trained here",
            hint=f"the families that work are {works}",
            facts={"families": sorted(FAMILIES)},
        )
    if config.get("quantization_config"):
        raise SwarmError(
            "invalid-input",
            "this repository's weights are stored quantized",
            hint="name the repository that holds the 16-bit or 32-bit weights",
        )
    return model_type, FAMILIES[model_type]


def _size(
    config: Mapping[str, Any], keys: tuple[str, ...], limit: int, default: int | None = None
) -> int:
    value = next((config[key] for key in keys if config.get(key) is not None), default)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit:
        raise SwarmError(
            "invalid-input",
            f"the model's config.json says {keys[0]} = {str(value)[:40]}, "
            f"which is not a whole number from 1 to {limit}",
            hint="check the model's config.json",
        )
    return value


def _optional_size(config: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    value = next((config[key] for key in keys if config.get(key) is not None), None)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _default_head(model_type: str, hidden: int, heads: int) -> int:
    """Head size when config.json has none: transformers' own defaults."""
    told = {"qwen3": 128, "gemma2": 256, "gemma3_text": 256, "gpt_oss": 64}
    return told.get(model_type, max(1, hidden // heads))


def _experts(config: Mapping[str, Any], family: Family, ffn: int) -> ExpertFacts:
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise SwarmError(
            "invalid-input",
            "only some layers of this model are mixtures of experts, which cannot be trained here",
            hint="take a model whose layers are alike",
        )
    if config.get("output_router_logits"):
        raise SwarmError(
            "invalid-input",
            "this model's config.json adds the routers' balance to the loss "
            "(output_router_logits), which is not trained here",
            hint="set output_router_logits to false in the model's config.json",
        )
    count = _size(config, ("num_local_experts", "num_experts"), 65536)
    return ExpertFacts(
        count=count,
        per_token=_size(config, ("num_experts_per_tok",), count),
        width=_size(config, ("moe_intermediate_size",), MAX_WIDTH, default=ffn),
        bias=family.clamped_experts,
    )


def _refuse_odd_heads(heads: int, kv_heads: int) -> None:
    if heads % kv_heads:
        raise SwarmError(
            "invalid-input",
            f"the model's config.json has {heads} heads over {kv_heads} key-value heads, "
            "which does not divide",
            hint="check the model's config.json",
        )


def _linears(family: Family, widths: _Widths, config: Mapping[str, Any]) -> list[Linear]:
    qkv_bias = family.qkv_bias or family.bias or bool(config.get("attention_bias"))
    out_bias = family.bias or bool(config.get("attention_bias"))
    if config.get("attention_bias") is False and (family.fused_qkv or family.experts):
        qkv_bias = out_bias = False
    mlp_bias = family.bias or bool(config.get("mlp_bias"))
    hidden, ffn, query, kv = widths.hidden, widths.ffn, widths.query, widths.kv
    names = family.attention
    if family.fused_qkv:
        attention = [
            Linear(names[0], hidden, query + 2 * kv, qkv_bias),
            Linear(names[1], query, hidden, out_bias),
        ]
    else:
        attention = [
            Linear(names[0], hidden, query, qkv_bias),
            Linear(names[1], hidden, kv, qkv_bias),
            Linear(names[2], hidden, kv, qkv_bias),
            Linear(names[3], query, hidden, out_bias),
        ]
    if not family.mlp:
        return attention
    ins = [Linear(name, hidden, ffn, mlp_bias) for name in family.mlp[:-1]]
    return [*attention, *ins, Linear(family.mlp[-1], ffn, hidden, mlp_bias)]


def _attention_layout(
    config: Mapping[str, Any], model_type: str, layers: int
) -> tuple[int | None, tuple[str, ...]]:
    """(window, type of each layer), with transformers' defaults where config.json is silent."""
    window = _optional_size(config, ("sliding_window",))
    if window is None and "sliding_window" not in config:
        window = {"gemma2": 4096, "gpt_oss": 128}.get(model_type)
    if model_type in ("qwen2", "qwen3", "qwen3_moe") and not config.get("use_sliding_window"):
        window = None
    told = config.get("layer_types")
    if isinstance(told, list) and len(told) >= layers:
        types = tuple(str(one) for one in told[:layers])
    elif model_type == "gemma3_text":
        every = _optional_size(config, ("sliding_window_pattern",)) or 6
        types = tuple(_kind((i + 1) % every != 0) for i in range(layers))
    elif model_type in ("gemma2", "gpt_oss"):
        types = tuple(_kind(i % 2 == 0) for i in range(layers))
    elif model_type in ("qwen2", "qwen3"):
        start = _optional_size(config, ("max_window_layers",)) or 28
        types = tuple(_kind(window is not None and i >= start) for i in range(layers))
    else:
        all_slide = model_type in ("mistral", "mixtral", "qwen3_moe") and window is not None
        types = (_kind(all_slide),) * layers
    return (window if "sliding_attention" in types else None), types


def _kind(sliding: bool) -> str:
    return "sliding_attention" if sliding else "full_attention"


def _activation(config: Mapping[str, Any], family: Family) -> str:
    default = family.activation
    keys = ("hidden_act", "hidden_activation", "activation_function")
    value = next((config[key] for key in keys if isinstance(config.get(key), str)), default)
    return str(value)


def _stored_dtype(config: Mapping[str, Any]) -> str | None:
    value = config.get("dtype", config.get("torch_dtype"))
    return value.removeprefix("torch.") if isinstance(value, str) else None
