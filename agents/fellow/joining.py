"""Joins a pool with an invite, and may be asked again until the leader has answered.

The machine's credential is made and stored before the leader hears of it: the same invite with the
same credential is the same join, however often the answer is lost.
"""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

from agents.addresses import leader_url
from agents.fellow.identity import Identity, load, prepare, save, sha256
from agents.fellow.inventory import read_offers, swarm_version
from agents.fellow.leader_link import LeaderLink
from agents.fellow.outbox import Backoff
from transport.cards import PROTOCOL
from transport.errors import SwarmError
from transport.reports import JoinAsk, Joined

_TRIES = 6

log = logging.getLogger("swarm.fellow")


async def join(
    folder: Path, address: str, invite: str, cards: tuple[str, ...], name: str = ""
) -> Identity:
    """This machine's identity in the pool that the invite is for.

    Args:
        folder: the state folder.
        address: the leader's.
        invite: the secret of `swarm invite`.
        cards: `--card` words; empty = what this machine has.
        name: what people call it; empty = as before, at first as its system does.

    Raises:
        SwarmError: the leader's refusal, or unreachable after some tries. Joining again is safe.
    """
    url, invite = leader_url(address), checked(invite)
    offers = tuple(offer.spec() for offer in read_offers(cards))
    known = load(folder)
    if known is not None and known.has_joined and known.invite_sha256 == sha256(invite):
        identity = replace(
            known, leader=url, cards=offers if cards else known.cards, name=name or known.name
        )
        save(folder, identity)
        return identity
    identity = prepare(folder, url, invite, offers, name)
    ask = JoinAsk(
        protocol=PROTOCOL,
        invite=invite,
        credential_sha256=identity.credential_sha256,
        hostname=identity.shown_name,
        version=swarm_version(),
    )
    async with LeaderLink(url) as link:
        joined = await _ask(link, ask)
    identity = identity.joined(joined.fellow_id, joined.pool, joined.heartbeat_s)
    save(folder, identity)
    return identity


def checked(invite: str) -> str:
    """An invite's secret without the blanks that copying adds.

    Raises:
        SwarmError: invalid-input when it cannot be one.
    """
    invite = invite.strip()
    if not 16 <= len(invite) <= 200 or any(c.isspace() or not c.isprintable() for c in invite):
        raise SwarmError(
            "invalid-input",
            "this is not an invite's secret",
            hint="take it from `swarm invite`; it lives one hour and works once",
        )
    return invite


async def _ask(link: LeaderLink, ask: JoinAsk) -> Joined:
    backoff = Backoff()
    for attempt in range(1, _TRIES + 1):
        try:
            return await link.join(ask)
        except SwarmError as error:
            if error.code not in ("unreachable", "unavailable") or attempt == _TRIES:
                raise
            log.warning("asking again", extra={"why": error.message})
            await asyncio.sleep(backoff.pause_s())
    raise AssertionError("the last try returns or raises")
