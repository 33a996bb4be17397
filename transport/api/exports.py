"""Operations on whole checkpoints of jobs' results: merged by a fellow, fetched from the leader."""

from typing import Annotated, Literal

from pydantic import Field

from transport.api.operation import Answer, Change, Operation
from transport.ids import FellowId, JobId
from transport.schema import Model

ExportDtype = Literal["float32", "bfloat16", "float16"]


class ModelsMerge(Change):
    """Have a fellow make one whole checkpoint of a finished job: its adapter added to the base.

    Fetch it with models_export when its state is done. Asked again it tells how far it is.
    """

    job_id: JobId
    dtype: ExportDtype | None = None
    """Number format of all weights. Unset: as the base has them."""


class ShownMerge(Model):
    """A whole checkpoint that is made, or lies ready."""

    state: Literal["waiting", "running", "done", "failed"]
    dtype: ExportDtype | None
    reason: str
    """Why it waits; "" otherwise."""
    untrusted_error: str | None
    """Why it failed, as the fellow told it."""
    fellow_id: FellowId | None
    received_bytes: Annotated[int, Field(ge=0)]
    base_license: str | None
    """As the base's own card says; null when unknown."""
    asked_at: float
    ended_at: float | None


class MergeView(Answer):
    job_id: JobId
    merged: ShownMerge


MODELS_MERGE = Operation(
    "models_merge",
    ModelsMerge,
    MergeView,
    "create",
    "train",
    "POST",
    "/models/{job_id}/merge",
    ("models", "merge"),
    ("job_id",),
    listed=False,
)
ALL = (MODELS_MERGE,)
