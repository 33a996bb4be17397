"""Operations on fellows: the machines of a pool."""

from typing import Annotated, Literal

from pydantic import Field

from transport.api.operation import Answer, Ask, Change, Operation
from transport.cards import CardLoad, Holder, PathKind, Speed, StageStatus
from transport.ids import CardId, FellowId, PoolName
from transport.schema import Model

FellowStatus = Literal["ready", "training", "measuring", "offline"]


class FellowsList(Ask):
    """List the machines of a pool: status, cards, memory, last seen."""

    pool: PoolName | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50


class FellowRow(Model):
    fellow_id: FellowId
    pool: PoolName
    untrusted_hostname: str
    version: str | None
    status: FellowStatus
    health: Literal["A", "B", "C", "F"]
    causes: list[str]
    """What made the grade, in words."""
    cards: int
    card_names: list[str]
    card_used_bytes: int | None
    card_total_bytes: int | None
    card_peak_bytes: int | None = None
    """Peaks of its cards between its last two reports, added up."""
    busy_peak: float | None = None
    """The highest of its cards' peaks, 0 to 1."""
    sent_bytes_s: float | None
    """To leader and neighbours, over the last heartbeat interval; null before the second
    heartbeat.
    """
    received_bytes_s: float | None
    step: int | None
    loss: float | None
    last_seen_at: float | None


class FellowsListed(Answer):
    fellows: list[FellowRow]
    omitted: int


class FellowsGet(Ask):
    """Show one machine: its cards, what holds their memory, what it runs, measured speeds."""

    fellow_id: FellowId


class ShownCard(Model):
    card: CardId
    index: int
    kind: str
    name: str
    uuid: str
    total_bytes: int
    free_bytes: int | None
    number_formats: list[str]
    holders: list[Holder]
    speeds: list[Speed]
    load: CardLoad | None = None
    """Least, mean and most of the samples between its last two reports; null: none yet."""


class MeasuredLink(Model):
    sender: str
    """A fellow_id, or "leader"."""
    taker: str
    bytes_s: float
    latency_s: float
    """One way."""
    path: PathKind
    measured_at: float


class Traffic(Model):
    """Bytes a second over the last heartbeat interval."""

    leader_sent_bytes_s: float
    leader_received_bytes_s: float
    pipeline_sent_bytes_s: float
    pipeline_received_bytes_s: float


class FellowView(Answer):
    fellow: FellowRow
    system: str | None
    cores: int | None
    memory_bytes: int | None
    memory_free_bytes: int | None
    disk_free_bytes: int | None
    listen_address: str | None
    versions: dict[str, str]
    cards: list[ShownCard]
    stages: list[StageStatus]
    leader_sent_bytes: int | None
    pipeline_sent_bytes: int | None
    links: list[MeasuredLink] = []
    """Measured between this machine and others, or the leader; each direction has its own."""
    traffic: Traffic | None = None
    """Null before the second heartbeat."""


class FellowsMeasure(Change):
    """Measure a machine: its cards in each number format, its links to leader and idle fellows.

    Takes some seconds on the machine; refused while it trains. Read the figures with fellows_get.
    """

    fellow_id: FellowId


class FellowsRemove(Change):
    """Take a machine out of its pool. Its credential stops working at once; a job that it runs
    fails.
    """

    fellow_id: FellowId


class FellowRemoved(Answer):
    fellow_id: FellowId


FELLOWS_LIST = Operation(
    "fellows_list",
    FellowsList,
    FellowsListed,
    "read",
    "read",
    "GET",
    "/fellows",
    ("fellows", "list"),
)
FELLOWS_GET = Operation(
    "fellows_get",
    FellowsGet,
    FellowView,
    "read",
    "read",
    "GET",
    "/fellows/{fellow_id}",
    ("fellows", "show"),
    ("fellow_id",),
)
FELLOWS_MEASURE = Operation(
    "fellows_measure",
    FellowsMeasure,
    FellowView,
    "update",
    "train",
    "POST",
    "/fellows/{fellow_id}/measure",
    ("measure",),
    ("fellow_id",),
)
FELLOWS_REMOVE = Operation(
    "fellows_remove",
    FellowsRemove,
    FellowRemoved,
    "destroy",
    "admin",
    "DELETE",
    "/fellows/{fellow_id}",
    ("fellows", "remove"),
    ("fellow_id",),
    listed=False,
)

ALL = (FELLOWS_LIST, FELLOWS_GET, FELLOWS_MEASURE, FELLOWS_REMOVE)
