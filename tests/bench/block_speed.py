"""Whether measured figures fit the blocks of real models: CPU time, one thread, one process.

    python -m tests.bench.block_speed

Blocks of transformers' llama with peft's adapters, forward and back,
over what stage_runtime.speed measures for their size. CPU time, so that other work on the
machine shows little.
"""

import json
import time
from collections.abc import Callable

import torch
from peft import LoraConfig, inject_adapter_in_model
from transformers import LlamaConfig, LlamaForCausalLM

from control.planning.pace import tflops_at
from control.planning.usable import Card
from stage_runtime.speed import CPU_SHAPE, sized, tflops
from tests.unit.control.planning.pools import a_card, a_fellow
from transport.cards import Speed

SHAPES = (
    (576, 1536, 9, 3, 1), (576, 1536, 9, 3, 2), (512, 1408, 8, 8, 4), (256, 704, 4, 4, 1),
    (1024, 2816, 16, 16, 1),
)  # fmt: skip
"""(hidden, feed-forward, heads, key-value heads, sequences of 128 tokens)."""
TOKENS, LAYERS, SECONDS = 128, 4, 2.0
FORMATS = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def fastest_s(call: Callable[[], object]) -> float:
    """CPU seconds of the fastest pass."""
    call()
    told: list[float] = []
    until = time.process_time() + SECONDS
    while time.process_time() < until or len(told) < 2:
        began = time.process_time()
        call()
        told.append(time.process_time() - began)
    return min(told)


def blocks_s(shape: tuple[int, int, int, int, int], dtype: torch.dtype) -> tuple[float, int]:
    """(seconds of LAYERS blocks forward and back, parameters of one)."""
    hidden, inner, heads, kv_heads, sequences = shape
    config = LlamaConfig(
        hidden_size=hidden, intermediate_size=inner, num_attention_heads=heads,
        num_key_value_heads=kv_heads, num_hidden_layers=LAYERS, vocab_size=64,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(dtype).model
    model.requires_grad_(False)
    params = sum(one.numel() for one in model.layers[0].parameters())
    names = ["q_proj", "k_proj", "v_proj", "o_proj"]
    inject_adapter_in_model(LoraConfig(r=8, lora_alpha=16, target_modules=names), model)
    trained = [one for name, one in model.named_parameters() if "lora_" in name]
    for one in trained:
        one.data = one.data.float()
        one.requires_grad_(True)
    rows = torch.randn(sequences, TOKENS, hidden).to(dtype).requires_grad_()

    def run() -> None:
        made = model(inputs_embeds=rows, use_cache=False).last_hidden_state
        torch.autograd.grad(made.float().sum(), [rows, *trained])

    return fastest_s(run), params


def main() -> None:
    """Print the ratios."""
    torch.set_num_threads(1)
    for name, dtype in FORMATS.items():
        asked = torch.device("cpu"), dtype, time.process_time
        usual = tflops(CPU_SHAPE, *asked)
        told = sized(CPU_SHAPE, usual, *asked)
        speed = Speed.model_validate(
            told | {"number_format": name, "tflops": usual, "measured_at": 1.0}
        )
        report = a_card().model_copy(update={"speeds": [speed]})
        card = Card(a_fellow("a", report), report)
        for shape in SHAPES:
            took, params = blocks_s(shape, dtype)
            operations = 4 * LAYERS * params * shape[-1] * TOKENS
            says = LAYERS * told["block_s"] + operations / (1e12 * tflops_at(card, name, params))
            row = {"format": name, "hidden": shape[0], "tokens": shape[-1] * TOKENS}
            print(json.dumps(row | {"real_over_said": round(took / says, 2)}), flush=True)


if __name__ == "__main__":
    main()
