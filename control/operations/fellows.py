"""Handlers: the machines of a pool."""

from control.fellows.condition import row_of, view_of
from control.fellows.registry import Member
from control.operations.call import Call, handles
from control.operations.office import Office
from control.store import fellows
from control.store.database import Tx
from transport.api.fellows import (
    FELLOWS_GET,
    FELLOWS_LIST,
    FELLOWS_MEASURE,
    FELLOWS_REMOVE,
    FellowRemoved,
    FellowRow,
    FellowsGet,
    FellowsList,
    FellowsListed,
    FellowsMeasure,
    FellowsRemove,
    FellowView,
    MeasuredLink,
)
from transport.api.operation import Next
from transport.errors import not_found
from transport.units import count_of, human_bytes


def need_fellow(leader: Office, call: Call, fellow_id: str) -> Member:
    """A fellow that the caller may see.

    Raises:
        SwarmError: not-found.
    """
    member = leader.registry.find(fellow_id)
    if member is None or not call.sees(member.pool):
        raise not_found("fellow", fellow_id, hint="list them with fellows_list")
    return member


def _row(leader: Office, member: Member) -> FellowRow:
    return row_of(member, leader.registry.silent_s(member), leader.settings.heartbeat_s)


def _view(leader: Office, member: Member) -> FellowView:
    row = _row(leader, member)
    causes = f" ({'; '.join(row.causes)})" if row.causes else ""
    cards = count_of(row.cards, "card")
    summary = (
        f"{row.fellow_id} is {row.status}, health {row.health}{causes}: {cards}, "
        f"{human_bytes(row.card_total_bytes)} in all."
    )
    shown = view_of(member, row, summary)
    measure = Next(
        operation="fellows_measure",
        arguments={"fellow_id": row.fellow_id},
        why="measure its cards, so that plans can balance by speed",
    )
    is_measured = all(card.speeds for card in shown.cards)
    wanted = row.status == "ready" and shown.cards and not is_measured
    links = [MeasuredLink(**vars(one)) for one in leader.registry.links_of(member.fellow_id)]
    return shown.model_copy(update={"next": [measure] if wanted else [], "links": links})


@handles(FELLOWS_LIST)
async def fellows_list(leader: Office, call: Call, ask: FellowsList) -> FellowsListed:
    """Machines in order of joining."""
    members = [
        member
        for member in leader.registry.every()
        if (member.pool == ask.pool if ask.pool else call.sees(member.pool))
    ]
    rows = [_row(leader, member) for member in members[: ask.limit]]
    online = sum(member.online for member in members)
    omitted = len(members) - len(rows)
    return FellowsListed(
        summary=f"{len(members)} fellows, {online} of them online."
        if members
        else "No fellows yet.",
        next=[
            Next(
                operation="fellows_get",
                arguments={"fellow_id": row.fellow_id},
                why="see its cards and what it runs",
            )
            for row in rows[:1]
        ],
        fellows=rows,
        omitted=omitted,
    )


@handles(FELLOWS_GET)
async def fellows_get(leader: Office, call: Call, ask: FellowsGet) -> FellowView:
    """One machine in full."""
    return _view(leader, need_fellow(leader, call, ask.fellow_id))


@handles(FELLOWS_MEASURE)
async def fellows_measure(leader: Office, call: Call, ask: FellowsMeasure) -> FellowView:
    """Tell a machine to measure its cards."""
    member = need_fellow(leader, call, ask.fellow_id)
    leader.registry.order_measure(ask.fellow_id, leader.random_bytes(8).hex())
    view = _view(leader, member)
    told = view.model_copy(
        update={
            "summary": f"{ask.fellow_id} measures its cards now; read the figures in some seconds.",
            "next": [
                Next(
                    operation="fellows_get",
                    arguments={"fellow_id": ask.fellow_id},
                    why="read the measured speeds",
                )
            ],
        }
    )
    return await call.commit(lambda _: told)


@handles(FELLOWS_REMOVE)
async def fellows_remove(leader: Office, call: Call, ask: FellowsRemove) -> FellowRemoved:
    """Take a machine out of its pool."""
    need_fellow(leader, call, ask.fellow_id)
    now = leader.clock.now()

    def change(tx: Tx) -> FellowRemoved:
        fellows.remove(tx, ask.fellow_id, now)
        return FellowRemoved(
            summary=f"{ask.fellow_id} is no longer in the pool.", fellow_id=ask.fellow_id
        )

    answer = await call.commit(change)
    await leader.jobs.lose_fellow(ask.fellow_id, "was removed from the pool")
    if leader.registry.find(ask.fellow_id) is not None:
        leader.registry.remove(ask.fellow_id)
    return answer
