"""A small pipeline in real processes over real links, and the same in one process without any.

Each stage is a process started by a forkserver that has torch loaded. Torch's engine runs in it
over SwarmGroup; the result of a stage is its losses and the digest of its trained weights.
"""

import hashlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from stage_runtime.causes import find_cause
from stage_runtime.process_group import SwarmGroup, TensorKind, install
from transport.direct import LinkOptions, PipelineLinks
from transport.link import LinkName
from transport.orders import Links, Neighbour

WIDTH = 16
ROWS = 8
TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Task:
    """What every stage of a run does."""

    num_stages: int
    stage: int = 0
    micro_batches: int = 4
    schedule: str = "1f1b"
    steps: int = 3
    dtype: torch.dtype = torch.float32
    dies_in_step: int | None = None
    """Stage 1 kills itself in the forward of this step."""
    grace_s: float = 5.0


@dataclass(frozen=True)
class Outcome:
    """What a stage did."""

    losses: list[float]
    evaluations: list[float]
    digest: str
    error: str
    took_s: float
    sent_bytes: int = 0
    received_bytes: int = 0
    wait_s: float = 0.0


class Block(nn.Module):
    """One stage's layers; may kill its process when told."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH).to(task.dtype)
        self.dies_at = task.dies_in_step if task.stage == 1 else None
        self.step = 0

    def forward(self, hidden: Tensor) -> Tensor:
        if self.dies_at is not None and self.step >= self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return nn.functional.gelu(self.inner(hidden))


def blocks(task: Task) -> list[Block]:
    """All stages' layers, the same on every stage."""
    torch.manual_seed(5)
    return [Block(replace(task, stage=stage)) for stage in range(task.num_stages)]


def rows(task: Task, step: int) -> Tensor:
    """The batch of a step."""
    random = torch.Generator().manual_seed(step)
    return torch.randn(ROWS, WIDTH, generator=random).to(task.dtype)


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    """A sum, so that micro-batches add up."""
    return ((output - target).float() ** 2).sum()


def digest_of(module: nn.Module) -> str:
    """The exact weights."""
    digest = hashlib.sha256()
    for weight in module.parameters():
        digest.update(weight.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def run_alone(task: Task) -> list[Outcome]:
    """The run in this process: what every pipeline must equal bit for bit."""
    modules = blocks(task)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in modules]
    losses, evaluations = [], []

    def forward(hidden: Tensor) -> Tensor:
        for module in modules:
            hidden = module(hidden)
        return loss_of(hidden, torch.zeros_like(hidden))

    for step in range(1, task.steps + 1):
        parts = []
        for part in rows(task, step).chunk(task.micro_batches):
            loss = forward(part)
            loss.backward()  # type: ignore[no-untyped-call]
            parts.append(loss.detach())
        losses.append(float(sum(parts)))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            shares = [forward(p) for p in rows(task, step + 100).chunk(task.micro_batches)]
        evaluations.append(float(sum(shares)))
    return [Outcome(losses, evaluations, digest_of(module), "", 0.0) for module in modules]


def run_stage(task: Task, channel: Any) -> None:
    """The body of a stage's process."""
    torch.set_num_threads(1)
    name = LinkName("j-aaaabbbb", 1, task.stage, task.stage)
    options = LinkOptions(reconnect_grace_s=task.grace_s)
    links = PipelineLinks.open(name, task.num_stages, "127.0.0.1", options)
    channel.send((links.endpoint.public_key, links.endpoint.endpoints))
    links.connect(channel.recv())
    shape = (ROWS // task.micro_batches, WIDTH)
    kinds = [TensorKind(task.dtype, shape)]
    group = SwarmGroup(task.stage, task.num_stages, links, kinds, TIMEOUT_S)
    install(group)
    began = time.monotonic()
    outcome = Outcome([], [], "", "", 0.0)
    try:
        outcome = _train(task, group)
    except Exception as error:  # noqa: BLE001 (whatever the engine wraps it in)
        outcome = replace(outcome, error=str(find_cause(error) or repr(error)))
    group.close()
    channel.send(replace(outcome, took_s=time.monotonic() - began))


def _train(task: Task, group: SwarmGroup) -> Outcome:
    module = blocks(task)[task.stage]
    is_first, is_last = task.stage == 0, task.stage == task.num_stages - 1
    shape = (ROWS // task.micro_batches, WIDTH)
    stage = PipelineStage(
        module,
        task.stage,
        task.num_stages,
        torch.device("cpu"),
        input_args=torch.zeros(shape, dtype=task.dtype, requires_grad=not is_first),
        output_args=torch.zeros(shape, dtype=task.dtype, requires_grad=not is_last),
        group=group,
    )
    kind = Schedule1F1B if task.schedule == "1f1b" else ScheduleGPipe
    schedule = kind(stage, task.micro_batches, loss_fn=loss_of, scale_grads=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    losses, evaluations = [], []

    def turn(step: int, run: Any, batch: Tensor) -> float:
        parts: list[Tensor] = []
        group.begin_step(step)
        last = {"target": torch.zeros_like(batch), "losses": parts, "return_outputs": False}
        run(*([batch] if is_first else []), **(last if is_last else {}))
        return group.exchange([float(sum(part.detach() for part in parts))])[0]

    for step in range(1, task.steps + 1):
        module.step = step
        losses.append(turn(step, schedule.step, rows(task, step)))
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            evaluations.append(turn(step, schedule.eval, rows(task, step + 100)))
    return Outcome(
        losses, evaluations, digest_of(module), "", 0.0,
        group.sent_bytes, group.received_bytes, group.wait_s,
    )  # fmt: skip


@contextmanager
def _processes(task: Task) -> Iterator[list[Connection]]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    pipes = [context.Pipe() for _ in range(task.num_stages)]
    children = [
        context.Process(target=run_stage, args=(replace(task, stage=stage), pipes[stage][1]))
        for stage in range(task.num_stages)
    ]
    for child, (_, inner) in zip(children, pipes, strict=True):
        child.start()
        inner.close()
    try:
        yield [outer for outer, _ in pipes]
    finally:
        for child, (outer, _) in zip(children, pipes, strict=True):
            child.join(10)
            child.kill()
            child.join()
            child.close()
            outer.close()


def run_pipeline(task: Task) -> list[Outcome | None]:
    """The run in one process a stage; None for a stage that died."""
    with _processes(task) as channels:
        told = [channel.recv() for channel in channels]
        stages = [
            Neighbour(stage=stage, fellow_id="f-aaaaaaaa", public_key=key, endpoints=endpoints)
            for stage, (key, endpoints) in enumerate(told)
        ]
        for stage, channel in enumerate(channels):
            channel.send(
                Links(
                    previous=stages[stage - 1] if stage else None,
                    next=stages[stage + 1] if stage + 1 < task.num_stages else None,
                )
            )
        return [_outcome(channel) for channel in channels]


def _outcome(channel: Connection) -> Outcome | None:
    try:
        outcome = channel.recv() if channel.poll(TIMEOUT_S) else None
    except EOFError:
        return None
    assert outcome is None or isinstance(outcome, Outcome)
    return outcome
