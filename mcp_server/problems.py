"""Turns any failure at a door into a problem document (RFC 9457), the same way at every door.

Knows SwarmError and HTTP. An unexpected exception keeps its words in the log, under an id that the
caller is given.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable
from functools import wraps
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.staticfiles import StaticFiles

from transport.errors import SwarmError

log = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]
RETRY_AFTER_S = {429: 5, 503: 2}


def problem_response(error: SwarmError) -> Response:
    """The answer that tells an error over HTTP."""
    headers: dict[str, str] = {"cache-control": "no-store"}
    if error.status in RETRY_AFTER_S:
        wait_s = error.facts.get("retry_after_s", RETRY_AFTER_S[error.status])
        headers["retry-after"] = str(max(1, round(float(wait_s))))
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = 'Bearer realm="swarm"'
    return JSONResponse(
        error.problem(), error.status, headers, media_type="application/problem+json"
    )


def internal(failure: Exception, doing: str) -> SwarmError:
    """The error for a mistake of ours: words withheld, findable in the log by its id."""
    log_id = secrets.token_hex(6)
    log.error("failed: %s", doing, exc_info=failure, extra={"log_id": log_id})
    return SwarmError(
        "internal",
        f"the leader failed while doing this; its log has the reason under {log_id}",
        hint="look for this id in the leader's log",
        facts={"log_id": log_id},
    )


def answered(endpoint: Endpoint) -> Endpoint:
    """Make an endpoint answer every failure with a problem document."""

    @wraps(endpoint)
    async def wrapped(request: Request) -> Response:
        try:
            return await endpoint(request)
        except SwarmError as error:
            return problem_response(error)
        except HTTPException:
            raise
        except ClientDisconnect:
            return Response(status_code=400)  # to nobody
        except Exception as failure:  # noqa: BLE001 - the outermost net of a request
            return problem_response(internal(failure, f"{request.method} {request.url.path}"))

    return wrapped


async def http_problem(request: Request, failure: Exception) -> Response:
    """Starlette's own refusals (no such route, wrong method) as problem documents."""
    assert isinstance(failure, HTTPException)
    # The console answers any path, but only GET: another method there is no address at all.
    is_console = isinstance(request.scope.get("endpoint"), StaticFiles)
    if failure.status_code == HTTPStatus.NOT_FOUND or is_console:
        error = SwarmError(
            "not-found", "there is nothing at this address", hint="see /api/v1/openapi.json"
        )
        return problem_response(error)
    document = {
        "type": "about:blank",
        "title": HTTPStatus(failure.status_code).phrase,
        "status": failure.status_code,
        "detail": f"{request.method} is not how this address is used"
        if failure.status_code == HTTPStatus.METHOD_NOT_ALLOWED
        else str(failure.detail),
        "code": "invalid-input",
        "hint": "see /api/v1/openapi.json",
        "facts": {},
    }
    return JSONResponse(
        document,
        failure.status_code,
        dict(failure.headers or {}),
        media_type="application/problem+json",
    )
