"""Where a job shall run: a stored plan that still holds, or a fresh one.

Knows the rules of pinned plans. The arithmetic is behind the Planner.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from control.clock import Clock
from control.planning.difference import between
from control.planning.maximize import with_seq_len
from control.planning.plan import Plan, plan_of_text
from control.planning.served import is_for_serving
from control.store import plans
from control.store.database import Database
from control.store.jobs import Job
from control.store.plans import StoredPlan
from transport.api.job_config import JobConfig
from transport.api.jobs import JobsSubmit
from transport.errors import SwarmError, not_found
from transport.orders import TokenFile

CLUSTER_CHANGED = "the cluster changed since the plan was shown"


@dataclass(frozen=True)
class Placed:
    """A plan, and the token file when the data is ready."""

    plan: Plan
    tokens: TokenFile | None
    waits: str = ""
    """What happens with the data while there is none."""


class Planner(Protocol):
    """What the life of a job asks of planning."""

    async def plan(self, pool: str, config: JobConfig) -> Placed:
        """Plan on the pool as it is now. A plan that does not fit is an answer.

        Raises:
            SwarmError: for what can never run: unknown model or bucket, data that is too short.
        """

    async def warm(self, pool: str, config: JobConfig) -> None:
        """Have the data tokenized; returns when it is, or after a while."""

    async def with_tokens(self, pool: str, plan: Plan) -> Placed:
        """A stored plan with the token file of its data, or what happens with the data now."""

    async def changes(self, pool: str, plan: Plan) -> list[str]:
        """What keeps a stored plan from starting now, with numbers; empty when it holds."""

    async def plan_again(self, job: Job, config: JobConfig, without: str = "") -> Plan:
        """A plan for a job that goes on: its own fellows count as free."""

    async def changes_for(self, job: Job, plan: Plan) -> list[str]:
        """What keeps a job from going on by its plan: its own fellows count as free."""


class Placing:
    """Finds the plan of a job."""

    def __init__(self, database: Database, planner: Planner, clock: Clock) -> None:
        self._database = database
        self._planner = planner
        self._clock = clock

    async def submitted(self, ask: JobsSubmit) -> Placed:
        """The plan of a new job.

        Raises:
            SwarmError: plan-changed, expired, not-found, conflict or cannot-fit for a pinned plan;
                whatever the planner refuses for good.
        """
        if (ask.plan_id is None) == (not ask.unpinned):
            raise SwarmError(
                "invalid-input",
                "give plan_id or unpinned: true, and not both",
                hint="call jobs_plan with this config, show it, then submit its plan_id",
            )
        if ask.plan_id is None:
            return await self._planner.plan(ask.pool, ask.config)
        plan = await self._stored_plan(ask, ask.plan_id)
        placed = await self._planner.with_tokens(ask.pool, plan)
        changed = await self._planner.changes(ask.pool, plan)
        if changed:
            raise plan_changed(plan, changed, await self._fresh(ask))
        refuse_short(plan, placed.tokens)
        return placed

    async def _fresh(self, ask: JobsSubmit) -> Plan | None:
        """The plan of the same config now, stored for as long as the one that it replaces."""
        try:
            plan = (await self._planner.plan(ask.pool, ask.config)).plan
        except SwarmError:  # a card that it leaves out is gone: the changes say enough
            return None
        old_id, new_id, now = ask.plan_id, plan.plan_id, self._clock.now()
        if old_id is not None and new_id is not None:
            old = await self._database.read(lambda tx: plans.find(tx, ask.pool, old_id))
            lives = old.expires_at - old.created_at if old else 0.0
            stored = StoredPlan(new_id, ask.pool, plan.model_dump_json(), now, now + lives)
            await self._database.write(lambda tx: plans.put(tx, stored))
        return plan

    async def _stored_plan(self, ask: JobsSubmit, plan_id: str) -> Plan:
        text = await stored_plan(
            self._database, (ask.pool, plan_id), self._clock, hint="plan again with jobs_plan"
        )
        if is_for_serving(text):
            raise SwarmError(
                "conflict",
                f"plan {plan_id} is for serving a model, not for training one",
                hint="plan this config with jobs_plan",
            )
        plan = plan_of_text(text)
        if _asked(plan.view.config) != _asked(_at_length_of(plan, ask.config)):
            raise SwarmError(
                "conflict",
                f"plan {plan_id} was made for another config than the one submitted",
                hint="submit the config that was planned, or plan this one with jobs_plan",
            )
        if not plan.fits:
            raise SwarmError("cannot-fit", plan.reason, hint="change the job, or wait: unpinned")
        return plan

    async def waiting(self, job: Job) -> tuple[Placed | None, str]:
        """(where a waiting job could start now, else why it cannot)."""
        if job.pinned and job.plan is not None:
            plan = plan_of_text(job.plan)
            placed = await self._planner.with_tokens(job.pool, plan)
            refuse_short(plan, placed.tokens)
            changed = await self._planner.changes(job.pool, plan)
            return placed, f"{CLUSTER_CHANGED}: {changed[0]}" if changed else ""
        placed = await self._planner.plan(job.pool, job.config)
        return placed, "" if placed.plan.fits else placed.plan.reason or "it does not fit"


async def stored_plan(database: Database, key: tuple[str, str], clock: Clock, *, hint: str) -> str:
    """The JSON of a plan that is kept.

    Args:
        key: (pool, plan_id).

    Raises:
        SwarmError: not-found; expired.
    """
    pool, plan_id = key
    found = await database.read(lambda tx: plans.find(tx, pool, plan_id))
    if found is None:
        raise not_found("plan", plan_id, hint=hint)
    if found.expires_at <= clock.now():
        raise SwarmError("expired", f"plan {plan_id} is older than it may be", hint=hint)
    return found.plan


def _at_length_of(plan: Plan, config: JobConfig) -> JobConfig:
    """A config whose length was searched, at the length that the plan found."""
    return (
        config if config.maximize is None else with_seq_len(config, plan.view.config.train.seq_len)
    )


def as_found(config: JobConfig, plan: Plan) -> JobConfig:
    """A config whose length was searched with the length that was found beside what was asked."""
    if config.maximize is None:
        return config
    train = config.train.model_copy(update={"seq_len": plan.view.config.train.seq_len})
    return config.model_copy(update={"train": train})


def _asked(config: JobConfig) -> JobConfig:
    """A config without what does not change a plan."""
    return config.model_copy(update={"name": ""})


def refuse_short(plan: Plan, tokens: TokenFile | None) -> None:
    """Refuse data that turned out shorter than one batch of a plan made before it was tokenized.

    Raises:
        SwarmError: invalid-input, with both numbers.
    """
    settings = plan.view.settings
    if tokens is None or settings is None or tokens.train_sequences >= settings.batch_size:
        return
    raise SwarmError(
        "invalid-input",
        f"the data is shorter than one batch: {tokens.train_sequences} sequences of "
        f"{settings.seq_len} tokens, a batch needs {settings.batch_size}",
        hint="add data to the bucket, or set a smaller train.seq_len or train.batch_size",
    )


def plan_changed(plan: Plan, changes: Sequence[str], fresh: Plan | None = None) -> SwarmError:
    """The refusal of a pinned plan that no longer holds, with the plan that would now be."""
    return SwarmError(
        "plan-changed",
        f"plan {plan.plan_id} no longer holds: {'; '.join(changes[:3])}",
        hint="plan again with jobs_plan and submit the new plan_id, or submit with unpinned: true",
        facts={
            "plan_id": plan.plan_id,
            "changes": list(changes),
            "new_plan_id": fresh and fresh.plan_id,
            "new_plan": fresh and fresh.view.summary,
            "differs": between(plan, fresh) if fresh else [],
        },
    )
