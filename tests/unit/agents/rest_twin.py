"""A leader's REST face for tests of the command line: every route, answers of the test's own."""

import hashlib
import itertools
import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.unit.agents.leader_twin import served
from transport.api.catalog import OPERATIONS
from transport.api.operation import Operation
from transport.errors import SwarmError
from transport.schema import parse, parse_strings

TOKEN = "swt_" + "t" * 43
POOL = "demo/home"
JOB = "j-aaaaaaaa"

Answers = Callable[[dict[str, Any]], dict[str, Any]]


def a_config() -> dict[str, Any]:
    return {
        "model": {"id": "local:tiny"},
        "data": {"bucket": "verses"},
        "train": {"steps": 3},
    }


def a_plan(**changes: Any) -> dict[str, Any]:
    """A plan on one card, as JSON values."""
    card = {
        "card": "f-aaaaaaaa:0", "fellow_id": "f-aaaaaaaa", "hostname": "atlas", "name": "CPU",
        "uuid": "cpu-0", "used": True, "reason": "", "stage": 0, "first_layer": 0,
        "last_layer": 29, "total_bytes": 4_000_000_000, "free_bytes": 3_900_000_000,
        "planned_bytes": 1_234_000_000, "segments": [],
    }  # fmt: skip
    left_out = {
        **card, "card": "f-bbbbbbbb:0", "fellow_id": "f-bbbbbbbb", "hostname": "cedar\x1b[31m",
        "used": False, "reason": "100 MB free, a stage needs 800 MB", "stage": None,
        "first_layer": None, "last_layer": None, "planned_bytes": None,
    }  # fmt: skip
    stage = {
        "stage": 0, "fellow_id": "f-aaaaaaaa", "hostname": "atlas", "first_layer": 0,
        "last_layer": 29, "cards": ["f-aaaaaaaa:0"], "planned_bytes": 1_234_000_000,
        "free_bytes": 3_900_000_000, "download_bytes": None, "disk_free_bytes": None,
        "sees_tokens": True,
    }  # fmt: skip
    layout = {
        "stages": [stage], "limit": "memory of atlas CPU #0", "idle_share": 0.0, "step_s": None,
        "step_is": "unknown",
    }  # fmt: skip
    plan = {
        "summary": "One stage on atlas.", "plan_id": "3f9c2a1b0d4e5f67", "fits": True,
        "reason": "", "model": None, "model_id": "local:tiny", "layout": layout,
        "settings": None,
        "chosen": [{"setting": "batch_size", "value": 8, "reason": "the largest that fits"}],
        "cards": [card, left_out], "data": None, "config": a_config(), "notes": [],
    }  # fmt: skip
    return {**plan, **changes}


def a_job(**changes: Any) -> dict[str, Any]:
    """A job, as JSON values."""
    job: dict[str, Any] = {
        "summary": "The job starts.", "job_id": JOB, "pool": POOL, "name": "",
        "model_id": "local:tiny", "revision": None, "state": "starting", "reason": "",
        "attempt": 1, "plan_id": "3f9c2a1b0d4e5f67", "pinned": True, "step": 0, "steps": 3,
        "loss": None, "smoothed_loss": None, "step_s": None, "created_at": 1.0,
        "started_at": None, "ended_at": None, "stages": [], "chosen": [], "evaluations": [],
        "config": a_config(),
    }  # fmt: skip
    return {**job, **changes}


class RestTwin:
    """Answers each operation with what the test has set, after the declared checks."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.uploads: list[bytes] = []
        self.files: dict[str, bytes] = {}
        self.faults: deque[str] = deque()
        """For the next requests: "503", or "lost" (done, but the answer breaks off)."""
        self.errors: dict[str, SwarmError] = {}
        """By operation: raised instead of an answer."""
        pools = [{"pool": POOL, "fellows": 1, "online": 1, "jobs": 0, "created_at": 1.0}]
        self.answers: dict[str, Answers] = {
            "pools_list": lambda _: {"summary": "One pool.", "pools": pools},
            "jobs_plan": lambda _: a_plan(),
            "jobs_submit": lambda _: a_job(),
            "jobs_get": lambda _: a_job(),
            "buckets_list": lambda _: {"summary": "None.", "buckets": []},
            "jobs_list": lambda _: {"summary": "None.", "jobs": [], "omitted": 0, "cursor": None},
        }
        self._count = itertools.count()

    def names(self) -> list[str]:
        """The operations that were asked for, in order."""
        return [name for name, _ in self.asked]

    def of(self, name: str) -> list[dict[str, Any]]:
        """The arguments of each call of an operation."""
        return [arguments for asked, arguments in self.asked if asked == name]

    def app(self) -> Starlette:
        """The routes."""
        return Starlette(
            routes=[
                *(self._route(operation) for operation in OPERATIONS.values()),
                Route("/api/v1/jobs/{job_id}/adapter/{file}", self._file),
                Route("/version", self._version),
                Route("/healthz", self._version),
                Route("/signin", self._sign_in, methods=["POST"]),
            ]
        )

    def _route(self, operation: Operation) -> Route:
        return Route(
            "/api/v1" + operation.path, self._endpoint(operation), methods=[operation.method]
        )

    def _endpoint(self, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            fault = self.faults.popleft() if self.faults else ""
            try:
                if fault == "503":
                    raise SwarmError("unavailable", "as the test wished")
                if request.headers.get("authorization") != f"Bearer {TOKEN}":
                    raise SwarmError("unauthenticated", "this access token is not valid here")
                told = await self._answer(operation, request)
            except SwarmError as error:
                headers = {"retry-after": "0"}
                return JSONResponse(error.problem(), error.status, headers)
            if fault == "lost":
                return StreamingResponse(iter([b"{"]), headers={"content-length": "10"})
            return Response(json.dumps(told), media_type="application/json")

        return endpoint

    async def _answer(self, operation: Operation, request: Request) -> dict[str, Any]:
        path = dict(request.path_params)
        kind = request.headers.get("content-type")
        if operation.method != "POST" or kind == "application/octet-stream":
            ask = parse_strings(operation.asks, {**request.query_params, **path})
            arguments = ask.model_dump(mode="json", exclude_unset=True)
            if kind is not None:
                self.uploads.append(await request.body())
        else:
            arguments = {**await request.json(), **path}
            parse(operation.asks, arguments)
        self.asked.append((operation.name, arguments))
        if operation.name in self.errors:
            raise self.errors[operation.name]
        return self.answers[operation.name](arguments)

    async def _file(self, request: Request) -> Response:
        return Response(self.files[request.path_params["file"]])

    async def _version(self, _: Request) -> Response:
        return JSONResponse({"version": "9.9.9", "protocol": 1})

    async def _sign_in(self, request: Request) -> Response:
        assert request.headers["authorization"] == f"Bearer {TOKEN}"
        return JSONResponse({"url": f"{self.url}/signin?code=c{next(self._count)}"})


@contextmanager
def rest(twin: RestTwin) -> Iterator[RestTwin]:
    """Serve it on loopback."""
    with served(twin.app()) as url:
        twin.url = url
        yield twin


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
