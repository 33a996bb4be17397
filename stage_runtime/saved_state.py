"""The saved state of a stage as a safetensors file keyed by layer: copied, written, read back.

What trains (by its global name) and the optimizer's tensors for it; the step, the place in the
learning-rate schedule and the split stand in the header, with the digest of every tensor. There is
no random state to keep: order and dropout are functions of (seed, step). Never the base model.
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from stage_runtime.optim import learning_rate
from transport.errors import SwarmError
from transport.orders import StageOrder

FORMAT = "1"
WEIGHT = "weight"
PIECE = 1 << 22  # bytes looked at or written at once
CONSTANT = "basis"
"""Kind of what never changes: what the codes of a boundary are made of."""
_NAMES = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16", torch.float16: "F16",
          torch.uint8: "U8"}  # fmt: skip


class Copies:
    """Room for one copy of what a stage trains and of its optimizer's tensors.

    Made once, so that a card that is too small for it is found out before the first step.
    """

    def __init__(
        self, trained: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer
    ) -> None:
        self._trained = dict(sorted(trained.items()))
        self._optimizer = optimizer
        self._room: dict[str, Tensor] = {}
        for name, weight in self._trained.items():
            for kind in (WEIGHT, "exp_avg", "exp_avg_sq"):
                self._room[f"{kind}.{name}"] = torch.empty_like(weight.detach(), device="cpu")
            self._room[f"step.{name}"] = torch.empty((), dtype=torch.float32)

    def take(self) -> dict[str, Tensor]:
        """Copy everything as it is now; the tensors stay as they are until the next call."""
        now = self._now()
        room = {name: self._place(name, tensor) for name, tensor in now.items()}
        with torch.no_grad():
            torch._foreach_copy_(list(room.values()), list(now.values()))
        return room

    def _now(self) -> dict[str, Tensor]:
        now: dict[str, Tensor] = {}
        for name, weight in self._trained.items():
            now[f"{WEIGHT}.{name}"] = weight.detach()
            for kind, value in self._optimizer.state.get(weight, {}).items():
                if isinstance(value, Tensor):
                    now[f"{kind}.{name}"] = value
        return now

    def _place(self, name: str, tensor: Tensor) -> Tensor:
        place = self._room.get(name)
        if place is None or place.shape != tensor.shape or place.dtype != tensor.dtype:
            place = self._room[name] = torch.empty_like(tensor, device="cpu")
        return place


@dataclass(frozen=True)
class SavedAt:
    """When a copy was taken, and the loss scale then; "" for formats without one."""

    step: int
    loss_scale: str = ""


def write_state(path: Path, order: StageOrder, at: SavedAt, tensors: Mapping[str, Tensor]) -> str:
    """Write a copy as a file that is whole or absent; returns its SHA-256.

    Raises:
        SwarmError: stage-failed when a value is not finite: such a state is never saved.
        OSError: the disk.
    """
    names = sorted(tensors)
    raw = {name: _bytes(tensors[name]) for name in names}
    for name in names:
        _refuse_not_finite(name, tensors[name])
    header = _header(order, at, tensors, raw)
    whole = hashlib.sha256()
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.part")
    with beside.open("wb") as out:
        out.write(header)
        whole.update(header)
        for name in names:
            for piece in _pieces(raw[name]):
                out.write(piece)
                whole.update(piece)
        out.flush()
        os.fsync(out.fileno())
    beside.replace(path)
    return whole.hexdigest()


def _header(
    order: StageOrder, at: SavedAt, tensors: Mapping[str, Tensor], raw: Mapping[str, memoryview]
) -> bytes:
    told: dict[str, Any] = {"__metadata__": _metadata(order, at, raw)}
    place = 0
    for name, data in raw.items():
        tensor = tensors[name]
        told[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [place, place + len(data)],
        }
        place += len(data)
    text = json.dumps(told, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _metadata(order: StageOrder, at: SavedAt, raw: Mapping[str, memoryview]) -> dict[str, str]:
    settings, step = order.settings, at.step
    schedule = {
        "kind": settings.lr_schedule,
        "step": step,
        "learning_rate": learning_rate(settings, step),
    }
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in raw.items()}
    return {
        "swarm_snapshot": FORMAT,
        "job_id": order.job_id,
        "attempt": str(order.attempt),
        "step": str(step),
        "stage": str(order.stage),
        "num_stages": str(order.num_stages),
        "first_layer": str(order.first_layer),
        "last_layer": str(order.last_layer),
        **({"loss_scale": at.loss_scale} if at.loss_scale else {}),
        "schedule": json.dumps(schedule, separators=(",", ":")),
        "digests": json.dumps(digests, separators=(",", ":")),
    }


def _bytes(tensor: Tensor) -> memoryview:
    data: memoryview = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
    return data


def _pieces(data: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(data), PIECE):
        yield data[start : start + PIECE]


def _refuse_not_finite(name: str, tensor: Tensor) -> None:
    flat = tensor.reshape(-1)
    for start in range(0, flat.numel(), PIECE):
        piece = flat[start : start + PIECE]
        # numpy knows no bfloat16; a piece of it is small.
        values = piece.float() if piece.dtype == torch.bfloat16 else piece
        if not np.isfinite(values.numpy()).all():
            raise SwarmError(
                "stage-failed",
                f"{name} holds a value that is not a finite number, so this state is not saved",
                hint="lower the learning rate; the run can go on from the step saved before",
            )


@dataclass(frozen=True)
class RestoredFrom:
    """What a stage went on from."""

    step: int
    tensors: int


def restore(
    order: StageOrder,
    trained: Mapping[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    files: Sequence[Path],
) -> RestoredFrom:
    """Put a saved step back: weights and the optimizer's tensors, whatever the split was then.

    Raises:
        SwarmError: invalid-input; a file cannot be read, is of another step, or lacks a tensor
            that this stage trains, or has one that does not fit or is not finite.
    """
    assert order.resume is not None
    places = _places(order, files)
    found, is_fused = 0, bool(optimizer.defaults.get("fused"))
    for name, weight in sorted(trained.items()):
        values = {kind: _read(path, kind, name) for kind, path in places.get(name, {}).items()}
        _check_fit(order, name, weight, values)
        saved = values.pop(WEIGHT)
        with torch.no_grad():
            weight.copy_(saved)
        if values:
            optimizer.state[weight] = {
                # AdamW counts its steps on the CPU unless it is fused.
                kind: value.to(weight.device if value.dim() or is_fused else "cpu")
                for kind, value in values.items()
            }
        found += 1 + len(values)
    return RestoredFrom(order.resume.step, found)


def read_loss_scale(order: StageOrder, files: Sequence[Path]) -> str:
    """The loss scale of a saved step, the same in all its files; "" when it keeps none.

    Raises:
        SwarmError: invalid-input; a file cannot be read, or is of another step.
    """
    for path in files[:1]:
        try:
            with safe_open(str(path), framework="pt") as opened:
                told = opened.metadata() or {}
        except (SafetensorError, OSError, ValueError) as error:
            raise _unfit(f"a file of the saved step cannot be read: {str(error)[:200]}") from error
        _refuse_other(order, told)
        return str(told.get("loss_scale", ""))
    return ""


def read_constants(order: StageOrder, files: Sequence[Path]) -> dict[str, Tensor]:
    """What a saved step keeps that never changes, of all its stages, by its whole name.

    Raises:
        SwarmError: invalid-input; a file cannot be read, or is of another step.
    """
    if order.resume is None:
        return {}
    return {
        f"{CONSTANT}.{name}": _read(kinds[CONSTANT], CONSTANT, name)
        for name, kinds in _places(order, files).items()
        if CONSTANT in kinds
    }


def _places(order: StageOrder, files: Sequence[Path]) -> dict[str, dict[str, Path]]:
    """Global name -> kind -> the file that holds it."""
    places: dict[str, dict[str, Path]] = {}
    for path in files:
        try:
            with safe_open(str(path), framework="pt") as opened:
                told, names = opened.metadata() or {}, list(opened.keys())
        except (SafetensorError, OSError, ValueError) as error:
            raise _unfit(f"a file of the saved step cannot be read: {str(error)[:200]}") from error
        _refuse_other(order, told)
        for key in names:
            kind, _, name = key.partition(".")
            places.setdefault(name, {})[kind] = path
    return places


def _refuse_other(order: StageOrder, told: Mapping[str, str]) -> None:
    resume = order.resume
    assert resume is not None
    wanted = (FORMAT, order.job_id, str(resume.step))
    if (told.get("swarm_snapshot"), told.get("job_id"), told.get("step")) != wanted:
        raise _unfit(f"a file of the saved step {resume.step} is of another job or step")


def _check_fit(order: StageOrder, name: str, weight: Tensor, values: Mapping[str, Tensor]) -> None:
    """Refuse values that this weight and its moments cannot have."""
    step = order.resume.step if order.resume is not None else 0
    saved = values.get(WEIGHT)
    if saved is None or saved.shape != weight.shape or saved.dtype != weight.dtype:
        raise _unfit(f"the saved step {step} lacks {name}, or has another shape or type of it")
    for kind, value in values.items():
        wanted = {"exp_avg": weight.shape, "exp_avg_sq": weight.shape, "step": torch.Size()}
        if value.shape != wanted.get(kind, value.shape):
            raise _unfit(f"the saved step {step} has {kind} of {name} in another shape")
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise _unfit(f"the saved step {step} has a value in {kind} of {name} that is no number")


def _read(path: Path, kind: str, name: str) -> Tensor:
    try:
        with safe_open(str(path), framework="pt") as opened:
            tensor = opened.get_tensor(f"{kind}.{name}")
    except (SafetensorError, OSError, ValueError, KeyError, AttributeError) as error:
        raise _unfit(f"{kind}.{name} of the saved step cannot be read: {error}") from error
    assert isinstance(tensor, Tensor)
    if tensor.dtype not in _NAMES:
        raise _unfit(f"{kind}.{name} of the saved step is {tensor.dtype}, which no stage saves")
    return tensor.clone()


def _unfit(message: str) -> SwarmError:
    return SwarmError(
        "invalid-input", message, hint="resume from the step saved before, or start the job anew"
    )
