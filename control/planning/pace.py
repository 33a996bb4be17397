"""Predicts how long a step takes: compute by card speed, and the network where it has figures.

Pure. One micro-batch runs through all stages in turn; each further one adds the slowest resource
once more: a stage, or a link in one direction (full duplex), or all that one fellow sends or takes.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

from control.planning import compression
from control.planning.split import FellowCards, PlacedCard, Split
from control.planning.usable import Card
from stage_runtime.model_facts import ModelFacts
from stage_runtime.tied_costs import crossing_bytes
from transport.orders import TrainSettings
from transport.units import human_seconds

_HALF = ("bfloat16", "float16")


class Link(NamedTuple):
    """One direction between two fellows."""

    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True)
class Uplink:
    """A fellow's own line: both directions, and the time to the middle of the network."""

    up_bytes_per_s: float
    down_bytes_per_s: float
    latency_s: float = 0.0


@dataclass(frozen=True)
class Links:
    """What is known of the network: by pair (directed), or by fellow."""

    pairs: Mapping[tuple[str, str], Link] = field(default_factory=dict)
    fellows: Mapping[str, Uplink] = field(default_factory=dict)

    def between(self, sender: str, taker: str) -> Link | None:
        """One direction; None without a figure."""
        if (sender, taker) in self.pairs:
            return self.pairs[sender, taker]
        one, other = self.fellows.get(sender), self.fellows.get(taker)
        if one is None or other is None:
            return None
        rate = min(one.up_bytes_per_s, other.down_bytes_per_s)
        return Link(rate, one.latency_s + other.latency_s)

    def unknown(self, fellows: Sequence[FellowCards]) -> tuple[str, str] | None:
        """Two of these fellows without a figure between them; None when all have one."""
        names = [one.fellow_id for one in fellows]
        return next(
            ((a, b) for a in names for b in names if a != b and self.between(a, b) is None), None
        )


class Network(NamedTuple):
    """What the network adds to a step of one order of fellows."""

    fill_s: float = 0.0
    """Once a step: each boundary crossed forward and backward."""
    floor_s: float = 0.0
    """The busiest line: each further micro-batch costs at least this."""
    limiting: "Line | None" = None
    """That line."""
    tied_s: float = 0.0
    """Once a step: a table that the first and the last stage share, there and back."""

    @property
    def once_s(self) -> float:
        """All that is paid once a step."""
        return self.fill_s + self.tied_s


class Line(NamedTuple):
    """A link in one direction, or all that a fellow's own line carries in one."""

    sender: str
    taker: str
    """"" when it is the sender's uplink, or the sender is "" and it is the taker's downlink."""
    bytes_per_s: float

    def words(self, hosts: Mapping[str, str]) -> str:
        """For people: "atlas to borealis at 20 Mb/s", "atlas's uplink of 20 Mb/s"."""
        rate = human_rate(self.bytes_per_s)
        one, other = (hosts.get(name, name) for name in (self.sender, self.taker))
        if self.sender and self.taker:
            return f"{one} to {other} at {rate}"
        return f"{one}'s uplink of {rate}" if self.sender else f"{other}'s downlink of {rate}"


@dataclass(frozen=True)
class Pace:
    """How fast the steps of one job are on these cards."""

    facts: ModelFacts
    settings: TrainSettings
    number_format: str
    """Of the speed figures."""
    links: Links | None = None
    """None: the network is left out."""
    _networks: dict[tuple[object, ...], Network] = field(default_factory=dict, compare=False)
    _rates: dict[str, tuple[float, float]] = field(default_factory=dict, compare=False)

    @cached_property
    def parts(self) -> int:
        """Micro-batches."""
        return self.settings.micro_batches

    @cached_property
    def tokens(self) -> int:
        """Of a micro-batch."""
        return self.settings.batch_size // self.settings.micro_batches * self.settings.seq_len

    @cached_property
    def hidden_bytes(self) -> int:
        """Of a micro-batch, across a boundary, in one direction, as codes where there are any."""
        return self.tokens * compression.Crossed(self.facts, self.settings).row_bytes

    def seconds(self, card: Card, params: int, head: int = 0) -> float:
        """Of one micro-batch forward and backward through so many parameters of blocks, and of a
        head, which is one wide product.

        Operations: 4 a parameter and token with a frozen base, 6 in a full fine-tune, 2 more with
        recompute.
        """
        layers_s, head_s = self._card_s(card)
        return params * layers_s + head * head_s

    def _card_s(self, card: Card) -> tuple[float, float]:
        """Seconds of a micro-batch for each parameter of blocks on a card, and of a head."""
        found = self._rates.get(card.id)
        if found is None:
            work = 6 if self.settings.method == "full" else 4
            more = 2 if self.settings.recompute else 0
            rate, block_s = self._rate(card)
            calls = block_s / self.layer_params(0) * (work + more) / work
            layers_s = calls + self.tokens * (work + more) / rate
            found = self._rates[card.id] = layers_s, self.tokens * work / self._head_rate(card)
        return found

    def _rate(self, card: Card) -> tuple[float, float]:
        """(operations a second in blocks of this model's size, seconds of a block beside them)."""
        figure = tflops_at(card, self.number_format, self.layer_params(0))
        told = [s for s in card.report.speeds if s.number_format == self.number_format]
        block_s = (told[-1].block_s or 0.0) if told and told[-1].sizes else 0.0
        return 1e12 * figure, block_s

    def _head_rate(self, card: Card) -> float:
        return 1e12 * tflops_at(card, self.number_format, self.facts.head_params)

    def layer_params(self, layer: int) -> int:
        """Parameters that a token runs through in a layer: of experts those it is routed to."""
        facts, experts = self.facts, self.facts.experts
        idle = 0
        if experts is not None:
            idle = 3 * (experts.count - experts.per_token) * experts.width * facts.hidden
        return facts.layer_params[layer] - idle

    def span_params(self, first: int, last: int) -> int:
        """The same of all layers from the first to the last, inclusive."""
        return self._params_until[last + 1] - self._params_until[first]

    @cached_property
    def _params_until(self) -> list[int]:
        layers = range(self.facts.num_layers)
        return [0, *accumulate(self.layer_params(layer) for layer in layers)]

    def stage_s(self, stage: Sequence[PlacedCard]) -> float:
        """Of one micro-batch on a placed stage."""
        return sum(self._placed_s(one) for one in stage)

    def _placed_s(self, one: PlacedCard) -> float:
        layers = self.span_params(one.place.first_layer, one.place.last_layer)
        return self.seconds(one.card, layers, self.facts.head_params if one.place.heads else 0)

    def pair_s(self, one: str, other: str) -> tuple[float, float]:
        """(what a boundary between two fellows adds to a step, what it costs each micro-batch at
        least), whichever comes first; zeros where the network is left out.
        """
        if self.links is None:
            return 0.0, 0.0
        there, back = self.links.between(one, other), self.links.between(other, one)
        assert there is not None
        assert back is not None
        out, home = self.hidden_bytes / there.bytes_per_s, self.hidden_bytes / back.bytes_per_s
        return out + home + there.latency_s + back.latency_s, max(out, home)

    def network(self, names: Sequence[str], share: float = 1.0) -> Network:
        """Of an order of fellows; `share` of the bytes crosses (compression)."""
        if self.links is None or len(names) < 2:
            return Network()
        key = (*names, share)
        if key not in self._networks:
            self._networks[key] = self._network(names, share)
        return self._networks[key]

    def _network(self, names: Sequence[str], share: float) -> Network:
        assert self.links is not None
        size = self.hidden_bytes * share
        fill, lines = 0.0, dict[Line, float]()
        for one, other in pairwise(names):
            for sender, taker in ((one, other), (other, one)):
                link = self.links.between(sender, taker)
                assert link is not None
                took = size / link.bytes_per_s
                fill += took + link.latency_s
                lines[Line(sender, taker, link.bytes_per_s)] = took
                for line in self._own_lines(sender, taker):
                    lines[line] = lines.get(line, 0.0) + size / line.bytes_per_s
        worst = max(lines, key=lambda line: lines[line])
        return Network(fill, lines[worst], worst, self._tied_s(names))

    def _tied_s(self, names: Sequence[str]) -> float:
        """Of a shared table's gradient on its way back, and of its new values on their way: pieces
        follow each other through all links, so the slowest one counts, once in each direction.
        """
        size = crossing_bytes(self.facts, self.settings, len(names))
        if not size or self.links is None:
            return 0.0
        pairs = list(pairwise(names))
        there = [self.links.between(one, other) for one, other in pairs]
        back = [self.links.between(other, one) for one, other in pairs]
        return sum(
            max(size / link.bytes_per_s for link in way if link is not None)
            for way in (there, back)
        )

    def _own_lines(self, sender: str, taker: str) -> Sequence[Line]:
        """An inner fellow's one line carries what it sends to both neighbours."""
        assert self.links is not None
        if (sender, taker) in self.links.pairs:
            return ()
        one, other = self.links.fellows[sender], self.links.fellows[taker]
        return Line(sender, "", one.up_bytes_per_s), Line("", taker, other.down_bytes_per_s)

    def inner_s(self, fellow_id: str) -> float:
        """What a micro-batch costs at least on a fellow's own line when it has two neighbours; 0
        where links are told by pair.
        """
        links = self.links
        if links is None or fellow_id not in links.fellows:
            return 0.0
        if any(fellow_id in pair for pair in links.pairs):
            return 0.0
        own = links.fellows[fellow_id]
        return 2 * self.hidden_bytes / min(own.up_bytes_per_s, own.down_bytes_per_s)

    def step_s(self, split: Split, share: float = 1.0) -> float:
        """The predicted step of a split."""
        stages = [self.stage_s(stage) for stage in split.stages]
        net = self.network(names_of(split), share)
        return sum(stages) + net.once_s + (self.parts - 1) * max(*stages, net.floor_s, 0.0)


def names_of(split: Split) -> list[str]:
    """The fellows of a split, in pipeline order."""
    return [stage[0].card.fellow.fellow_id for stage in split.stages]


COMPRESSED = 0.25
PAYS = 0.05


def network_line(pace: Pace, split: Split) -> str:
    """The line that limits a step and whether compression pays; "" without figures."""
    names = names_of(split)
    if pace.links is None or len(names) < 2:
        return ""
    net, step = pace.network(names), pace.step_s(split)
    slowest = max(map(pace.stage_s, split.stages))
    hosts = {one.fellow_id: one.hostname for one in (s[0].card.fellow for s in split.stages)}
    words = net.limiting.words(hosts) if net.limiting else ""
    held = "limits the step" if net.floor_s > slowest else "is the slowest line, hidden by compute"
    return (
        f"{words} {held}: {human_seconds(net.floor_s)} a micro-batch against "
        f"{human_seconds(slowest)} of compute; {_pays(pace, split, step)}"
    )


def _pays(pace: Pace, split: Split, step: float) -> str:
    """Whether compression would shorten the step, or does."""
    kind = pace.settings.compression.kind
    if kind == "none":
        saved = 1 - pace.step_s(split, COMPRESSED) / step
        pays = "pays" if saved >= PAYS else "does not pay"
        return f"compression to a quarter {pays} ({100 * saved:.0f} % shorter)"
    share = compression.Crossed(pace.facts, pace.settings).share
    saved = 1 - step / pace.step_s(split, 1 / share)
    pays = "pays" if saved >= PAYS else "does not pay"
    return f"{kind} {pays} ({100 * saved:.0f} % shorter than without)"


def pace_of(
    facts: ModelFacts, settings: TrainSettings, cards: Sequence[Card], links: Links | None = None
) -> Pace | None:
    """The pace of a job over these cards; None while one has no figure."""
    name = speed_format(cards, settings)
    return None if name is None else Pace(facts, settings, name, links)


def speed_format(cards: Sequence[Card], settings: TrainSettings) -> str | None:
    """The run's own format when every card has a figure in it, the other 16-bit one for a 16-bit
    run, else float32, else None.
    """
    half = [name for name in _HALF if name != settings.dtype] if settings.dtype in _HALF else []
    for name in (settings.dtype, *half, "float32"):
        if cards and all(tflops(card, name) > 0 for card in cards):
            return name
    return None


def tflops(card: Card, number_format: str) -> float:
    """A card's figure in a format; 0 when it has none."""
    found = [s.tflops for s in card.report.speeds if s.number_format == number_format]
    return found[-1] if found else 0.0


def tflops_at(card: Card, number_format: str, layer_params: int) -> float:
    """A card's figure in a format for blocks of a size, between those that were measured; 0 when it
    has none. Beyond the smallest and the largest it stays as it is.
    """
    found = [s for s in card.report.speeds if s.number_format == number_format]
    if not found:
        return 0.0
    sizes = sorted((one.layer_params, one.tflops) for one in found[-1].sizes)
    if not sizes:
        return found[-1].tflops
    place = bisect_left([params for params, _ in sizes], layer_params)
    if place in (0, len(sizes)):
        return sizes[min(place, len(sizes) - 1)][1]
    (low, slow), (high, fast) = sizes[place - 1], sizes[place]
    share = math.log(layer_params / low) / math.log(high / low)
    return slow * math.exp(share * math.log(fast / slow))


def human_rate(bytes_per_s: float) -> str:
    """A line's rate as people name it: "20 Mb/s"."""
    return f"{8 * bytes_per_s / 1e6:.3g} Mb/s"


def unmeasured(cards: Sequence[Card]) -> list[str]:
    """Cards that have no speed figure at all."""
    return [card.title for card in cards if not card.report.speeds]
