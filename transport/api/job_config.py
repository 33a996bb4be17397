"""What a person or an agent asks for: the job file, version 1. "auto" is allowed here and nowhere
later.

Names are those of the published schema (`swarm schema job`). A number that is set is never
changed.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from transport.ids import BucketName, CardId, DatasetId, ModelId, PlanId, PoolName
from transport.schema import Model

Auto = Literal["auto"]


class LoraConfig(Model):
    rank: Annotated[int, Field(ge=1, le=256)] = 8
    """Width of each adapter."""
    alpha: Annotated[float, Field(gt=0, le=1024)] = 16.0
    """The adapter's output is scaled by alpha / rank."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    mlp: bool | None = None
    """Adapters on the feed-forward layers as well. Unset: attention only."""
    target_modules: (
        Annotated[list[Annotated[str, Field(max_length=64)]], Field(min_length=1, max_length=32)]
        | None
    ) = None
    """Exact module names inside a layer; overrides mlp. Unset: the attention projections."""


class QuantizationConfig(Model):
    bits: Literal[4, 8]


class ModelConfig(Model):
    id: ModelId
    """A hub id (org/name, optionally @revision) or local:NAME from the leader's model store."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of the frozen weights and of what crosses between stages. auto: what every
    placed card runs.
    """
    quantization: Auto | Literal["none"] | QuantizationConfig = "auto"
    lora: LoraConfig = LoraConfig()


class HeldOutConfig(Model):
    """Which part of the data is kept for evaluation and never trained on."""

    by: Literal["tail", "random", "group"] = "tail"
    """tail: the end of the data. random: rows drawn by seed. group: whole groups of rows, so that
    no value of `column` stands on both sides.
    """
    share: Annotated[float, Field(gt=0, le=0.5)] | None = None
    """Of the rows. Unset, without rows: 5 %, at most 64 sequences (tail) or rows."""
    rows: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    column: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """Only with by = group."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0

    @model_validator(mode="after")
    def _consistent(self) -> "HeldOutConfig":
        if self.share is not None and self.rows is not None:
            raise ValueError("share and rows exclude each other")
        if (self.by == "group") != (self.column is not None):
            raise ValueError("column goes with by = group, and group needs it")
        return self


class DataConfig(Model):
    """Where the training rows come from: one of bucket, files, dataset; none is WikiText."""

    bucket: BucketName | None = None
    """A bucket of the pool. Its rows are trained on."""
    files: (
        Annotated[list[Annotated[str, Field(max_length=1024)]], Field(min_length=1, max_length=64)]
        | None
    ) = None
    """Local files (.jsonl, .txt, .csv, .parquet, .npy). The command line uploads them as a bucket
    first; a path never reaches the leader.
    """
    dataset: DatasetId | None = None
    """A hub data set, org/name or org/name@revision; the leader downloads it once."""
    subset: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")] | None = None
    """Of the data set: its folder or configuration, where it has several."""
    split: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = "train"
    held_out: HeldOutConfig = HeldOutConfig()

    @model_validator(mode="after")
    def _one_source(self) -> "DataConfig":
        named = [name for name in ("bucket", "files", "dataset") if getattr(self, name) is not None]
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)} exclude each other: name one")
        if self.subset is not None and self.dataset is None:
            raise ValueError("subset goes with dataset")
        return self


class TrainConfig(Model):
    steps: Annotated[int, Field(ge=1, le=10_000_000)]
    """Optimizer updates. More steps than the data has batches go over the data again."""
    seq_len: Annotated[int, Field(ge=8, le=131_072)] = 128
    """Tokens per sequence."""
    batch_size: Auto | Annotated[int, Field(ge=1, le=4096)] = "auto"
    """Sequences per step. auto: the largest of 32, 16, 8, 4, 2, 1 that fits every placed card."""
    micro_batches: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Parts of a batch that overlap across the stages; divides batch_size. Unset: the largest
    divisor up to twice the fellows.
    """
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    learning_rate: Auto | Annotated[float, Field(gt=0, le=1)] = "auto"
    lr_schedule: Literal["constant", "cosine"] | None = None
    """Unset: cosine with an automatic learning_rate, constant with a number."""
    warmup_steps: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    """Unset: 5 % of the steps, at most 100, with an automatic learning_rate; else 0."""
    recompute: bool | None = None
    """Keep only each block's input and run the block again in backward. Unset: on only when the
    job fits only with it.
    """
    document_mask: bool = False
    """Documents that share a sequence do not see each other."""
    max_grad_norm: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    """Gradients are clipped to this norm; 0 turns it off."""
    clip: Literal["pipeline", "stage"] = "pipeline"
    """pipeline: by the norm over all stages. stage: each stage by its own."""
    link_timeout_s: Annotated[float, Field(ge=1, le=86_400)] = 600.0
    """How long a stage waits for a neighbour before it gives the job up."""
    snapshot_every_steps: Annotated[int, Field(ge=0)] = 50
    eval_every_steps: Annotated[int, Field(ge=0)] = 0
    """Held-out evaluation during the run; 0 = only before and after."""
    eval_sequences: Annotated[int, Field(ge=0, le=4096)] = 64
    """At most this many held-out sequences in an evaluation; 0 = no evaluation."""
    on_node_loss: Literal["wait", "resplit", "fail"] = "wait"
    recovery_wait_s: Annotated[float, Field(ge=0)] = 600.0
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    backend: Literal["swarm", "gloo", "nccl"] = "swarm"


class CompressionConfig(Model):
    kind: Literal["none", "learned", "fixed_int8", "fixed_int4", "rotation"] = "none"
    """What crosses between stages. rotation: principal components. learned: trained along."""
    bottleneck_dim: Auto | Annotated[int, Field(ge=1)] | None = None
    """Values a token of learned. Unset or auto: half the hidden width."""
    bits: Annotated[int, Field(ge=2, le=16)] | None = None
    """A value of rotation, on average. Unset: 4, a quarter of float16."""


class JobConfig(Model):
    """A training run, as asked for. The only keys needed are model.id and train.steps."""

    version: Literal[1] = 1
    name: Annotated[str, Field(max_length=100)] = ""
    """Free text of your own."""
    model: ModelConfig
    method: Literal["lora", "full", "boundary"] = "lora"
    data: DataConfig = DataConfig()
    train: TrainConfig
    compression: CompressionConfig = CompressionConfig()
    min_workers: Annotated[int, Field(ge=1, le=64)] = 1
    """Wait until at least this many fellows can take a stage."""
    max_workers: Annotated[int, Field(ge=1, le=64)] | None = None
    """Use no more fellows than this."""
    use_all_workers: bool = True
    """Take every ready fellow with enough free memory (up to 16). false: only min_workers."""
    partition: Literal["weighted", "equal"] = "weighted"
    """weighted: layers by free memory. equal: the same number of layers each."""
    layer_index: Annotated[list[Annotated[int, Field(ge=1)]], Field(max_length=63)] | None = None
    """Pins the boundaries: the first layer of each stage after the first."""
    exclude_cards: Annotated[list[CardId], Field(max_length=256)] = []
    """Cards to leave out, as fellow_id:index."""
    maximize: Literal["seq_len"] | None = None
    """Search the longest sequence that places and fits now."""
    memory_check: bool = True
    """false: skip the memory and disk refusals; the plan keeps both numbers, marked unchecked."""

    @model_validator(mode="after")
    def _consistent(self) -> "JobConfig":
        if self.max_workers is not None and self.max_workers < self.min_workers:
            raise ValueError(
                f"max_workers {self.max_workers} is below min_workers {self.min_workers}"
            )
        batch, parts = self.train.batch_size, self.train.micro_batches
        if isinstance(batch, int) and parts is not None and batch % parts:
            raise ValueError(
                f"train.micro_batches {parts} does not divide train.batch_size {batch}"
            )
        if self.layer_index is not None and sorted(set(self.layer_index)) != self.layer_index:
            raise ValueError("layer_index must rise from one boundary to the next")
        return self


class PinnedPool(Model):
    """Where a plan or a job belongs."""

    pool: PoolName
    plan_id: PlanId | None = None
