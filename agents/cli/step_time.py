"""Where a job's step went, as text: one row a stage, and what would shorten it."""

from rich.console import Group, RenderableType
from rich.text import Text

from agents.cli.tables import DASH, table
from agents.log_lines import clean
from transport.api.step_time import StageTime, StepTime
from transport.units import human_seconds

_PARTS = {
    "forward": "forward_s",
    "loss": "loss_s",
    "recompute": "recompute_s",
    "backward": "backward_s",
    "update": "optimizer_s",
    "data": "data_s",
    "transfer": "transfer_s",
    "link": "link_s",
    "bubble": "bubble_s",
    "saving": "snapshot_s",
    "control": "control_s",
}


def step_time_text(told: StepTime) -> RenderableType:
    """Shares of each stage's step; parts that no stage has are left out."""
    shown = {
        name: field
        for name, field in _PARTS.items()
        if any(getattr(stage, field) for stage in told.stages)
    }
    rows = [
        (f"  {stage.stage}", *(_share(stage, field, told.step_s) for field in shown.values()))
        for stage in told.stages
    ]
    head = f"{human_seconds(told.step_s)}, mean of {told.steps}; where it went on each stage:"
    parts: list[RenderableType] = [
        _line("Time", head),
        table(("  stage", *(f"{name}>" for name in shown)), rows),
        _line("Limit", told.limit),
    ]
    if told.suggestion is not None and told.gain is not None:
        after = human_seconds(told.step_s * (1 - told.gain))
        saved = f"predicted {100 * told.gain:.0f} % shorter, about {after} a step"
        parts.append(_line("Try", f"{told.suggestion}: {saved}"))
    return Group(*parts)


def _share(stage: StageTime, field: str, step_s: float) -> str:
    seconds = getattr(stage, field)
    return DASH if seconds is None or not step_s else f"{100 * seconds / step_s:.1f}%"


def _line(name: str, text: str) -> Text:
    return Text.assemble((f"{name:<9}", "bold"), clean(text, 1000))
