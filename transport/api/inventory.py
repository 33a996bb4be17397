"""Cards that one thinks of, as a file: for plans without a pool. Version 1, JSON or YAML.

`swarm plan --inventory FILE` reads it; jobs_plan and models_plan take it as an argument.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from transport.cards import CardKind, NumberFormat
from transport.ids import ModelId
from transport.schema import Model

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,59}$")]
Gigabytes = Annotated[float, Field(ge=0, le=1_000_000)]
Rate = Annotated[float, Field(gt=0, le=1e15)]


class InventoryCard(Model):
    """One kind of card. What is left out is taken from the list of known cards, by `card`."""

    card: Annotated[str, Field(max_length=100)] | None = None
    """Name of a known card, like "RTX A4000"."""
    count: Annotated[int, Field(ge=1, le=64)] = 1
    memory_gb: Gigabytes | None = None
    free_gb: Gigabytes | None = None
    """Free for Swarm. Unset: 95 % of the memory; "unknown" cannot be said here."""
    kind: CardKind | None = None
    formats: list[NumberFormat] | None = None
    tflops: dict[NumberFormat, Annotated[float, Field(gt=0)]] | None = None
    """Measured speeds. Unset: the datasheet's, marked as such; {} = no figure."""


class InventoryFellow(Model):
    """One machine."""

    name: Name
    cards: Annotated[list[Annotated[str, Field(max_length=100)] | InventoryCard],
                     Field(max_length=64)]  # fmt: skip
    disk_free_gb: Gigabytes | None = None
    """Unset: unknown, and not checked."""
    cached_models: Annotated[
        list[Annotated[str, Field(max_length=200)]], Field(max_length=256)
    ] = []
    """Model ids whose files are there already."""
    features: list[Annotated[str, Field(max_length=64)]] | None = None
    """What its version can do. Unset: all, 4 and 8 bits among them."""
    version: Annotated[str, Field(max_length=64)] | None = None
    """Swarm's version on it. Unset: the newest."""
    up_bytes_per_s: Rate | None = None
    down_bytes_per_s: Rate | None = None
    latency_s: Annotated[float, Field(ge=0, le=60)] = 0.0
    """From this machine to the middle of the network."""

    @model_validator(mode="after")
    def _both_ways(self) -> "InventoryFellow":
        if (self.up_bytes_per_s is None) != (self.down_bytes_per_s is None):
            raise ValueError(
                f"{self.name} tells one rate of its line: give up_bytes_per_s and down_bytes_per_s"
            )
        return self


class InventoryLink(Model):
    """One direction between two machines; stands over their own lines."""

    sender: Name
    taker: Name
    bytes_per_s: Rate
    latency_s: Annotated[float, Field(ge=0, le=60)] = 0.0


class InventoryFile(Model):
    """Machines, their cards, and the lines between them."""

    version: Literal[1] = 1
    fellows: Annotated[list[InventoryFellow], Field(max_length=256)]
    links: Annotated[list[InventoryLink], Field(max_length=4096)] = []
    models: Annotated[dict[ModelId, dict[str, Any]], Field(max_length=32)] = {}
    """config.json of models that are not among the known ones, by id."""
    tokens: Annotated[int, Field(ge=1, le=10**15)] | None = None
    """Tokens of the data to train on. Unset: unknown."""

    @model_validator(mode="after")
    def _consistent(self) -> "InventoryFile":
        names = [one.name for one in self.fellows]
        twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
        if twice is not None:
            raise ValueError(f"two fellows are called {twice!r}")
        for link in self.links:
            for name in (link.sender, link.taker):
                if name not in names:
                    raise ValueError(f"a link names {name!r}, which is not a fellow")
        return self
