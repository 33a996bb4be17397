"""Handlers: pools, invites, access tokens, and a pool seen as a whole."""

from dataclasses import dataclass

from control.fellows.condition import status_of, used_bytes
from control.fellows.credentials import NewToken
from control.fellows.loads import busy_peak, memory_peak
from control.fellows.registry import Member
from control.job_states import ACTIVE
from control.jobs.views import median_step_s
from control.operations.call import Call, handles, need_pool, restores
from control.operations.office import Office
from control.store import fellows, jobs, pools, stages, tokens
from control.store.database import Tx
from control.store.pools import Pool
from control.store.tokens import Token
from transport.api.operation import SCOPES, Next
from transport.api.pools import (
    CLUSTER_STATUS,
    INVITES_CREATE,
    POOLS_CREATE,
    POOLS_LIST,
    TOKENS_CREATE,
    TOKENS_LIST,
    TOKENS_REVOKE,
    ActiveJob,
    ClusterStatus,
    ClusterView,
    InvitesCreate,
    InviteView,
    PoolRow,
    PoolsCreate,
    PoolsList,
    PoolsListed,
    PoolView,
    TokenRevoked,
    TokensCreate,
    TokensList,
    TokensListed,
    TokensRevoke,
    TokenView,
)
from transport.errors import SwarmError, not_found
from transport.units import count_of


@dataclass(frozen=True)
class Standing:
    """How many fellows there are, and how they are."""

    all: int
    ready: int
    training: int
    offline: int

    @property
    def words(self) -> str:
        """The header's words."""
        online = self.all - self.offline
        if not online:
            return "No fellows connected"
        if self.training:
            return f"Training on {count_of(self.training, 'fellow')}"
        if online < self.all:
            return f"{online} of {count_of(self.all, 'fellow')} online"
        return f"{count_of(self.ready, 'fellow')} ready"


@handles(CLUSTER_STATUS)
async def cluster_status(leader: Office, call: Call, ask: ClusterStatus) -> ClusterView:
    """One look at a pool, or at all that the caller sees."""
    members = [m for m in leader.registry.every() if _is_wanted(call, ask.pool, m.pool)]
    active = await leader.database.read(lambda tx: _active(tx, call, ask.pool))
    standing = standing_of(members)
    online = [card for m in members if m.online for card in m.cards()]
    loads = [load for m in members for load in m.loads]
    machines = [m.beat.machine for m in members if m.online and m.beat]
    losses = [job.loss for job in active if job.loss is not None]
    return ClusterView(
        summary=f"{standing.words}. {_jobs_words(active)}",
        next=_status_next(standing, active),
        words=standing.words,
        fellows=standing.all,
        ready=standing.ready,
        training=standing.training,
        offline=standing.offline,
        cards=len(online),
        cores=sum(machine.cores for machine in machines),
        memory_bytes=sum(machine.memory_bytes for machine in machines),
        card_used_bytes=used_bytes(online),
        card_total_bytes=sum(card.total_bytes for card in online) if online else None,
        card_peak_bytes=memory_peak(loads),
        busy_peak=busy_peak(loads),
        step=max((job.step for job in active if job.step), default=None),
        step_s=max((job.step_s for job in active if job.step_s is not None), default=None),
        mean_loss=sum(losses) / len(losses) if losses else None,
        jobs=active,
    )


def _is_wanted(call: Call, asked: str | None, pool: str) -> bool:
    return pool == asked if asked is not None else call.sees(pool)


def standing_of(members: list[Member]) -> Standing:
    """Count fellows by status."""
    told = [status_of(member) for member in members]
    return Standing(len(told), told.count("ready"), told.count("training"), told.count("offline"))


def _active(tx: Tx, call: Call, pool: str | None) -> list[ActiveJob]:
    found = [job for job in jobs.in_states(tx, ACTIVE) if _is_wanted(call, pool, job.pool)]
    return [
        ActiveJob(
            job_id=job.job_id,
            pool=job.pool,
            model_id=job.model_id,
            state=job.state,
            step=job.step,
            steps=job.steps,
            loss=job.loss,
            step_s=median_step_s(tx, job, stages.of_job(tx, job.job_id, job.attempt)),
        )
        for job in found[:50]
    ]


def _jobs_words(active: list[ActiveJob]) -> str:
    if not active:
        return "No job runs."
    first = active[0]
    more = f" and {len(active) - 1} more" if len(active) > 1 else ""
    return f"{first.job_id} is at step {first.step} of {first.steps}{more}."


def _status_next(standing: Standing, active: list[ActiveJob]) -> list[Next]:
    calls = [
        Next(operation="jobs_get", arguments={"job_id": job.job_id}, why="look at what runs")
        for job in active[:1]
    ]
    if standing.all:
        calls.append(Next(operation="fellows_list", arguments={}, why="see each machine"))
    else:
        calls.append(Next(operation="pools_list", arguments={}, why="choose a pool to invite into"))
    return calls


@handles(POOLS_CREATE)
async def pools_create(leader: Office, call: Call, ask: PoolsCreate) -> PoolView:
    """Make a pool. A token that is bound to pools cannot make others."""
    if not call.sees(ask.pool):
        raise SwarmError(
            "forbidden",
            f"this token is bound to {', '.join(call.pools[:3])}; it cannot make other pools",
            hint="use a token that is not bound to pools",
        )
    pool = Pool(ask.pool, call.who, leader.clock.now())

    def change(tx: Tx) -> PoolView:
        pools.add(tx, pool)
        invite = Next(
            operation="invites_create", arguments={"pool": ask.pool}, why="let a machine join"
        )
        return PoolView(
            summary=f"Pool {ask.pool} is there. Invite a machine into it.",
            next=[invite],
            pool=ask.pool,
            fellows=0,
            created_at=pool.created_at,
        )

    view = await call.commit(change)
    leader.events.publish("pools", ask.pool, "created")
    return view


@handles(POOLS_LIST)
async def pools_list(leader: Office, call: Call, ask: PoolsList) -> PoolsListed:
    """The pools that the caller sees."""

    def read(tx: Tx) -> list[PoolRow]:
        return [
            _pool_row(leader, pool, pools.count_jobs(tx, pool.pool))
            for pool in pools.every(tx)
            if call.sees(pool.pool)
        ]

    rows = await leader.database.read(read)
    names = ", ".join(row.pool for row in rows[:5])
    more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
    return PoolsListed(
        summary=f"{len(rows)} pools: {names}{more}." if rows else "No pools yet.",
        next=[
            Next(operation="cluster_status", arguments={"pool": row.pool}, why="see how it is")
            for row in rows[:1]
        ],
        pools=rows,
    )


def _pool_row(leader: Office, pool: Pool, num_jobs: int) -> PoolRow:
    members = leader.registry.of_pool(pool.pool)
    return PoolRow(
        pool=pool.pool,
        fellows=len(members),
        online=sum(member.online for member in members),
        jobs=num_jobs,
        created_at=pool.created_at,
    )


@handles(INVITES_CREATE)
async def invites_create(leader: Office, call: Call, ask: InvitesCreate) -> InviteView:
    """An invite for one machine."""
    invite = leader.invites.make(ask.pool, call.who, leader.clock, leader.random_bytes)
    minutes = round((invite.expires_at - invite.created_at) / 60)

    def change(tx: Tx) -> InviteView:
        fellows.add_invite(tx, invite)
        return InviteView(
            summary=f"Invite {invite.invite_id} into {ask.pool} works once, for {minutes} minutes.",
            next=[
                Next(
                    operation="fellows_list",
                    arguments={"pool": ask.pool},
                    why="see whether the machine has joined",
                )
            ],
            invite_id=invite.invite_id,
            pool=ask.pool,
            secret=leader.invites.secret(invite.invite_id),
            command=f"swarm join {leader.settings.address}",
            expires_at=invite.expires_at,
        )

    return await call.commit(change)


@restores(INVITES_CREATE)
def restore_invite(leader: Office, answer: InviteView) -> InviteView:
    """The secret of an invite that was asked for again."""
    return answer.model_copy(update={"secret": leader.invites.secret(answer.invite_id)})


@handles(TOKENS_CREATE)
async def tokens_create(leader: Office, call: Call, ask: TokensCreate) -> TokenView:
    """A token that can do no more than its maker."""
    if SCOPES.index(ask.scope) > SCOPES.index(call.scope):
        raise SwarmError(
            "forbidden",
            f"a {call.scope} token cannot make a {ask.scope} token",
            hint="ask for less",
        )
    if call.pools and not ask.pools:
        raise SwarmError(
            "forbidden",
            f"this token is bound to {', '.join(call.pools[:3])}; it cannot make one for all pools",
            hint="name the pools of the new token",
        )
    for pool in ask.pools:
        await need_pool(leader, call, pool)
    token = leader.credentials.make(
        NewToken(ask.name, ask.scope, tuple(ask.pools), ask.expires_days)
    )

    def change(tx: Tx) -> TokenView:
        tokens.add(tx, token)
        return _token_view(leader, token)

    view = await call.commit(change)
    leader.credentials.remember(token)
    return view


def _token_view(leader: Office, token: Token) -> TokenView:
    where = ", ".join(token.pools) or "all pools"
    return TokenView(
        summary=f"Token {token.token_id} ({token.name}) may {token.scope} in {where}. "
        "Keep its secret: it is shown this once.",
        token_id=token.token_id,
        name=token.name,
        scope=token.scope,
        pools=list(token.pools),
        secret=leader.credentials.secret(token.token_id),
        expires_at=token.expires_at,
    )


@restores(TOKENS_CREATE)
def restore_token(leader: Office, answer: TokenView) -> TokenView:
    """The secret of a token that was asked for again."""
    return answer.model_copy(update={"secret": leader.credentials.secret(answer.token_id)})


@handles(TOKENS_LIST)
async def tokens_list(leader: Office, call: Call, ask: TokensList) -> TokensListed:
    """Tokens that reach no further than the caller's own pools."""
    rows = [row for row in leader.credentials.rows() if _within(call, tuple(row.pools))]
    active = sum(row.state == "active" for row in rows)
    return TokensListed(summary=f"{len(rows)} tokens, {active} of them active.", tokens=rows)


def _within(call: Call, token_pools: tuple[str, ...]) -> bool:
    return not call.pools or bool(token_pools and set(token_pools) <= set(call.pools))


@handles(TOKENS_REVOKE)
async def tokens_revoke(leader: Office, call: Call, ask: TokensRevoke) -> TokenRevoked:
    """End a token."""
    token = leader.credentials.find_any(ask.token_id)
    if token is None or not _within(call, token.pools):
        raise not_found("token", ask.token_id, hint="list them with tokens_list")
    ended = token

    def change(tx: Tx) -> TokenRevoked:
        nonlocal ended
        ended = leader.credentials.revoke(tx, token)
        return TokenRevoked(summary=f"Token {ask.token_id} no longer works.", token_id=ask.token_id)

    answer = await call.commit(change)
    leader.credentials.remember(ended)
    return answer
