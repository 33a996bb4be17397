"""What a heartbeat says of a machine and its cards."""

from typing import Annotated, Literal

from pydantic import Field

from transport.ids import FellowId, JobId
from transport.schema import Told

PROTOCOL = 1  # the heartbeat's and the frame header's; a leader speaks this one and the one before

NumberFormat = Literal["float32", "bfloat16", "float16", "int8", "nf4"]
PathKind = Literal["local", "lan", "mesh", "public", "direct", "relay", "none"]
"""How a neighbour is reached. "direct": this end was dialled, so only the other one knows the
address. "none": not at all at this moment.
"""
CardKind = Literal["cuda", "rocm", "mps", "xpu", "cpu"]
Text64 = Annotated[str, Field(max_length=64)]
Text200 = Annotated[str, Field(max_length=200)]
Bytes = Annotated[int, Field(ge=0, le=2**60)]


class Holder(Told):
    """A program outside Swarm that holds memory on a card."""

    name: Text200
    held_bytes: Bytes


class SpeedAt(Told):
    """The speed of a card with a block of another size."""

    layer_params: Annotated[int, Field(ge=1)]
    """Parameters of the block."""
    tflops: Annotated[float, Field(gt=0)]


class Speed(Told):
    """One measured speed of a card: of the work of a stage, forward and back through the frozen
    matrices of a transformer block (stage_runtime.speed).
    """

    number_format: NumberFormat
    tflops: Annotated[float, Field(gt=0)]
    """10^12 floating point operations a second, measured, never from a datasheet."""
    measured_at: float
    """Unix time on the fellow's clock."""
    cold_tflops: Annotated[float, Field(gt=0)] | None = None
    """The same of the very first pass, which compiles and warms up. Null figures: not measured."""
    matmul_tflops: Annotated[float, Field(gt=0)] | None = None
    """One large product alone, median of several."""
    attention_tflops: Annotated[float, Field(gt=0)] | None = None
    """Attention alone, forward, median of several."""
    memory_bytes_s: Annotated[float, Field(gt=0)] | None = None
    """Read and written together while a large tensor is copied, median of several."""
    block_s: Annotated[float, Field(ge=0)] | None = None
    """Seconds that a block takes forward and back whatever it computes; null when not measured."""
    sizes: Annotated[list[SpeedAt], Field(max_length=8)] = []
    """The same with blocks of several sizes and without those seconds: the planner takes the
    figure at the model's own size. Empty: `tflops` holds for all.
    """


class CardReport(Told):
    """One card: its memory, what holds it, what it can run."""

    index: Annotated[int, Field(ge=0, le=63)]
    kind: CardKind
    name: Text200
    uuid: Text64
    """Names the card for good; the driver's order of cards is not torch's."""
    total_bytes: Bytes
    free_bytes: Bytes | None
    """Free for Swarm now; null when the driver would not say."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """CPU cards: OpenMP threads of a worker on it."""
    number_formats: list[NumberFormat]
    """Formats it computes in, proven by a self-test where one ran."""
    holders: Annotated[list[Holder], Field(max_length=32)] = []
    speeds: Annotated[list[Speed], Field(max_length=16)] = []


class MachineReport(Told):
    """The machine around the cards."""

    hostname: Text200
    system: Text200
    """Operating system and release."""
    cores: Annotated[int, Field(ge=1, le=4096)]
    memory_bytes: Bytes
    memory_free_bytes: Bytes
    disk_free_bytes: Bytes | None
    """Free where the model cache lies; null when it cannot be read."""
    disk_total_bytes: Bytes | None = None
    """Size of the same disk; null when it cannot be read."""
    version: Text64
    """Swarm's version on this fellow."""
    features: Annotated[list[Text64], Field(max_length=64)] = []
    """Abilities that not every version has: the planner offers a fellow only what it can do."""
    versions: dict[str, Text64] = {}
    """Of the packages that decide results: torch, transformers, peft, bitsandbytes."""
    listen_address: Text200
    """The address under which its stages can be dialled by their neighbours."""
    cached_models: Annotated[list[Text200], Field(max_length=256)] = []
    boot: Text64 | None = None
    """Names this start of the machine: fellows that tell the same one share its cores. Null when it
    cannot be told.
    """


class LinkStatus(Told):
    """One link of a stage that runs now. Bytes are whole frames since its attempt's start."""

    neighbour: Annotated[int, Field(ge=0, le=255)]
    """The stage at its other end."""
    path: PathKind
    untrusted_why: Annotated[str, Field(max_length=500)] = ""
    """Why no better way is used, as the fellow tells it; "" when none is known."""
    sent_bytes: Bytes
    received_bytes: Bytes
    resent_frames: Annotated[int, Field(ge=0)] = 0
    """Frames that went again after a broken connection or a move to another way."""


class StageStatus(Told):
    """A stage worker that the fellow runs now."""

    job_id: JobId
    attempt: Annotated[int, Field(ge=1)]
    stage: Annotated[int, Field(ge=0, le=255)]
    phase: Literal[
        "starting", "loading", "ready", "training", "evaluating", "saving", "done", "failed"
    ]
    step: Annotated[int, Field(ge=0)] | None = None
    resident_bytes: Bytes | None = None
    """The worker process's memory, as the system counts it."""
    card_bytes: list[Bytes] = []
    """Tensor bytes it holds on each of its cards."""
    moved: Annotated[int, Field(ge=0)] | None = None
    """Blocks computed and frames received so far: what does not grow does not move."""
    waits_for: Annotated[str, Field(max_length=300)] = ""
    """The frame and the neighbour that it waits for, and since when; "" when it does not wait."""
    links: Annotated[list[LinkStatus], Field(max_length=2)] = []


class Envelope(Told):
    """A quantity between two reports, of samples taken about every 500 ms."""

    least: Annotated[float, Field(ge=0)]
    mean: Annotated[float, Field(ge=0)]
    most: Annotated[float, Field(ge=0)]


class CardLoad(Told):
    """How a card was used since the last report that the leader took."""

    index: Annotated[int, Field(ge=0, le=63)]
    samples: Annotated[int, Field(ge=1)]
    memory_bytes: Envelope | None
    """In use: of a graphics card by anyone, of a CPU card by this fellow's workers."""
    busy: Envelope | None
    """Share of the time, 0 to 1: of a CPU card, of its threads. Null: nobody knows."""


class ProbeEnd(Told):
    """This fellow's end of a link that is measured: how the other end recognises and reaches it."""

    name: Annotated[str, Field(max_length=100)]
    """Of the test."""
    public_key: Annotated[str, Field(min_length=40, max_length=40)]
    endpoints: Annotated[list[Text200], Field(max_length=8)]


class Heartbeat(Told):
    """Every 5 s, fellow -> leader. Never stored durably."""

    protocol: Annotated[int, Field(ge=1)]
    fellow_id: FellowId
    machine: MachineReport
    cards: Annotated[list[CardReport], Field(max_length=64)]
    stages: Annotated[list[StageStatus], Field(max_length=16)] = []
    measuring: bool = False
    probes: Annotated[list[ProbeEnd], Field(max_length=16)] = []
    loads: Annotated[list[CardLoad], Field(max_length=64)] = []
    """Of every card that was sampled since the last report."""
    sent_bytes: Bytes = 0
    """To the leader since the daemon started."""
    received_bytes: Bytes = 0
    pipeline_sent_bytes: Bytes = 0
    """To neighbouring stages since the daemon started."""
    pipeline_received_bytes: Bytes = 0
