"""Inventories on paper for the planner's tests."""

from typing import Any

from control.planning.inventory import data_in, fellows_in, model_in, terms_in
from control.planning.place import Inputs
from tests.unit.control.planning.pools import a_job
from transport.api.inventory import InventoryFile
from transport.api.job_config import JobConfig
from transport.schema import parse

QWEN_14B = "Qwen/Qwen3-14B"
NEMOTRON = "nvidia/OpenReasoning-Nemotron-14B"


def on_paper(model: str, *fellows: dict[str, Any], seq_len: int = 128, **more: Any) -> Inputs:
    """The planner's inputs of an inventory file with these fellows."""
    file = parse(InventoryFile, {"fellows": list(fellows), **more})
    planned = model_in(file, model)
    assert planned is not None
    return Inputs(planned, fellows_in(file), data_in(file, seq_len), terms_in(file), seq_len)


def machine(name: str, *cards: Any, **more: Any) -> dict[str, Any]:
    """A fellow of an inventory file."""
    return {"name": name, "cards": list(cards), **more}


def a_model_job(model: str, bits: int | str = "auto", **more: Any) -> JobConfig:
    """A job on a model; bits: "auto", "none", 4 or 8."""
    quantization = {"bits": bits} if isinstance(bits, int) else bits
    return a_job(model={"id": model, "quantization": quantization}, **more)


def three_cards(small_gb: float = 5.3, large_gb: float = 14.9, **more: Any) -> Inputs:
    """A fellow with two GTX 1660 SUPER and one with an RTX A4000, and a 14B model of 48 layers."""
    small = {"card": "GTX 1660 SUPER", "count": 2, "free_gb": small_gb}
    large = {"card": "RTX A4000", "free_gb": large_gb}
    return on_paper(NEMOTRON, machine("atlas", small, **more), machine("borealis", large, **more))
