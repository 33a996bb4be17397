"""Prices that remember what they were asked: a search asks for the same places again and again.

Pure. Layers that are alike have one price wherever they lie, so a place is remembered by what its
layers are, not by their numbers; and by what of its stage changes a price, not by its number.
"""

from dataclasses import replace
from functools import cached_property

from stage_runtime.costs import CardPlace, Device, Price, Prices, live_micro_batches
from stage_runtime.kv_costs import ServePrices
from stage_runtime.model_facts import ModelFacts
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

    def of(self, place: CardPlace, device: Device) -> Price:
        """The price of a place on a card at the peak of a step."""
        first = place.first_layer
        kinds: tuple[int, ...] | int = place.last_layer - first
        if not self.uniform:
            start, end = self._before[first], self._before[place.last_layer + 1]
            kinds = tuple(b - a for a, b in zip(start, end))
        key = (*self._seat(place), first == 0, kinds, device)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._prices.of(place, device)
        return found

    def _seat(self, place: CardPlace) -> tuple[object, ...]:
        """What of a place's stage may change its price: whether it is an end of the pipeline and
        of its fellow, and the micro-batches that wait there.
        """
        first, last = place.stage == 0, place.stage == place.num_stages - 1
        live = live_micro_batches(self.settings, place.stage, place.num_stages)
        return first, last, live, place.takes_input, place.gives_output

    def column(self, seat: CardPlace, device: Device) -> "Column":
        """The totals of a card in a seat; the seat's own layers do not count, but whether they
        begin with the model's first.
        """
        key = (*self._seat(seat), seat.first_layer == 0, device)
        found = self._columns.get(key)
        if found is None:
            found = self._columns[key] = Column(self, seat, device)
        return found

    def total(self, place: CardPlace, device: Device) -> int:
        """All that a card must have free for a place."""
        return self.of(place, device).total

    def dearest_start(self, count: int) -> int:
        """Where so many layers cost most, but at the model's very begin."""
        last_start = max(0, self.facts.num_layers - count)
        return min(last_start, max(1, self.dearest_layer))

    @cached_property
    def dearest_layer(self) -> int:
        """The first layer whose window is passed, where windows differ; else the first."""
        facts, seq_len = self.facts, self.settings.seq_len
        if facts.window is None or seq_len < facts.window:
            return 0
        slides = (i for i, kind in enumerate(facts.layer_types) if kind == "sliding_attention")
        return next(slides, 0)


class Column:
    """What a card must have free with 1, 2, ... layers in one seat, wherever they lie."""

    def __init__(self, book: PriceBook, seat: CardPlace, device: Device) -> None:
        self._book = book
        self._seat = seat
        self._device = device
        self._totals: dict[int, int] = {0: 0}

    def __getitem__(self, count: int) -> int:
        """The total with so many layers."""
        found = self._totals.get(count)
        if found is None:
            found = self._totals[count] = self._total(count)
        return found

    def _total(self, count: int) -> int:
        seat = self._seat
        first = 0 if seat.first_layer == 0 else self._book.dearest_start(count)
        place = replace(seat, first_layer=first, last_layer=first + count - 1)
        return self._book.total(place, self._device)

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
