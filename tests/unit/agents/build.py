"""Orders and keys for tests of the fellow, small and valid."""

import sys
from pathlib import Path
from typing import Any

from agents.fellow.reconcile import Key
from transport.orders import (
    CardShare,
    Links,
    LoraSettings,
    ModelSource,
    Neighbour,
    StageAssignment,
    StageOrder,
    TokenFile,
    TrainSettings,
)

HERE = Path(__file__).parent
WORKER = (sys.executable, str(HERE / "stand_in_worker.py"))
FORKSERVER = (sys.executable, str(HERE / "stand_in_forkserver.py"))
JOB = "j-aaaaaaaa"
INVITE = "swi_" + "i" * 43
KEY = "k" * 40


def settings() -> TrainSettings:
    return TrainSettings(
        method="lora",
        lora=LoraSettings(rank=8, alpha=16.0, dropout=0.0, target_modules=["q_proj"]),
        dtype="float32",
        steps=3,
        seq_len=16,
        batch_size=2,
        micro_batches=2,
        schedule="1f1b",
        learning_rate=1e-3,
        lr_schedule="constant",
        warmup_steps=0,
        max_grad_norm=1.0,
        clip="pipeline",
        recompute=False,
        seed=0,
        link_timeout_s=5.0,
        eval_every_steps=0,
        eval_sequences=0,
        backend="swarm",
        loss_chunk_tokens=64,
    )


def an_order(behaviour: str = "finish", **changes: Any) -> StageOrder:
    """An order whose stand-in worker behaves as named (its plan_id carries the word)."""
    values: dict[str, Any] = {
        "job_id": JOB,
        "attempt": 1,
        "stage": 0,
        "num_stages": 2,
        "first_layer": 0,
        "last_layer": 3,
        "num_layers": 8,
        "model": ModelSource(
            model_id="local:tiny", repository="local/tiny", revision="a" * 40, from_leader=True
        ),
        "settings": settings(),
        "tokens": TokenFile(
            digest="b" * 64,
            size_bytes=100,
            layout="packed",
            num_tokens=100,
            num_rows=1,
            train_sequences=5,
            held_out_sequences=1,
            pad_token_id=0,
        ),
        "cards": [
            CardShare(
                index=0,
                uuid="cpu-0",
                first_layer=0,
                last_layer=3,
                planned_bytes=100_000_000,
                budget_bytes=500_000_000,
            )
        ],
        "threads": 1,
        "evaluate_base": False,
        "plan_id": behaviour,
    }
    return StageOrder(**{**values, **changes})


def links() -> Links:
    neighbour = Neighbour(
        stage=1, fellow_id="f-bbbbbbbb", public_key=KEY, endpoints=["tcp://127.0.0.1:9"]
    )
    return Links(previous=None, next=neighbour)


def an_assignment(
    behaviour: str = "finish",
    *,
    with_links: bool = False,
    pause: bool = False,
    **changes: Any,
) -> StageAssignment:
    return StageAssignment(
        order=an_order(behaviour, **changes),
        links=links() if with_links else None,
        pause=pause,
        pause_reason="asked by the test" if pause else "",
    )


def a_key(attempt: int = 1, stage: int = 0, job_id: str = JOB) -> Key:
    return Key(job_id, attempt, stage)
