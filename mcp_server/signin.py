"""Signing a browser in: a token's owner makes a one-time link, the link becomes a cookie."""

import time
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from mcp_server.access import Reception, bearer
from mcp_server.problems import answered
from mcp_server.rest import FRESH
from mcp_server.sessions import COOKIES, LINK_LIVES_S, SESSION_LIVES_S
from transport.errors import SwarmError


class SignIn:
    """POST makes a link (with an access token), GET uses it, DELETE signs the browser out.

    Args:
        public_url: where browsers reach the leader; None = where the caller reached it.
    """

    def __init__(self, reception: Reception, public_url: str | None) -> None:
        self.reception = reception
        self.public_url = public_url

    def routes(self) -> list[Route]:
        """One address, three methods."""
        methods = (("POST", self.make), ("GET", self.use), ("DELETE", self.leave))
        return [Route("/signin", answered(to), methods=[how]) for how, to in methods]

    async def make(self, request: Request) -> Response:
        """A link for the browser of whoever holds this access token; it works once."""
        if bearer(request.headers) is None:
            raise SwarmError(
                "unauthenticated",
                "a sign-in link is made with an access token",
                hint="send Authorization: Bearer TOKEN",
            )
        caller, now = await self.reception.caller(request), time.time()
        code = self.reception.sessions.link_code(caller.token_id, now)
        address = self.public_url or f"{request.url.scheme}://{request.headers['host']}"
        link = {"url": f"{address}/signin?code={code}", "expires_at": now + LINK_LIVES_S}
        return JSONResponse(link, headers=FRESH)

    async def use(self, request: Request) -> Response:
        """Trade the code for a session and go to the console."""
        now = time.time()
        token_id = self.reception.sessions.redeem(request.query_params.get("code", ""), now)
        if token_id is None:
            self.reception.count_failure(request)
            return PlainTextResponse(
                "This sign-in link was used or is older than ten minutes. "
                "Make a new one with: swarm signin\n",
                HTTPStatus.NOT_FOUND,
                FRESH,
            )
        response = RedirectResponse("/", HTTPStatus.SEE_OTHER, FRESH)
        secure = _is_secure(request)
        response.set_cookie(
            COOKIES[0] if secure else COOKIES[1],
            self.reception.sessions.cookie(token_id, now),
            max_age=int(SESSION_LIVES_S),
            path="/",
            secure=secure,
            httponly=True,
            samesite="strict",
        )
        return response

    async def leave(self, request: Request) -> Response:
        """Forget the browser's session."""
        await self.reception.caller(request)
        response = Response(status_code=HTTPStatus.NO_CONTENT)
        for name in COOKIES:
            secure = name == COOKIES[0]
            response.delete_cookie(name, path="/", secure=secure, httponly=True, samesite="strict")
        return response


def _is_secure(request: Request) -> bool:
    return request.url.scheme == "https"
