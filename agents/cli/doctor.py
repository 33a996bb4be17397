"""`swarm doctor`: what could keep this machine from working, each with what to do about it.

Asks the system and the leader; repairs nothing.
"""

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal

import click
import psutil

from agents.cli.session import DONE, FAILED, Session, current, shared_options
from agents.fellow import identity, nvidia
from agents.fellow.inventory import default_cache_folder, swarm_version, version_of
from agents.fellow.mesh import meshes
from transport.api.pools import CLUSTER_STATUS, ClusterStatus
from transport.errors import SwarmError
from transport.units import GB, human_bytes, human_seconds

_ROOMS = ("transport", "stage_runtime", "control", "mcp_server", "agents")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    state: Literal["ok", "warn", "fail"]
    what: str
    fix: str = ""


@click.command(short_help="Check this machine and the way to the leader.")
def doctor() -> int:
    """Check Python, packages, cards, disk, this fellow's identity and the way to the leader.

    Exit code 1 when something fails.
    """
    session = current()
    findings = [finding for look in _LOOKS for finding in look(session)]
    if session.is_json:
        session.print_json({"findings": [asdict(one) for one in findings]})
    else:
        for one in findings:
            click.echo(f"{one.state:<5} {one.what}" + (f": {one.fix}" if one.fix else ""))
    return FAILED if any(one.state == "fail" for one in findings) else DONE


def _python(_: Session) -> Iterator[Finding]:
    words = f"swarm {swarm_version()} on Python {sys.version.split()[0]}"
    yield Finding("ok", words)
    strangers = [name for name in _ROOMS if _is_foreign(name)]
    for name in strangers:
        yield Finding(
            "fail",
            f"another package owns the name {name!r} in this environment",
            "install Swarm into an environment of its own",
        )


def _is_foreign(name: str) -> bool:
    import importlib.metadata  # noqa: PLC0415 - reads every installed package: only here

    owners = importlib.metadata.packages_distributions().get(name, [])
    return any(owner != "swarm-pool" for owner in owners)


def _packages(_: Session) -> Iterator[Finding]:
    found = {name: version_of(name) for name in ("torch", "transformers", "peft")}
    missing = [name for name, version in found.items() if not version]
    told = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    if missing:
        fix = "to run stages here: pip install 'swarm-pool[fellow]'"
        yield Finding("warn", f"not installed: {', '.join(missing)}", fix)
    if told:
        yield Finding("ok", told)


def _cards(_: Session) -> Iterator[Finding]:
    cards = nvidia.read_cards(frozenset())
    for card in cards:
        free = f"{human_bytes(card.free_bytes)} of {human_bytes(card.total_bytes)} free"
        yield Finding("ok", f"{card.name} #{card.number}: {free}")
    if not cards:
        memory = psutil.virtual_memory()
        words = f"no NVIDIA card; {human_bytes(memory.available)} of memory free for CPU cards"
        yield Finding("ok", words)


def _disk(_: Session) -> Iterator[Finding]:
    folder = default_cache_folder()
    place = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(place).free
    words = f"{human_bytes(free)} free where models are kept ({folder})"
    if free < 2 * GB:
        yield Finding("warn", words, "free some disk space, or move it with SWARM_CACHE or HF_HOME")
    else:
        yield Finding("ok", words)


def _mesh(_: Session) -> Iterator[Finding]:
    for mesh in meshes(time.time()):
        age = mesh.handshake_age_s
        last = "no handshake yet" if age is None else f"last handshake {human_seconds(age)} ago"
        words = f"{mesh.name}: {mesh.peers} other machines, {last}"
        if mesh.is_up:
            yield Finding("ok", words)
        else:
            yield Finding(
                "warn", f"{words}; it is not connected", "start it, if stages shall use it"
            )


def _identity(_: Session) -> Iterator[Finding]:
    folder = identity.default_state_folder()
    try:
        found = identity.load(folder)
    except SwarmError as error:
        yield Finding("fail", error.message, error.hint)
        return
    if found is not None and found.has_joined:
        yield Finding("ok", f"this machine is {found.fellow_id} of {found.pool} at {found.leader}")


def _leader(session: Session) -> Iterator[Finding]:
    try:
        began = time.monotonic()
        with session.client() as client:
            client.get("/healthz")
            took_ms = (time.monotonic() - began) * 1000
            yield Finding("ok", f"the leader at {client.url} answers in {took_ms:.0f} ms")
            if session.profile().token.value is None:
                fix = "set SWARM_TOKEN, or name --token-file"
                yield Finding("warn", "there is no access token for it", fix)
                return
            told = client.call(CLUSTER_STATUS, ClusterStatus())
        yield Finding("ok", f"the access token is good: {told.words}")
    except SwarmError as error:
        yield Finding("fail", error.message, error.hint)


_LOOKS: tuple[Callable[[Session], Iterator[Finding]], ...] = (
    _python,
    _packages,
    _cards,
    _disk,
    _mesh,
    _identity,
    _leader,
)
doctor.params += shared_options()
