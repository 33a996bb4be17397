"""Where a step went, marked by real stages over real links, held against a clock of its own."""

from dataclasses import replace

import pytest

from control.records.step_time import Marked, Run, mean_marks, where_it_went
from tests.oracle.grid import Ground, Point
from tests.oracle.stages import Workers, run_to_end
from transport.reports import StepDone


def test_the_marks_of_each_stage_add_up_to_the_time_between_its_reports(
    workers: Workers, ground: Ground
) -> None:
    case = ground.case(Point("llama", 2))
    changes = {"steps": 20, "recompute": True, "eval_sequences": 0}
    case = replace(case, settings=case.settings.model_copy(update=changes))
    run = run_to_end(workers, case, 2)
    marked = []
    for worker in run.workers:
        steps = worker.of(StepDone)
        passed_s = steps[-1].at - steps[0].at
        told_s = sum(sum(step.marks.values()) for step in steps[1:])
        assert told_s == pytest.approx(passed_s, rel=0.01)
        assert all(sum(s.marks.values()) == pytest.approx(s.step_s) for s in steps)
        mean = mean_marks([step.marks for step in steps[2:]])
        assert mean["recompute"] == pytest.approx(mean["forward"], rel=0.7)
        assert min(mean[name] for name in ("backward", "optimizer", "transfer", "wait")) > 0
        marked.append(Marked(3, mean))
    assert "loss" in marked[1].spent
    assert "loss" not in marked[0].spent
    told = where_it_went(marked, Run(4, case.settings.micro_batches, "1f1b", False), 18)
    assert told.step_s == pytest.approx(marked[0].total_s, rel=0.05)
    assert sum(stage.bubble_s for stage in told.stages) > 0
