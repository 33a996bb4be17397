"""REST: one route below /api/v1 for each declared operation, and the files that answers point at.

Knows how arguments travel in a path, a query string or a body. Does not know what any operation
does.
"""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from mcp_server.access import Reception
from mcp_server.calls import Calls
from mcp_server.office import Caller, Question
from mcp_server.openapi import document
from mcp_server.problems import answered
from transport.api.buckets import MODELS_EXPORT
from transport.api.catalog import OPERATIONS
from transport.api.jobs import JOBS_GET
from transport.api.operation import Operation
from transport.api.saved_states import JOBS_SNAPSHOTS
from transport.errors import SwarmError, not_found
from transport.ids import JobId
from transport.schema import Model, parse_strings
from transport.units import human_bytes

API = "/api/v1"
MAX_JSON = 4 * 1024 * 1024
MAX_UPLOAD = 256 * 10**9
NOT_A_FILE = ("multipart/", "application/x-www-form-urlencoded")


class _SavedPath(Model):
    job_id: JobId
    step: int
    stage: int


class Rest:
    """Answers operations and downloads over HTTP."""

    def __init__(self, calls: Calls, reception: Reception) -> None:
        self.calls = calls
        self.reception = reception

    def routes(self) -> list[Route]:
        """One route an operation, three kinds of download, and the description of them all."""
        told = [self._route(operation) for operation in OPERATIONS.values()]
        return [
            *told,
            Route(f"{API}/jobs/{{job_id}}/adapter/{{file}}", answered(self.adapter)),
            Route(f"{API}/jobs/{{job_id}}/merged/{{file}}", answered(self.merged)),
            Route(f"{API}/jobs/{{job_id}}/records.jsonl", answered(self.records)),
            Route(f"{API}/jobs/{{job_id}}/snapshots/{{step}}/{{stage}}", answered(self.snapshot)),
            Route(f"{API}/openapi.json", answered(self.openapi), name="openapi"),
        ]

    def _route(self, operation: Operation) -> Route:
        async def endpoint(request: Request) -> Response:
            caller = await self.reception.caller(request)
            arguments, upload = await read_arguments(operation, request)
            answer = await self.calls.perform(Question(operation, caller, arguments, upload=upload))
            return Response(answer.model_dump_json(), media_type="application/json", headers=FRESH)

        return Route(
            API + operation.path,
            answered(endpoint),
            methods=[operation.method],
            name=operation.name,
        )

    async def adapter(self, request: Request) -> Response:
        """One file of a trained adapter, of a job that the caller may see."""
        job_id, name = request.path_params["job_id"], request.path_params["file"]
        await self._may_see(MODELS_EXPORT, request, job_id)
        stored = await self.calls.office.adapter_file(job_id, name)
        if stored is None:
            raise not_found("adapter file", name, hint="models_export lists the files of a job")
        return FileResponse(stored.path, headers={"etag": f'"{stored.sha256}"'}, filename=name)

    async def merged(self, request: Request) -> Response:
        """One file of a job's whole checkpoint, whole or by range."""
        job_id, name = request.path_params["job_id"], request.path_params["file"]
        await self._may_see(MODELS_EXPORT, request, job_id)
        stored = await self.calls.office.merged_file(job_id, name)
        if stored is None:
            raise not_found("merged file", name, hint="models_export lists the files of a job")
        return FileResponse(stored.path, headers={"etag": f'"{stored.sha256}"'}, filename=name)

    async def snapshot(self, request: Request) -> Response:
        """A stage's file of a saved step, of a job that the caller may see."""
        job_id = request.path_params["job_id"]
        await self._may_see(JOBS_SNAPSHOTS, request, job_id)
        where = parse_strings(_SavedPath, request.path_params)
        stored = await self.calls.office.snapshot_file(job_id, where.step, where.stage)
        if stored is None:
            raise not_found("saved file", str(where.step), hint="jobs_snapshots lists them")
        name = f"{job_id}-step-{where.step}-stage-{where.stage}.safetensors"
        return FileResponse(stored.path, headers={"etag": f'"{stored.sha256}"'}, filename=name)

    async def records(self, request: Request) -> Response:
        """A job's measured steps as JSON lines, whole."""
        job_id = request.path_params["job_id"]
        await self._may_see(JOBS_GET, request, job_id)
        path = await self.calls.office.records_file(job_id)
        if path is None:
            raise not_found("record", job_id, hint="nothing has been measured yet")
        return FileResponse(
            path, media_type="application/jsonl", filename=f"{job_id}.jsonl", headers=FRESH
        )

    async def _may_see(self, operation: Operation, request: Request, job_id: str) -> Caller:
        caller = await self.reception.caller(request)
        await self.calls.perform(Question(operation, caller, {"job_id": job_id}))
        return caller

    async def openapi(self, request: Request) -> Response:
        """The OpenAPI 3.1 description. Open to everyone: it says nothing of this pool."""
        return Response(json.dumps(document()), media_type="application/json")


FRESH = {"cache-control": "no-store"}


async def read_arguments(
    operation: Operation, request: Request
) -> tuple[dict[str, Any], AsyncIterator[bytes] | None]:
    """The arguments of a request as JSON values, and its stream when the body is a file."""
    path = {name: str(value) for name, value in request.path_params.items()}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_json = kind == "application/json" or kind.endswith("+json")
    if operation.method != "POST":
        return _from_strings(operation, request, path), None
    if operation.upload is not None and kind and not is_json:
        if kind.startswith(NOT_A_FILE):
            raise _wants("the bytes of the file as the request body, not a form")
        arguments = _from_strings(operation, request, path)
        return arguments, limited(request.stream(), MAX_UPLOAD)
    return _with_path(await read_object(request, is_json), path), None


def _from_strings(
    operation: Operation, request: Request, path: Mapping[str, str]
) -> dict[str, Any]:
    """Path and query string as checked values: "20" becomes 20 where a number is asked for."""
    twice = [n for n in request.query_params if len(request.query_params.getlist(n)) > 1]
    if twice:
        raise SwarmError("invalid-input", f"/{twice[0]}: is given twice", hint="give it once")
    ask = parse_strings(operation.asks, {**request.query_params, **path})
    return ask.model_dump(mode="json", exclude_unset=True)


def _with_path(body: dict[str, Any], path: Mapping[str, str]) -> dict[str, Any]:
    for name, value in path.items():
        if body.get(name, value) != value:
            raise SwarmError(
                "invalid-input",
                f"/{name}: the address says {value!r} and the body something else",
                hint=f"leave {name} out of the body",
            )
    return {**body, **path}


async def read_object(request: Request, is_json: bool, limit: int = MAX_JSON) -> dict[str, Any]:
    """The JSON object of a body of at most `limit` bytes; an empty body is an empty object."""
    raw = b"".join([chunk async for chunk in limited(request.stream(), limit)])
    if not raw:
        return {}
    if not is_json:
        raise _wants("one JSON object, with Content-Type: application/json")
    try:
        told = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise SwarmError(
            "invalid-input",
            f"the body is not JSON that can be read ({type(error).__name__})",
            hint="send one JSON object",
        ) from None
    if not isinstance(told, dict):
        raise _wants("one JSON object")
    return told


async def limited(chunks: AsyncIterator[bytes], limit: int) -> AsyncIterator[bytes]:
    """The same chunks, until they pass the limit.

    Raises:
        SwarmError: too-large.
    """
    count = 0
    async for chunk in chunks:
        count += len(chunk)
        if count > limit:
            raise SwarmError(
                "too-large",
                f"the body is larger than {human_bytes(limit)}, the most that is taken here",
                hint="send less, or a large file as the raw body of its upload address",
            )
        yield chunk


def _wants(what: str) -> SwarmError:
    return SwarmError(
        "invalid-input", f"this address wants {what}", hint="see /api/v1/openapi.json"
    )
