"""What crosses between stages: from what a job asks to what its stages run with, and why.

Pure. Bytes are those of stage_runtime.codecs.sizes, which the codecs themselves follow.
"""

from dataclasses import dataclass
from typing import Final

from stage_runtime.codecs.sizes import BoundarySizes
from stage_runtime.model_facts import ModelFacts
from transport.api.job_config import CompressionConfig, JobConfig
from transport.errors import SwarmError
from transport.orders import CompressionSettings, TrainSettings
from transport.units import human_bytes

OFFERED: Final = ("none", "fixed_int8", "fixed_int4")
FIXED_BITS: Final = {"fixed_int8": 8, "fixed_int4": 4}
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
    return CompressionSettings(kind=kind, bits=FIXED_BITS[kind])


def features(config: JobConfig) -> frozenset[str]:
    """What a fellow must be able to do."""
    kind = config.compression.kind
    return frozenset() if kind == "none" else frozenset({kind})


@dataclass(frozen=True)
class Crossed:
    """What crosses each boundary of a job, each way."""

    facts: ModelFacts
    settings: TrainSettings

    @property
    def row_bytes(self) -> int:
        """Of a token."""
        sizes = BoundarySizes(self.settings.compression, self.facts.hidden)
        return sizes.row_bytes(NUMBER_BYTES[self.settings.dtype])

    @property
    def share(self) -> float:
        """Of what crosses without compression."""
        return self.row_bytes / (NUMBER_BYTES[self.settings.dtype] * self.facts.hidden)

    @property
    def step_bytes(self) -> int:
        """Of a step, without frame headers (72 bytes a micro-batch)."""
        return self.settings.batch_size * self.settings.seq_len * self.row_bytes

    def line(self) -> str:
        """In words."""
        kind = self.settings.compression.kind
        how = "uncompressed" if kind == "none" else f"{kind}, {100 * self.share:.1f} % of them"
        return f"each boundary carries {human_bytes(self.step_bytes)} a step each way ({how})"


def reason(config: JobConfig, made: TrainSettings, num_stages: int) -> str:
    """Why the answer differs from the question; "" when it does not."""
    if config.compression.kind != made.compression.kind and num_stages < 2:
        return "one stage: nothing crosses a boundary"
    return ""


def _refusal(message: str, hint: str) -> SwarmError:
    return SwarmError("invalid-input", message, hint=hint)
