"""`swarm mcp`: the leader's tools for an agent over stdio, and the lines that tell an agent so.

Knows where each client keeps its list of servers; imports nothing of MCP.
"""

import json
from collections.abc import Callable
from typing import Any

import click

from agents.cli.leader import become
from agents.cli.session import current, shared_options
from agents.cli.subcommands import Words
from agents.profile import Profile
from transport.errors import SwarmError

_ROWS = {
    "serve": "Speak MCP on stdin and stdout. This is also what `swarm mcp` alone does.",
    "config": "Print what to put into an agent's settings.",
}


@click.command("serve", short_help=_ROWS["serve"])
def serve() -> None:
    """Speak MCP on stdin and stdout, for an agent on this machine."""
    found = current().profile()
    # By environment, never by argument: an argument can be read by every user of the machine.
    extra = {"SWARM_LEADER": found.url}
    if found.token.value is not None:
        extra["SWARM_TOKEN"] = found.token.value
    become("mcp_server.stdio", [], extra)


@click.command("config", short_help=_ROWS["config"])
@click.option(
    "--client",
    "name",
    required=True,
    type=click.Choice(["claude-code", "claude-desktop", "codex", "cursor", "vscode"]),
    help="The agent that shall use the tools.",
)
def config(name: str) -> None:
    """Print what to put into an agent's settings. The access token itself is never printed."""
    session = current()
    where, what = snippet(name, session.profile())
    if session.is_json:
        session.print_json({"client": name, "where": where, "what": what})
        return
    session.say(f"# {where}")
    click.echo(what)


def snippet(client: str, found: Profile) -> tuple[str, str]:
    """Where a client keeps its servers, and what to put there.

    Source: each client's own documentation of its settings, November 2026.
    """
    if client not in _SNIPPETS:
        raise SwarmError("invalid-input", f"there is no client {client!r}", hint="see --help")
    return _SNIPPETS[client](f"{found.url}/mcp")


def _claude_code(url: str) -> tuple[str, str]:
    # Without a type an entry is taken for a program to start.
    return "run this once (single quotes: the variable is read when the agent starts)", (
        f"claude mcp add --transport http swarm {url} "
        "--header 'Authorization: Bearer ${SWARM_TOKEN}'"
    )


def _claude_desktop(_: str) -> tuple[str, str]:
    # It reads only programs from its file; its remote servers are added in its window.
    entry = {"command": "swarm", "args": ["mcp"]}
    return "claude_desktop_config.json (starts `swarm mcp`)", _json(
        {"mcpServers": {"swarm": entry}}
    )


def _codex(url: str) -> tuple[str, str]:
    # It refuses a token written into the file itself.
    return "~/.codex/config.toml, with SWARM_TOKEN in the environment", (
        f'[mcp_servers.swarm]\nurl = "{url}"\nbearer_token_env_var = "SWARM_TOKEN"'
    )


def _cursor(url: str) -> tuple[str, str]:
    entry = {"url": url, "headers": {"Authorization": "Bearer ${env:SWARM_TOKEN}"}}
    return ".cursor/mcp.json or ~/.cursor/mcp.json", _json({"mcpServers": {"swarm": entry}})


def _vscode(url: str) -> tuple[str, str]:
    asked = {
        "type": "promptString",
        "id": "swarm-token",
        "description": "Swarm access token",
        "password": True,
    }
    header = {"Authorization": "Bearer ${input:swarm-token}"}
    entry = {"type": "http", "url": url, "headers": header}
    return ".vscode/mcp.json", _json({"inputs": [asked], "servers": {"swarm": entry}})


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2)


_SNIPPETS: dict[str, Callable[[str], tuple[str, str]]] = {
    "claude-code": _claude_code,
    "claude-desktop": _claude_desktop,
    "codex": _codex,
    "cursor": _cursor,
    "vscode": _vscode,
}
_COMMANDS = {"serve": serve, "config": config}
for _command in _COMMANDS.values():
    _command.params += shared_options()
mcp = Words("mcp", "Serve the leader's tools to an agent.", _ROWS, _COMMANDS.get, otherwise="serve")
