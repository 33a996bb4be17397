"""The model and the text of a rehearsal: small, made on the spot, the same every time.

Written without torch, by numpy and safetensors, so that the command line stays light.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from agents.rehearse.script import ModelCast

WORDS = (
    "The river carries the boats to the sea, and the sea gives them back.",
    "A lantern in the window tells the fishermen where the harbour lies.",
    "Whoever mends the nets in winter sails first in spring.",
)
HEADS = 2
DEVIATION = 0.05


def write_model(cast: ModelCast, folder: Path) -> None:
    """Write a llama checkpoint of random weights, with a tokenizer."""
    folder.mkdir(parents=True)
    vocab = _write_tokenizer(folder)
    hidden, wide = cast.hidden, 2 * cast.hidden
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_hidden_layers": cast.layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "vocab_size": vocab,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1), "utf-8")
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (vocab, hidden)}
    for layer in range(cast.layers):
        name = f"model.layers.{layer}"
        for part in "qkvo":
            shapes[f"{name}.self_attn.{part}_proj"] = (hidden, hidden)
        shapes[f"{name}.mlp.gate_proj"] = shapes[f"{name}.mlp.up_proj"] = (wide, hidden)
        shapes[f"{name}.mlp.down_proj"] = (hidden, wide)
        shapes[f"{name}.input_layernorm"] = (hidden,)
        shapes[f"{name}.post_attention_layernorm"] = (hidden,)
    shapes["model.norm"] = (hidden,)
    dice = np.random.default_rng(1)
    tensors = {
        f"{name}.weight": np.ones(shape, np.float32)
        if len(shape) == 1
        else (DEVIATION * dice.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes.items()
    }
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})


def write_rows(count: int, file: Path) -> None:
    """JSONL rows of plain text, no two alike."""
    rows = [f"{number}: {WORDS[number % len(WORDS)]} " * 4 for number in range(count)]
    file.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows), "utf-8")


def _write_tokenizer(folder: Path) -> int:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(WORDS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    told = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(told), "utf-8")
    return int(tokenizer.get_vocab_size())
