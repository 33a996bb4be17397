"""Prices that remember what they were asked: a search asks for the same places again and again.

Pure. Layers that are alike have one price wherever they lie, so a place is remembered by what its
layers are, not by their numbers; and by what of its stage changes a price, not by its number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from stage_runtime.costs import Prices, live_micro_batches
from stage_runtime.kv_costs import ServePrices
from stage_runtime.model_facts import ModelFacts
from stage_runtime.places import CardPlace, Device, Price
from transport.orders import TrainSettings


class PriceBook:
    """The prices of a model under one job's settings, or under one way to serve it."""

    def __init__(
        self, facts: ModelFacts, settings: TrainSettings, prices: Prices | ServePrices | None = None
    ) -> None:
        self.facts = facts
        self.settings = settings
        self._prices = prices or Prices(facts, settings)
        self._known: dict[tuple[object, ...], Price] = {}
        self._columns: dict[tuple[object, ...], Column] = {}
        self._starts: dict[int, list[int]] = {}
        self._spreads: dict[tuple[object, ...], tuple[int, ...]] = {}

    @cached_property
    def uniform(self) -> bool:
        """Whether all layers are alike."""
        return len(self._kinds) == 1

    @cached_property
    def _kinds(self) -> list[tuple[str, int]]:
        return sorted(set(self._layers))

    @cached_property
    def _layers(self) -> list[tuple[str, int]]:
        return list(zip(self.facts.layer_types, self.facts.layer_params))

    @cached_property
    def _before(self) -> list[tuple[int, ...]]:
        """How many layers of each kind lie before each layer."""
        counts, told = [0] * len(self._kinds), [(0,) * len(self._kinds)]
        for layer in self._layers:
            counts[self._kinds.index(layer)] += 1
            told.append(tuple(counts))
        return told

    def _kinds_in(self, first: int, count: int) -> tuple[int, ...]:
        """How many layers of each kind so many layers are."""
        start, end = self._before[first], self._before[first + count]
        return tuple(b - a for a, b in zip(start, end))

    def of(self, place: CardPlace, device: Device) -> Price:
        """The price of a place on a card at the peak of a step."""
        first, count = place.first_layer, place.num_layers
        kinds = count if self.uniform else self._kinds_in(first, count)
        key = (*self._seat(place), first == 0, kinds, device)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._prices.of(place, device)
        return found

    def once(self, place: CardPlace, device: Device) -> Price:
        """The same, not remembered."""
        return self._prices.of(place, device)

    def _seat(self, place: CardPlace) -> tuple[object, ...]:
        """What of a place's stage may change its price: whether it is an end of the pipeline and
        of its fellow, and the micro-batches that wait there.
        """
        first, last = place.stage == 0, place.stage == place.num_stages - 1
        live = live_micro_batches(self.settings, place.stage, place.num_stages)
        return first, last, live, place.takes_input, place.gives_output

    def spread(
        self, card: str, stage: CardPlace, laid: Callable[[], tuple[int, ...]]
    ) -> tuple[int, ...]:
        """The layers of each card of a fellow: where layers are alike, laid once for each seat.

        Args:
            card: the fellow's first card that is used.
            stage: the stage's place, as if it were one card's.
        """
        if not self.uniform:
            return laid()
        key = (card, *self._seat(stage), stage.first_layer == 0, stage.num_layers)
        found = self._spreads.get(key)
        if found is None:
            found = self._spreads[key] = laid()
        return found

    def total(self, place: CardPlace, device: Device) -> int:
        """All that a card must have free for a place."""
        return self.of(place, device).total

    def column(self, seat: CardPlace, device: Device, *, least: bool = False) -> "Column":
        """The totals of a card in a seat, by its count of layers.

        Args:
            seat: whose own layers do not count, but whether they begin with the model's first.
            least: where so many layers cost least; else where they cost most.
        """
        least = least and not self.uniform
        key = (*self._seat(seat), seat.first_layer == 0, device, least)
        found = self._columns.get(key)
        if found is None:
            found = self._columns[key] = Column(self, seat, device, least)
        return found

    def starts(self, seat: CardPlace, count: int) -> Sequence[int]:
        """A first layer for each price that so many layers in a seat can have."""
        top = self.facts.num_layers - count
        if seat.first_layer == 0 or top <= 0:
            return (0,)
        if seat.heads:
            return (top,)
        if self.uniform:
            return (1,)
        if count not in self._starts:
            kinds = {self._kinds_in(first, count): first for first in range(top, 0, -1)}
            self._starts[count] = sorted(kinds.values())
        return self._starts[count]


@dataclass(frozen=True)
class Column:
    """What a card must have free with 1, 2, ... layers in one seat."""

    book: PriceBook
    seat: CardPlace
    device: Device
    least: bool
    _known: dict[int, int] = field(default_factory=dict)

    def __getitem__(self, count: int) -> int:
        """The total with so many layers; 0 without any."""
        found = self._known.get(count)
        if found is None:
            found = self._known[count] = self._total(count) if count else 0
        return found

    def _total(self, count: int) -> int:
        stage, stages, _, _, takes, gives = self.seat
        places = [
            CardPlace(stage, stages, first, first + count - 1, takes, gives)
            for first in self.book.starts(self.seat, count)
        ]
        if len(places) == 1:
            return self.book.once(places[0], self.device).total  # the column remembers it
        totals = [self.book.total(place, self.device) for place in places]
        return min(totals) if self.least else max(totals)

    def most(self, free_bytes: int, at_most: int) -> int:
        """The most layers that fit; 0 when not even one does. Totals rise with the layers."""
        low, high = 0, at_most
        while low < high:
            middle = (low + high + 1) // 2
            if self[middle] <= free_bytes:
                low = middle
            else:
                high = middle - 1
        return low
