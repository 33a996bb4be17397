"""The one way from a door into the leader's operations.

A change that has begun is finished although its caller hangs up: it runs in a task that the request
does not own, and a repeated request_id finds its answer.
"""

import asyncio
import logging

from mcp_server.closing import unless_closing
from mcp_server.office import Office, Question
from mcp_server.problems import internal
from transport.api.operation import Answer
from transport.errors import SwarmError

log = logging.getLogger(__name__)


class Calls:
    """Asks the office; keeps changes going until they are done.

    Args:
        closing: set when the leader shuts down; waiting reads then end at once.
    """

    def __init__(self, office: Office, closing: asyncio.Event) -> None:
        self.office = office
        self.closing = closing
        self._changes: set[asyncio.Task[Answer]] = set()

    async def perform(self, question: Question) -> Answer:
        """Run one operation.

        Raises:
            SwarmError: the refusal; "internal", its reason in the log, for anything unforeseen.
        """
        try:
            if question.operation.effect == "read":
                return await unless_closing(self.office.run(question), self.closing)
            return await asyncio.shield(self._begin(question))
        except SwarmError:
            raise
        except Exception as failure:
            raise internal(failure, question.operation.name) from failure

    def _begin(self, question: Question) -> asyncio.Task[Answer]:
        task = asyncio.create_task(self._run(question), name=question.operation.name)
        self._changes.add(task)
        task.add_done_callback(self._ended)
        return task

    async def _run(self, question: Question) -> Answer:
        """The change itself, and a line in the log: who, what, how it ended."""
        outcome = "internal"
        try:
            answer = await self.office.run(question)
            outcome = "done"
        except SwarmError as error:
            outcome = error.code
            raise
        finally:
            facts = {"operation": question.operation.name, "caller": question.caller.token_id}
            log.info("change", extra=facts | {"outcome": outcome})
        return answer

    def _ended(self, task: asyncio.Task[Answer]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            task.exception()  # seen, although the caller may be gone

    async def drain(self, timeout_s: float) -> None:
        """Let begun changes finish, at most this long; the rest is cancelled."""
        if not self._changes:
            return
        _, left = await asyncio.wait(set(self._changes), timeout=timeout_s)
        for task in left:
            log.warning("a change did not end in time", extra={"operation": task.get_name()})
            task.cancel()
