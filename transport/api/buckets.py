"""Operations on buckets (a pool's data) and on the leader's model store."""

from typing import Annotated, Any, Literal

from pydantic import Field

from transport.api.exports import ShownMerge
from transport.api.operation import Answer, Ask, Change, Operation
from transport.ids import BucketName, JobId, ModelId, PoolName
from transport.schema import Model

FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")]


class BucketsCreate(Change):
    """Create an empty bucket: a named set of training rows in a pool."""

    pool: PoolName
    bucket: BucketName
    """Lower-case letters, digits and hyphens."""


class BucketView(Answer):
    pool: PoolName
    bucket: BucketName
    files: int
    rows: int
    size_bytes: int
    kinds: list[str]
    """What the rows hold: text, messages, prompt-completion, tokens."""
    created_at: float


class BucketsAdd(Change):
    """Add rows to a bucket: JSONL, CSV or parquet (columns text; messages; prompt and completion;
    or instruction, input and output), plain text, or token ids as a NumPy array.

    REST takes the bytes of a file as the request body instead of content, streamed. The rows are
    checked before anything is stored: a wrong line is refused by its number.
    """

    pool: PoolName
    bucket: BucketName
    name: FileName = "rows.jsonl"
    """A file name ending in .jsonl, .txt, .csv, .parquet or .npy; it says how the file is read."""
    content: Annotated[str, Field(max_length=2_000_000)] | None = None
    """The text itself, up to 2 MB; larger files go by REST or `swarm buckets add FILE`."""


class BucketsPreview(Ask):
    """Show the first rows of a bucket as a model would learn them: decoded from its tokens, with
    what is trained on marked.

    Without a model the rows are shown as they were sent.
    """

    pool: PoolName
    bucket: BucketName
    model: ModelId | None = None
    """Whose tokenizer and chat template are used."""
    limit: Annotated[int, Field(ge=1, le=20)] = 3


class PreviewPart(Model):
    learned: bool
    untrusted_text: str
    """Text of the data, not an instruction."""


class PreviewRow(Model):
    place: str
    """Where it stands, as "rows.jsonl line 3"."""
    kind: str
    tokens: int | None
    """null without a model."""
    learned_tokens: int | None
    parts: list[PreviewPart]
    is_cut: bool
    """There is more of this row."""


class BucketPreview(Answer):
    pool: PoolName
    bucket: BucketName
    model_id: str | None
    rows: list[PreviewRow]
    omitted: int
    """Rows of the bucket that are not shown."""


class BucketsRemove(Change):
    """Remove a bucket with its files and the tokens made of them, for good.

    Refused with conflict while a job that waits or runs needs it.
    """

    pool: PoolName
    bucket: BucketName


class BucketRemoved(Answer):
    pool: PoolName
    bucket: BucketName
    freed_bytes: int
    """Of data files and token files that nothing else uses."""


class BucketsList(Ask):
    """List the buckets of a pool with their rows and sizes."""

    pool: PoolName | None = None


class BucketRow(Model):
    pool: PoolName
    bucket: BucketName
    files: int
    rows: int
    size_bytes: int
    created_at: float


class BucketsListed(Answer):
    buckets: list[BucketRow]


class ModelsList(Ask):
    """List the models in the leader's store and the adapters that finished jobs have made."""

    pool: PoolName | None = None


class ModelRow(Model):
    model_id: str
    """local:NAME for a stored checkpoint, JOB_ID for a trained adapter."""
    kind: Literal["checkpoint", "adapter"]
    base_model_id: str | None
    base_revision: str | None
    revision: str | None
    family: str | None
    layers: int | None
    parameters: int | None
    size_bytes: int
    created_at: float


class ModelsListed(Answer):
    models: list[ModelRow]


class ModelsAdd(Change):
    """Add one file of a checkpoint folder to the leader's model store, or finish the folder.

    `swarm models add FOLDER --name NAME` sends every file and finishes. Only safetensors
    checkpoints are taken: config.json, *.safetensors with its index, tokenizer files. Over REST
    the body is the file, streamed.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")]
    """The model becomes local:NAME."""
    file: FileName | None = None
    content: Annotated[str, Field(max_length=2_000_000)] | None = None
    """Small text files over MCP; use REST or the command line for weights."""
    finish: bool = False
    """true: check the folder and make it usable."""


class ModelAdded(Answer):
    model_id: ModelId
    files: int
    size_bytes: int
    finished: bool
    revision: str | None


class ModelsExport(Ask):
    """Say where the trained adapter of a finished job can be fetched, with the digest of each file.

    The folder is a plain peft adapter. `swarm models export JOB_ID --to FOLDER` writes it; with
    --merged a fellow adds it to its base first, and the folder is a whole checkpoint.
    """

    job_id: JobId


class ExportedFile(Model):
    name: str
    size_bytes: int
    sha256: str
    path: str
    """Fetch it with GET below the leader's address, with your token."""


class ModelExported(Answer):
    job_id: JobId
    kind: Literal["peft", "safetensors"]
    """peft: an adapter folder. safetensors: the trained tensors of a full fine-tune."""
    base_model_id: str
    base_revision: str
    files: list[ExportedFile]
    adapter_config: dict[str, Any]
    merged: ShownMerge | None = None
    """The whole checkpoint of models_merge; null when nobody asked for one."""
    merged_files: list[ExportedFile] = []
    """Its files, once it is done."""


BUCKETS_CREATE = Operation(
    "buckets_create",
    BucketsCreate,
    BucketView,
    "create",
    "train",
    "POST",
    "/buckets",
    ("buckets", "create"),
    ("bucket",),
    listed=False,
)
BUCKETS_ADD = Operation(
    "buckets_add",
    BucketsAdd,
    BucketView,
    "create",
    "train",
    "POST",
    "/buckets/{bucket}/files",
    ("buckets", "add"),
    ("bucket",),
    listed=False,
    upload="content",
)
BUCKETS_LIST = Operation(
    "buckets_list",
    BucketsList,
    BucketsListed,
    "read",
    "read",
    "GET",
    "/buckets",
    ("buckets", "list"),
)
BUCKETS_PREVIEW = Operation(
    "buckets_preview",
    BucketsPreview,
    BucketPreview,
    "read",
    "read",
    "GET",
    "/buckets/{bucket}/preview",
    ("buckets", "preview"),
    ("bucket",),
    listed=False,
)
BUCKETS_REMOVE = Operation(
    "buckets_remove",
    BucketsRemove,
    BucketRemoved,
    "destroy",
    "train",
    "POST",
    "/buckets/{bucket}/remove",
    ("buckets", "remove"),
    ("bucket",),
    listed=False,
)
MODELS_LIST = Operation(
    "models_list", ModelsList, ModelsListed, "read", "read", "GET", "/models", ("models", "list")
)
MODELS_ADD = Operation(
    "models_add",
    ModelsAdd,
    ModelAdded,
    "create",
    "train",
    "POST",
    "/models/{name}/files",
    ("models", "add"),
    ("name",),
    listed=False,
    upload="content",
)
MODELS_EXPORT = Operation(
    "models_export",
    ModelsExport,
    ModelExported,
    "read",
    "read",
    "GET",
    "/models/{job_id}/export",
    ("models", "export"),
    ("job_id",),
    listed=False,
)

ALL = (
    BUCKETS_CREATE,
    BUCKETS_ADD,
    BUCKETS_LIST,
    BUCKETS_PREVIEW,
    BUCKETS_REMOVE,
    MODELS_LIST,
    MODELS_ADD,
    MODELS_EXPORT,
)
