"""How an operation is run, whoever asks through whichever face: scope, arguments, pool, handler.

A change runs in a task of its own, so that a caller who hangs up stops nothing; with a request_id
it happens once, and the answer is stored in the transaction of the change itself.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from control.clock import Clock
from control.operations.office import Office
from control.store import pools, requests
from control.store.database import Database, Tx
from control.store.requests import AnsweredRequest
from transport.api.operation import SCOPES, Answer, Ask, Change, Operation, Scope
from transport.errors import SwarmError, not_found
from transport.schema import parse

A = TypeVar("A", bound=Answer)
Progress = Callable[[float, float | None, str], Awaitable[None]]
Handler = Callable[[Office, "Call", Any], Awaitable[Answer]]
H = TypeVar("H", bound=Callable[..., Awaitable[Answer]])
R = TypeVar("R", bound=Callable[..., Answer])
MAKES_ITS_POOL = "pools_create"


@dataclass(frozen=True)
class Call:
    """Who asks, and what comes with the arguments. No handler knows more of its face."""

    who: str
    """token_id of the caller; request_ids are apart for each."""
    scope: Scope
    pools: tuple[str, ...] = ()
    """Pools it may see; empty = all."""
    upload: AsyncIterator[bytes] | None = None
    """The bytes of the operation's upload field, when they come as a stream."""
    progress: Progress | None = None
    once: "Once | None" = field(default=None, compare=False)
    """Set by run()."""

    def sees(self, pool: str) -> bool:
        """Whether this pool is one of the caller's."""
        return not self.pools or pool in self.pools

    async def commit(self, change: Callable[[Tx], A]) -> A:
        """Run a change and answer after its commit; with a request_id only the first time."""
        assert self.once is not None
        return await self.once.commit(change)

    def with_upload_digest(self, sha256: str) -> None:
        """Bytes that came as a stream are arguments too."""
        assert self.once is not None
        if self.upload is not None:
            self.once.upload_sha256 = sha256


class Replay(Exception):
    """This request was answered before."""

    def __init__(self, answer: str) -> None:
        super().__init__()
        self.answer = answer


@dataclass
class Once:
    """A request that happens once."""

    database: Database
    clock: Clock
    operation: Operation
    who: str
    ask: Ask
    upload_sha256: str = ""

    async def replay(self) -> Answer | None:
        """The first answer of this request, if there was one.

        Raises:
            SwarmError: conflict when the id was used with other arguments.
        """
        request_id = self._request_id()
        if request_id is None:
            return None
        found = await self.database.read(lambda tx: requests.find(tx, self.who, request_id))
        return self._read(self._same(found)) if found else None

    async def commit(self, change: Callable[[Tx], A]) -> A:
        """The change and its answer in one transaction."""
        request_id = self._request_id()
        if request_id is None:
            return await self.database.write(change)
        now = self.clock.now()

        def once(tx: Tx) -> A:
            found = requests.find(tx, self.who, request_id)
            if found is not None:
                raise Replay(self._same(found))
            answer = change(tx)
            kept = without_secret(answer).model_dump_json()
            requests.add(
                tx,
                AnsweredRequest(
                    self.who, request_id, self.operation.name, self._digest(), kept, now
                ),
            )
            return answer

        return await self.database.write(once)

    def _request_id(self) -> str | None:
        return self.ask.request_id if isinstance(self.ask, Change) else None

    def _same(self, found: AnsweredRequest) -> str:
        same = (found.operation, found.arguments_sha256) == (self.operation.name, self._digest())
        if not same:
            raise SwarmError(
                "conflict",
                f"request_id {found.request_id!r} was used before, with other arguments",
                hint="use a new request_id for a new change",
                facts={"operation": found.operation},
            )
        return found.answer

    def _digest(self) -> str:
        told = self.ask.model_dump(mode="json", exclude={"request_id"})
        text = json.dumps([told, self.upload_sha256], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def _read(self, answer: str) -> Answer:
        return self.operation.answers.model_validate_json(answer)


def without_secret(answer: Answer) -> Answer:
    """An answer as it may be stored."""
    told = {name: "" for name in ("secret",) if name in type(answer).model_fields}
    return answer.model_copy(update=told)


HANDLERS: dict[str, Handler] = {}
Restore = Callable[[Office, Any], Answer]
RESTORERS: dict[str, Restore] = {}
"""Puts a secret back into a stored answer, by operation."""


def handles(operation: Operation) -> Callable[[H], H]:
    """Register the one handler of a declared operation."""

    def register(handler: H) -> H:
        assert operation.name not in HANDLERS, f"{operation.name} has a handler already"
        HANDLERS[operation.name] = handler
        return handler

    return register


def restores(operation: Operation) -> Callable[[R], R]:
    """Register how the secret of an answer is made again."""

    def register(restore: R) -> R:
        RESTORERS[operation.name] = restore
        return restore

    return register


async def run(leader: Office, operation: Operation, call: Call, raw: Mapping[str, Any]) -> Answer:
    """Do what is asked: check the scope, read the arguments, check the pool, call the handler.

    Raises:
        SwarmError: forbidden, invalid-input, not-found for a pool out of sight, conflict for a
            request_id with other arguments, and whatever the operation refuses.
    """
    if SCOPES.index(call.scope) < SCOPES.index(operation.scope):
        raise SwarmError(
            "forbidden",
            f"{operation.name} needs the scope {operation.scope}; this token has {call.scope}",
            hint=f"use a token with scope {operation.scope} (`swarm tokens create`)",
        )
    ask = parse(operation.asks, raw)
    if operation.effect == "read":
        await _check_pool(leader, operation, call, ask)
        return await HANDLERS[operation.name](leader, call, ask)
    once = Once(leader.database, leader.clock, operation, call.who, ask)
    bound = Call(call.who, call.scope, call.pools, call.upload, call.progress, once)
    task = asyncio.create_task(_change(leader, operation, bound, ask), name=operation.name)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)


async def _change(leader: Office, operation: Operation, call: Call, ask: Ask) -> Answer:
    assert call.once is not None
    await _check_pool(leader, operation, call, ask)
    try:
        # The digest of an upload is known only when its bytes are here: the handler looks then.
        first = await call.once.replay() if call.upload is None else None
        if first is None:
            return await HANDLERS[operation.name](leader, call, ask)
    except Replay as again:
        first = operation.answers.model_validate_json(again.answer)
    restore = RESTORERS.get(operation.name)
    return restore(leader, first) if restore else first


async def _check_pool(leader: Office, operation: Operation, call: Call, ask: Ask) -> None:
    pool = getattr(ask, "pool", None)
    if pool is not None and operation.name != MAKES_ITS_POOL:
        await need_pool(leader, call, pool)


async def need_pool(leader: Office, call: Call, pool: str) -> None:
    """Refuse a pool that is not there or out of sight, both alike.

    Raises:
        SwarmError: not-found.
    """
    known = await leader.database.read(lambda tx: pools.find(tx, pool))
    if known is None or not call.sees(pool):
        raise not_found("pool", pool, hint="list yours with pools_list")
