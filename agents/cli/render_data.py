"""A job's data and a bucket's rows as text for people, without control characters."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from agents.cli.tables import Labelled
from agents.log_lines import clean
from transport.api.buckets import BucketPreview, PreviewRow
from transport.api.plans import DataShape
from transport.units import count_of


def data_lines(data: DataShape | None) -> list[RenderableType]:
    """What a plan says of the data: its figures, every finding, one row as it is learned."""
    if data is None:
        return []
    name = data.bucket or data.dataset or "data"
    if data.checked_share is not None and data.checked_share < 1:
        return [Labelled("Data", f"{name}: {100 * data.checked_share:.0f} % checked; {data.waits}")]
    if data.tokens is None:
        return []
    figures = ", ".join([count_of(data.tokens, "token"), *_figures(data)])
    lines: list[RenderableType] = [Labelled("Data", f"{name}: {figures}")]
    lines += [Labelled("Found", finding.words, "yellow") for finding in data.findings]
    if data.checked_share and not data.findings:
        lines.append(Labelled("Found", "nothing that would spoil a run"))
    if data.untrusted_sample:
        lines.append(Labelled("Sample", data.untrusted_sample))
    return lines


def _figures(data: DataShape) -> Iterator[str]:
    if data.batches is not None:
        yield count_of(data.batches, "batch", "batches")
    if data.passes is not None:
        yield f"{data.passes:.2g} {'pass' if data.passes == 1 else 'passes'}"
    if data.held_out_sequences is not None:
        yield f"{count_of(data.held_out_sequences, 'sequence')} held out"
    if data.supervised_share is not None:
        yield f"{100 * data.supervised_share:.3g} % of the targets learned"


def preview_text(answer: BucketPreview) -> RenderableType:
    """Rows with what is learned underlined and in brackets."""
    rows = [_row(row) for row in answer.rows]
    more = [Text(count_of(answer.omitted, "more row"))] if answer.omitted else []
    return Group(Text(answer.summary), *rows, *more)


def _row(row: PreviewRow) -> Text:
    tokens = "" if row.tokens is None else f", {row.learned_tokens} of {row.tokens} tokens learned"
    text = Text.assemble("\n", (f"{clean(row.place, 200)}: {row.kind}{tokens}", "bold"), "\n")
    for part in row.parts:
        shown = "\n".join(clean(line, 2000) for line in part.untrusted_text.split("\n"))
        text.append(f"⟦{shown}⟧" if part.learned else shown, "green" if part.learned else "")
    return text.append("…" if row.is_cut else "")
