"""The load on a leader that is being killed: fellows, people and readers that do not give up.

Every message is the real one over real HTTP. Whoever gets no answer asks again with the same
request id or the same sequence numbers; what was answered is noted in the ledger as promised.
"""

import asyncio
import copy
import hashlib
import secrets
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.flow.open_leader import POOL, heartbeat
from tests.leader_twins import adapter_bytes
from transport.cards import PROTOCOL
from transport.orders import DesiredState, StageOrder
from transport.reports import (
    AdapterSaved,
    Numbered,
    Report,
    ReportBatch,
    ReportsTaken,
    StageBound,
    StageDone,
    StageLoaded,
    StepDone,
)

STAGES = 2
BATCH = 3
"""Steps in one message."""
AWAY_S, PAUSE_S = 0.05, 0.01
JOB: dict[str, Any] = {
    "model": {"id": "local:tiny"},
    "data": {"bucket": "words"},
    "train": {"steps": 3, "seq_len": 16, "batch_size": 2, "eval_sequences": 0},
}
WAITING = {**JOB, "min_workers": STAGES}
"""A job that waits as long as the fellows are taken by another."""


async def rest(seconds: float) -> None:
    """Let the others work for a while."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()


@dataclass
class Ledger:
    """What the leader has promised: everything here was answered after a commit."""

    submits: dict[str, str] = field(default_factory=dict)
    """request_id -> job_id."""
    cancels: set[str] = field(default_factory=set)
    buckets: set[str] = field(default_factory=set)
    reports: dict[str, int] = field(default_factory=dict)
    """fellow_id -> the number up to which all is stored."""
    steps: dict[int, int] = field(default_factory=dict)
    """stage -> the last step that is stored."""
    seen_step: int = 0
    """What a reader was shown must not vanish."""
    acknowledged: int = 0
    reads: int = 0
    asked_again: int = 0
    faults: list[str] = field(default_factory=list)
    """Answers that should not be."""

    def copy(self) -> "Ledger":
        """As it is now."""
        return copy.deepcopy(self)


class Client:
    """HTTP to a leader that may be away."""

    def __init__(self, url: str, secret: str, ledger: Ledger) -> None:
        headers = {"authorization": f"Bearer {secret}"}
        self.http = httpx2.AsyncClient(base_url=url, headers=headers, timeout=20)
        self.ledger = ledger

    async def ask(self, method: str, path: str, **words: Any) -> httpx2.Response:
        """Ask until there is an answer; one that is no success is a fault."""
        while True:
            try:
                answer = await self.http.request(method, path, **words)
            except httpx2.TransportError:
                self.ledger.asked_again += 1
                await rest(AWAY_S)
                continue
            if not answer.is_success:
                self.ledger.faults.append(f"{method} {path}: {answer.status_code} {answer.text}")
                await rest(AWAY_S)
            return answer


class Fellow:
    """A machine in plain code: beats, and reports the stage it was ordered to run."""

    def __init__(self, client: Client, fellow_id: str, last_step: int) -> None:
        self.client = client
        self.fellow_id = fellow_id
        self.last_step = last_step
        self.may_finish = asyncio.Event()
        self.order: StageOrder | None = None
        self.sequence = 0
        self.step = 0
        self.has_finished = False

    async def beat(self) -> None:
        """Beat for ever; take the order."""
        while True:
            told = heartbeat(self.fellow_id)
            told["machine"]["features"] = ["stage", "lora", "full"]
            answer = await self.client.ask("POST", "/fellow/v1/heartbeat", json=told)
            if answer.is_success:
                state = DesiredState.model_validate_json(answer.content)
                self.order = state.stages[0].order if state.stages else self.order
            await rest(0.2)

    async def report(self) -> None:
        """From bound to done."""
        while self.order is None:
            await rest(PAUSE_S)
        order = self.order
        key = str(order.stage) * 40
        await self._send(StageBound(**self._named(public_key=key, endpoints=["tcp://127.0.0.1:9"])))
        loaded = {"weight_bytes": 10, "priced_bytes": 20, "load_s": 0.1, "downloaded_bytes": 1}
        await self._send(StageLoaded(**self._named(adapters_digest="a" * 64, **loaded)))
        while self.step < self.last_step:
            # The last step waits until all kills are over, so that the job runs under each.
            ahead = self.last_step if self.may_finish.is_set() else self.last_step - 1
            steps = range(self.step + 1, min(self.step + BATCH, ahead) + 1)
            if steps:
                await self._send(*(self._step_done(step) for step in steps))
                self.step = steps[-1]
                self.client.ledger.steps[order.stage] = self.step
            await rest(PAUSE_S)
        await self._save(order)
        self.has_finished = True

    async def _save(self, order: StageOrder) -> None:
        data = adapter_bytes(order.first_layer, order.last_layer)
        digest = hashlib.sha256(data).hexdigest()
        where = f"/fellow/v1/jobs/{order.job_id}/attempts/{order.attempt}/stages/{order.stage}"
        headers = {"x-content-sha256": digest}
        await self.client.ask("PUT", f"{where}/adapter", content=data, headers=headers)
        await self._send(AdapterSaved(**self._named(digest=digest, size_bytes=len(data))))
        await self._send(StageDone(**self._named(sent_bytes=1, received_bytes=1)))

    async def _send(self, *reports: Report) -> None:
        """One message, again and again until it is acknowledged."""
        first = self.sequence + 1
        self.sequence += len(reports)
        numbered = [Numbered(sequence=n, report=one) for n, one in enumerate(reports, first)]
        batch = ReportBatch(protocol=PROTOCOL, fellow_id=self.fellow_id, reports=numbered)
        body = batch.model_dump_json()
        headers = {"content-type": "application/json"}
        while True:
            answer = await self.client.ask(
                "POST", "/fellow/v1/reports", content=body, headers=headers
            )
            if answer.is_success:
                break
        taken, ledger = ReportsTaken.model_validate_json(answer.content), self.client.ledger
        if taken.committed != self.sequence or taken.refused:
            ledger.faults.append(f"{self.fellow_id} sent up to {self.sequence}: {taken}")
        ledger.reports[self.fellow_id] = taken.committed
        ledger.acknowledged += len(reports)

    def _named(self, **values: Any) -> dict[str, Any]:
        assert self.order is not None
        order = self.order
        return {
            "job_id": order.job_id, "attempt": order.attempt, "stage": order.stage, "at": 1.0,
            **values,
        }  # fmt: skip

    def _step_done(self, step: int) -> StepDone:
        figures = {"learning_rate": 1e-4, "supervised_tokens": 30, "step_s": 0.1, "compute_s": 0.1}
        more = {"loss": 5.0 - step * 1e-4, "grad_norm": 1.0, "wait_s": 0.0, "skipped": False}
        return StepDone(**self._named(step=step, **figures, **more))


class Load:
    """Everything that goes on while the leader is killed."""

    def __init__(
        self, url: str, token: str, job_id: str, steps: int, who: list[tuple[str, str]]
    ) -> None:
        self.job_id = job_id
        self.ledger = Ledger()
        self.owner = Client(url, token, self.ledger)
        self.fellows = [
            Fellow(Client(url, credential, self.ledger), fellow_id, steps)
            for fellow_id, credential in who
        ]
        self.steps = steps
        self.is_over = False
        self.final_steps: list[list[int]] = []
        self.final_jobs = 0
        self._submitting: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Begin all of it; ended at the end."""
        self._submitting = [asyncio.create_task(self._submit()) for _ in range(2)]
        works: list[Coroutine[Any, Any, None]] = [self._read()]
        for fellow in self.fellows:
            works += [fellow.beat(), fellow.report()]
        tasks = [asyncio.create_task(work) for work in works] + self._submitting
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            told = await asyncio.gather(*tasks, return_exceptions=True)
            self.ledger.faults += [repr(one) for one in told if isinstance(one, Exception)]
            for client in [self.owner, *(fellow.client for fellow in self.fellows)]:
                await client.http.aclose()

    async def until_running(self) -> None:
        """Wait until every fellow has reported a step."""
        while any(fellow.step == 0 for fellow in self.fellows):
            await rest(PAUSE_S)

    async def finish(self, limit_s: float) -> dict[str, Any]:
        """Let the job and all requests come to their ends; the job as it then is."""
        self.is_over = True
        async with asyncio.timeout(limit_s):
            await asyncio.gather(*self._submitting)
            for fellow in self.fellows:
                fellow.may_finish.set()
            while not all(fellow.has_finished for fellow in self.fellows):
                await rest(PAUSE_S)
            job = await self._job()
            while job["state"] not in ("completed", "failed", "cancelled"):
                await rest(PAUSE_S)
                job = await self._job()
            self.final_steps = [await self._steps(stage) for stage in range(STAGES)]
            self.final_jobs = await self._count_jobs()
        return job

    async def _job(self) -> dict[str, Any]:
        told: dict[str, Any] = (await self.owner.ask("GET", f"/api/v1/jobs/{self.job_id}")).json()
        return told

    async def _steps(self, stage: int) -> list[int]:
        query = {"stage": str(stage), "limit": "5000"}
        path = f"/api/v1/jobs/{self.job_id}/records"
        told = (await self.owner.ask("GET", path, params=query)).json()
        return [row["step"] for row in told["steps"]]

    async def _count_jobs(self) -> int:
        count, cursor = 0, None
        while True:
            query = {"limit": "100", **({"cursor": cursor} if cursor else {})}
            told = (await self.owner.ask("GET", "/api/v1/jobs", params=query)).json()
            count, cursor = count + len(told["jobs"]), told["cursor"]
            if cursor is None:
                return count

    async def _change(self, path: str, **values: Any) -> dict[str, Any]:
        """One change under a request id of its own, until it is acknowledged."""
        body = {**values, "request_id": secrets.token_hex(8)}
        answer = await self.owner.ask("POST", f"/api/v1{path}", json=body)
        self.ledger.acknowledged += answer.is_success
        told: dict[str, Any] = answer.json()
        return told | {"request_id": body["request_id"]}

    async def _submit(self) -> None:
        """Submit jobs that wait, cancel them, make buckets; whole rounds only."""
        await self.until_running()
        while not self.is_over:
            told = await self._change("/jobs", pool=POOL, config=WAITING, unpinned=True)
            if "job_id" in told:
                self.ledger.submits[told["request_id"]] = told["job_id"]
                await self._change(f"/jobs/{told['job_id']}/cancel")
                self.ledger.cancels.add(told["job_id"])
            bucket = f"b-{secrets.token_hex(4)}"
            await self._change("/buckets", pool=POOL, bucket=bucket)
            self.ledger.buckets.add(bucket)

    async def _read(self) -> None:
        """Read the newest records: without gaps, and nothing vanishes."""
        path = f"/api/v1/jobs/{self.job_id}/records"
        while True:
            first = max(1, self.ledger.seen_step)
            query = {"from_step": str(first), "limit": "5000"}
            answer = await self.owner.ask("GET", path, params=query)
            steps = [row["step"] for row in answer.json().get("steps", [])]
            if steps != list(range(first, first + len(steps))):
                self.ledger.faults.append(f"a reader from step {first} got {steps}")
            elif not steps and self.ledger.seen_step:
                self.ledger.faults.append(f"step {self.ledger.seen_step} vanished")
            self.ledger.seen_step = max([self.ledger.seen_step, *steps])
            self.ledger.reads += 1
            await rest(PAUSE_S)
