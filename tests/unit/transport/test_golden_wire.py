"""What machines of protocol 1 say to each other is read by every later version.

tests/golden/wire_protocol_1.json is the record of the first release. It is never edited: a change
that cannot read it needs a new protocol number, and this number's record stays.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from transport.cards import Heartbeat
from transport.orders import DesiredState, WorkerLinks, WorkerStart
from transport.reports import JoinAsk, Joined, ReportBatch, ReportsTaken
from transport.schema import parse

RECORD = Path(__file__).parents[2] / "golden" / "wire_protocol_1.json"
KINDS: dict[str, type[BaseModel]] = {
    kind.__name__: kind
    for kind in (
        Heartbeat,
        DesiredState,
        ReportBatch,
        ReportsTaken,
        JoinAsk,
        Joined,
        WorkerStart,
        WorkerLinks,
    )
}
RECORDED: dict[str, Any] = json.loads(RECORD.read_text("utf-8"))


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_message_of_protocol_1_is_read_and_says_the_same(name: str) -> None:
    told = RECORDED[name]
    again = json.loads(parse(KINDS[name], told).model_dump_json())
    assert contains(again, told)


def test_every_kind_of_message_is_recorded() -> None:
    assert set(RECORDED) == set(KINDS)


def test_every_kind_of_report_is_recorded() -> None:
    kinds = {numbered["report"]["kind"] for numbered in RECORDED["ReportBatch"]["reports"]}
    assert kinds == {
        "bound",
        "loaded",
        "step",
        "evaluated",
        "memory",
        "saved",
        "done",
        "failed",
        "log",
        "measured",
    }


def contains(whole: Any, part: Any) -> bool:
    """Whether everything in `part` is in `whole`; a newer version may say more."""
    if isinstance(part, dict):
        return all(key in whole and contains(whole[key], value) for key, value in part.items())
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(contains, whole, part))
    return bool(whole == part)
