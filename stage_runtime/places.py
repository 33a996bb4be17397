"""A card's place in a pipeline, and the bytes that it asks for there, by what they are for.

Pure, torch-free. A search makes these by the thousand, so they are tuples: one is made in a fifth
of the time of a frozen dataclass. What a place costs is stage_runtime.costs' matter.
"""

from typing import NamedTuple

from stage_runtime.layer_costs import Kernels
from transport.cards import CardKind

# A CUDA context, cuBLAS handles and kernels' own buffers: 300-600 MB a process on cards of the
# last ten years, and 3-10 % that the allocator loses to fragments.
GPU_CONTEXT_BYTES = 600_000_000
GPU_FRAGMENTS = 0.05
# A CPU card counts tensors only: nothing but a margin for what a step has never shown.
CPU_MARGIN_BYTES = 8_000_000
CPU_FRAGMENTS = 0.02


class Device(NamedTuple):
    """What of a card's kind changes a price."""

    kind: CardKind
    flash: bool = True
    """Shared key-value heads stay shared in the attention kernel (CUDA: from Ampere on)."""
    grouped: bool | None = None
    """Experts run in the grouped product; None = as flash, which CUDA has from the same cards."""

    def kernels(self, number_bytes: int) -> Kernels:
        """What computes a block in this format. CUDA's flash kernel takes 16 bits only."""
        narrow_only = self.kind in ("cuda", "rocm")
        shared = self.kind == "cpu" or (self.flash and (number_bytes == 2 or not narrow_only))
        grouped = self.kind == "cpu" or self.flash if self.grouped is None else self.grouped
        return Kernels(shared, grouped)


class CardPlace(NamedTuple):
    """What a card runs: layers of a stage, and whether the stage begins or ends on it."""

    stage: int
    num_stages: int
    first_layer: int
    last_layer: int
    """Inclusive, global; first_layer - 1 when the card holds no layer."""
    takes_input: bool = True
    """The stage's input arrives on this card; on the first stage it holds the embeddings."""
    gives_output: bool = True
    """The stage's output leaves from this card; the last stage's holds the head and the loss."""

    @property
    def num_layers(self) -> int:
        """Layers on the card."""
        return self.last_layer - self.first_layer + 1

    @property
    def ends(self) -> tuple[bool, bool]:
        """(whether the previous stage's output arrives here, whether the next one's leaves)."""
        last = self.stage == self.num_stages - 1
        return self.takes_input and self.stage > 0, self.gives_output and not last

    @property
    def embeds(self) -> bool:
        """Whether the input embeddings lie here."""
        return self.stage == 0 and self.takes_input

    @property
    def heads(self) -> bool:
        """Whether the output head and the loss are computed here."""
        return self.stage == self.num_stages - 1 and self.gives_output


class Price(NamedTuple):
    """Bytes on one card at the peak of a step, by what they are for."""

    weights: int
    embeddings: int
    """Input embeddings, head, the receive buffers of all micro-batches, and the buffer in which
    a quantized projection is unpacked.
    """
    activations: int
    """At the peak; on a CPU card also what loading holds for a moment beyond a step's peak."""
    gradients: int
    optimizer: int
    lora: int
    """The adapters themselves."""
    workspace: int
    """The device's context, kernels and fragments: an allowance that no tensor count shows."""
    kv_cache: int = 0
    """Keys and values of the context; serving only."""

    @property
    def tensor_bytes(self) -> int:
        """What a count of live tensors shows at the peak."""
        held = self.weights + self.embeddings + self.kv_cache + self.lora + self.optimizer
        return held + self.activations + self.gradients

    @property
    def total(self) -> int:
        """All that the card must have free."""
        return self.tensor_bytes + self.workspace


def workspace_of(device: Device, tensor_bytes: int, kernel_bytes: int) -> int:
    """The allowance for what no tensor count shows, kernels' own included."""
    if device.kind == "cpu":
        return CPU_MARGIN_BYTES + int(CPU_FRAGMENTS * tensor_bytes) + kernel_bytes
    return GPU_CONTEXT_BYTES + int(GPU_FRAGMENTS * tensor_bytes) + kernel_bytes
