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

FIXED_BITS: Final = {"fixed_int8": 8, "fixed_int4": 4, "learned": 8}
ROTATION_BITS: Final = 4
"""A quarter of float16's bytes."""
NUMBER_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
NONE: Final = CompressionSettings()


def refuse(config: JobConfig, facts: ModelFacts) -> None:
    """Refuse what no stage can do.

    Raises:
        SwarmError: invalid-input.
    """
    asked = config.compression
    if config.method == "boundary" and asked.kind != "learned":
        raise _refusal(
            f"method boundary trains the projections of a learned bottleneck, but compression.kind "
            f"is {asked.kind}",
            'set compression.kind "learned", or use method lora or full',
        )
    if config.method == "boundary" and config.max_workers == 1:
        raise _refusal(
            "method boundary needs two fellows: one has no boundary, but max_workers is 1",
            "raise max_workers, or use method lora",
        )
    if asked.kind != "none" and config.train.backend != "swarm":
        raise _refusal(
            f"compression.kind {asked.kind} needs train.backend swarm: {config.train.backend} "
            "carries tensors as they are",
            'use backend swarm, or compression.kind "none"',
        )
    _refuse_numbers(asked, facts.hidden)


def _refuse_numbers(asked: CompressionConfig, hidden: int) -> None:
    if isinstance(asked.bottleneck_dim, int) and asked.bottleneck_dim >= hidden:
        raise _refusal(
            f"compression.bottleneck_dim {asked.bottleneck_dim} is no narrower than the model's "
            f"hidden width {hidden}",
            f'use "auto" ({hidden // 2}), or a smaller number',
        )
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
        told = f"is {fixed}" if fixed else "cannot be chosen"
        raise _refusal(
            f"compression.bits {asked.bits}: for kind {asked.kind} it {told}", "leave bits out"
        )


def resolve(config: JobConfig, facts: ModelFacts, num_stages: int) -> CompressionSettings:
    """The answer; with one stage nothing crosses, so nothing is compressed."""
    kind = config.compression.kind
    if kind == "none" or num_stages < 2:
        return NONE
    bits = FIXED_BITS.get(kind) or config.compression.bits or ROTATION_BITS
    asked = config.compression.bottleneck_dim
    dim = asked if isinstance(asked, int) else facts.hidden // 2
    return CompressionSettings(kind=kind, bits=bits, dim=dim if kind == "learned" else 0)


def fewest(config: JobConfig) -> int:
    """Stages that a job needs at least: without a boundary none of its projections trains."""
    return max(config.min_workers, 2 if config.method == "boundary" else 1)


def adapts_mlp(config: JobConfig, num_stages: int) -> bool:
    """Whether adapters go on the feed-forward layers: where the caller says so, else where stages
    must adapt to a learned bottleneck.
    """
    asked = config.model.lora.mlp
    if asked is not None:
        return asked
    return config.compression.kind == "learned" and num_stages > 1


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
    if told.kind == "learned" and not isinstance(asked.bottleneck_dim, int):
        return [("compression.bottleneck_dim", told.dim, "half the hidden width")]
    return []


def _refusal(message: str, hint: str) -> SwarmError:
    return SwarmError("invalid-input", message, hint=hint)
