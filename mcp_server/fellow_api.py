"""The fellows' door: join, heartbeat, orders, reports, adapters in, token files out.

Below /fellow/v1, for fellows' own credentials only. Knows the protocol number and how far a message
of another machine is trusted: not at all until it is parsed, and its text never more than as data.
"""

import asyncio
import re
from typing import TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from control.jobs.results import StageKey
from control.snapshots.keeper import SnapshotKey
from mcp_server.access import FELLOW_PREFIX, Reception
from mcp_server.closing import unless_closing, unless_hung_up
from mcp_server.export_files import ExportFiles
from mcp_server.hub_files import HubFiles
from mcp_server.office import Office, Promise
from mcp_server.problems import answered
from mcp_server.rest import FRESH, limited
from transport.beats import ShortBeat
from transport.cards import PROTOCOL, Heartbeat
from transport.errors import SwarmError, not_found
from transport.ids import Digest, JobId
from transport.reports import JoinAsk, ReportBatch
from transport.schema import Model, parse, parse_strings

M = TypeVar("M", bound=BaseModel)

HOLD_S = 25.0
MAX_MESSAGE = 2 * 1024 * 1024
MAX_MEASURED = 8 * 1024 * 1024
SNAPSHOT = "/jobs/{job_id}/attempts/{attempt}/snapshots/{step}/stages/{stage}"


class _AdapterPath(Model):
    job_id: JobId
    attempt: int
    stage: int


class _SnapshotPath(_AdapterPath):
    step: int


class _TokenPath(Model):
    digest: Digest


class FellowApi:
    """Answers fellows.

    Args:
        closing: set when the leader shuts down; held requests then answer at once.
    """

    def __init__(self, office: Office, reception: Reception, closing: asyncio.Event) -> None:
        self.office = office
        self.reception = reception
        self.closing = closing

    def routes(self) -> list[Route]:
        """Every route below /fellow/v1."""
        hub = HubFiles(self.office, self.reception)
        exports = ExportFiles(self.office, self.reception)
        own = [
            ("/join", "POST", self.join),
            ("/heartbeat", "POST", self.heartbeat),
            ("/beat", "POST", self.beat),
            ("/orders", "GET", self.orders),
            ("/reports", "POST", self.reports),
            ("/measure", "GET", self.send_bytes),
            ("/measure", "POST", self.take_bytes),
            ("/jobs/{job_id}/attempts/{attempt}/stages/{stage}/adapter", "PUT", self.adapter),
            (SNAPSHOT, "PUT", self.take_snapshot),
            (SNAPSHOT, "GET", self.give_snapshot),
            ("/tokens/{digest}", "GET", self.tokens),
            ("/exports/{export_id}/trained", "GET", exports.trained),
            ("/exports/{export_id}/files/{file}", "PUT", exports.take),
            ("/exports/{export_id}/done", "POST", exports.done),
            ("/hub/{repo:path}/resolve/{revision}/{file:path}", "GET", hub.file),
            ("/hub/api/models/{repo:path}/revision/{revision}", "GET", hub.info),
            ("/hub/api/models/{repo:path}/tree/{revision}", "GET", hub.tree),
        ]
        return [Route(FELLOW_PREFIX + path, answered(to), methods=[how]) for path, how, to in own]

    async def join(self, request: Request) -> Response:
        """A machine joins with its invite; a wrong invite counts as a refused secret."""
        ask = await _message(request, JoinAsk)
        try:
            return _json(await self.office.join(ask))
        except SwarmError as error:
            if error.code == "not-found":
                self.reception.count_failure(request)
            raise

    async def heartbeat(self, request: Request) -> Response:
        """What the machine is like now; the answer is what it should be doing."""
        fellow_id = await self.reception.fellow(request)
        beat = await _message(request, Heartbeat)
        _is_own(fellow_id, beat.fellow_id)
        return _json(await self.office.heartbeat(fellow_id, beat))

    async def beat(self, request: Request) -> Response:
        """The same, without what has not changed since the last whole heartbeat."""
        fellow_id = await self.reception.fellow(request)
        beat = await _message(request, ShortBeat)
        _is_own(fellow_id, beat.fellow_id)
        return _json(await self.office.short_beat(fellow_id, beat))

    async def orders(self, request: Request) -> Response:
        """The desired state, held back until it is newer than `since` or 25 s are over."""
        fellow_id = await self.reception.fellow(request)
        since = request.query_params.get("since", "-1")
        if not re.fullmatch(r"-?[0-9]{1,18}", since):
            raise SwarmError("invalid-input", "/since: is a whole number", hint="send the revision")
        waiting = self.office.wait_orders(fellow_id, int(since), HOLD_S)
        # A sender that hangs up may be a process that died: the leader hears of it at once.
        return _json(await unless_hung_up(unless_closing(waiting, self.closing), request))

    async def reports(self, request: Request) -> Response:
        """What happened in stages; answered after the commit."""
        fellow_id = await self.reception.fellow(request)
        batch = await _message(request, ReportBatch)
        _is_own(fellow_id, batch.fellow_id)
        return _json(await self.office.take_reports(fellow_id, batch))

    async def send_bytes(self, request: Request) -> Response:
        """So many bytes, for a fellow that measures its line."""
        await self.reception.fellow(request)
        told = request.query_params.get("bytes", "")
        if not re.fullmatch(r"[0-9]{1,8}", told) or int(told) > MAX_MEASURED:
            raise SwarmError(
                "invalid-input",
                f"/bytes: is a whole number up to {MAX_MEASURED}",
                hint="measure with less",
            )
        return Response(bytes(int(told)), media_type="application/octet-stream", headers=FRESH)

    async def take_bytes(self, request: Request) -> Response:
        """The same the other way: read and forgotten."""
        await self.reception.fellow(request)
        async for _ in limited(request.stream(), MAX_MEASURED):
            pass
        return Response(status_code=204, headers=FRESH)

    async def adapter(self, request: Request) -> Response:
        """A stage's trained tensors: streamed to disk, compared with the promised digest."""
        fellow_id = await self.reception.fellow(request)
        where = parse_strings(_AdapterPath, request.path_params)
        promised = _promised_digest(request)
        key = StageKey(fellow_id, where.job_id, where.attempt, where.stage)
        await self.office.take_adapter(key, request.stream(), promised)
        return Response(status_code=204)

    async def take_snapshot(self, request: Request) -> Response:
        """A stage's saved state: into room reserved by its promised size, then checked."""
        fellow_id = await self.reception.fellow(request)
        key = _snapshot_key(fellow_id, request)
        size = request.headers.get("content-length", "")
        if not re.fullmatch(r"[0-9]{1,15}", size) or int(size) == 0:
            raise SwarmError(
                "invalid-input",
                "the header Content-Length is missing or no size",
                hint="say how large the file is, so that room can be kept for it",
            )
        promised = Promise(_promised_digest(request), int(size))
        await self.office.take_snapshot(key, request.stream(), promised)
        return Response(status_code=204)

    async def give_snapshot(self, request: Request) -> Response:
        """A saved file, to the fellow whose order goes on from it; whole or by range."""
        fellow_id = await self.reception.fellow(request)
        key = _snapshot_key(fellow_id, request)
        stored = await self.office.snapshot_for(fellow_id, key)
        if stored is None:
            raise not_found("saved step", str(key.step), hint="ask for the one in your order")
        return FileResponse(stored.path, headers={"etag": f'"{stored.sha256}"'})

    async def tokens(self, request: Request) -> Response:
        """A token file, whole or by range."""
        fellow_id = await self.reception.fellow(request)
        digest = parse_strings(_TokenPath, request.path_params).digest
        stored = await self.office.token_file(fellow_id, digest)
        if stored is None:
            raise not_found("token file", digest, hint="ask with the digest of your order")
        return FileResponse(stored.path, headers={"etag": f'"{digest}"'})


async def _message(request: Request, model: type[M]) -> M:
    """A message of another machine as its model. Its text is cleaned where it is kept.

    Raises:
        SwarmError: invalid-input, too-large, or conflict for a protocol that is too old.
    """
    raw = b"".join([chunk async for chunk in limited(request.stream(), MAX_MESSAGE)])
    told = parse(model, raw)
    protocol = getattr(told, "protocol", PROTOCOL)
    if protocol < PROTOCOL - 1:
        raise SwarmError(
            "conflict",
            f"this fellow speaks protocol {protocol}; the leader needs {PROTOCOL - 1} or newer",
            hint="update Swarm on this machine",
            facts={"protocol": protocol, "leader_protocol": PROTOCOL},
        )
    return told


def _snapshot_key(fellow_id: str, request: Request) -> SnapshotKey:
    where = parse_strings(_SnapshotPath, request.path_params)
    return SnapshotKey(fellow_id, where.job_id, where.attempt, where.stage, where.step)


def _promised_digest(request: Request) -> str:
    promised = request.headers.get("x-content-sha256", "")
    if not re.fullmatch(r"[0-9a-f]{64}", promised):
        raise SwarmError(
            "invalid-input",
            "the header X-Content-SHA256 is missing or no SHA-256 in hex",
            hint="send the file's digest with it",
        )
    return promised


def _is_own(fellow_id: str, told: str) -> None:
    if fellow_id != told:
        raise SwarmError(
            "forbidden",
            f"this credential belongs to {fellow_id}, not to {told}",
            hint="a fellow speaks for itself only",
        )


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json", headers=FRESH)
