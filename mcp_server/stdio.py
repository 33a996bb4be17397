"""`swarm mcp`: MCP on stdin and stdout for a local agent, whose tools ask a leader over REST.

Knows a leader's address and one access token. Checks arguments with the declared models, as the
leader does, so a typo gets the same words from both.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2
from mcp.server.stdio import stdio_server

from mcp_server.access import is_loopback
from mcp_server.logs import start_logging
from mcp_server.tools import ToolCall, build_server
from transport.api.operation import Operation
from transport.errors import SwarmError
from transport.schema import parse

DEFAULT_LEADER = "http://127.0.0.1:7420"
TIMEOUT_S = 75.0  # jobs_wait holds a call for up to 50 s


class Remote:
    """A leader, over REST."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client

    async def perform(self, call: ToolCall) -> dict[str, Any]:
        """Run an operation there.

        Raises:
            SwarmError: its refusal, or unreachable.
        """
        ask = parse(call.operation.asks, call.arguments)
        arguments = ask.model_dump(mode="json", exclude_unset=True)
        try:
            response = await self._send(call.operation, arguments)
        except httpx2.HTTPError as error:
            raise SwarmError(
                "unreachable",
                f"no leader answers at {self.client.base_url} ({type(error).__name__})",
                hint="start it with `swarm leader`, or name another with SWARM_LEADER",
            ) from error
        return _answer(response)

    async def _send(self, operation: Operation, arguments: dict[str, Any]) -> httpx2.Response:
        inside = {k: v for k, v in arguments.items() if f"{{{k}}}" in operation.path}
        rest = {k: v for k, v in arguments.items() if k not in inside and v is not None}
        path = "/api/v1" + operation.path.format(
            **{name: quote(str(value), safe="") for name, value in inside.items()}
        )
        if operation.method == "POST":
            return await self.client.post(path, json=rest)
        return await self.client.request(operation.method, path, params=rest)


def _answer(response: httpx2.Response) -> dict[str, Any]:
    try:
        told = json.loads(response.content)
    except ValueError:
        told = None
    if response.is_success and isinstance(told, dict):
        return told
    problem: Mapping[str, Any] = told if isinstance(told, dict) else {}
    raise SwarmError.from_problem(problem)


def access_token(environ: Mapping[str, str], file: Path | None) -> str:
    """The access token: SWARM_TOKEN, else the file named by --token-file or SWARM_TOKEN_FILE.

    Raises:
        SwarmError: unauthenticated when there is none, invalid-input when the file cannot be read.
    """
    told = environ.get("SWARM_TOKEN", "").strip()
    named = file or (Path(environ["SWARM_TOKEN_FILE"]) if environ.get("SWARM_TOKEN_FILE") else None)
    if told or named is None:
        if told:
            return told
        raise SwarmError(
            "unauthenticated",
            "there is no access token for the leader",
            hint="set SWARM_TOKEN or SWARM_TOKEN_FILE; make one with `swarm tokens create`",
        )
    try:
        return named.read_text("utf-8").strip()
    except OSError as error:
        raise SwarmError(
            "invalid-input",
            f"the token file {named} cannot be read: {error.strerror}",
            hint="name the right one with --token-file",
        ) from error


async def serve(leader: str, token: str) -> None:
    """Serve one agent until its end of stdin."""
    headers = {"authorization": f"Bearer {token}"}
    # A proxy of the environment has no business between two programs of one machine.
    trust_env = not is_loopback(urlsplit(leader).hostname or "")
    async with httpx2.AsyncClient(
        base_url=leader, headers=headers, timeout=TIMEOUT_S, trust_env=trust_env
    ) as client:
        server = build_server(Remote(client).perform)
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())


def main(argv: list[str] | None = None) -> int:
    """The command line of `python -m mcp_server.stdio`."""
    parser = argparse.ArgumentParser("swarm mcp", description="MCP on stdin and stdout.")
    parser.add_argument("--leader", default=os.environ.get("SWARM_LEADER", DEFAULT_LEADER))
    parser.add_argument("--token-file", type=Path)
    told = parser.parse_args(argv)
    start_logging("warning")
    try:
        token = access_token(os.environ, told.token_file)
    except SwarmError as error:
        sys.stderr.write(f"{error.code}: {error.message}. Next: {error.hint}\n")
        return error.exit_code
    try:
        asyncio.run(serve(told.leader.rstrip("/"), token))
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
