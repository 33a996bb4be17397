"""Mutated saved states and trained tensors through the checks of both ends: nothing may break.

    python -m tests.oracle.fuzz_snapshots --files 10000 [--seed N]

Each file is a real one with something wrong: bytes, lengths, the header's words and numbers, names,
types, NaN (with digests that agree with it). The leader's check of a saved step, the stage that
goes on from it, the leader's check of trained tensors and the joining of these each take it or
refuse it with a SwarmError; any other exception is a failure, so is what is taken with a value that
is not finite, what safetensors itself cannot open, and memory that grows. Prints one JSON object;
exit code 1 on a failure. The seed replays the run.
"""

import argparse
import hashlib
import json
import random
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from control.jobs.adapters import join_tensors
from control.jobs.boundary_file import is_boundary
from control.snapshots.check import check_saved
from control.snapshots.trained import check_trained
from stage_runtime.saved_state import SavedAt, restore, write_state
from tests.oracle.settings import some_settings
from transport.errors import SwarmError
from transport.orders import CardShare, ModelSource, ResumeFrom, SavedStage, StageOrder

STEP: Final = 10
GROWTH_BYTES: Final = 32_000_000
_NUMBERS: Final = (0, 1, -1, 2, 7, 8, 255, 2**31, 2**53, 2**63, 2**64, 10**400, 1.5, float("inf"),
                   float("nan"))  # fmt: skip
_WORDS: Final = ("", "F32", "F64", "F8_E4M3", "F4", "BOOL", "I64", "C64", "../../etc/passwd", "1",
                 "\ud800", "weight.boundary.x", "boundary.x.y", "weight.a.layers.99999.b", "NaN",
                 "x" * 400, "weight.lm_head.weight", "\x00", "[]", "{}")  # fmt: skip
_TYPES: Final = ("F16", "BF16", "U8", "I8", "F8_E4M3", "F8_E5M2", "F64")


@dataclass
class Outcome:
    """What became of the files."""

    files: int = 0
    taken: Counter[str] = field(default_factory=Counter)
    """By the check that took them."""
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """Exceptions that nobody should see, and files that nobody should take."""


def an_order(**changes: Any) -> StageOrder:
    """The last of two stages, of layers 2 and 3, going on from the saved step."""
    file = SavedStage(stage=0, first_layer=0, last_layer=3, digest="0" * 64, size_bytes=1)
    values: dict[str, Any] = {
        "job_id": "j-abcdefgh",
        "attempt": 1,
        "stage": 1,
        "num_stages": 2,
        "first_layer": 2,
        "last_layer": 3,
        "num_layers": 4,
        "model": ModelSource(
            model_id="local:m", repository="local/m", revision="0" * 40, from_leader=True
        ),
        "settings": some_settings(),
        "tokens": None,
        "cards": [CardShare(index=0, uuid="c", first_layer=2, last_layer=3, planned_bytes=0,
                            budget_bytes=1)],
        "threads": 1,
        "evaluate_base": False,
        "plan_id": "0123456789abcdef",
        "resume": ResumeFrom(attempt=1, step=STEP, files=[file]),
    }  # fmt: skip
    return StageOrder.model_construct(**(values | changes))


class Ground:
    """One stage's trained weights with their optimizer, and good files of them."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(1)
        names = [
            f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{part}.weight"
            for layer in (2, 3)
            for part in "AB"
        ]
        self.order = an_order()
        self.trained = {name: torch.nn.Parameter(torch.randn(2, 3)) for name in names}
        half = torch.nn.Parameter(torch.randn(4).to(torch.bfloat16))
        self.trained["base_model.model.model.layers.3.post_attention_layernorm.weight"] = half
        self.optimizer = torch.optim.AdamW(self.trained.values())
        for weight in self.trained.values():
            weight.grad = torch.ones_like(weight)
        self.optimizer.step()
        saved = {f"weight.{name}": weight.detach() for name, weight in self.trained.items()}
        for name, weight in self.trained.items():
            for kind, value in self.optimizer.state[weight].items():
                saved[f"{kind}.{name}"] = value
        write_state(folder / "saved", self.order, SavedAt(STEP), saved)
        weights = {name: weight.detach().clone() for name, weight in self.trained.items()}
        save_file(weights, folder / "trained")
        self.saved = (folder / "saved").read_bytes()
        self.result = (folder / "trained").read_bytes()


# --- what is done to a file ---


def parts(data: bytes) -> tuple[dict[str, Any], bytearray]:
    """A good file's header and body."""
    (size,) = struct.unpack_from("<Q", data)
    return json.loads(data[8 : 8 + size]), bytearray(data[8 + size :])


def whole(header: Any, body: bytes) -> bytes:
    """A file of them, whatever the header holds."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def in_bytes(data: bytes, dice: random.Random) -> bytes:
    """One to three changes that know nothing of the layout."""
    raw = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 3))):
        at = dice.randrange(max(1, len(raw)))
        match dice.randrange(6):
            case 0 if raw:
                raw[at] ^= 1 << dice.randrange(8)
            case 1:
                del raw[at:]
            case 2:
                raw += dice.randbytes(dice.randint(1, 64))
            case 3:
                raw[at:at] = dice.randbytes(dice.randint(1, 8))
            case 4:
                raw[:8] = struct.pack("<Q", dice.choice((0, 1, len(raw), 2**31, 2**63, 2**64 - 1)))
            case _ if raw:
                raw[at : at + 8] = dice.randbytes(8)
    return bytes(raw)


def in_header(data: bytes, dice: random.Random) -> bytes:
    """One to three words or numbers of the header replaced, doubled, renamed or left out."""
    header, body = parts(data)
    for _ in range(dice.choice((1, 1, 2, 3))):
        place, key = dice.choice(list(_places(header)) or [(header, "")])
        evil: Any = dice.choice([*_NUMBERS, *_WORDS, None, True, [], {}, [[]], [1] * 40])
        match dice.randrange(4):
            case 0 if key in place or isinstance(place, list):
                del place[key]
            case 1 if isinstance(place, dict) and key in place:
                place[dice.choice(_WORDS)] = place.pop(key)
            case _ if isinstance(place, dict) or key != "":
                place[key] = evil
    made = whole(header, bytes(body))
    if dice.random() < 0.1:
        made = made.replace(b'"dtype"', b'"dtype":"F32","dtype"', 1)
    return made


def _places(node: Any) -> Any:
    """(container, key) of everything in a header."""
    keys = node.keys() if isinstance(node, dict) else range(len(node))
    for key in list(keys):
        yield node, key
        if isinstance(node[key], dict | list):
            yield from _places(node[key])


def in_values(data: bytes, dice: random.Random) -> bytes:
    """A tensor's values replaced, often by what is no number, with a digest that agrees."""
    header, body = parts(data)
    name = dice.choice([name for name in header if name != "__metadata__"])
    start, end = header[name]["data_offsets"]
    if dice.random() < 0.3:
        header[name]["dtype"] = dice.choice(_TYPES)
    body[start:end] = dice.choice(
        (b"\xff" * (end - start), b"\x00\x00\x80\x7f" * end, b"\x80\x7f" * end, dice.randbytes(99))
    )[: end - start].ljust(end - start, b"\x7f")
    told = header.get("__metadata__", {})
    if "digests" in told:
        digests = json.loads(told["digests"])
        digests[name] = hashlib.sha256(body[start:end]).hexdigest()
        told["digests"] = json.dumps(digests)
    return whole(header, bytes(body))


KINDS: Final[tuple[Callable[[bytes, random.Random], bytes], ...]] = (
    in_bytes, in_header, in_header, in_values,
)  # fmt: skip


# --- the checks ---


class Fuzz:
    """One run, in a folder of its own."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self.outcome = Outcome()
        self._ground = Ground(folder)
        self._path, self._joined = folder / "file.safetensors", folder / "joined.safetensors"
        self._dice = dice

    def turn(self) -> None:
        """One saved state and one file of trained tensors."""
        ground, mutate = self._ground, self._dice.choice(KINDS)
        self._path.write_bytes(mutate(ground.saved, self._dice))
        if self._try("a saved step", lambda: check_saved(self._path, ground.order, STEP)):
            self._look("a saved step")
        if self._try("going on", self._restore):
            self._look_at_weights()
        self._path.write_bytes(mutate(ground.result, self._dice))
        if self._try("trained tensors", lambda: check_trained(self._path, ground.order)):
            self._look("trained tensors")
            self._try("joining", self._join)
        self.outcome.files += 2

    def _try(self, what: str, action: Callable[[], object]) -> bool:
        try:
            action()
        except SwarmError as error:
            self.outcome.refused[what] += 1
            error.message.encode()  # it can be told
            return False
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            self.outcome.wrong.append(f"{what}: {type(error).__name__}: {error}"[:300])
            return False
        self.outcome.taken[what] += 1
        return True

    def _restore(self) -> None:
        restore(self._ground.order, self._ground.trained, self._ground.optimizer, [self._path])

    def _join(self) -> None:
        join_tensors([self._path], self._joined, lambda name: not is_boundary(name))
        join_tensors([self._path], self._joined, is_boundary)

    def _look(self, what: str) -> None:
        """What a check took can be opened, and all its numbers are finite."""
        try:
            with safe_open(str(self._path), framework="pt") as opened:
                values = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        except Exception as error:  # noqa: BLE001
            self.outcome.wrong.append(f"{what} was taken and cannot be opened: {error}"[:300])
            return
        for name, value in values.items():
            if value.is_floating_point() and not torch.isfinite(value).all():
                self.outcome.wrong.append(f"{what} was taken with what is no number in {name}")

    def _look_at_weights(self) -> None:
        for name, weight in self._ground.trained.items():
            for value in (weight.detach(), *self._ground.optimizer.state[weight].values()):
                if not torch.isfinite(value).all():
                    self.outcome.wrong.append(f"a stage went on with what is no number in {name}")


def fuzzed(files: int, dice: random.Random) -> Outcome:
    """So many files, mutated and checked."""
    with tempfile.TemporaryDirectory(prefix="swarm-fuzz-") as folder:
        fuzz = Fuzz(Path(folder), dice)
        for _ in range(files // 2):
            fuzz.turn()
    return fuzz.outcome


def main(words: list[str] | None = None) -> int:
    """Run; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    told = parser.parse_args(words)
    process = psutil.Process()
    fuzzed(1000, random.Random(0))  # so that what is loaded on first use counts as before
    before, began = process.memory_info().rss, time.monotonic()
    outcome = fuzzed(told.files, random.Random(told.seed))
    grown = process.memory_info().rss - before
    if grown > GROWTH_BYTES:
        outcome.wrong.append(f"memory grew by {grown} bytes")
    figures = {
        "seed": told.seed,
        "files": outcome.files,
        "rss_before": before,
        "rss_after": before + grown,
        "seconds": round(time.monotonic() - began, 1),
        "taken": outcome.taken,
        "refused": outcome.refused,
        "wrong": outcome.wrong[:20],
    }
    sys.stdout.write(json.dumps(figures) + "\n")
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
