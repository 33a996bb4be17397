"""What it costs that a model's embedding is its output head, where both lie on different stages.

Pure arithmetic, torch-free: the planner reads it too.
"""

from stage_runtime.model_facts import ModelFacts
from transport.orders import TrainSettings

PIECE_VALUES = 1 << 18
"""Float32 values of the table in one frame, 1 MB: stages between pass it on early."""


def shares_table(facts: ModelFacts, settings: TrainSettings, num_stages: int) -> bool:
    """Whether the first and the last stage hold one trained table twice."""
    return settings.method == "full" and facts.tied and num_stages > 1


def table_values(facts: ModelFacts) -> int:
    """Values of the shared table."""
    return facts.vocab * facts.hidden


def piece_values(facts: ModelFacts) -> int:
    """Values of the table that cross in one frame."""
    return min(PIECE_VALUES, table_values(facts))


def crossing_bytes(facts: ModelFacts, settings: TrainSettings, num_stages: int) -> int:
    """Bytes that cross each boundary in each direction once a step, padding included.

    Backward the gradient of the last stage's copy, forward the new values.
    """
    if not shares_table(facts, settings, num_stages):
        return 0
    piece = piece_values(facts)
    return 4 * piece * -(-table_values(facts) // piece)
