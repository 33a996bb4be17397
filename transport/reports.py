"""Fellow -> leader: what happened in a stage. Stored for good before they are acknowledged.

The daemon numbers them, keeps them on its disk until the leader has committed them, and sends
them again after a lost answer; the leader counts each number once.
"""

from typing import Annotated, Literal

from pydantic import Field

from transport.cards import Bytes, PathKind, Speed
from transport.ids import FellowId, JobId
from transport.schema import Model, Told

Count = Annotated[int, Field(ge=0)]
Text500 = Annotated[str, Field(max_length=500)]
Text2000 = Annotated[str, Field(max_length=2000)]
Finite = float
Seconds = Annotated[float, Field(ge=0)]
MarkName = Annotated[str, Field(pattern=r"^[a-z_]{1,24}$")]


class FromStage(Told):
    """What every report of a stage names."""

    job_id: JobId
    attempt: Annotated[int, Field(ge=1)]
    stage: Count
    at: float
    """Unix time on the fellow's clock; for display only, never compared across machines."""


class StageBound(FromStage):
    """The worker runs, has made its key, and (if not first) listens for the stage before it."""

    kind: Literal["bound"] = "bound"
    public_key: Annotated[str, Field(min_length=40, max_length=40)]
    endpoints: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=8)]
    """Where it listens: "tcp://HOST:PORT", on a mesh interface (Tailscale, WireGuard) "mesh+tcp://…".
    """


class StageLoaded(FromStage):
    """The share of the model is in memory and checked."""

    kind: Literal["loaded"] = "loaded"
    weight_bytes: Bytes
    """Tensor bytes held after loading, counted."""
    priced_bytes: Bytes
    """What this fellow's own pricing says the stage will hold at its peak."""
    load_s: float
    downloaded_bytes: Bytes
    adapters_digest: Annotated[str, Field(max_length=64)]
    """SHA-256 of the trainable tensors before step 1."""


class LinkPath(FromStage):
    """How a neighbour is reached, and what has crossed. For the daemon, which tells it on in its
    heartbeats: never stored.
    """

    kind: Literal["link"] = "link"
    neighbour: Annotated[int, Field(ge=0, le=255)]
    path: PathKind
    address: Annotated[str, Field(max_length=200)] = ""
    why: Text500 = ""
    """Why no better way is used."""
    sent_bytes: Bytes
    received_bytes: Bytes
    resent_frames: Count


class StepDone(FromStage):
    """One optimizer step, as this stage saw it. The same loss on every stage."""

    kind: Literal["step"] = "step"
    step: Annotated[int, Field(ge=1)]
    loss: Finite
    """Mean over the step's supervised tokens, natural logarithm."""
    grad_norm: Finite | None
    """Over the whole pipeline, before clipping; null when an update was skipped as not finite."""
    learning_rate: Finite
    supervised_tokens: Count
    step_s: Finite
    """From the end of the step before, evaluations left out."""
    compute_s: Finite
    """Of this stage: forward, loss, recompute, backward, optimizer."""
    wait_s: Finite
    """Of this stage for its neighbours."""
    skipped: bool
    """The update was left out by all stages because a gradient was not finite."""
    empty_micro_batches: Count = 0
    """Micro-batches of this step without any supervised token."""
    marks: Annotated[dict[MarkName, Seconds], Field(max_length=16)] = {}
    """Where step_s went on this stage, by names of stage_runtime.marks: they add up to it. {}
    from a fellow that does not tell.
    """


class Evaluated(FromStage):
    """Held-out loss; sent by the last stage."""

    kind: Literal["evaluated"] = "evaluated"
    moment: Literal["base", "during", "trained", "bypassed"]
    """bypassed: trained, but with the learned bottleneck left out."""
    step: Count
    loss: Finite
    accuracy: Finite
    """Share of supervised tokens whose likeliest next token was right."""
    tokens: Count
    sequences: Count


class MemoryMeasured(FromStage):
    """The peak of tensor bytes on each card of the stage, and the plan's figure for it."""

    kind: Literal["memory"] = "memory"
    card_index: Count
    peak_bytes: Bytes
    planned_bytes: Bytes
    how: Literal["counted", "allocator"]
    """counted: every tensor storage (CPU cards). allocator: the device allocator's own peak."""


class AdapterSaved(FromStage):
    """The stage's trained tensors are at the leader."""

    kind: Literal["saved"] = "saved"
    digest: Annotated[str, Field(min_length=64, max_length=64)]
    size_bytes: Bytes


class Crossed(Told):
    """What a boundary carried: activations and gradients, each frame once, without headers, in
    steps and evaluations after the first step.
    """

    neighbour: Count
    """The stage on its other side."""
    sent_bytes: Bytes
    received_bytes: Bytes
    before_bytes: Bytes = 0
    """Both ways before the first step: a base evaluation, and the calibration of codes."""


class StageDone(FromStage):
    """The stage has finished the job and its process ends."""

    kind: Literal["done"] = "done"
    sent_bytes: Bytes
    received_bytes: Bytes
    crossed: Annotated[list[Crossed], Field(max_length=2)] = []


class StageFailed(FromStage):
    """The stage cannot go on. The job keeps the first; echoes of neighbours are dropped."""

    kind: Literal["failed"] = "failed"
    code: Annotated[str, Field(max_length=64)]
    message: Text2000
    hint: Text500 = ""
    echo: bool = False
    """True when this stage only noticed that a neighbour failed."""
    exit_code: int | None = None
    """Of the worker process, when the daemon reports its death."""
    lost: bool = False
    """True when the process is gone or stuck through no fault of the job: another try may do."""


class Progress(FromStage):
    """Worker -> daemon only, about every 2 s: it goes into heartbeats and is never stored."""

    kind: Literal["progress"] = "progress"
    moved: Count
    """Blocks computed and frames received so far."""
    waits_for: Annotated[str, Field(max_length=300)] = ""


class LogLine(FromStage):
    """One line of the worker's log: untrusted text."""

    kind: Literal["log"] = "log"
    level: Literal["debug", "info", "warning", "error"]
    text: Text2000


class ExportFailed(Told):
    """The export that was ordered cannot be made."""

    kind: Literal["export_failed"] = "export_failed"
    export_id: Annotated[str, Field(max_length=64)]
    at: float
    code: Annotated[str, Field(max_length=64)]
    message: Text2000
    hint: Text500 = ""


class ReferenceTrained(Told):
    """A probe was trained in one process. Losses in nats, means over supervised tokens."""

    kind: Literal["reference"] = "reference"
    verify_id: Annotated[str, Field(max_length=64)]
    at: float
    losses: Annotated[list[Finite], Field(max_length=64)]
    """Of each step."""
    held_out: Annotated[list[Finite], Field(max_length=2)]
    """Before and after; empty when nothing is held out."""
    seconds: Seconds
    peak_bytes: Bytes | None = None
    """Tensor bytes; null when nothing counted them."""


class ReferenceFailed(Told):
    """The probe could not be trained in one process."""

    kind: Literal["reference_failed"] = "reference_failed"
    verify_id: Annotated[str, Field(max_length=64)]
    at: float
    code: Annotated[str, Field(max_length=64)]
    message: Text2000
    hint: Text500 = ""


class Measured(Told):
    """The figures that a MeasureOrder asked for."""

    kind: Literal["measured"] = "measured"
    token: Annotated[str, Field(max_length=64)]
    at: float
    card_index: Count
    speeds: Annotated[list[Speed], Field(max_length=16)]
    error: Text500 = ""


class LinkMeasured(Told):
    """The figures of one link that a MeasureOrder asked for, from the end that dials."""

    kind: Literal["link-measured"] = "link-measured"
    token: Annotated[str, Field(max_length=64)]
    at: float
    peer: Annotated[str, Field(pattern=r"^(leader|f-[a-z2-9]{8})$")]
    path: PathKind
    latency_s: Annotated[float, Field(ge=0)] | None
    """One way: half of the median round trip. Null figures: not measured, error says why."""
    up_bytes_s: Annotated[float, Field(gt=0)] | None
    down_bytes_s: Annotated[float, Field(gt=0)] | None
    error: Text500 = ""


StageReport = Annotated[
    StageBound
    | LinkPath
    | Progress
    | StageLoaded
    | StepDone
    | Evaluated
    | MemoryMeasured
    | AdapterSaved
    | StageDone
    | StageFailed
    | LogLine,
    Field(discriminator="kind"),
]
Report = Annotated[
    StageBound
    | StageLoaded
    | StepDone
    | Evaluated
    | MemoryMeasured
    | AdapterSaved
    | StageDone
    | StageFailed
    | LogLine
    | ExportFailed
    | ReferenceTrained
    | ReferenceFailed
    | Measured
    | LinkMeasured,
    Field(discriminator="kind"),
]


class Numbered(Told):
    """A report with its place in the fellow's own sequence."""

    sequence: Annotated[int, Field(ge=1)]
    report: Report


class ReportBatch(Told):
    """POSTed by a daemon; numbers rise within a batch."""

    protocol: Annotated[int, Field(ge=1)]
    fellow_id: FellowId
    reports: Annotated[list[Numbered], Field(max_length=500)]


class ReportsTaken(Model):
    """The leader's answer, after its commit."""

    committed: Count
    """Every report up to this number is stored; the daemon drops them from its spool."""
    refused: list[Count] = []
    """Numbers refused for good (a stale attempt, an unknown job): dropped as well, and counted."""


class JoinAsk(Model):
    """A machine asks to join with an invite. The credential is made by the fellow, never sent in
    clear.

    The same invite and credential again is the same join: a lost answer can be asked for again.
    """

    protocol: Annotated[int, Field(ge=1)]
    invite: Annotated[str, Field(min_length=16, max_length=200)]
    credential_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of the bearer token that the fellow will use from now on."""
    hostname: Annotated[str, Field(max_length=200)]
    version: Annotated[str, Field(max_length=64)]


class Joined(Model):
    """Welcome."""

    fellow_id: FellowId
    pool: str
    heartbeat_s: float
