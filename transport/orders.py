"""Leader -> fellow: what a machine should be doing now. Every number is resolved.

A question may say "auto" (transport.api.jobs.JobConfig); an answer cannot: no type here has it.
Orders are a desired state: a fellow may receive the same list any number of times.
"""

from typing import Annotated, Literal

from pydantic import Field

from transport.ids import Digest, FellowId, JobId
from transport.schema import Model

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]


class ModelSource(Model):
    """One exact set of checkpoint files."""

    model_id: str
    """As asked: "local:NAME" or "org/name"."""
    repository: str
    """Hub repository id; for a local model "local/NAME", served by the leader in the hub's URL
    shape.
    """
    revision: str
    """A commit hash (hub), or the digest of the folder's files (local). Never a branch."""
    from_leader: bool
    """Whether the files come from the leader's model store rather than from the model hub."""


class LoraSettings(Model):
    rank: Annotated[int, Field(ge=1, le=1024)]
    alpha: Annotated[float, Field(gt=0)]
    dropout: Annotated[float, Field(ge=0, lt=1)]
    target_modules: Annotated[list[str], Field(min_length=1)]
    """Module names inside a layer, e.g. "q_proj"; explicit for every family."""


class CompressionSettings(Model):
    """What crosses between two stages, the same both ways and at every boundary."""

    kind: Literal["none", "fixed_int8", "fixed_int4", "rotation", "learned"] = "none"
    """none: the layers' own numbers. fixed_int8, fixed_int4: codes with a scale a token.
    rotation: principal components of what crosses, `bits` a value on average, a scale a token.
    learned: `dim` trained values a token in 8-bit codes with a scale.
    """
    bits: Annotated[int, Field(ge=0, le=16)] = 0
    """Of a code (fixed, learned), or a value's average share of a token's bytes (rotation)."""
    dim: Count = 0
    """Values a token of a learned bottleneck; 0 for other kinds."""


class TrainSettings(Model):
    """How a job trains: the answer to a JobConfig. The same for every stage."""

    method: Literal["lora", "full", "boundary"]
    """boundary: the base is frozen, and only a learned bottleneck's projections train."""
    lora: LoraSettings | None
    """Set exactly when the method is "lora"."""
    dtype: Literal["float32", "bfloat16", "float16"]
    """Of frozen weights and of what crosses a boundary. Adapters and moments are float32."""
    steps: Positive
    seq_len: Annotated[int, Field(ge=2)]
    batch_size: Positive
    """Sequences a step."""
    micro_batches: Positive
    """Divides batch_size."""
    schedule: Literal["1f1b", "gpipe"]
    learning_rate: Annotated[float, Field(gt=0)]
    lr_schedule: Literal["constant", "cosine"]
    warmup_steps: Count
    max_grad_norm: Annotated[float, Field(ge=0)]
    """0 = no clip."""
    clip: Literal["pipeline", "stage"]
    recompute: bool
    early_recompute: Count = 0
    """Blocks of a stage that may be computed again while it waits for their gradient: the memory
    for so many is in the plan. Only with recompute.
    """
    seed: Count
    link_timeout_s: Annotated[float, Field(gt=0)]
    eval_every_steps: Count
    """0 = only before and after."""
    eval_sequences: Count
    """Held-out sequences of one evaluation; 0 = none."""
    backend: Literal["swarm", "gloo", "nccl"]
    loss_chunk_tokens: Positive
    """Tokens of logits that exist at once in the loss."""
    snapshot_every_steps: Count = 0
    """Each stage saves what it would need to go on, after so many steps; 0 = never."""
    quantization: Literal["none", "int8", "nf4"] = "none"
    """How the frozen projections are stored; they compute in dtype. nf4 has its scales quantized
    once more (double quantization). Only with method "lora".
    """
    compression: CompressionSettings = CompressionSettings()
    document_mask: bool = False
    """Documents that share a sequence do not see each other, and positions begin anew in each."""


class TokenFile(Model):
    """A tokenized dataset, named by its content; read from the leader by HTTP ranges.

    A safetensors file: tokens int32 [N], supervised uint8 [N], row_starts int64 [R + 1].
    """

    digest: Digest
    """SHA-256 of the whole file."""
    size_bytes: Positive
    layout: Literal["packed", "rows"]
    """packed: one stream cut into sequences of seq_len. rows: one row a sequence, cut at seq_len,
    padded right.
    """
    num_tokens: Positive
    num_rows: Positive
    train_sequences: Positive
    """At this job's seq_len. The held-out ones follow them in the file."""
    held_out_sequences: Count
    pad_token_id: Count


class CardShare(Model):
    """What one card of a stage holds, and the plan's price for it."""

    index: Annotated[int, Field(ge=0)]
    uuid: str
    first_layer: Count
    last_layer: int
    """Inclusive, global; first_layer - 1 when the card holds no layer."""
    planned_bytes: Count
    """Tensor bytes at the peak of training, by stage_runtime.costs."""
    budget_bytes: Positive
    """A CPU card's worker raises out-of-memory past it; on other cards it is what was free."""


class SavedStage(Model):
    """One stage's file of a saved step."""

    stage: Count
    first_layer: Count
    last_layer: Count
    digest: Digest
    """SHA-256 of the whole file."""
    size_bytes: Positive


class ResumeFrom(Model):
    """Go on after a saved step instead of from the start."""

    attempt: Positive
    """Which attempt saved it."""
    step: Positive
    files: Annotated[list[SavedStage], Field(min_length=1)]
    """Those that hold layers of this stage, whatever the split was then."""


class StageOrder(Model):
    """Run one stage of one attempt of a job."""

    job_id: JobId
    attempt: Positive
    """Fencing token: a worker, frame or report of a lower attempt is refused."""
    stage: Count
    num_stages: Positive
    first_layer: Count
    last_layer: Count
    """Inclusive, global."""
    num_layers: Positive
    """Of the whole model."""
    model: ModelSource
    settings: TrainSettings
    tokens: TokenFile
    cards: Annotated[list[CardShare], Field(min_length=1)]
    threads: Positive
    """OpenMP threads of the worker."""
    evaluate_base: bool
    """True at a job's first start."""
    plan_id: str
    resume: ResumeFrom | None = None
    """Where to go on; None = at step 1."""

    @property
    def is_first(self) -> bool:
        """Whether this stage embeds the tokens."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether this stage computes the loss."""
        return self.stage == self.num_stages - 1


class RelayRoute(Model):
    """One end's way to a boundary through a relay."""

    host: Annotated[str, Field(max_length=253)]
    """"" = the host under which the fellow reaches its leader."""
    port: Annotated[int, Field(ge=1, le=65535)]
    ticket: Annotated[str, Field(max_length=128, pattern=r"^[0-9a-f]+$")]
    """The host name to ask the relay for; good for this end of this boundary and attempt only."""


class Neighbour(Model):
    """How to reach, and recognise, the stage next to this one."""

    stage: Count
    fellow_id: FellowId
    public_key: Annotated[str, Field(min_length=40, max_length=40)]
    """CURVE, Z85. The only key that this stage's bound socket accepts."""
    endpoints: list[str]
    """Candidate ZeroMQ addresses of its bound socket, best first; empty when it dials us. One of a
    mesh interface begins with "mesh+".
    """
    relay: RelayRoute | None = None
    """How both meet when none of the addresses can be dialled; null when there is no relay."""


class Links(Model):
    """Sent once every stage of the attempt has bound its socket and said so."""

    previous: Neighbour | None
    """None for the first stage. It dials us."""
    next: Neighbour | None
    """None for the last stage. We dial it."""


class StageAssignment(Model):
    """One entry of a fellow's desired state: the stage it should run, and what is known of its
    neighbours.
    """

    order: StageOrder
    links: Links | None
    """None until all stages of the attempt have bound."""
    pause: bool = False
    """True: stop now, keep nothing running; the reason is in pause_reason."""
    pause_reason: str = ""


class LinkTest(Model):
    """Measure the link to another fellow; both ends are told of it."""

    name: Annotated[str, Field(max_length=100)]
    """The same at both ends."""
    peer: FellowId
    dials: bool
    """Whether this end dials the other, and reports the figures."""
    neighbour: Neighbour | None
    """The other end; None until both have told how they are reached."""


class MeasureOrder(Model):
    """Measure speeds; carried out once per token. The neighbours of its links may come later."""

    token: str
    cards: bool = True
    leader: bool = False
    """Also the way to the leader."""
    links: list[LinkTest] = []
    """Also these links, one after the other, before the cards."""


class ExportOrder(Model):
    """Make a whole checkpoint of a job's result and bring it to the leader; carried out once."""

    export_id: Annotated[str, Field(pattern=r"^x-[a-z2-9]{8}$")]
    job_id: JobId
    model: ModelSource
    """The base. Its weights are read as they are on disk, never from quantized codes."""
    kind: Literal["adapter", "weights"]
    """adapter: add it to the base. weights: every weight was trained, the base gives the rest."""
    trained_sha256: Digest
    trained_bytes: Positive
    scale: Annotated[float, Field(gt=0)]
    """Of the adapters: alpha / rank."""
    transposed: bool
    """The base keeps its projections as (inputs, outputs)."""
    dtype: Literal["float32", "bfloat16", "float16"] | None
    """Of all weights; None: an adapter's as the base has them, trained ones in float32."""


class ExportStart(Model):
    """The line an export's process reads on its stdin, whose end ends it."""

    kind: Literal["export"] = "export"
    order: ExportOrder
    leader_url: str
    leader_token: str
    leader_pin: str | None
    cache_folder: str
    work_folder: str
    """Its own; emptied before it starts."""


class ReferenceOrder(Model):
    """Train a verification's probe in one process, without stages; carried out once."""

    verify_id: Annotated[str, Field(pattern=r"^v-[a-z2-9]{8}$")]
    job_id: JobId
    """The probe that the stages trained."""
    model: ModelSource
    settings: TrainSettings
    """The probe's. Schedule, recompute, compression and clip play no part in one process."""
    tokens: TokenFile
    card: CardShare
    """All layers; planned_bytes is an estimate."""
    threads: Positive


class ReferenceStart(Model):
    """The line a reference's process reads on its stdin, whose end ends it."""

    kind: Literal["reference"] = "reference"
    order: ReferenceOrder
    leader_url: str
    leader_token: str
    leader_pin: str | None
    cache_folder: str


class DesiredState(Model):
    """All that a fellow should be doing. What is not here must not run."""

    protocol: Positive
    revision: Count
    """Grows with every change of this fellow's orders; the cursor of the held request."""
    stages: list[StageAssignment]
    measure: MeasureOrder | None
    export: ExportOrder | None = None
    reference: ReferenceOrder | None = None
    reports_committed: Count
    """The highest report sequence number of this fellow that is stored for good."""


class WorkerStart(Model):
    """The first line a stage worker reads on its channel."""

    kind: Literal["start"] = "start"
    order: StageOrder
    leader_url: str
    """For model and token files; "" when both are already in the cache folder."""
    leader_token: str
    """The fellow's own bearer token. Never in argv or the environment."""
    leader_pin: str | None
    """SHA-256 (hex) of the leader's public key when it serves its own certificate."""
    cache_folder: str
    """Model files (hub layout) and token files live below it."""
    work_folder: str
    """The worker's own; emptied before it starts."""
    listen_address: str
    """IP address that its socket binds."""
    more_addresses: list[str] = []
    """Others that it binds where it can; one of a mesh interface begins with "mesh+"."""
    listen_port: int = 0
    """0 = a free one. Another: the one that a router or proxy passes on."""
    announced: list[str] = []
    """What neighbours are told to dial instead of the above."""


class WorkerLinks(Model):
    """Sent once all stages of the attempt have bound."""

    kind: Literal["links"] = "links"
    links: Links


class WorkerPause(Model):
    """Stop at once."""

    kind: Literal["pause"] = "pause"
    reason: str


WorkerLine = Annotated[WorkerStart | WorkerLinks | WorkerPause, Field(discriminator="kind")]
"""Daemon -> worker, one JSON object a line. The worker answers with one StageReport a line.
The end of the channel means that the daemon is gone: the worker exits."""
