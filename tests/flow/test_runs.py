"""What whole runs must do beside being right: repeat, be kept, stop, and refuse."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.oracle.grid import Ground, Point
from tests.oracle.leader_twin import LeaderTwin
from tests.oracle.one_process import held_out
from tests.oracle.stages import Case, Run, Worker, Workers, run_to_end
from transport.orders import TrainSettings, WorkerPause
from transport.reports import (
    AdapterSaved,
    Evaluated,
    LogLine,
    MemoryMeasured,
    StageBound,
    StageDone,
    StageLoaded,
    StepDone,
)


def changed(case: Case, **changes: object) -> Case:
    """The case with other settings."""
    return replace(case, settings=case.settings.model_copy(update=changes))


def with_dropout(settings: TrainSettings, dropout: float) -> dict[str, object]:
    """A change of settings: adapters with dropout."""
    assert settings.lora is not None
    return {"lora": settings.lora.model_copy(update={"dropout": dropout})}


@pytest.fixture
def case(ground: Ground) -> Case:
    """A short run of the tiny Llama."""
    return changed(ground.case(Point("llama", 2)), steps=6)


@pytest.fixture
def leader() -> Iterator[LeaderTwin]:
    """A leader's file side."""
    twin = LeaderTwin().start()
    yield twin
    twin.stop()


def joined(run: Run, case: Case, folder: Path) -> Path:
    """Join the stages' files into one peft folder, as the leader does."""
    lora = case.settings.lora
    assert lora is not None
    tensors: dict[str, torch.Tensor] = {}
    for stage in range(len(run.workers)):
        tensors |= load_file(run.file_of(stage))
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=list(lora.target_modules),
        fan_in_fan_out=case.model == "gpt2",
        task_type="CAUSAL_LM",
    ).save_pretrained(str(folder))
    return folder


@pytest.mark.parametrize("model", ["llama", "gpt2", "gemma3"])
def test_joined_adapters_load_in_plain_peft_and_give_the_runs_own_held_out_loss(
    workers: Workers, ground: Ground, tmp_path: Path, model: str
) -> None:
    point = Point(model, 3)
    case = ground.case(point)
    run = run_to_end(workers, case, 3)
    base = AutoModelForCausalLM.from_pretrained(ground.model(model), dtype=torch.float32)
    plain = held_out(base, ground.sequences(point), case.settings)

    adapted = PeftModel.from_pretrained(base, str(joined(run, case, tmp_path / "adapter")))

    names = {
        name.replace(".default.", ".") for name, _ in adapted.named_parameters() if "lora_" in name
    }
    assert names == set(load_file(tmp_path / "adapter" / "adapter_model.safetensors"))
    loss, accuracy = held_out(adapted, ground.sequences(point), case.settings)
    told = {one.moment: one for one in run.workers[-1].of(Evaluated)}["trained"]
    assert abs(told.loss - loss) <= 1e-4
    assert abs(told.accuracy - accuracy) <= 1e-6
    assert abs(plain[0] - loss) > 1e-3


def weights_of(run: Run) -> list[bytes]:
    """The saved results, byte for byte."""
    return [run.file_of(worker.stage).read_bytes() for worker in run.workers]


def test_one_seed_gives_the_same_bytes_twice_even_with_dropout_and_recompute_early_or_late(
    workers: Workers, case: Case
) -> None:
    dropped = changed(case, **with_dropout(case.settings, 0.3))
    first, second = (run_to_end(workers, dropped, 2) for _ in range(2))
    again, early = (
        run_to_end(workers, changed(dropped, recompute=True, early_recompute=most), 2)
        for most in (0, 3)
    )
    evaluated = run_to_end(workers, changed(dropped, eval_every_steps=2), 2)
    other = run_to_end(workers, changed(dropped, seed=4), 2)

    assert weights_of(first) == weights_of(second) == weights_of(again) == weights_of(early)
    assert weights_of(first) == weights_of(evaluated)
    assert weights_of(first) != weights_of(other)


def test_dropout_is_the_same_however_the_model_is_split(workers: Workers, case: Case) -> None:
    dropped = changed(case, **with_dropout(case.settings, 0.3))
    losses = [
        [step.loss for step in run_to_end(workers, dropped, stages).workers[0].of(StepDone)]
        for stages in (1, 3)
    ]
    undropped = run_to_end(workers, case, 1).workers[0].of(StepDone)
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert losses[0] != pytest.approx([step.loss for step in undropped], abs=1e-3)


def test_sixteen_bit_layers_train_over_stages_and_adapters_stay_float32(
    workers: Workers, ground: Ground
) -> None:
    case = changed(ground.case(Point("llama", 3)), dtype="bfloat16")
    run = run_to_end(workers, case, 3)
    losses = [step.loss for step in run.workers[0].of(StepDone)]
    told = ground.reference(Point("llama", 3)).losses
    assert losses[0] == pytest.approx(told[0], abs=0.1)
    assert losses[-1] < losses[0]
    assert {tensor.dtype for tensor in load_file(run.file_of(1)).values()} == {torch.float32}


def test_a_run_tells_its_phases_its_memory_and_its_result(workers: Workers, case: Case) -> None:
    run = run_to_end(workers, changed(case, eval_every_steps=2), 2)
    for worker, order in zip(run.workers, run.orders, strict=True):
        kinds = [type(one) for one in worker.reports if not isinstance(one, LogLine)]
        assert kinds[:2] == [StageBound, StageLoaded]
        assert kinds[-2:] == [AdapterSaved, StageDone]
        loaded, (memory, *_) = worker.of(StageLoaded)[0], worker.of(MemoryMeasured)
        assert memory.how == "counted"
        assert loaded.weight_bytes < memory.peak_bytes
        assert loaded.priced_bytes == pytest.approx(memory.peak_bytes, rel=0.1)
        assert worker.of(AdapterSaved)[0].size_bytes == run.file_of(order.stage).stat().st_size
        assert worker.of(StageDone)[0].sent_bytes > 0
    moments = [(one.moment, one.step) for one in run.workers[1].of(Evaluated)]
    assert moments == [("base", 0), ("during", 2), ("during", 4), ("trained", 6)]
    assert not run.workers[0].of(Evaluated)


def test_the_same_stages_run_over_gloo_when_a_launcher_has_set_the_rendezvous(
    case: Case, ground: Ground
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    launched = Workers(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    try:
        run = Run(launched, changed(case, backend="gloo"), 2).finish()
    finally:
        launched.close()
    assert not run.failures()
    told = ground.reference(Point("llama", 2, changes=(("steps", 6),)))
    losses = [step.loss for step in run.workers[0].of(StepDone)]
    assert losses == pytest.approx(told.losses, abs=1e-5)


def test_gloo_without_a_launcher_is_refused(workers: Workers, case: Case) -> None:
    run = Run(workers, changed(case, backend="gloo"), 2).finish()
    assert {one.code for one in run.failures()} == {"invalid-input"}
    assert "MASTER_ADDR" in run.failures()[0].message


def test_a_loss_that_is_no_number_stops_every_stage_and_names_the_step(
    workers: Workers, case: Case
) -> None:
    run = Run(workers, changed(case, learning_rate=1e30, warmup_steps=0, max_grad_norm=0.0), 3)
    run.connect()
    run.finish()

    assert [worker.code for worker in run.workers] == [3, 3, 3]
    first, second, last = run.failures()
    assert (first.echo, second.echo, last.echo) == (True, True, False)
    done = run.workers[0].of(StepDone)
    assert f"step {len(done) + 1}" in last.message
    assert f"{done[-1].loss:.4f}" in last.message
    assert "learning rate" in last.hint


def test_a_budget_below_the_price_is_refused_before_anything_is_allocated(
    workers: Workers, case: Case
) -> None:
    run = Run(workers, replace(case, budget_bytes=100_000), 2)
    run.pump(lambda: len(run.failures()) == 2)
    assert {one.code for one in run.failures()} == {"cannot-fit"}
    assert "100 kB" in run.failures()[0].message
    assert not run.workers[0].of(StageLoaded)
    run.finish()


def stop_the_rest(run: Run, killed: int, since: float) -> None:
    """Play the leader: pause what still runs, and expect everything to be over in 10 s."""
    rest = [worker for worker in run.workers if worker.stage != killed]
    run.pump(lambda: run.workers[killed].code is not None, 10)
    assert run.workers[killed].code == -signal.SIGKILL
    for worker in rest:
        if worker.code is None:
            worker.send(WorkerPause(reason="stage failed"))
    run.finish(10)
    assert time.monotonic() - since < 10
    assert {worker.code for worker in rest} <= {0, 3, 4}


def test_a_worker_killed_while_it_loads_leaves_nobody_waiting(workers: Workers, case: Case) -> None:
    run = Run(workers, case, 3)
    run.pump(lambda: bool(run.workers[1].of(StageBound)))
    since = time.monotonic()
    run.kill(1)
    stop_the_rest(run, 1, since)


@pytest.mark.parametrize("waits_for", [0, 2], ids=["forward", "backward"])
def test_neighbours_of_a_worker_killed_in_a_step_stop_by_themselves(
    workers: Workers, case: Case, waits_for: int
) -> None:
    """The middle stage hangs in its forward for stage 0, or in its backward for stage 2."""
    run = Run(workers, changed(case, steps=100_000), 3)
    run.connect()
    run.pump(lambda: len(run.workers[1].of(StepDone)) >= 2)
    still = run.workers[waits_for]
    _signal(still, signal.SIGSTOP)
    _until_quiet(run, run.workers[1])
    since = time.monotonic()
    run.kill(1)
    _signal(still, signal.SIGCONT)

    run.finish(10)

    assert time.monotonic() - since < 10
    assert [worker.code for worker in run.workers] == [3, -signal.SIGKILL, 3]
    assert all(failure.code == "stage-failed" for failure in run.failures())


def _signal(worker: Worker, number: int) -> None:
    os.kill(worker.pid, number)


def _until_quiet(run: Run, worker: Worker) -> None:
    """Until it has reported nothing for 0.2 s: it waits."""
    seen, since = len(worker.reports), time.monotonic()

    def is_quiet() -> bool:
        nonlocal seen, since
        if len(worker.reports) != seen:
            seen, since = len(worker.reports), time.monotonic()
        return time.monotonic() - since > 0.2

    run.pump(is_quiet, 10)


def test_a_worker_killed_while_it_saves_leaves_nobody_waiting(
    workers: Workers, case: Case, ground: Ground, leader: LeaderTwin
) -> None:
    leader.hold_results = True
    leader.models["local/llama"] = ground.model("llama")
    run = Run(workers, replace(changed(case, steps=2), leader_url=leader.url), 3)
    run.connect()
    run.pump(leader.held.is_set)
    since = time.monotonic()
    run.kill(1)
    stop_the_rest(run, 1, since)


def test_a_pause_ends_a_computing_stage_and_its_neighbours_say_so_as_an_echo(
    workers: Workers, case: Case
) -> None:
    run = Run(workers, changed(case, steps=100_000), 2)
    run.connect()
    run.pump(lambda: len(run.workers[0].of(StepDone)) >= 2)
    asked = time.monotonic()
    run.workers[0].send(WorkerPause(reason="cancelled by its owner"))
    run.finish(10)

    assert [worker.code for worker in run.workers] == [4, 3]
    ended = run.workers[0].ended_at
    assert ended is not None
    assert ended - asked < 2
    (failure,) = run.failures()
    assert failure.echo


def test_a_worker_whose_daemon_is_gone_exits_at_once(workers: Workers, case: Case) -> None:
    run = Run(workers, changed(case, steps=100_000), 1)
    run.pump(lambda: len(run.workers[0].of(StepDone)) >= 1)
    run.workers[0].channel.close()
    run.finish(5)
    assert run.workers[0].code == 5


def test_files_come_from_the_leader_and_the_result_goes_there_through_refusals(
    workers: Workers, case: Case, ground: Ground, leader: LeaderTwin, tmp_path: Path
) -> None:
    leader.models["local/llama"] = ground.model("llama")
    leader.tokens = ground.cache / "tokens"
    leader.break_tokens_after = 300
    leader.refusals = [503, 429]
    run = run_to_end(workers, replace(case, cache=tmp_path, leader_url=leader.url), 2)

    for stage, worker in enumerate(run.workers):
        (url,) = [url for url in leader.results if f"/stages/{stage}/" in url]
        assert url == f"/fellow/v1/jobs/j-abcdefgh/attempts/1/stages/{stage}/adapter"
        assert leader.results[url] == run.file_of(stage).read_bytes()
        assert worker.of(StageLoaded)[0].downloaded_bytes > 0
    assert any(request.endswith("bytes=300-") for request in leader.requests)
    shards = {file.name for file in tmp_path.rglob("*.safetensors") if "model" in file.name}
    assert len(shards) > 1
