"""What a stage saves while it trains, and a run that goes on from it: the same bits, any split."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from safetensors import safe_open
from safetensors.torch import load_file

from control.snapshots.check import check_saved
from stage_runtime.loss_scale import FIRST
from tests.oracle.grid import Ground, Point
from tests.oracle.leader_twin import LeaderTwin
from tests.oracle.stages import Case, Run, Workers, even_cuts, run_to_end
from transport.orders import CompressionSettings, ResumeFrom, SavedStage
from transport.reports import Evaluated, LogLine, StepDone

URL = "/fellow/v1/jobs/j-abcdefgh/attempts/{attempt}/snapshots/{step}/stages/{stage}"


@pytest.fixture
def leader() -> Iterator[LeaderTwin]:
    """A leader's file side."""
    twin = LeaderTwin().start()
    yield twin
    twin.stop()


@pytest.fixture
def case(ground: Ground, leader: LeaderTwin) -> Case:
    """A run of eight steps that saves every third."""
    made = ground.case(Point("llama", 2))
    leader.models["local/llama"] = ground.model("llama")
    leader.tokens = ground.cache / "tokens"
    settings = made.settings.model_copy(update={"steps": 8, "snapshot_every_steps": 3})
    return replace(made, settings=settings, leader_url=leader.url)


def saved(leader: LeaderTwin, attempt: int, step: int, stage: int) -> bytes:
    return leader.results[URL.format(attempt=attempt, step=step, stage=stage)]


def saved_steps(leader: LeaderTwin, attempt: int, stage: int) -> list[int]:
    pattern = rf"attempts/{attempt}/snapshots/(\d+)/stages/{stage}$"
    return [int(m.group(1)) for url in leader.results if (m := re.search(pattern, url))]


def going_on(case: Case, leader: LeaderTwin, cuts: list[tuple[int, int]], step: int = 3) -> Case:
    """The next attempt, from a step that was saved under these cuts."""
    files = [
        SavedStage(
            stage=stage,
            first_layer=first,
            last_layer=last,
            digest=hashlib.sha256(data := saved(leader, case.attempt, step, stage)).hexdigest(),
            size_bytes=len(data),
        )
        for stage, (first, last) in enumerate(cuts)
    ]
    resume = ResumeFrom(attempt=case.attempt, step=step, files=files)
    return replace(case, attempt=case.attempt + 1, resume=resume)


def losses(run: Run) -> dict[int, float]:
    return {one.step: one.loss for one in run.workers[-1].of(StepDone)}


def trained(run: Run) -> dict[str, list[float]]:
    files = (load_file(run.file_of(worker.stage)) for worker in run.workers)
    return {name: tensor.tolist() for file in files for name, tensor in file.items()}


def test_every_stage_saves_the_same_steps_with_all_that_it_needs_and_never_the_base_model(
    workers: Workers, case: Case, leader: LeaderTwin, tmp_path: Path
) -> None:
    run_to_end(workers, case, 2)
    assert saved_steps(leader, 1, 0) == saved_steps(leader, 1, 1)
    assert 3 in saved_steps(leader, 1, 0)
    path = tmp_path / "saved.safetensors"
    path.write_bytes(saved(leader, 1, 3, 1))
    with safe_open(path, framework="pt") as opened:
        told, names = opened.metadata(), list(opened.keys())
        digests = json.loads(told["digests"])
        values = {name: opened.get_tensor(name) for name in names}
    assert {told[key] for key in ("job_id", "step", "stage")} == {"j-abcdefgh", "3", "1"}
    assert json.loads(told["schedule"])["step"] == 3
    assert {name.partition(".")[0] for name in names} == {"weight", "exp_avg", "exp_avg_sq", "step"}
    assert all(".lora_" in name for name in names)
    assert {values[name].item() for name in names if name.startswith("step.")} == {3.0}
    assert digests == {
        name: hashlib.sha256(values[name].numpy().tobytes()).hexdigest() for name in names
    }


def test_a_run_that_goes_on_gives_the_same_bits_as_one_that_never_stopped(
    workers: Workers, case: Case, leader: LeaderTwin
) -> None:
    whole = run_to_end(workers, case, 2)
    rest = run_to_end(workers, going_on(case, leader, even_cuts(case.num_layers, 2)), 2)
    assert list(losses(rest)) == [4, 5, 6, 7, 8]
    assert losses(rest).items() <= losses(whole).items()
    assert trained(rest) == trained(whole)


def test_a_float16_run_goes_on_with_the_loss_scale_that_it_had(
    workers: Workers, case: Case, leader: LeaderTwin, tmp_path: Path
) -> None:
    half = replace(case, settings=case.settings.model_copy(update={"dtype": "float16"}))
    whole = run_to_end(workers, half, 2)
    path = tmp_path / "saved.safetensors"
    path.write_bytes(saved(leader, 1, 3, 0))
    with safe_open(path, framework="pt") as opened:
        value, good_steps = opened.metadata()["loss_scale"].split()
    skipped = sum(one.skipped for one in whole.workers[0].of(StepDone)[:3])
    assert (float(value), int(good_steps)) == (FIRST / 2**skipped, 3 - skipped)
    rest = run_to_end(workers, going_on(half, leader, even_cuts(case.num_layers, 2)), 2)
    assert losses(rest).items() <= losses(whole).items()
    assert trained(rest) == trained(whole)


def test_a_run_split_again_over_fewer_stages_and_back_keeps_its_losses(
    workers: Workers, case: Case, leader: LeaderTwin
) -> None:
    whole = run_to_end(workers, case, 3)
    fewer = run_to_end(workers, going_on(case, leader, even_cuts(case.num_layers, 3)), 2)
    again = going_on(replace(case, attempt=2), leader, even_cuts(case.num_layers, 2), 6)
    back = run_to_end(workers, again, 3)
    for run in (fewer, back):
        for step, loss in losses(run).items():
            assert loss == pytest.approx(losses(whole)[step], abs=1e-5)
    assert list(losses(back)) == [7, 8]


def test_a_tied_model_that_is_trained_whole_goes_on_with_the_same_bits_and_splits_again(
    workers: Workers, ground: Ground, leader: LeaderTwin, tmp_path: Path
) -> None:
    made = ground.case(Point("llama", 3, method="full"))
    leader.models["local/llama"] = ground.model("llama")
    leader.tokens = ground.cache / "tokens"
    settings = made.settings.model_copy(update={"steps": 6, "snapshot_every_steps": 3})
    case = replace(made, settings=settings, leader_url=leader.url)
    cuts = even_cuts(case.num_layers, 3)
    whole = run_to_end(workers, case, 3)
    # The table is saved once, by the first stage that owns it, with its moments.
    holders = []
    for stage in range(3):
        path = tmp_path / f"{stage}.safetensors"
        path.write_bytes(saved(leader, 1, 3, stage))
        check_saved(path, case.orders(cuts)[stage], 3)
        with safe_open(path, framework="pt") as opened:
            names = [name for name in opened.keys() if "embed_tokens" in name or "lm_head" in name]  # noqa: SIM118
        holders += [stage] * len(names)
    assert holders == [0] * 4

    rest = run_to_end(workers, going_on(case, leader, cuts), 3)
    assert list(losses(rest)) == [4, 5, 6]
    assert losses(rest).items() <= losses(whole).items()
    assert trained(rest) == trained(whole)

    fewer = run_to_end(workers, going_on(case, leader, cuts), 2)
    for step, loss in losses(fewer).items():
        assert loss == pytest.approx(losses(whole)[step], abs=1e-5)


def test_a_leader_that_is_full_or_away_for_a_while_costs_no_step(
    workers: Workers, case: Case, leader: LeaderTwin
) -> None:
    leader.refusals = [503, 507, 422, 503]
    run = run_to_end(workers, case, 2)
    assert list(losses(run)) == list(range(1, 9))
    lines = [one.text for worker in run.workers for one in worker.of(LogLine)]
    assert any("step 3 is not saved" in line for line in lines)


def test_a_file_of_another_step_is_refused_before_the_first_step(
    workers: Workers, case: Case, leader: LeaderTwin
) -> None:
    run_to_end(workers, case, 1)
    wrong = going_on(case, leader, even_cuts(case.num_layers, 1), 3)
    assert wrong.resume is not None
    other = wrong.resume.model_copy(update={"step": 4})
    leader.results[URL.format(attempt=1, step=4, stage=0)] = saved(leader, 1, 3, 0)
    run = Run(workers, replace(wrong, resume=other), 1).finish()
    (failure,) = run.failures()
    assert failure.code == "invalid-input"
    assert "another job or step" in failure.message


def test_a_run_with_a_rotation_goes_on_bit_for_bit_without_calibrating_again(
    workers: Workers, case: Case, leader: LeaderTwin, tmp_path: Path
) -> None:
    rotation = CompressionSettings(kind="rotation", bits=4)
    case = replace(case, settings=case.settings.model_copy(update={"compression": rotation}))
    cuts = even_cuts(case.num_layers, 2)
    whole = run_to_end(workers, case, 2)
    path = tmp_path / "saved.safetensors"
    path.write_bytes(saved(leader, 1, 3, 1))
    check_saved(path, case.orders(cuts)[1], 3)

    rest = run_to_end(workers, going_on(case, leader, cuts), 2)
    assert losses(rest).items() <= losses(whole).items()
    assert trained(rest) == trained(whole)
    assert not calibrations(rest)


def test_a_run_with_a_rotation_is_split_over_fewer_stages_and_back_with_new_boundaries(
    workers: Workers, case: Case, leader: LeaderTwin
) -> None:
    rotation = CompressionSettings(kind="rotation", bits=4)
    case = replace(case, settings=case.settings.model_copy(update={"compression": rotation}))
    whole = run_to_end(workers, case, 3)
    fewer = run_to_end(workers, going_on(case, leader, even_cuts(case.num_layers, 3)), 2)
    again = going_on(replace(case, attempt=2), leader, even_cuts(case.num_layers, 2), 6)
    back = run_to_end(workers, again, 3)
    # Each stage calibrates what it sends: no boundary of one split lies where one of the other does
    assert [len(calibrations(run)) for run in (whole, fewer, back)] == [3, 2, 3]
    assert (list(losses(fewer)), list(losses(back))) == ([4, 5, 6, 7, 8], [7, 8])
    for run in (fewer, back):
        for step, loss in losses(run).items():
            assert loss == pytest.approx(losses(whole)[step], abs=0.05)


@pytest.mark.parametrize("kind", ["fixed_int8", "fixed_int4", "learned"])
def test_a_run_with_codes_and_adapters_goes_on_bit_for_bit(
    workers: Workers,
    case: Case,
    leader: LeaderTwin,
    kind: Literal["fixed_int8", "fixed_int4", "learned"],
) -> None:
    bits, dim = (4 if kind == "fixed_int4" else 8), (24 if kind == "learned" else 0)
    codes = CompressionSettings(kind=kind, bits=bits, dim=dim)
    case = replace(case, settings=case.settings.model_copy(update={"compression": codes}))
    whole = run_to_end(workers, case, 2)
    rest = run_to_end(workers, going_on(case, leader, even_cuts(case.num_layers, 2)), 2)
    assert list(losses(rest)) == [4, 5, 6, 7, 8]
    assert losses(rest).items() <= losses(whole).items()
    assert trained(rest) == trained(whole)


def test_a_bottleneck_alone_goes_on_bit_for_bit_and_is_refused_on_another_split(
    workers: Workers, case: Case, leader: LeaderTwin
) -> None:
    learned = CompressionSettings(kind="learned", bits=8, dim=24)
    changes = {"method": "boundary", "lora": None, "compression": learned}
    case = replace(case, settings=case.settings.model_copy(update=changes))
    cuts = even_cuts(case.num_layers, 2)
    whole = run_to_end(workers, case, 2)
    assert set(trained(whole)) == {
        f"boundary.3.{side}.{kind}"
        for side in ("encoder", "decoder")
        for kind in ("weight", "bias")
    }
    moments = [one.moment for one in whole.workers[-1].of(Evaluated)]
    assert moments == ["base", "trained", "bypassed"]

    rest = run_to_end(workers, going_on(case, leader, cuts), 2)
    assert losses(rest).items() <= losses(whole).items()
    assert trained(rest) == trained(whole)
    assert not calibrations(rest)

    split_again = Run(workers, going_on(case, leader, cuts), 3)
    split_again.connect()
    failure = split_again.finish().failures()[0]
    assert "lacks boundary." in failure.message


def calibrations(run: Run) -> list[str]:
    lines = [one.text for worker in run.workers for one in worker.of(LogLine)]
    return [line for line in lines if "calibrated the " in line]
