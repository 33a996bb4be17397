"""What crosses between stages: from what a job asks to what its stages run with, and why.

Pure. Bytes are those of stage_runtime.codecs.sizes, which the codecs themselves follow.
"""

from dataclasses import dataclass
from typing import Final

from stage_runtime.codecs.sizes import BoundarySizes, calibration_batches
from stage_runtime.model_facts import ModelFacts
from transport.api.job_config import CompressionConfig, JobConfig
from transport.errors import SwarmError
from transport.orders import CompressionSettings, TrainSettings
from transport.units import human_bytes

OFFERED: Final = ("none", "fixed_int8", "fixed_int4", "rotation")
FIXED_BITS: Final = {"fixed_int8": 8, "fixed_int4": 4}
ROTATION_BITS: Final = 4
"""A quarter of float16's bytes."""
NUMBER_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
NONE: Final = CompressionSettings()


def refuse(config: JobConfig) -> None:
    """Refuse what no stage can do.

    Raises:
        SwarmError: invalid-input.
    """
    asked = config.compression
    if asked.kind not in OFFERED:
        raise _refusal(
            f"compression.kind {asked.kind} is not offered yet", f"use {', '.join(OFFERED)}"
        )
    if asked.kind != "none" and config.train.backend != "swarm":
        raise _refusal(
            f"compression.kind {asked.kind} needs train.backend swarm: {config.train.backend} "
            "carries tensors as they are",
            'use backend swarm, or compression.kind "none"',
        )
    _refuse_numbers(asked)


def _refuse_numbers(asked: CompressionConfig) -> None:
    if asked.kind == "rotation" and not 2 <= (asked.bits or ROTATION_BITS) <= 8:
        raise _refusal(
            f"compression.bits {asked.bits}: a rotation has 2 to 8 bits a value",
            "use 4 (a quarter of float16's bytes) or 2 (an eighth)",
        )
    if asked.bottleneck_dim is not None and asked.kind != "learned":
        raise _refusal(
            f"compression.bottleneck_dim has no meaning for kind {asked.kind}", "leave it out"
        )
    fixed = FIXED_BITS.get(asked.kind)
    if asked.bits is not None and asked.kind != "rotation" and asked.bits != fixed:
        told = f"is {fixed} by its name" if fixed else "cannot be chosen"
        raise _refusal(
            f"compression.bits {asked.bits}: for kind {asked.kind} it {told}", "leave bits out"
        )


def resolve(config: JobConfig, facts: ModelFacts, num_stages: int) -> CompressionSettings:
    """The answer; with one stage nothing crosses, so nothing is compressed."""
    kind = config.compression.kind
    if kind == "none" or num_stages < 2:
        return NONE
    bits = FIXED_BITS.get(kind) or config.compression.bits or ROTATION_BITS
    return CompressionSettings(kind=kind, bits=bits)


def features(config: JobConfig) -> frozenset[str]:
    """What a fellow must be able to do."""
    kind = config.compression.kind
    return frozenset() if kind == "none" else frozenset({kind})


@dataclass(frozen=True)
class Crossed:
    """What crosses each boundary of a job, each way."""

    facts: ModelFacts
    settings: TrainSettings
    train_sequences: int | None = None
    """None until the data is tokenized."""

    @property
    def row_bytes(self) -> int:
        """Of a token."""
        return self._sizes.row_bytes(NUMBER_BYTES[self.settings.dtype])

    @property
    def share(self) -> float:
        """Of what crosses without compression."""
        return self.row_bytes / (NUMBER_BYTES[self.settings.dtype] * self.facts.hidden)

    @property
    def step_bytes(self) -> int:
        """Of a step, without frame headers (72 bytes a micro-batch)."""
        return self.settings.batch_size * self.settings.seq_len * self.row_bytes

    @property
    def before_bytes(self) -> int:
        """Once, before the first step, both ways together: what codes are calibrated on."""
        settings = self.settings
        tokens = settings.batch_size * settings.seq_len
        batches = calibration_batches(settings.batch_size, settings.seq_len, self.train_sequences)
        return self._sizes.before_bytes(batches * tokens, NUMBER_BYTES[settings.dtype])

    @property
    def _sizes(self) -> BoundarySizes:
        return BoundarySizes(self.settings.compression, self.facts.hidden)

    def line(self) -> str:
        """In words."""
        kind = self.settings.compression.kind
        how = "uncompressed" if kind == "none" else f"{kind}, {100 * self.share:.1f} % of them"
        once = f", after {human_bytes(self.before_bytes)} once" if self.before_bytes else ""
        return f"each boundary carries {human_bytes(self.step_bytes)} a step each way ({how}){once}"


def chosen(config: JobConfig, made: TrainSettings) -> list[tuple[str, object, str]]:
    """(setting, value, reason) of what the leader chose."""
    asked, told = config.compression, made.compression
    if asked.kind != told.kind:
        return [("compression.kind", told.kind, "one stage: nothing crosses a boundary")]
    if told.kind == "rotation" and asked.bits is None:
        return [("compression.bits", told.bits, "a quarter of float16's bytes")]
    return []


def _refusal(message: str, hint: str) -> SwarmError:
    return SwarmError("invalid-input", message, hint=hint)
