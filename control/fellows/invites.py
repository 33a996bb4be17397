"""Invites: one machine, one pool, one hour, used once; and the join that spends them."""

from dataclasses import dataclass

from control.clock import Clock
from control.fellows.clean_text import clean
from control.fellows.registry import Registry
from control.fellows.secret_text import INVITE_PREFIX, derive, sha256_text
from control.store import fellows
from control.store.database import Database, Tx
from control.store.fellows import Invite, StoredFellow
from transport.cards import PROTOCOL
from transport.errors import SwarmError
from transport.ids import RandomBytes, mint
from transport.reports import JoinAsk, Joined


@dataclass(frozen=True)
class InviteTerms:
    """How long an invite lives, and how often the fellow shall beat."""

    lives_s: float
    heartbeat_s: float


class Invites:
    """Makes invites and lets machines in."""

    def __init__(
        self, database: Database, registry: Registry, key: bytes, terms: InviteTerms
    ) -> None:
        self._database = database
        self._registry = registry
        self._key = key
        self._terms = terms

    def make(self, pool: str, made_by: str, clock: Clock, random_bytes: RandomBytes) -> Invite:
        """An invite, not yet stored."""
        invite_id = mint("i", random_bytes)
        now = clock.now()
        return Invite(
            invite_id=invite_id,
            pool=pool,
            sha256=sha256_text(self.secret(invite_id)),
            made_by=made_by,
            created_at=now,
            expires_at=now + self._terms.lives_s,
        )

    def secret(self, invite_id: str) -> str:
        """The secret of an invite that this leader made."""
        return derive(self._key, INVITE_PREFIX, invite_id)

    async def join(self, ask: JoinAsk, clock: Clock, random_bytes: RandomBytes) -> Joined:
        """Spend an invite. The same invite and credential again is the same join.

        Raises:
            SwarmError: not-found for an unknown, expired or used invite alike; conflict for a
                protocol that this leader does not speak or a credential that is in use.
        """
        check_protocol(ask.protocol)
        fresh = StoredFellow(
            fellow_id=mint("f", random_bytes),
            pool="",
            credential_sha256=ask.credential_sha256,
            hostname=clean(ask.hostname, 200) or "unnamed",
            version=clean(ask.version, 64),
            joined_at=clock.now(),
        )
        fellow = await self._database.write(
            lambda tx: _spend(tx, sha256_text(ask.invite), fresh, clock.now())
        )
        self._registry.add(fellow)
        return Joined(
            fellow_id=fellow.fellow_id, pool=fellow.pool, heartbeat_s=self._terms.heartbeat_s
        )


def check_protocol(protocol: int) -> None:
    """Refuse a fellow that is too old to understand this leader.

    Raises:
        SwarmError: conflict, with both numbers. This protocol and the one before are spoken.
    """
    if protocol < PROTOCOL - 1:
        raise SwarmError(
            "conflict",
            f"this fellow speaks protocol {protocol}; the leader needs {PROTOCOL - 1} or newer",
            hint="update Swarm on this machine",
            facts={"protocol": protocol, "leader_protocol": PROTOCOL},
        )


def _spend(tx: Tx, sha256: str, fresh: StoredFellow, now: float) -> StoredFellow:
    invite = fellows.find_invite(tx, sha256)
    if invite is not None and invite.credential_sha256 == fresh.credential_sha256:
        known = fellows.find(tx, invite.fellow_id or "")
        if known is not None and known.removed_at is None:
            return known
    if invite is None or invite.used_at is not None or invite.expires_at <= now:
        raise SwarmError(
            "not-found",
            "this invite is not valid: it is unknown, used or older than its hour",
            hint="ask for a new one: `swarm invite`",
        )
    if fellows.find_by_credential(tx, fresh.credential_sha256) is not None:
        raise SwarmError(
            "conflict",
            "this machine's credential already belongs to a fellow",
            hint="remove the fellow's state folder to join as a new one",
        )
    fellow = StoredFellow(**{**vars(fresh), "pool": invite.pool})
    fellows.add(tx, fellow)
    fellows.spend_invite(tx, invite.invite_id, fellow)
    return fellow
