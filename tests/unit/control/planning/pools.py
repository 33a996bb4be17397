"""Small pools, models and jobs for the planner's tests."""

from typing import Any

from control.planning.search import PlannedModel
from control.planning.usable import FellowNow, Standing
from stage_runtime.model_facts import facts_from_config
from transport.api.job_config import JobConfig
from transport.cards import CardReport, Heartbeat, MachineReport, Speed
from transport.orders import ModelSource
from transport.schema import parse

GB = 1_000_000_000
SMOLLM2 = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 30,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
}
QWEN3_14B = {
    "model_type": "qwen3",
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 40,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "max_position_embeddings": 40960,
}
FORMATS = ["float32", "bfloat16"]


def a_card(
    index: int = 0,
    gb: float = 4.0,
    free_gb: float | None = None,
    kind: Any = "cpu",
    formats: list[Any] | None = None,
    tflops: dict[str, float] | None = None,
    **more: Any,
) -> CardReport:
    free = gb if free_gb is None else free_gb
    speeds = [
        Speed(number_format=name, tflops=figure, measured_at=1.0)  # type: ignore[arg-type]
        for name, figure in (tflops or {}).items()
    ]
    values: dict[str, Any] = {
        "index": index,
        "kind": kind,
        "name": "CPU" if kind == "cpu" else "RTX A4000",
        "uuid": f"uuid-{index}",
        "total_bytes": int(gb * GB),
        "free_bytes": int(free * GB),
        "threads": 2 if kind == "cpu" else None,
        "number_formats": formats or FORMATS,
        "speeds": speeds,
    }
    return CardReport(**(values | more))


def a_fellow(
    letter: str = "a",
    *cards: CardReport,
    standing: Standing = "ready",
    disk_gb: float | None = 100.0,
    **more: Any,
) -> FellowNow:
    fellow_id = f"f-{letter * 8}"
    told: dict[str, Any] = {
        "features": ["stage", "lora", "full"],
        "version": "0.1.0",
        "cores": 4,
    }
    machine = MachineReport(
        hostname=f"host-{letter}",
        system="Linux",
        memory_bytes=16 * GB,
        memory_free_bytes=12 * GB,
        disk_free_bytes=None if disk_gb is None else int(disk_gb * GB),
        listen_address="127.0.0.1",
        **(told | more),
    )
    heartbeat = Heartbeat(
        protocol=1, fellow_id=fellow_id, machine=machine, cards=list(cards or (a_card(),))
    )
    return FellowNow(fellow_id, f"host-{letter}", standing, heartbeat)


def a_model(config: dict[str, Any] | None = None, **changes: Any) -> PlannedModel:
    facts = facts_from_config((config or SMOLLM2) | changes)
    source = ModelSource(
        model_id="local:demo", repository="local/demo", revision="a" * 40, from_leader=True
    )
    return PlannedModel(source, facts)


def a_job(**changes: Any) -> JobConfig:
    """A job file; `train__batch_size=8` sets a value inside a part."""
    told: dict[str, Any] = {
        "model": {"id": "local:demo"},
        "data": {"bucket": "bible"},
        "train": {"steps": 30},
    }
    for key, value in changes.items():
        part, _, inner = key.partition("__")
        if inner:
            told.setdefault(part, {})[inner] = value
        else:
            told[part] = value
    return parse(JobConfig, told)
