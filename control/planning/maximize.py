"""The longest sequence with which a job places and fits now.

Pure. Bisection on the planner's own answer: the same prices, floors, pins and disks.
"""

from control.planning.longest import LONGEST, SHORTEST, most
from control.planning.place import Inputs
from transport.api.job_config import JobConfig


def with_seq_len(config: JobConfig, seq_len: int) -> JobConfig:
    """The job at this sequence length, nothing left to search."""
    train = config.train.model_copy(update={"seq_len": seq_len})
    return config.model_copy(update={"train": train, "maximize": None})


def maximized(inputs: Inputs, config: JobConfig) -> JobConfig:
    """The job with the longest sequence that fits; at the shortest one when none does. Data that is
    known must fill one batch.
    """
    batch = _least_batch(config)
    limit = min(LONGEST, inputs.model.facts.max_positions or LONGEST)
    if inputs.data is not None and inputs.data.tokens is not None:
        limit = max(SHORTEST, min(limit, inputs.data.tokens // batch))
    small = _at_batch(config, batch)
    found = most(lambda n: inputs.fits(with_seq_len(small, n)), SHORTEST, limit)
    return with_seq_len(config, found or SHORTEST)


def _least_batch(config: JobConfig) -> int:
    train = config.train
    return train.batch_size if isinstance(train.batch_size, int) else train.micro_batches or 1


def _at_batch(config: JobConfig, batch: int) -> JobConfig:
    return config.model_copy(
        update={"train": config.train.model_copy(update={"batch_size": batch})}
    )
