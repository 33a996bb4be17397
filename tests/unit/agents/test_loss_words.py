"""What a job would do without a fellow, in one line each."""

from typing import Any

import pytest

from agents.cli.loss_words import if_lost_text
from tests.unit.mcp_server.twin import sample
from transport.api.job_config import JobConfig
from transport.api.jobs import IfLost, JobView, ShownStage
from transport.schema import parse

ONE, TWO, THREE = "f-aaaaaaaa", "f-bbbbbbbb", "f-cccccccc"


def a_job() -> JobView:
    stages = [sample(ShownStage, stage=n, fellow_id=who) for n, who in enumerate((ONE, TWO))]
    config = sample(JobConfig)
    config["train"]["recovery_wait_s"] = 600
    return parse(JobView, sample(JobView, stages=stages, config=config))


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"then": "standby", "fellows": [THREE, TWO]}, f"{THREE} takes its stage"),
        (
            {"then": "split", "fellows": [TWO], "after_s": 600.0},
            "after 10 min 0 s split again over 1 fellow",
        ),
        ({"then": "split", "fellows": [TWO, THREE]}, f"without {ONE}: split again over 2 fellows"),
        ({"then": "wait", "why": "no room"}, "for it or a standby (no room)"),
        ({"then": "fail", "why": "no standby"}, "fails (no standby)"),
        ({"then": "unknown", "why": "the hub is away"}, "not planned (the hub is away)"),
    ],
)
def test_each_plan_is_one_line(told: dict[str, Any], words: str) -> None:
    line = if_lost_text(a_job(), IfLost(fellow_id=ONE, **told))
    assert line.startswith(f"without {ONE}: ")
    assert words in line
    assert "\n" not in line
