"""Where a job's step went: the words in which it is shown."""

from transport.schema import Model


class StageTime(Model):
    """Mean seconds of a stage's step. All of them add up to the step."""

    stage: int
    forward_s: float
    loss_s: float
    """The output head and the loss; 0 but on the last stage."""
    recompute_s: float | None
    """null: not told apart from backward on this card."""
    backward_s: float
    optimizer_s: float
    data_s: float
    """Reading the batch."""
    transfer_s: float
    """Packing, copying and unpacking what crosses to the neighbours."""
    link_s: float
    """Waiting that links without delay would save."""
    bubble_s: float
    """Waiting that would remain even then: stages fill, drain, and wait for the slowest."""
    snapshot_s: float
    """What saving costs the step."""
    control_s: float
    """All else: the engine's own work, reports."""


class StepTime(Model):
    """The newest steps, averaged, and what would shorten them."""

    steps: int
    """How many were averaged."""
    step_s: float
    stages: list[StageTime]
    limit: str
    """What takes most of the busiest stage's step."""
    suggestion: str | None
    """The one change that would save most; null when none saves 3 %."""
    gain: float | None
    """Share of the step that it saves, predicted from these measurements."""
