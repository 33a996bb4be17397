"""Settings and orders for tests that need some, whatever they say."""

from typing import Any

from transport.orders import LoraSettings, TrainSettings


def some_settings(**changes: Any) -> TrainSettings:
    """A short LoRA run in float32, with changes."""
    values: dict[str, Any] = {
        "method": "lora",
        "lora": LoraSettings(rank=4, alpha=8.0, dropout=0.0, target_modules=["q_proj", "v_proj"]),
        "dtype": "float32",
        "steps": 4,
        "seq_len": 24,
        "batch_size": 4,
        "micro_batches": 2,
        "schedule": "1f1b",
        "learning_rate": 3e-3,
        "lr_schedule": "cosine",
        "warmup_steps": 1,
        "max_grad_norm": 1.0,
        "clip": "pipeline",
        "recompute": False,
        "seed": 3,
        "link_timeout_s": 20.0,
        "eval_every_steps": 0,
        "eval_sequences": 3,
        "backend": "swarm",
        "loss_chunk_tokens": 16,
    }
    return TrainSettings(**(values | changes))
