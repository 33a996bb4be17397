"""What a model holds while it serves: weights, the KV cache by kind of layer, and a moment's work.

Pure. A full layer keeps every token of the context; a sliding one its window less one, after a
prefill that may hold the whole prompt. Prices are estimates until serving exists.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from stage_runtime.costs import Prices
from stage_runtime.model_facts import ModelFacts
from stage_runtime.places import CardPlace, Device, Price, workspace_of
from transport.orders import TrainSettings

Storage = Literal["16bit", "int8"]
PREFILL_TOKENS = 512
"""Tokens of a prompt that are computed at once."""


@dataclass(frozen=True)
class ServeShape:
    """How a model serves."""

    context_tokens: int
    """Longest sequence, prompt and answer together."""
    sequences: int = 1
    """Held at once."""
    storage: Storage = "16bit"
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    quantization: Literal["none", "int8", "nf4"] = "none"
    prefill_tokens: int = PREFILL_TOKENS


def token_bytes(facts: ModelFacts, storage: Storage, number_bytes: int = 2) -> int:
    """Keys and values of one token in one layer; int8 has a 16-bit scale a head beside them."""
    if storage == "int8":
        return 2 * facts.kv_width + 2 * 2 * facts.kv_heads
    return 2 * facts.kv_width * number_bytes


def kept_tokens(facts: ModelFacts, layer: int, context_tokens: int) -> int:
    """Tokens of a context that a layer keeps."""
    slides = facts.layer_types[layer] == "sliding_attention" and facts.window is not None
    return min(context_tokens, (facts.window or 1) - 1) if slides else context_tokens


@dataclass(frozen=True)
class ServePrices:
    """Prices of a model under one way to serve it."""

    facts: ModelFacts
    shape: ServeShape

    @cached_property
    def prices(self) -> Prices:
        """Of the weights, which lie as in training."""
        return Prices(self.facts, _as_training(self.shape))

    def cache_bytes(self, first_layer: int, last_layer: int) -> int:
        """KV cache of these layers (inclusive) for all sequences at their longest."""
        shape = self.shape
        each = token_bytes(self.facts, shape.storage, self.prices.layer.number_bytes)
        layers = range(first_layer, last_layer + 1)
        kept = sum(kept_tokens(self.facts, layer, shape.context_tokens) for layer in layers)
        slides = any(
            kept_tokens(self.facts, layer, shape.context_tokens) < shape.context_tokens
            for layer in layers
        )
        # One sliding layer at a time holds a prompt's part beside its window.
        part = min(shape.prefill_tokens, shape.context_tokens) if slides else 0
        return shape.sequences * each * (kept + part)

    def of(self, place: CardPlace, device: Device) -> Price:
        """The price of a place on a card when every sequence is at its longest."""
        prices = self.prices
        price = Price(
            weights=prices.weights(place),
            embeddings=prices.tables(place) + prices.stored.buffer(),
            activations=self._moment(place),
            gradients=0,
            optimizer=0,
            lora=0,
            workspace=0,
            kv_cache=self.cache_bytes(place.first_layer, place.last_layer),
        )
        return price._replace(workspace=workspace_of(device, price.tensor_bytes, 0))

    def _moment(self, place: CardPlace) -> int:
        """One block's tensors for a part of a prompt, and the logits of one token a sequence."""
        facts, b = self.facts, self.prices.layer.number_bytes
        tokens = self.shape.sequences * min(self.shape.prefill_tokens, self.shape.context_tokens)
        width = facts.experts.per_token * facts.experts.width if facts.experts else facts.ffn
        block = b * (4 * facts.hidden + 3 * width + 2 * facts.query_width + 2 * facts.kv_width)
        scores = 0
        if facts.family.scores:
            scores = (4 + b) * facts.heads * tokens * self.shape.context_tokens
        logits = (4 + b) * facts.vocab * self.shape.sequences if place.heads else 0
        one_layer = 0
        if self.shape.storage == "int8":
            # A layer's cache is widened while it is read.
            one_layer = self.shape.sequences * self.shape.context_tokens * 2 * facts.kv_width * b
        return tokens * block + scores + logits + one_layer


def _as_training(shape: ServeShape) -> TrainSettings:
    """Settings that give serving's weights their prices; nothing of them trains."""
    return TrainSettings(
        method="lora",
        lora=None,
        dtype=shape.dtype,
        steps=1,
        seq_len=max(2, shape.context_tokens),
        batch_size=shape.sequences,
        micro_batches=1,
        schedule="gpipe",
        learning_rate=1.0,
        lr_schedule="constant",
        warmup_steps=0,
        max_grad_norm=0.0,
        clip="stage",
        recompute=False,
        seed=0,
        link_timeout_s=1.0,
        eval_every_steps=0,
        eval_sequences=0,
        backend="swarm",
        loss_chunk_tokens=1,
        quantization=shape.quantization,
    )
