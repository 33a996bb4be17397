"""MCP at /mcp: streamable HTTP for both protocol eras, behind the leader's own reception."""

from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from mcp_server.access import LOOPBACK_NAMES, Names, Reception
from mcp_server.calls import Calls
from mcp_server.office import Question
from mcp_server.problems import problem_response
from mcp_server.tools import ToolCall, build_server
from transport.errors import SwarmError

CALLER = "swarm.caller"


class McpDoor:
    """An ASGI app for /mcp. Its `manager.run()` must be entered before the first request."""

    def __init__(self, calls: Calls, reception: Reception, names: Names) -> None:
        self.calls = calls
        self.reception = reception
        self.manager = StreamableHTTPSessionManager(
            build_server(self._perform),
            security_settings=_security(names),
            max_sessions=256,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        try:
            if "authorization" not in request.headers:
                raise SwarmError(
                    "unauthenticated",
                    "MCP needs an access token",
                    hint="send Authorization: Bearer TOKEN; make one with `swarm tokens create`",
                )
            caller = await self.reception.caller(request)
        except SwarmError as error:
            await problem_response(error)(scope, receive, send)
            return
        # The session manager binds a legacy session to this user: nobody else's token opens it.
        user = AuthenticatedUser(
            AccessToken(token="", client_id=caller.token_id, scopes=[caller.scope])
        )
        known = {**scope, "user": user, CALLER: caller}
        await self.manager.handle_request(known, receive, send)

    async def _perform(self, call: ToolCall) -> dict[str, Any]:
        caller = call.request.scope[CALLER]
        answer = await self.calls.perform(
            Question(call.operation, caller, call.arguments, progress=call.progress)
        )
        return answer.model_dump(mode="json")


def _security(names: Names) -> TransportSecuritySettings:
    """The SDK's own check, set to the same names as the guard in front of everything."""
    known = [*sorted(names.hosts), *LOOPBACK_NAMES]
    hosts = [*known, *(f"{name}:*" for name in known)]
    origins = [f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True, allowed_hosts=hosts, allowed_origins=origins
    )
