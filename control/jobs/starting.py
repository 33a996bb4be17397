"""From a plan to orders: the stages of an attempt, and what each fellow is told of its neighbours.

Pure. The plan's numbers are binding: what was shown is what is ordered.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from control.jobs.relaying import Meeting, RelayTerms
from control.planning.plan import PlacedStage, Plan
from control.store.stages import Stage
from transport.orders import (
    Links,
    Neighbour,
    RelayRoute,
    StageAssignment,
    StageOrder,
    TokenFile,
)


@dataclass(frozen=True)
class Attempt:
    """Which attempt of which job is to start, by which plan, on which data."""

    job_id: str
    number: int
    plan: Plan
    tokens: TokenFile


def stages_of(attempt: Attempt) -> list[Stage]:
    """The rows of an attempt's stages, with their orders. The plan must fit."""
    names = {s.stage: s.hostname for s in attempt.plan.view.layout.stages}
    return [
        Stage(
            job_id=attempt.job_id,
            attempt=attempt.number,
            stage=placed.stage,
            fellow_id=placed.fellow_id,
            hostname=names[placed.stage],
            work=_order(attempt, placed),
        )
        for placed in attempt.plan.stages
    ]


def _order(attempt: Attempt, placed: PlacedStage) -> StageOrder:
    view = attempt.plan.view
    assert view.model is not None
    assert view.settings is not None
    assert attempt.plan.plan_id is not None
    return StageOrder(
        job_id=attempt.job_id,
        attempt=attempt.number,
        stage=placed.stage,
        num_stages=placed.num_stages,
        first_layer=placed.first_layer,
        last_layer=placed.last_layer,
        num_layers=placed.num_layers,
        model=view.model,
        settings=view.settings,
        tokens=attempt.tokens,
        cards=placed.cards,
        threads=placed.threads,
        evaluate_base=attempt.number == 1,
        plan_id=attempt.plan.plan_id,
    )


@dataclass(frozen=True)
class Relaying:
    """What tickets need beside the stages: the relay, whose job it is, when the attempt began."""

    terms: RelayTerms
    pool: str
    started_at: float


def assignments_of(
    stages: Sequence[Stage], relaying: Relaying | None = None
) -> dict[int, StageAssignment]:
    """Stage -> what its fellow should run now; a stage that is done is not there any more.

    The links are told once every stage has bound its socket and said so.
    """
    bound = all(stage.public_key for stage in stages)
    return {
        stage.stage: StageAssignment(
            order=stage.work, links=_links(stages, stage.stage, relaying) if bound else None
        )
        for stage in stages
        if stage.phase != "done"
    }


def _links(stages: Sequence[Stage], number: int, relaying: Relaying | None) -> Links:
    before = stages[number - 1] if number > 0 else None
    after = stages[number + 1] if number + 1 < len(stages) else None
    return Links(
        previous=_neighbour(before, _routes(before, relaying)[1], dialled=False)
        if before
        else None,
        next=_neighbour(after, _routes(stages[number], relaying)[0], dialled=True)
        if after
        else None,
    )


def _routes(
    before: Stage, relaying: Relaying | None
) -> tuple[RelayRoute, RelayRoute] | tuple[None, None]:
    """The ways of both ends of the boundary after a stage, through the relay."""
    if relaying is None:
        return None, None
    meeting = Meeting(
        relaying.pool, before.job_id, before.attempt, before.stage, relaying.started_at
    )
    return relaying.terms.routes(meeting)


def _neighbour(stage: Stage, relay: RelayRoute | None, *, dialled: bool) -> Neighbour:
    assert stage.public_key is not None
    return Neighbour(
        stage=stage.stage,
        fellow_id=stage.fellow_id,
        public_key=stage.public_key,
        endpoints=list(stage.endpoints) if dialled else [],
        relay=relay,
    )
