"""Operations on pools, invites, tokens, and the pool seen as a whole."""

from typing import Annotated, Literal

from pydantic import Field

from transport.api.operation import Answer, Ask, Change, Operation, Scope
from transport.ids import InviteId, JobId, PoolName, TokenId
from transport.schema import Model


class ClusterStatus(Ask):
    """Say in one look how a pool is: fellows, cards, memory, and what trains now."""

    pool: PoolName | None = None
    """Leave out for every pool you may see."""


class ActiveJob(Model):
    job_id: JobId
    pool: PoolName
    model_id: str
    state: str
    step: int
    steps: int
    loss: float | None
    step_s: float | None


class ClusterView(Answer):
    words: str
    """The header's words: "3 fellows ready", "Training on 2 fellows", "1 of 3 fellows online", "No
    fellows connected".
    """
    fellows: int
    ready: int
    training: int
    offline: int
    cards: int
    cores: int
    memory_bytes: int
    card_used_bytes: int | None
    """Over online fellows' cards; null when no card is online."""
    card_total_bytes: int | None
    card_peak_bytes: int | None = None
    """Peaks of these cards between the last two reports, added up; null: not sampled."""
    busy_peak: float | None = None
    """The highest of their peaks, 0 to 1."""
    step: int | None
    """The highest step any active job has reported."""
    step_s: float | None
    mean_loss: float | None
    """Of the active jobs' latest losses."""
    jobs: list[ActiveJob]


class PoolsCreate(Change):
    """Create a pool. You become its owner."""

    pool: PoolName
    """owner/name: lower-case letters, digits and hyphens."""


class PoolView(Answer):
    pool: PoolName
    fellows: int
    created_at: float


class PoolsList(Ask):
    """List the pools that you may see."""


class PoolRow(Model):
    pool: PoolName
    fellows: int
    online: int
    jobs: int
    created_at: float


class PoolsListed(Answer):
    pools: list[PoolRow]


class InvitesCreate(Change):
    """Invite one machine into a pool. The invite lives one hour and works once.

    The answer holds the secret; it is shown this once and stored only as a hash.
    """

    pool: PoolName


class InviteView(Answer):
    invite_id: InviteId
    pool: PoolName
    secret: str
    """Give it to `swarm join` through SWARM_INVITE, a file or its prompt; never as an argument."""
    command: str
    """The line to run on the new machine. Reads the secret from SWARM_INVITE."""
    expires_at: float


class TokensCreate(Change):
    """Make an access token for a person, a script or an agent. It is shown this once.

    A token sees only the pools named, or all pools when none is named.
    """

    name: Annotated[str, Field(min_length=1, max_length=64)]
    scope: Scope = "read"
    """read looks; train also submits and cancels; admin also changes pools, invites and tokens."""
    pools: Annotated[list[PoolName], Field(max_length=64)] = []
    expires_days: Annotated[int, Field(ge=1, le=3650)] | None = None


class TokenView(Answer):
    token_id: TokenId
    name: str
    scope: Scope
    pools: list[PoolName]
    secret: str
    expires_at: float | None


class TokensList(Ask):
    """List access tokens: never their secrets."""


class TokenRow(Model):
    token_id: TokenId
    name: str
    scope: Scope
    pools: list[PoolName]
    prefix: str
    created_at: float
    last_used_at: float | None
    expires_at: float | None
    state: Literal["active", "revoked", "expired"]


class TokensListed(Answer):
    tokens: list[TokenRow]


class TokensRevoke(Change):
    """Revoke an access token. It stops working at once."""

    token_id: TokenId


class TokenRevoked(Answer):
    token_id: TokenId


CLUSTER_STATUS = Operation(
    "cluster_status", ClusterStatus, ClusterView, "read", "read", "GET", "/cluster", ("status",)
)
POOLS_CREATE = Operation(
    "pools_create",
    PoolsCreate,
    PoolView,
    "create",
    "admin",
    "POST",
    "/pools",
    ("pools", "create"),
    ("pool",),
    listed=False,
)
POOLS_LIST = Operation(
    "pools_list",
    PoolsList,
    PoolsListed,
    "read",
    "read",
    "GET",
    "/pools",
    ("pools", "list"),
    listed=False,
)
INVITES_CREATE = Operation(
    "invites_create", InvitesCreate, InviteView, "create", "admin", "POST", "/invites", ("invite",)
)
TOKENS_CREATE = Operation(
    "tokens_create",
    TokensCreate,
    TokenView,
    "create",
    "admin",
    "POST",
    "/tokens",
    ("tokens", "create"),
    ("name",),
    listed=False,
)
TOKENS_LIST = Operation(
    "tokens_list",
    TokensList,
    TokensListed,
    "read",
    "admin",
    "GET",
    "/tokens",
    ("tokens", "list"),
    listed=False,
)
TOKENS_REVOKE = Operation(
    "tokens_revoke",
    TokensRevoke,
    TokenRevoked,
    "destroy",
    "admin",
    "DELETE",
    "/tokens/{token_id}",
    ("tokens", "revoke"),
    ("token_id",),
    listed=False,
)

ALL = (
    CLUSTER_STATUS,
    POOLS_CREATE,
    POOLS_LIST,
    INVITES_CREATE,
    TOKENS_CREATE,
    TOKENS_LIST,
    TOKENS_REVOKE,
)
