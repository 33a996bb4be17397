"""Prices that remember what they were asked: a search asks for the same places again and again.

Pure. Layers that are alike have one price wherever they lie, so a place is remembered by what its
layers are, not by their numbers.
"""

from functools import cached_property

from stage_runtime.costs import CardPlace, Device, Price, Prices
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
        key = (
            place.stage, place.num_stages, place.takes_input, place.gives_output,
            first == 0, kinds, device,
        )  # fmt: skip
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._prices.of(place, device)
        return found

    def total(self, place: CardPlace, device: Device) -> int:
        """All that a card must have free for a place."""
        return self.of(place, device).total

    @cached_property
    def dearest_layer(self) -> int:
        """The first layer whose window is passed, where windows differ; else the first."""
        facts, seq_len = self.facts, self.settings.seq_len
        if facts.window is None or seq_len < facts.window:
            return 0
        slides = (i for i, kind in enumerate(facts.layer_types) if kind == "sliding_attention")
        return next(slides, 0)
