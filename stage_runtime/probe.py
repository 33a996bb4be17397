"""Tells what cards this machine has, which number formats they compute rightly, and how fast.

    python -m stage_runtime.probe [--cpu BYTES:THREADS ...] [--measure]
        every card, as JSON: {"cards": [CardReport, ...], "error": ""}
    python -m stage_runtime.probe --kind cpu --uuid cpu-0 --threads 2 --formats float32,bfloat16
        one card's speeds, as JSON: {"speeds": [Speed, ...], "error": ""}
    python -m stage_runtime.probe --prove
        which number formats each device computes rightly, as JSON: {"proven": {"cpu": Proof, ...}}

Free memory and its holders come from the driver's own library, never from torch; cards are named
by UUID, because the driver's order is not torch's. Does not know the pool.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from stage_runtime.speed import CARD_SHAPE, CPU_SHAPE, Shape, figures, sized
from transport.cards import CardReport, Holder, NumberFormat, Speed

COMPUTED: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
CPU_FORMATS: tuple[NumberFormat, ...] = ("float32", "bfloat16", "int8", "nf4")
"""float16 has no fast path on processors."""
CUDA_FORMATS: tuple[NumberFormat, ...] = ("float32", "bfloat16", "float16", "int8", "nf4")
LIMITS = {"float32": 1e-5, "bfloat16": 0.02, "float16": 0.02, "int8": 0.02, "nf4": 0.13}
"""Largest relative error of a product against float64 that passes. Normally distributed weights
lose 0.6 % in int8 and 9 % in NF4; a kernel that mistakes where a block ends is 25 % off.
"""


@dataclass(frozen=True)
class CpuBudget:
    """A CPU card to be: memory and OpenMP threads."""

    total_bytes: int
    threads: int


def self_test(device: torch.device, name: str) -> str:
    """Multiply two known matrices in a number format. "" when it comes out right, else why not.

    In int8 and NF4 the right one is a frozen weight, packed and used as a stage does, and the
    gradient that passes through it is looked at too. Its rows are no whole number of blocks.
    """
    generator = torch.Generator().manual_seed(7)
    left = torch.randn(64, 96, generator=generator, dtype=torch.float64)
    right = torch.randn(96, 48, generator=generator, dtype=torch.float64)
    grad = torch.randn(64, 48, generator=generator, dtype=torch.float64)
    try:
        found = _products(device, name, left, right, grad)
    except (RuntimeError, TypeError, ImportError, NotImplementedError) as error:
        return f"{name}: {str(error).splitlines()[0][:200]}"
    for product, wanted in zip(found, (left @ right, grad @ right.T)):
        error_share = float((product - wanted).norm() / wanted.norm())
        if not error_share <= LIMITS[name]:
            return f"{name}: a product is wrong by {error_share:.2g} of its size"
    return ""


def _products(
    device: torch.device,
    name: str,
    left: torch.Tensor,
    right: torch.Tensor,
    grad: torch.Tensor,
) -> list[torch.Tensor]:
    """(left @ right, grad @ right.T) in a number format, in float64 on the CPU."""
    # Late: the card's figures need nothing of it.
    from stage_runtime.quantize import PackedLinear, pack  # noqa: PLC0415

    if name in COMPUTED:
        dtype = COMPUTED[name]
        narrow = right.to(device, dtype)
        made = [left.to(device, dtype) @ narrow, grad.to(device, dtype) @ narrow.T]
    else:
        weight = right.T.contiguous().to(device, torch.float32)
        layer = PackedLinear(pack(weight, "nf4" if name == "nf4" else "int8"), None)
        rows = left.to(device, torch.float32).requires_grad_()
        out = layer(rows)
        made = [out.detach(), *torch.autograd.grad(out, rows, grad.to(device, torch.float32))]
    return [one.to("cpu", torch.float64) for one in made]


def proven() -> dict[str, dict[str, Any]]:
    """Of each device, "cpu" or a card's UUID: the formats it computes rightly, and what failed."""
    told = {"cpu": _proof(torch.device("cpu"), CPU_FORMATS)}
    for index in range(torch.cuda.device_count()):
        uuid = f"GPU-{_bare(str(torch.cuda.get_device_properties(index).uuid))}"
        told[uuid] = _proof(torch.device("cuda", index), CUDA_FORMATS)
    return told


def _proof(device: torch.device, candidates: Sequence[NumberFormat]) -> dict[str, Any]:
    formats, failed = _formats(device, candidates)
    return {"formats": formats, "failed": failed}


def measure(
    device: torch.device, formats: Sequence[str], shape: Shape | None = None
) -> tuple[list[Speed], str]:
    """(speed in each format that computes rightly, why others were not measured)."""
    shape = shape or (CPU_SHAPE if device.type == "cpu" else CARD_SHAPE)
    speeds: list[Speed] = []
    wrong: list[str] = []
    for name in formats:
        if name not in COMPUTED:
            continue  # int8 and nf4 store weights; they do not compute
        why = self_test(device, name)
        if why:
            wrong.append(why)
            continue
        found = figures(shape, device, COMPUTED[name], time.perf_counter)
        told = {"number_format": name, "measured_at": time.time(), **vars(found)}
        told |= sized(shape, found.tflops, device, COMPUTED[name], time.perf_counter)
        speeds.append(Speed.model_validate(told))
    return speeds, "; ".join(wrong)


def device_of(kind: str, uuid: str) -> torch.device | None:
    """The torch device of a card; None when this machine does not have it."""
    if kind == "cpu":
        return torch.device("cpu")
    for index in range(torch.cuda.device_count()):
        if _bare(str(torch.cuda.get_device_properties(index).uuid)) == _bare(uuid):
            return torch.device("cuda", index)
    return None


def _bare(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-")


def cards(budgets: Sequence[CpuBudget], *, measured: bool) -> tuple[list[CardReport], str]:
    """Every card: CUDA cards first, then the CPU budgets; and what went wrong."""
    found: list[CardReport] = []
    wrong: list[str] = []
    for index in range(torch.cuda.device_count()):
        report, why = _cuda_card(index, measured=measured)
        found.append(report)
        wrong += [why] if why else []
    for number, budget in enumerate(budgets):
        torch.set_num_threads(budget.threads)
        report, why = _cpu_card(len(found), number, budget, measured=measured)
        found.append(report)
        wrong += [why] if why else []
    return found, "; ".join(wrong)


def _cpu_card(
    index: int, number: int, budget: CpuBudget, *, measured: bool
) -> tuple[CardReport, str]:
    device = torch.device("cpu")
    formats, why = _formats(device, CPU_FORMATS)
    report = CardReport(
        index=index,
        kind="cpu",
        name="CPU",
        uuid=f"cpu-{number}",
        total_bytes=budget.total_bytes,
        free_bytes=budget.total_bytes,
        threads=budget.threads,
        number_formats=formats,
        speeds=measure(device, formats)[0] if measured else [],
    )
    return report, why


def _cuda_card(index: int, *, measured: bool) -> tuple[CardReport, str]:
    device = torch.device("cuda", index)
    properties: Any = torch.cuda.get_device_properties(index)
    uuid = f"GPU-{_bare(str(properties.uuid))}"
    driver = _driver_memory(uuid)
    formats, why = _formats(device, CUDA_FORMATS)
    report = CardReport(
        index=index,
        kind="rocm" if torch.version.hip else "cuda",
        name=str(properties.name)[:200],
        uuid=uuid,
        total_bytes=driver.total_bytes or int(properties.total_memory),
        free_bytes=driver.free_bytes,
        number_formats=formats,
        holders=driver.holders,
        speeds=measure(device, formats)[0] if measured else [],
    )
    return report, why


def _formats(
    device: torch.device, candidates: Sequence[NumberFormat]
) -> tuple[list[NumberFormat], str]:
    """The formats in which a product comes out right, and why the others do not."""
    told = {name: self_test(device, name) for name in candidates}
    failed = "; ".join(why for why in told.values() if why)
    return [name for name in candidates if not told[name]], failed


@dataclass(frozen=True)
class DriverMemory:
    """What the driver says of a card; None where it does not."""

    total_bytes: int | None = None
    free_bytes: int | None = None
    holders: list[Holder] = field(default_factory=list)


def _driver_memory(uuid: str) -> DriverMemory:
    try:
        import pynvml  # noqa: PLC0415 - only on machines with an NVIDIA driver

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - no library or no driver: nothing is known of the memory
        return DriverMemory()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        holders = [
            Holder(name=_process_name(one.pid), held_bytes=int(one.usedGpuMemory))
            for one in processes[:32]
            if one.pid != os.getpid() and one.usedGpuMemory
        ]
        return DriverMemory(int(memory.total), int(memory.free), holders)
    except pynvml.NVMLError:
        return DriverMemory()
    finally:
        pynvml.nvmlShutdown()


def _process_name(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return words[0].decode(errors="replace")[:200] or f"process {pid}"
    except OSError:
        return f"process {pid}"


def _budget(text: str) -> CpuBudget:
    size, _, threads = text.partition(":")
    if not (size.isdecimal() and threads.isdecimal() and int(size) and 0 < int(threads) <= 1024):
        raise argparse.ArgumentTypeError(f"{text!r} is not BYTES:THREADS, like 4000000000:2")
    return CpuBudget(int(size), int(threads))


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="stage_runtime.probe", description=__doc__)
    parser.add_argument("--cpu", type=_budget, action="append", default=[], help="BYTES:THREADS")
    parser.add_argument("--measure", action="store_true", help="measure every card's speed")
    parser.add_argument("--prove", action="store_true", help="only the number formats' self-tests")
    parser.add_argument("--kind", help="measure one card of this kind only")
    parser.add_argument("--uuid", default="")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--formats", default="float32")
    return parser


def _one_card(kind: str, uuid: str, formats: list[str]) -> dict[str, Any]:
    device = device_of(kind, uuid)
    if device is None:
        return {"speeds": [], "error": f"this machine has no {kind} card {uuid[:64]}"}
    speeds, error = measure(device, formats)
    return {"speeds": [one.model_dump(mode="json") for one in speeds], "error": error}


def main(words: Sequence[str] | None = None) -> int:
    """Print one JSON object on one line. Exit code 0 also when a format fails its self-test."""
    asked = _arguments().parse_args(words)
    if asked.prove:
        answer: dict[str, Any] = {"proven": proven()}
    elif asked.kind is not None:
        torch.set_num_threads(max(1, asked.threads))
        answer = _one_card(asked.kind, asked.uuid, asked.formats.split(","))
    else:
        found, error = cards(asked.cpu, measured=asked.measure)
        answer = {"cards": [one.model_dump(mode="json") for one in found], "error": error}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
