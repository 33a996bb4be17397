"""Access tokens of people, scripts and agents: made, recognised, revoked.

Kept in memory for looking up, in the database for good. Does not know what a scope allows.
"""

from dataclasses import dataclass, replace

from control.clock import Clock
from control.fellows.secret_text import TOKEN_PREFIX, derive, sha256_text
from control.store import tokens
from control.store.database import Database, Tx
from control.store.tokens import Token
from transport.api.operation import Scope
from transport.api.pools import TokenRow
from transport.ids import RandomBytes, mint

DAY_S = 86_400.0
LOCAL_NAME = "this machine"


@dataclass(frozen=True)
class NewToken:
    """What a token shall be."""

    name: str
    scope: Scope
    pools: tuple[str, ...] = ()
    expires_days: int | None = None


class Credentials:
    """Every access token, by the hash of its secret."""

    def __init__(
        self, database: Database, clock: Clock, random_bytes: RandomBytes, key: bytes
    ) -> None:
        self._database = database
        self._clock = clock
        self._random_bytes = random_bytes
        self._key = key
        self._by_sha256: dict[str, Token] = {}
        self._uses: dict[str, float] = {}

    async def load(self) -> None:
        """Read all tokens into memory."""
        rows = await self._database.read(tokens.every)
        self._by_sha256 = {token.sha256: token for token in rows}

    def find(self, secret: str) -> Token | None:
        """The token of a secret; None when unknown, revoked or expired. Notes the use."""
        token = self._by_sha256.get(sha256_text(secret))
        if token is None or not self.is_good(token):
            return None
        self._uses[token.token_id] = self._clock.now()
        return token

    def find_by_id(self, token_id: str) -> Token | None:
        """A good token by its id."""
        found = (t for t in self._by_sha256.values() if t.token_id == token_id)
        return next((t for t in found if self.is_good(t)), None)

    def is_good(self, token: Token) -> bool:
        """Neither revoked nor expired."""
        expired = token.expires_at is not None and token.expires_at <= self._clock.now()
        return token.revoked_at is None and not expired

    def secret(self, token_id: str) -> str:
        """The secret of a token that this leader made."""
        return derive(self._key, TOKEN_PREFIX, token_id)

    def make(self, wanted: NewToken) -> Token:
        """A token, not yet stored."""
        token_id = mint("t", self._random_bytes)
        secret, now = self.secret(token_id), self._clock.now()
        days = wanted.expires_days
        return Token(
            token_id=token_id,
            name=wanted.name,
            scope=wanted.scope,
            pools=wanted.pools,
            sha256=sha256_text(secret),
            prefix=secret[:8],
            created_at=now,
            expires_at=now + days * DAY_S if days else None,
        )

    def remember(self, token: Token) -> None:
        """Recognise a token from now on, as it is now. Called after the commit."""
        self._by_sha256[token.sha256] = token

    def revoke(self, tx: Tx, token: Token) -> Token:
        """End a token in a transaction; remember() the result after the commit."""
        ended = replace(token, revoked_at=token.revoked_at or self._clock.now())
        tokens.revoke(tx, token.token_id, self._clock.now())
        return ended

    def find_any(self, token_id: str) -> Token | None:
        """A token by id, good or not."""
        return next((t for t in self._by_sha256.values() if t.token_id == token_id), None)

    def rows(self) -> list[TokenRow]:
        """All tokens for a list, the oldest first."""
        every = sorted(self._by_sha256.values(), key=lambda t: (t.created_at, t.token_id))
        return [self._row(token) for token in every]

    async def local(self) -> str:
        """The secret by which this machine's own user is admitted."""
        mine = [t for t in self._by_sha256.values() if t.name == LOCAL_NAME and self.is_good(t)]
        if mine:
            token = max(mine, key=lambda t: t.created_at)
        else:
            token = self.make(NewToken(LOCAL_NAME, "admin"))
            await self._database.write(lambda tx: tokens.add(tx, token))
            self.remember(token)
        return self.secret(token.token_id)

    async def flush_uses(self) -> None:
        """Store when tokens were last used; often enough is once a minute."""
        uses, self._uses = self._uses, {}
        if uses:
            await self._database.write(lambda tx: tokens.note_use(tx, uses.items()))
        for sha256, token in self._by_sha256.items():
            if token.token_id in uses:
                self._by_sha256[sha256] = replace(token, last_used_at=uses[token.token_id])

    def _row(self, token: Token) -> TokenRow:
        used = self._uses.get(token.token_id, token.last_used_at)
        state = "revoked" if token.revoked_at else "active" if self.is_good(token) else "expired"
        return TokenRow.model_validate(
            {
                "token_id": token.token_id,
                "name": token.name,
                "scope": token.scope,
                "pools": list(token.pools),
                "prefix": token.prefix,
                "created_at": token.created_at,
                "last_used_at": used,
                "expires_at": token.expires_at,
                "state": state,
            }
        )
