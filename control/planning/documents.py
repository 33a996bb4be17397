"""Whether documents that share a sequence may be kept apart. Pure."""

from stage_runtime.model_facts import ModelFacts
from transport.api.job_config import JobConfig
from transport.errors import SwarmError

FEATURE = "document-mask"


def refuse(config: JobConfig, facts: ModelFacts) -> None:
    """Refuse a mask that a family's class does not make.

    Raises:
        SwarmError: invalid-input.
    """
    if config.train.document_mask and not facts.family.splits_documents:
        raise SwarmError(
            "invalid-input",
            f"train.document_mask: a {facts.model_type} model makes its masks without positions, "
            "so documents that share a sequence would see each other",
            hint="leave train.document_mask out, or give rows instead of text: each has a sequence "
            "of its own",
        )


def features(config: JobConfig) -> frozenset[str]:
    """What a fellow must be able to do."""
    return frozenset({FEATURE} if config.train.document_mask else ())
