"""Starts the leader: `python -m mcp_server.main`. Says when it is ready, ends cleanly on SIGTERM.

Everything heavy is imported after the port is taken, so that a wrong start is refused at once.
"""

import argparse
import asyncio
import json
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from control.settings import Loaded, Settings, load
from control.store.files import write_whole
from mcp_server.logs import start_logging
from mcp_server.relay_process import RelayProcess, listen_for_relay
from mcp_server.rooms import refuse_strangers
from transport.errors import SwarmError
from transport.pinning import with_pin

if TYPE_CHECKING:
    import uvicorn

    from mcp_server.certificate import TlsFiles

KEEP_ALIVE_S = 75
OWN_ADDRESS = "leader.address"
"""In the data folder, while the leader speaks TLS: how this machine's own programs reach it."""
CLOSE_S = 4  # for requests to end; draining changes and closing the store take the rest of 10


def main(argv: list[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    try:
        refuse_strangers()
        if words and words[0] in ("backup", "restore"):
            from mcp_server import backup

            return backup.run(words)
        return _lead(words)
    except SwarmError as error:
        sys.stderr.write(f"{error.code}: {error.message}. Next: {error.hint}\n")
        return error.exit_code


def _lead(words: list[str]) -> int:
    flags = vars(_parser().parse_args(words))
    insecure_lan, proxy = flags.pop("insecure_lan"), flags.pop("trusted_proxy")
    loaded = load(flags)
    settings = in_public(loaded) if proxy is None else loaded.settings
    start_logging(settings.log_level)
    tls = tls_files(settings) if proxy is None else None
    if tls is None:
        refuse_clear_text(settings.host, is_lan=insecure_lan, proxy=proxy)
    with listen(settings.host, settings.port) as listener:
        port = listener.getsockname()[1]
        ports: dict[str, int] = {"port": port}
        relay = listen_for_relay(settings, port)
        if relay is not None:
            ports["relay_port"] = relay.getsockname()[1]
        settings = settings.model_copy(update=ports)
        if tls is not None and tls.is_pinned:
            settings = settings.model_copy(update={"leader_pin": tls.pin})
        return asyncio.run(serve(settings, Sockets(listener, relay), Front(proxy, tls)))


@dataclass(frozen=True)
class Front:
    """What stands between the leader and the network."""

    proxy: str | None
    """A reverse proxy whose X-Forwarded headers are believed."""
    tls: "TlsFiles | None"
    """None: the leader speaks clear text."""


@dataclass(frozen=True)
class Sockets:
    """What the leader listens on."""

    leader: socket.socket
    relay: socket.socket | None
    """None when its relay is elsewhere or there is none."""


class _Parser(argparse.ArgumentParser):
    """Refuses wrong words as everything else is refused: in one line."""

    def error(self, message: str) -> NoReturn:
        raise SwarmError("invalid-input", message, hint="see `swarm leader run --help`")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        "swarm leader",
        description="Run a leader. Each option is also SWARM_NAME and a line of config.toml.",
    )
    parser.add_argument("--host", help="address to listen on; default 127.0.0.1")
    parser.add_argument("--port", type=int, help="0 = any free one; default 7420")
    parser.add_argument("--data", type=Path, help="folder for everything the leader keeps")
    parser.add_argument("--public", dest="public_url", metavar="URL", help="how others reach it")
    parser.add_argument("--tls-cert", type=Path, help="a certificate for it, not the leader's own")
    parser.add_argument("--tls-key", type=Path, help="the key of that certificate")
    parser.add_argument("--relay", metavar="WHERE", help="own, none, or HOST:PORT of another")
    parser.add_argument("--relay-host", help="address its own relay listens on; the leader's")
    parser.add_argument("--relay-port", type=int, help="of its own relay; default 7421")
    parser.add_argument("--relay-key-file", type=Path, help="the key of a relay elsewhere")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"))
    parser.add_argument(
        "--insecure-lan",
        action="store_true",
        help="serve other machines in clear text: anyone on the network can read tokens and data",
    )
    parser.add_argument(
        "--trusted-proxy",
        metavar="ADDRESS",
        help="a reverse proxy that adds TLS; its X-Forwarded headers are believed",
    )
    return parser


def in_public(loaded: Loaded) -> Settings:
    """The settings, listening for others where a public https address says so and no more is told.

    The port is that of the address, and the host all of this machine's addresses.
    """
    settings = loaded.settings
    address = urlsplit(settings.public_url or "")
    if address.scheme != "https":
        return settings
    told = {one.name for one in loaded.origins if one.origin != "default"}
    changes: dict[str, Any] = {}
    if "host" not in told:
        changes["host"] = "0.0.0.0"  # noqa: S104 - that is what a public address asks for
    if "port" not in told and address.port is not None:
        changes["port"] = address.port
    return settings.model_copy(update=changes)


def tls_files(settings: Settings) -> "TlsFiles | None":
    """The certificate of a leader with a public https address: given, or its own.

    Raises:
        SwarmError: invalid-input for half a certificate, or one that nothing asks for.
    """
    given = settings.tls_cert, settings.tls_key
    is_https = (settings.public_url or "").startswith("https://")
    if (given[0] is None) != (given[1] is None) or (given[0] is not None and not is_https):
        raise SwarmError(
            "invalid-input",
            "a certificate needs its key and an https address that it is for",
            hint="give --tls-cert, --tls-key and --public https://HOST:PORT together, or none",
        )
    if not is_https:
        return None
    from mcp_server.certificate import given_files, own_files

    if given[0] is not None and given[1] is not None:
        return given_files(given[0], given[1])
    assert settings.public_url is not None
    return own_files(settings.data / "state", settings.public_url, time.time())


def refuse_clear_text(host: str, *, is_lan: bool, proxy: str | None) -> None:
    """Refuse to serve other machines without encryption, unless that is what was said.

    Raises:
        SwarmError: invalid-input.
    """
    from mcp_server.access import is_loopback

    if not (is_loopback(host) or is_lan or proxy):
        raise SwarmError(
            "invalid-input",
            f"listening on {host} in clear text would show tokens and data to the whole network",
            hint="give it an https address with --public https://HOST:PORT and it makes a "
            "certificate; or name a TLS proxy with --trusted-proxy, or say --insecure-lan",
        )


def listen(host: str, port: int) -> socket.socket:
    """A bound socket.

    Raises:
        SwarmError: conflict when the port is in use, invalid-input when the address is not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle off only where it reads TCP here; else every answer on a kept connection
    # waits 40 ms for the reader's delayed acknowledgement (46 ms a request against 0.4 ms).
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # So that a restart need not wait for old connections; a second leader is still refused.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), port))
        listener.listen(512)
    except OSError as error:
        listener.close()
        in_use = error.errno == 98  # EADDRINUSE
        raise SwarmError(
            "conflict" if in_use else "invalid-input",
            f"port {port} on {host} is in use"
            if in_use
            else f"cannot listen on {host} port {port}: {error.strerror}",
            hint="stop the program that has it, or choose another with --port"
            if in_use
            else "choose an address of this machine with --host",
        ) from error
    return listener


async def serve(settings: Settings, sockets: Sockets, front: Front) -> int:
    """Run the leader until SIGTERM or SIGINT."""
    import uvicorn

    from control.leader import Leader
    from mcp_server.app import build_app
    from mcp_server.desk import doors_for

    asked_to_end = _note_signals()
    with suppress(OSError):  # the leader says better what is wrong with a folder
        settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    leader = await Leader.open(settings)
    relay = None
    try:
        if sockets.relay is not None:
            relay = RelayProcess(sockets.relay, leader.office.relay_key)
            relay.start()
        doors = await doors_for(leader, settings)
        leader.start()
        config = uvicorn.Config(
            build_app(doors),
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=front.proxy is not None,
            forwarded_allow_ips=front.proxy,
            ssl_certfile=front.tls.cert if front.tls else None,
            ssl_keyfile=front.tls.key if front.tls else None,
            timeout_graceful_shutdown=CLOSE_S,
            # Longer than a few heartbeats of 5 s: a connection must not be closed under one.
            timeout_keep_alive=KEEP_ALIVE_S,
            lifespan="on",
        )
        if not asked_to_end:
            await _run(uvicorn.Server(config), doors, sockets.leader, settings)
    finally:
        if relay is not None:
            await relay.close()
        await leader.close()
    return 0


async def _run(
    server: "uvicorn.Server", doors: Any, listener: socket.socket, settings: Settings
) -> None:
    """Serve; say so once; end held requests and streams before connections are waited for."""
    startup, shutdown = server.startup, server.shutdown

    async def start(sockets: list[socket.socket] | None = None) -> None:
        await startup(sockets)
        told = {"ready": True, "url": own_url(settings, is_tls=is_tls)}
        _note_address(settings, str(told["url"]) if is_tls else None)
        print(json.dumps(told), flush=True)  # noqa: T201

    async def stop(sockets: list[socket.socket] | None = None) -> None:
        doors.closing.set()
        await shutdown(sockets)

    is_tls = server.config.is_ssl
    server.startup, server.shutdown = start, stop  # type: ignore[method-assign]
    await server.serve([listener])


def _note_address(settings: Settings, url: str | None) -> None:
    """Tell the programs of this machine an address that is not the usual one."""
    path = settings.data / OWN_ADDRESS
    if url is None:
        path.unlink(missing_ok=True)
    else:
        write_whole(path, url.encode(), mode=0o644)


def own_url(settings: Settings, *, is_tls: bool = False) -> str:
    """How programs on this machine reach the leader, with the pin of its key where it has one."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.host, settings.host)  # noqa: S104
    name = f"[{host}]" if ":" in host and host[0] != "[" else host
    if is_tls:
        return with_pin(f"https://{name}:{settings.port}", settings.leader_pin)
    return f"http://{name}:{settings.port}"


def _note_signals() -> list[int]:
    """Signals that came before the server took over, and those that it raises again at its end:
    neither may kill a clean exit."""
    noted: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: noted.append(number))
    return noted


if __name__ == "__main__":
    raise SystemExit(main())
