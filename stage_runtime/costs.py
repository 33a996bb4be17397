"""Prices a share of a model on a card, before anything is loaded.

Pure arithmetic on model facts: no torch, no network, no clock. The planner asks here before
a job starts and the stage asks here again when it loads; both get one answer.
Tensor terms are counted against real stages in tests; workspace is an allowance, not a count.
docs/memory.md says the formulas in words; stage_runtime.kv_costs prices serving.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from stage_runtime.boundary_costs import BoundaryCosts
from stage_runtime.layer_costs import Kernels, LayerCosts
from stage_runtime.model_facts import ModelFacts
from stage_runtime.pieces import LOSS_WORDS, TWIN_ROWS
from stage_runtime.places import CardPlace, Device, Price, workspace_of
from stage_runtime.quantized_costs import StoredWeights
from stage_runtime.tied_costs import piece_values, shares_table, table_values
from transport.orders import TrainSettings

LOGIT_CHUNK_BYTES = 91_000_000
"""Float32 logits that exist at once in the loss: 150 tokens at 151,936 words."""


def loss_chunk_tokens(vocab: int) -> int:
    """Tokens of logits that exist at once: 149 at a vocabulary of 151,936, more below it."""
    return max(16, min(1024, LOGIT_CHUNK_BYTES // (4 * vocab)))


def runs_1f1b(settings: TrainSettings, num_stages: int) -> bool:
    """Whether 1F1B can run: it refuses fewer micro-batches than stages, GPipe takes its place."""
    return settings.schedule == "1f1b" and settings.micro_batches >= num_stages


def live_micro_batches(settings: TrainSettings, stage: int, num_stages: int) -> int:
    """Micro-batches whose activations a stage holds at once."""
    if runs_1f1b(settings, num_stages):
        return min(num_stages - stage, settings.micro_batches)
    return settings.micro_batches


@dataclass(frozen=True)
class Prices:
    """Prices of a model under one job's settings. Make one, ask often: it remembers its layers."""

    facts: ModelFacts
    settings: TrainSettings

    @cached_property
    def layer(self) -> LayerCosts:
        """Prices of one block."""
        return LayerCosts(self.facts, self.settings)

    @cached_property
    def stored(self) -> StoredWeights:
        """Weights as they lie in memory."""
        return StoredWeights(self.facts, self.settings)

    @cached_property
    def rows(self) -> int:
        """Sequences in a micro-batch."""
        return self.settings.batch_size // self.settings.micro_batches

    @cached_property
    def tokens(self) -> int:
        """Tokens in a micro-batch."""
        return self.rows * self.settings.seq_len

    @cached_property
    def boundary(self) -> BoundaryCosts:
        """What stands between two stages."""
        return BoundaryCosts(self.facts, self.settings)

    @cached_property
    def hidden_bytes(self) -> int:
        """One micro-batch of hidden states in the layers' format."""
        return self.tokens * self.facts.hidden * self.layer.number_bytes

    def of(self, place: CardPlace, device: Device) -> Price:
        """The price of a place on a card at its peak: of a step, or of calibrating before it.

        Loading takes less: tensors are read in pieces, and of a job in 4 or 8 bits one projection
        is whole at a time.
        """
        price = self.at_step(place, device)
        more = self._calibration_bytes(place, device, price) - price.tensor_bytes
        if more <= 0:
            return price
        activations = price.activations + more
        kernels = self._kernel_bytes(place, device, activations + price.gradients)
        workspace = workspace_of(device, price.tensor_bytes + more, kernels)
        return price._replace(activations=activations, workspace=workspace)

    def at_step(self, place: CardPlace, device: Device) -> Price:
        """The price at the peak of a step."""
        seat, layers = self._seat(place), place.num_layers
        full, adapted = self.layer.full, layers * self.layer.adapter_params
        trained = seat.trained + (_between(self._params_until, place) if full else adapted)
        activations, gradients = self._peak(place, device, 4 * (trained + seat.copied))
        tensors = seat.tensors + (0 if full else layers * self.layer.adapter_tensors)
        weights = seat.weights + _between(self._weights_until, place)
        embeddings = seat.embeddings + (self.stored.buffer() if layers else 0)
        # Two float32 moments for each parameter, and a step counter for each tensor.
        optimizer = 8 * trained + 4 * tensors + self._saved_copy(device, trained, tensors)
        lora = 4 * (seat.projections if full else trained)
        moved = activations + gradients
        workspace = workspace_of(
            device,
            weights + embeddings + optimizer + lora + moved,
            self._kernel_bytes(place, device, moved),
        )
        return Price(weights, embeddings, activations, gradients, optimizer, lora, workspace)

    def _seat(self, place: CardPlace) -> "_Seat":
        """What of the price does not hang on the layers; a search asks for few seats, often."""
        stage, stages, _, _, takes, gives = place
        key = (stage == 0, stage == stages - 1, takes, gives)
        found = self._seats.get(key)
        if found is None:
            empty = place._replace(last_layer=place.first_layer - 1)
            found = self._seats[key] = self._empty_seat(empty)
        return found

    @cached_property
    def _seats(self) -> dict[tuple[bool, ...], "_Seat"]:
        return {}

    def _empty_seat(self, empty: CardPlace) -> "_Seat":
        ends, copied = empty.ends, self._copied(empty)
        return _Seat(
            weights=self.weights(empty),
            embeddings=self.tables(empty) + self._buffers(empty),
            trained=self._trained_at_ends(empty),
            copied=copied,
            tensors=self.boundary.tensors(*ends),
            projections=self.boundary.params(*ends),
            kept=self._kept_at_ends(empty),
            coded=self.boundary.coding(*ends),
            loss=self._loss_top() if empty.heads else 0,
            gone=self._kept_by_loss() - 2 * self.hidden_bytes if empty.heads else 0,
            head_gradient=self._head_gradient * empty.heads,
            embeds=empty.embeds,
            shared=self.facts.tied and empty.heads,
            largest=self._largest_at_ends(empty),
        )

    def _saved_copy(self, device: Device, trained: int, tensors: int) -> int:
        """A copy of what trains and of its moments, in the memory that a CPU card is: what is
        saved while the next step computes.
        """
        saves = device.kind == "cpu" and self.settings.snapshot_every_steps > 0
        return saves * (12 * trained + 4 * tensors)

    def _calibration_bytes(self, place: CardPlace, device: Device, price: Price) -> int:
        """The most that a calibration holds on a CPU card: statistics beside a batch that changes
        nothing, or a basis in the making when activations are gone.
        """
        seen = self.boundary.seen(*place.ends) if device.kind == "cpu" else 0
        if not seen:
            return 0
        without = price.tensor_bytes - price.optimizer - self.boundary.constants(*place.ends)
        emptied = without - price.activations - price.gradients
        if self.boundary.learned:
            without = emptied + max(self._tops(place, device))  # forward only
        return seen + max(without, emptied + self.boundary.fitting(*place.ends))

    def weights(self, place: CardPlace) -> int:
        """Bytes of the layers on the card, and of the final norm."""
        norm = self.facts.final_norm_params if place.heads else 0
        return _between(self._weights_until, place) + self.stored.number_bytes * norm

    @cached_property
    def _weights_until(self) -> list[int]:
        """Bytes of the layers before each layer, and of all."""
        layers = range(self.facts.num_layers)
        return [0, *accumulate(self.stored.layer(layer) for layer in layers)]

    @cached_property
    def _params_until(self) -> list[int]:
        return [0, *accumulate(self.facts.layer_params)]

    @cached_property
    def _blocks(self) -> "dict[Device, _Blocks]":
        return {}

    def _blocks_on(self, device: Device) -> "_Blocks":
        found = self._blocks.get(device)
        if found is None:
            kernels = device.kernels(self.layer.number_bytes)
            found = self._blocks[device] = _Blocks.of(self.layer, self.rows, kernels)
        return found

    def _table_params(self, place: CardPlace) -> int:
        shared = self.facts.tied and place.embeds and place.heads
        table = self.facts.vocab * self.facts.hidden if shared else 0
        return (
            place.embeds * self.facts.embedding_params
            + place.heads * self.facts.head_params
            - table
        )

    def _copied(self, place: CardPlace) -> int:
        """Values of the head that are a copy of the first stage's table: they have a gradient, but
        no moments.
        """
        shares = shares_table(self.facts, self.settings, place.num_stages)
        return table_values(self.facts) if shares and place.heads else 0

    def tables(self, place: CardPlace) -> int:
        """Bytes of embeddings and head on the card; one table serves as both when it can."""
        return self.stored.number_bytes * self._table_params(place)

    def _buffers(self, place: CardPlace) -> int:
        """Receive buffers of all micro-batches, live or not; token ids and targets at the ends."""
        parts = self.settings.micro_batches
        first, last = place.stage == 0, place.stage == place.num_stages - 1
        ids = 8 * self.tokens
        crossing = self.boundary.crossing_bytes
        taken = place.takes_input * (ids if first else crossing)
        given = place.gives_output * (ids if last else crossing)
        shares = shares_table(self.facts, self.settings, place.num_stages)
        piece = 4 * piece_values(self.facts) * (shares and place.takes_input)
        return parts * (taken + given) + piece + self.boundary.constants(*place.ends)

    def _trained_at_ends(self, place: CardPlace) -> int:
        """Parameters that train in a place beside its layers'."""
        projections = self.boundary.params(*place.ends)
        if not self.layer.full:
            return projections
        norm = self.facts.final_norm_params if place.heads else 0
        return norm + self._table_params(place) - self._copied(place) + projections

    def _peak(self, place: CardPlace, device: Device, all_gradients: int) -> tuple[int, int]:
        """(activations, gradients) at the moment of a step in which they weigh most together."""
        parts, seat = self.settings.micro_batches, self._seat(place)
        live = live_micro_batches(self.settings, place.stage, place.num_stages)
        each = self._held(place, device, seat)
        loss, block = self._tops(place, device)
        # The loss's backward is over when the blocks' begins.
        before, after = (live - 1) * each, each - seat.gone
        moments = [
            (before + self._table_gradient(seat, first=True), all_gradients),
            (self._update_copy(place, device, seat), all_gradients),
        ]
        if parts > 1:
            # A second backward finds all gradients, and one less waiting when none is to begin.
            waiting = (live - 1 - (parts == live)) * each
            again = self._table_gradient(seat, first=False)
            moments.append((waiting + max(each + loss, after + block), all_gradients))
            moments.append((waiting + again, all_gradients))
        if parts == live:
            # Every micro-batch waits before the first backward: gradients come, activations go.
            layers, early = max(1, place.num_layers), all_gradients
            if self.layer.full and seat.embeds:
                early -= 4 * self.facts.embedding_params  # theirs comes last
            moments.append((before + each + loss, 0))
            moments.append((before + after + block, seat.head_gradient))
            own = all_gradients - 4 * (seat.trained + seat.copied)
            moments.append((before + after // layers + block, early - own // layers))
            moments.append((before + self._block(place, device) // 2, early))
        return max(moments, key=sum)

    @cached_property
    def _head_gradient(self) -> int:
        """Made in forward; one of the gradients from the loss's backward on."""
        return 4 * self.facts.head_params * self.layer.full

    def _update_copy(self, place: CardPlace, device: Device, seat: "_Seat") -> int:
        """What AdamW needs of its own while it steps: on a CPU card the root of a tensor's second
        moments, twice; CUDA's fused kernel needs nothing.
        """
        return 2 * 4 * self._largest_trained(place, seat) if device.kind == "cpu" else 0

    def _largest_trained(self, place: CardPlace, seat: "_Seat") -> int:
        """Parameters of the largest tensor that trains on the card."""
        return max(seat.largest, self.layer.largest_trained) if place.num_layers else seat.largest

    def _largest_at_ends(self, place: CardPlace) -> int:
        largest = self.boundary.largest(*place.ends)
        if self.layer.full and (place.embeds or (place.heads and not self._copied(place))):
            return max(largest, self.facts.vocab * self.facts.hidden)
        return largest

    def _table_gradient(self, seat: "_Seat", *, first: bool) -> int:
        """Whole gradients of the embeddings beside the one that stays: the new one before it is
        added; where the table is the head as well, both parts and their sum.

        first: it is the step's first micro-batch, whose gradient is the one that stays.
        """
        if not self.layer.full or not seat.embeds:
            return 0
        return 4 * (2 * seat.shared + (not first)) * self.facts.embedding_params

    def _held(self, place: CardPlace, device: Device, seat: "_Seat") -> int:
        """Bytes that one micro-batch keeps on the card from its forward to its backward."""
        kept = self._kept_by_layers(place, device) + self._rotary(place) + seat.kept
        arrives = place.takes_input and place.stage > 0 and place.num_layers > 0
        # It is the receive buffer, counted there; behind a bottleneck it is rebuilt from that.
        return max(0, kept - self._not_copied * arrives)

    @cached_property
    def _not_copied(self) -> int:
        """Bytes of a received micro-batch that the first block keeps as it came."""
        again = self.settings.recompute and not self.facts.learned_positions
        keeps = (self.layer.keeps_input or again) and not self.boundary.learned
        return self.hidden_bytes * keeps

    def _kept_at_ends(self, place: CardPlace) -> int:
        """The same of a place's ends, whatever layers lie between."""
        kept = self.boundary.kept(*place.ends)
        if place.gives_output:
            kept += self._kept_by_loss() if place.heads else self.boundary.crossing_bytes
        return kept

    def _is_frozen(self, place: CardPlace) -> bool:
        """Nothing before the first boundary trains: its blocks keep nothing for a backward."""
        return place.stage == 0 and self.settings.method == "boundary"

    def _kept_by_layers(self, place: CardPlace, device: Device) -> int:
        if self._is_frozen(place):
            return 0
        if self.settings.recompute:
            ends = place.first_layer, place.last_layer
            masks = self.layer.attention.mask_bytes(*ends, self.rows) if place.num_layers else 0
            twice = 1 + (place.stage == 0 and self.layer.wide_stream_per_token > 0)
            return twice * self.hidden_bytes * place.num_layers + masks
        kept = _between(self._blocks_on(device).saved_until, place)
        kept += place.num_layers * self._wide_stream(place)
        if place.first_layer == 0 and place.num_layers and not self.layer.full:
            kept -= self.tokens * self.layer.unkept_by_first_block
        return kept

    def _wide_stream(self, place: CardPlace) -> int:
        return self.tokens * self.layer.wide_stream_per_token if place.stage == 0 else 0

    def _kept_by_loss(self) -> int:
        """Final norm, its output, the gradient made in forward, and the places of the targets."""
        norm = self.tokens * self.layer.final_norm_per_token
        return norm + 2 * self.hidden_bytes + 8 * self.tokens + self._head_gradient

    def _rotary(self, place: CardPlace) -> int:
        if not place.num_layers:
            return 0
        if not self._tables_by_kind:
            return self._rotary_table
        kinds = len(set(self.facts.layer_types[place.first_layer : place.last_layer + 1]))
        return kinds * self._rotary_table

    @cached_property
    def _tables_by_kind(self) -> bool:
        family = self.facts.family
        return family.wide_norm and not family.scores

    @cached_property
    def _rotary_table(self) -> int:
        if self.facts.learned_positions:
            return 0
        rows = self.rows if self.settings.document_mask else 1  # positions differ from row to row
        return rows * 2 * self.settings.seq_len * self.facts.head_size * self.layer.number_bytes

    def _tops(self, place: CardPlace, device: Device) -> tuple[int, int]:
        """What a moment needs above what is kept: (the loss, a block's backward)."""
        seat = self._seat(place)
        if not place.num_layers:
            return max(seat.coded, seat.loss), seat.coded
        blocks = self._blocks_on(device)
        top, product = blocks.top, self._product_top
        unpacked = self.stored.buffer()  # counted beside the embeddings
        if self._is_frozen(place):
            top += 3 * self.hidden_bytes
        elif self.settings.recompute:
            block = self._whole_blocks(place) * self._block(place, device)
            top, product = blocks.repeated_top + block, product + block
        return seat.loss - unpacked, max(seat.coded, top, product) - unpacked

    @cached_property
    def _product_top(self) -> int:
        return self.layer.product_top(self.rows)

    def _whole_blocks(self, place: CardPlace) -> int:
        """Blocks that are whole at once under recompute: one, or those rebuilt early. The last
        stage awaits no gradient.
        """
        early = self.settings.early_recompute * (place.stage < place.num_stages - 1)
        return max(1, min(early, place.num_layers))

    def _block(self, place: CardPlace, device: Device) -> int:
        """What the heaviest block of a place keeps for its backward."""
        if not place.num_layers:
            return 0
        heaviest = self.layer.heaviest_in(place.first_layer, place.last_layer)
        saved = self._blocks_on(device).saved_until
        return saved[heaviest + 1] - saved[heaviest] + self._wide_stream(place)

    def _loss_top(self) -> int:
        chunk = min(self.settings.loss_chunk_tokens, self.tokens)
        # Float32 logits, which turn into their gradient in place; 16-bit layers have both once in
        # 16 bits as well. A softcap's slope stands beside them.
        each = 4 if self.layer.number_bytes == 4 else 6
        if self.facts.family.scores == "softcap":
            each = 8
        weight = 0
        if self.layer.full:
            # A piece of the head's gradient; in 16 bits the head is cast, for every micro-batch.
            b = self.layer.number_bytes
            weight = b * min(self.facts.vocab, LOSS_WORDS) * self.facts.hidden
            weight += b * self.facts.head_params * (b == 2)
        return chunk * self.facts.vocab * each + self.hidden_bytes + weight

    def _kernel_bytes(self, place: CardPlace, device: Device, moved: int) -> int:
        """Buffers inside kernels, which no count of tensors shows: in attention's backward; on a
        CPU card the float32 copy that adding an adapter's output to a 16-bit one makes first, and
        the float64 copy of a gradient whose norm is taken, when activations are gone.

        moved: activations and gradients at the peak.
        """
        if device.kind != "cpu":
            return self._attention_buffers if place.num_layers else 0
        seat = self._seat(place)
        full, layers = self.layer.full, place.num_layers
        own = _between(self._params_until, place) if full else layers * self.layer.adapter_params
        widest = max((one.outputs for one in self.layer.adapted), default=0)
        rows = min(self.tokens, TWIN_ROWS)
        added = 4 * rows * widest * (self.layer.number_bytes == 2 and layers > 0)
        gone = moved - 4 * (seat.trained + own)
        return max(added, 8 * self._largest_trained(place, seat) - gone)

    @cached_property
    def _attention_buffers(self) -> int:
        return self.tokens * (4 * self.facts.heads + 8 * self.facts.query_width)


@dataclass(frozen=True)
class _Seat:
    """What a place takes whatever layers it holds, in bytes or parameters."""

    weights: int
    embeddings: int
    trained: int
    copied: int
    """Trained on another stage; here they have a gradient."""
    tensors: int
    projections: int
    kept: int
    """Of a micro-batch, by the ends."""
    coded: int
    loss: int
    gone: int
    """What a last stage keeps for the loss, and no longer when its blocks' backward begins: the
    final norm's part, the places of the targets, the head's gradient.
    """
    head_gradient: int
    embeds: bool
    shared: bool
    """The head is the embeddings' own table, where both lie here."""
    largest: int
    """Parameters of the largest trained tensor."""


@dataclass(frozen=True)
class _Blocks:
    """What the blocks of a model take on one kind of card, in bytes of a micro-batch."""

    saved_until: list[int]
    """Kept by the layers before each layer, and by all."""
    top: int
    repeated_top: int

    @classmethod
    def of(cls, layer: LayerCosts, rows: int, kernels: Kernels) -> "_Blocks":
        layers = range(layer.facts.num_layers)
        by_mask: dict[bool, int] = {}
        for i in layers:
            masked = layer.attention.is_masked(i)
            if masked not in by_mask:
                by_mask[masked] = layer.saved_by_layer(i, rows, kernels)
        saved = accumulate(by_mask[layer.attention.is_masked(i)] for i in layers)
        return cls([0, *saved], layer.top(rows, kernels), layer.repeated_top(rows, kernels))


def _between(until: list[int], place: CardPlace) -> int:
    """The sum over a place's layers; 0 when it has none."""
    return until[place.last_layer + 1] - until[place.first_layer]
