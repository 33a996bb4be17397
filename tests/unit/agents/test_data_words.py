"""A plan's data and a bucket's rows as people read them in a terminal."""

from typing import Any

import pytest
from rich.console import Console, Group

from agents.cli.render_data import data_lines, preview_text
from transport.api.buckets import BucketPreview
from transport.api.plans import DataShape, Finding

FIGURES: dict[str, Any] = {
    "bucket": "chats", "tokens": 120_000, "sequences": 900, "held_out_sequences": 47,
    "batches": 112, "passes": 1.5, "supervised_share": 0.314, "checked_share": 1.0,
}  # fmt: skip
UNKNOWN = dict.fromkeys(
    ("tokens", "sequences", "held_out_sequences", "batches", "passes", "supervised_share")
)


def shown(what: Any) -> list[str]:
    """Lines of a wide terminal."""
    console = Console(width=300, no_color=True)
    with console.capture() as capture:
        console.print(what)
    return capture.get().splitlines()


def test_a_plan_tells_figures_each_finding_and_a_sample() -> None:
    words = "3 of 950 rows end with EOS twice (first: a.jsonl line 7)"
    finding = Finding(kind="eos-doubled", count=3, of=950, first="a.jsonl line 7", words=words)
    data = DataShape(**FIGURES, findings=[finding], untrusted_sample="go \x1b[31m⟦yes⟧")
    share = "31.4 % of the targets learned"
    assert shown(Group(*data_lines(data))) == [
        "Data     chats: 120,000 tokens, 112 batches, 1.5 passes, 47 sequences held out, " + share,
        f"Found    {words}",
        "Sample   go [31m⟦yes⟧",
    ]
    clean = DataShape(**FIGURES)
    assert shown(Group(*data_lines(clean)))[1] == "Found    nothing that would spoil a run"


def unready(**told: Any) -> DataShape:
    """Data that is not tokenized yet."""
    return DataShape.model_validate({**UNKNOWN, "bucket": "b", **told})


@pytest.mark.parametrize(
    "told, lines",
    [
        (None, []),
        (unready(), []),
        (
            unready(checked_share=0.4, waits="the data is read"),
            ["Data     b: 40 % checked; the data is read"],
        ),
        (
            unready(bucket="", dataset="o/d@c", checked_share=0.0, waits="it is fetched"),
            ["Data     o/d@c: 0 % checked; it is fetched"],
        ),
    ],
)
def test_until_all_is_checked_a_plan_tells_how_much_is(
    told: DataShape | None, lines: list[str]
) -> None:
    assert shown(Group(*data_lines(told))) == lines


def test_a_preview_marks_what_is_learned() -> None:
    row = {
        "place": "a.jsonl line 1", "kind": "messages", "tokens": 9, "learned_tokens": 2,
        "parts": [
            {"learned": False, "untrusted_text": "user: \x07hi\n"},
            {"learned": True, "untrusted_text": "yes"},
        ],
        "is_cut": True,
    }  # fmt: skip
    told = {
        "summary": "1 of 2 rows.", "pool": "a/b", "bucket": "c", "model_id": None, "rows": [row],
        "omitted": 1,
    }  # fmt: skip
    assert shown(preview_text(BucketPreview.model_validate(told))) == [
        "1 of 2 rows.",
        "",
        "a.jsonl line 1: messages, 2 of 9 tokens learned",
        "user: hi",
        "⟦yes⟧…",
        "1 more row",
    ]
