"""Brings together what planning needs: the pool as it is, the model's facts, the data's shape.

The arithmetic is control.planning; here are its inputs, gathered without blocking the event loop.
"""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

from control.clock import Clock
from control.datasets.data_source import DataSource, Looked, Use
from control.datasets.hub import Hub
from control.datasets.model_store import ModelStore
from control.datasets.tokenizer_folder import TokenizerFolder
from control.fellows.condition import status_of
from control.fellows.registry import Member, Registry
from control.jobs.placing import Placed
from control.planning import served
from control.planning.difference import difference
from control.planning.inventory import data_in, fellows_in, model_in, terms_in
from control.planning.maximize import maximized
from control.planning.offers import Offered, offers
from control.planning.pace import Link, Links
from control.planning.place import Inputs
from control.planning.plan import Plan, plan_of_text
from control.planning.search import PlannedModel
from control.planning.serve import Cut, ServeAsk, place_model
from control.planning.served import ServedPlan
from control.planning.terms import LIVE
from control.planning.usable import FellowNow
from control.store import jobs, plans, stages
from control.store.database import Database, Tx
from control.store.jobs import Job
from control.store.plans import StoredPlan
from stage_runtime.model_facts import ModelFacts
from transport.api.inventory import InventoryFile
from transport.api.job_config import JobConfig
from transport.api.serving import ServePlanView


@dataclass(frozen=True)
class Sources:
    """Where models and data come from."""

    models: ModelStore
    hub: Hub
    data: DataSource


@dataclass(frozen=True)
class PlanTerms:
    """How long plans live, and how long a caller waits for tokens."""

    plan_s: float
    submit_wait_s: float


@dataclass(frozen=True)
class _Model:
    planned: PlannedModel
    folder: Path


class PoolPlanner:
    """Plans jobs on the pool as it is now."""

    def __init__(
        self, database: Database, registry: Registry, sources: Sources, terms: PlanTerms
    ) -> None:
        self._database = database
        self._registry = registry
        self._sources = sources
        self._terms = terms

    async def plan(self, pool: str, config: JobConfig) -> Placed:
        """Plan a job; the token file comes with it when it is ready. A length to be searched is
        searched first.
        """
        if config.maximize is not None:
            inputs, _ = await self._inputs(pool, config)
            config = await asyncio.to_thread(maximized, inputs, config)
        inputs, looked = await self._inputs(pool, config)
        plan = await asyncio.to_thread(inputs.place, config)
        return _placed(plan, looked)

    async def offers(self, pool: str, plan: Plan) -> list[Offered]:
        """Small changes that help a plan of this pool."""
        inputs, _ = await self._inputs(pool, plan.view.config)
        return await asyncio.to_thread(offers, plan, inputs)

    async def what_if(self, config: JobConfig, file: InventoryFile) -> tuple[Plan, list[Offered]]:
        """Plan a job on the cards of a file. A model that it knows needs no hub."""
        planned = model_in(file, config.model.id) or (await self._model(config.model.id)).planned
        data = data_in(file, config.train.seq_len)
        inputs = Inputs(planned, fellows_in(file), data, terms_in(file), config.train.seq_len)
        return await asyncio.to_thread(_on_paper, inputs, config, file)

    async def _inputs(self, pool: str, config: JobConfig) -> tuple[Inputs, Looked]:
        model = await self._model(config.model.id)
        looked = await self._look(pool, config, model, 0.0)
        inventory = await self._inventory(pool)
        terms = replace(LIVE, links=self._links(pool))
        seq_len = config.train.seq_len
        return Inputs(model.planned, inventory, looked.shape, terms, seq_len), looked

    def _links(self, pool: str) -> Links | None:
        """The measured links between the fellows of a pool; None while there are none."""
        names = {member.fellow_id for member in self._registry.of_pool(pool)}
        pairs = {
            ends: Link(figure.bytes_s, figure.latency_s)
            for ends, figure in self._registry.link_figures.items()
            if names.issuperset(ends)
        }
        return Links(pairs) if pairs else None

    async def warm(self, pool: str, config: JobConfig) -> None:
        """Have the data tokenized; returns when it is, or after the submitter's patience."""
        model = await self._model(config.model.id)
        await self._look(pool, config, model, self._terms.submit_wait_s)

    async def with_tokens(self, pool: str, plan: Plan) -> Placed:
        """A stored plan with the token file of its data, or what happens with the data now."""
        config = plan.view.config
        looked = await self._look(pool, config, await self._model(config.model.id), 0.0)
        return _placed(plan, looked)

    async def facts(self, model_id: str) -> ModelFacts:
        """What is known of a model."""
        return (await self._model(model_id)).planned.facts

    async def tokenizer(self, model_id: str) -> TokenizerFolder:
        """The tokenizer of a model."""
        return TokenizerFolder((await self._model(model_id)).folder)

    async def changes(self, pool: str, plan: Plan) -> list[str]:
        """What keeps a stored plan from starting now."""
        model = await self._model(plan.view.config.model.id)
        changes = difference(plan, await self._inventory(pool), model.planned.source)
        return changes + await self._data_changes(plan)

    async def _data_changes(self, plan: Plan) -> list[str]:
        data = plan.view.data
        if data is None or data.dataset is None:
            return []
        now = await self._sources.data.pinned(plan.view.config.data)
        if now == data.dataset:
            return []
        return [f"its data set is {now} now, the plan was made for {data.dataset}"]

    async def plan_again(self, job: Job, config: JobConfig, without: str = "") -> Plan:
        """A plan for a job that goes on: its own fellows count as free, without a lost one."""
        return await asyncio.to_thread((await self._again(job, config, without)).place, config)

    async def changes_for(self, job: Job, plan: Plan) -> list[str]:
        """What keeps a job from going on by its plan: its own fellows count as free."""
        model = await self._model(plan.view.config.model.id)
        inventory = await self._inventory(job.pool, job.job_id)
        return difference(plan, inventory, model.planned.source)

    async def _again(self, job: Job, config: JobConfig, without: str) -> Inputs:
        model = await self._model(config.model.id)
        inventory = await self._inventory(job.pool, job.job_id)
        inventory = [fellow for fellow in inventory if fellow.fellow_id != without]
        data = plan_of_text(job.plan).view.data if job.plan else None
        return Inputs(model.planned, inventory, data, seq_len=config.train.seq_len)

    async def keep(self, pool: str, plan: Plan, clock: Clock) -> None:
        """Store a plan under its id, so that it can be submitted."""
        if plan.plan_id is None:
            return
        await self._keep(plan.plan_id, pool, plan.model_dump_json(), clock)

    async def _keep(self, plan_id: str, pool: str, text: str, clock: Clock) -> None:
        now = clock.now()
        stored = StoredPlan(plan_id, pool, text, now, now + self._terms.plan_s)
        await self._database.write(lambda tx: plans.put(tx, stored))

    async def keep_served(self, pool: str, view: ServePlanView, clock: Clock) -> None:
        """Store a plan for serving under its id."""
        if view.plan_id is not None:
            text = ServedPlan(view=view).model_dump_json()
            await self._keep(view.plan_id, pool, text, clock)

    async def served_changes(self, pool: str, view: ServePlanView) -> list[str]:
        """What keeps a plan for serving from being loaded as it was shown."""
        model = await self._model(view.model_id)
        return served.changes(view, await self._inventory(pool), model.planned.source)

    async def serve(self, pool: str, model_id: str, ask: ServeAsk) -> ServePlanView:
        """Plan a load on a pool, by the cut of the newest run that trained the model there."""
        model = (await self._model(model_id)).planned
        cut = await self._database.read(lambda tx: _trained_cut(tx, pool, model_id))
        inputs = Inputs(model, await self._inventory(pool))
        return await asyncio.to_thread(place_model, inputs, replace(ask, cut=cut))

    async def serve_what_if(
        self, model_id: str, ask: ServeAsk, file: InventoryFile
    ) -> ServePlanView:
        """Plan a load on the cards of a file."""
        model = model_in(file, model_id) or (await self._model(model_id)).planned
        inputs = Inputs(model, fellows_in(file), terms=terms_in(file))
        return await asyncio.to_thread(place_model, inputs, ask)

    async def _model(self, model_id: str) -> _Model:
        name, _, revision = model_id.partition("@")
        if name.startswith("local:"):
            source, checked = await self._sources.models.resolve(
                name.removeprefix("local:"), revision or None
            )
            folder = self._sources.models.folder(name.removeprefix("local:"))
            return _Model(PlannedModel(source, checked.facts, checked.tensors), folder)
        found = await self._sources.hub.resolve(name, revision or None)
        planned = PlannedModel(found.source, found.facts, found.tensors)
        return _Model(planned, found.folder)

    async def _look(self, pool: str, config: JobConfig, model: _Model, wait_s: float) -> Looked:
        tokenizer = TokenizerFolder(model.folder)
        use = Use(pool, config.data, tokenizer, config.train.seq_len)
        return await self._sources.data.look(use, wait_s)

    async def _inventory(self, pool: str, own_job: str = "") -> list[FellowNow]:
        """The pool as it is; fellows that only this job of one's own holds count as free."""
        members = self._registry.of_pool(pool)
        names = [member.fellow_id for member in members]
        busy = await self._database.read(lambda tx: stages.busy(tx, names))
        held = {fellow for fellow, job_id in busy.items() if job_id != own_job}
        return [_now(member, member.fellow_id in held, own_job) for member in members]


def _on_paper(inputs: Inputs, config: JobConfig, file: InventoryFile) -> tuple[Plan, list[Offered]]:
    if config.maximize is not None:
        config = maximized(inputs, config)
        data = data_in(file, config.train.seq_len)
        inputs = replace(inputs, data=data, seq_len=config.train.seq_len)
    plan = inputs.place(config)
    return plan, offers(plan, inputs)


def _trained_cut(tx: Tx, pool: str, model_id: str) -> Cut | None:
    """Fellows and layers of the newest completed run of a model."""
    done, _ = jobs.page(tx, jobs.Page((pool,), "completed", 100, 0))
    found = next((job for job in done if job.model_id == model_id and job.plan), None)
    if found is None or found.plan is None:
        return None
    stages = plan_of_text(found.plan).stages
    counts = tuple(stage.last_layer - stage.first_layer + 1 for stage in stages)
    return Cut(tuple(stage.fellow_id for stage in stages), counts)


def _placed(plan: Plan, looked: Looked) -> Placed:
    return Placed(plan, looked.measured.file if looked.measured else None, looked.shape.waits)


def _now(member: Member, is_busy: bool, own_job: str) -> FellowNow:
    standing = status_of(member)
    if standing == "training" and not member.works_beside(own_job):
        standing = "ready"
    beat = member.beat
    if beat is not None:
        beat = beat.model_copy(update={"cards": member.cards()})
    return FellowNow(
        fellow_id=member.fellow_id,
        hostname=beat.machine.hostname if beat else member.stored.hostname,
        standing="training" if standing == "ready" and is_busy else standing,
        heartbeat=beat,
    )
