"""Verifications as text: the verdict first, then the losses side by side."""

from rich.console import Group, RenderableType
from rich.text import Text

from agents.cli.tables import DASH, table
from agents.log_lines import clean
from transport.api.verify import ShownVerification, VerifyView

_STYLES = {"equal": "green", "different": "bold red", None: ""}


def verify_text(answer: VerifyView) -> RenderableType:
    """What was found, or how far it is."""
    one = answer.verification
    parts: list[RenderableType] = [Text(answer.summary, style=_STYLES[one.verdict])]
    if one.split_losses or one.one_process_losses:
        parts.append(_losses(one))
    parts += [Text(f"  the probe has {clean(words, 200)}") for words in one.differs]
    if one.untrusted_error:
        parts.append(Text(f"Error    {clean(one.untrusted_error, 2000)}", style="red"))
    return Group(*parts)


def verification_lines(one: ShownVerification) -> list[RenderableType]:
    """The line of a job that was verified."""
    if one.verdict is None:
        words = clean(one.reason, 300) or f"probe {one.probe_job_id}"
        return [Text.assemble(("Verify   ", "bold"), f"{one.state}: {words}")]
    words = f"{one.largest_difference:.1e} nats at {one.largest_at}, allowed {one.tolerance:.1e}"
    style = _STYLES[one.verdict]
    return [Text.assemble(("Verify   ", "bold"), (one.verdict, style), f": {words}")]


def _losses(one: ShownVerification) -> RenderableType:
    places = [f"step {number}" for number in range(1, one.steps + 1)]
    ours, theirs = list(one.split_losses), list(one.one_process_losses)
    rows = [_row(place, ours, theirs, number) for number, place in enumerate(places)]
    for number, place in enumerate(("held out before", "held out after")):
        if number < len(one.split_held_out):
            rows.append(_row(place, one.split_held_out, one.one_process_held_out, number))
    return table(("  loss", "stages>", "one process>"), rows)


def _row(place: str, ours: list[float], theirs: list[float], number: int) -> tuple[str, str, str]:
    def figure(losses: list[float]) -> str:
        return f"{losses[number]:.6f}" if number < len(losses) else DASH

    return f"  {place}", figure(ours), figure(theirs)
