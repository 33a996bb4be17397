"""Handlers: buckets, the model store, and the results of finished jobs."""

import asyncio
from collections.abc import AsyncIterator

from control.datasets import bucket_removal
from control.datasets import buckets as shown
from control.datasets.model_store import read_json
from control.jobs.exports import view_of
from control.operations.call import Call, handles
from control.operations.jobs import need_job
from control.operations.office import Office
from control.store import buckets, jobs, pools
from control.store.buckets import StoredModel
from control.store.database import Tx
from control.store.jobs import Job
from transport.api.buckets import (
    BUCKETS_ADD,
    BUCKETS_CREATE,
    BUCKETS_LIST,
    BUCKETS_PREVIEW,
    BUCKETS_REMOVE,
    MODELS_ADD,
    MODELS_EXPORT,
    MODELS_LIST,
    BucketPreview,
    BucketRemoved,
    BucketsAdd,
    BucketsCreate,
    BucketsList,
    BucketsListed,
    BucketsPreview,
    BucketsRemove,
    BucketView,
    ExportedFile,
    ModelAdded,
    ModelExported,
    ModelRow,
    ModelsAdd,
    ModelsExport,
    ModelsList,
    ModelsListed,
    PreviewPart,
    PreviewRow,
)
from transport.api.operation import Next
from transport.errors import SwarmError
from transport.units import human_bytes


@handles(BUCKETS_CREATE)
async def buckets_create(leader: Office, call: Call, ask: BucketsCreate) -> BucketView:
    """Make an empty bucket."""
    view = await call.commit(lambda tx: leader.buckets.create(tx, ask.pool, ask.bucket))
    leader.events.publish("buckets", ask.pool, "created")
    return view


@handles(BUCKETS_ADD)
async def buckets_add(leader: Office, call: Call, ask: BucketsAdd) -> BucketView:
    """Take a data file: checked row by row, then stored."""
    await leader.database.read(lambda tx: shown.need(tx, ask.pool, ask.bucket))
    chunks = _bytes(call, ask.content)
    async with leader.buckets.receiving(ask.pool, ask.name, chunks, leader.database) as received:
        call.with_upload_digest(received.file.sha256)
        view = await call.commit(lambda tx: leader.buckets.add(tx, ask.pool, ask.bucket, received))
    leader.events.publish("buckets", ask.pool, "added")
    leader.registry.heard.set()
    return view


@handles(BUCKETS_LIST)
async def buckets_list(leader: Office, call: Call, ask: BucketsList) -> BucketsListed:
    """The buckets of a pool, or of all that the caller sees."""
    every = await leader.database.read(shown.rows)
    rows = [row for row in every if (row.pool == ask.pool if ask.pool else call.sees(row.pool))]
    count = sum(row.rows for row in rows)
    return BucketsListed(
        summary=f"{len(rows)} buckets with {count} rows." if rows else "No buckets yet.",
        buckets=rows,
    )


@handles(BUCKETS_PREVIEW)
async def buckets_preview(leader: Office, call: Call, ask: BucketsPreview) -> BucketPreview:
    """The first rows as they are learned."""
    await leader.database.read(lambda tx: shown.need(tx, ask.pool, ask.bucket))
    files = await leader.database.read(lambda tx: buckets.files(tx, ask.pool, ask.bucket))
    folder = None if ask.model is None else (await leader.planner.tokenizer(ask.model)).folder
    told = await leader.buckets.preview(
        {
            "files": [
                {"path": str(leader.buckets.path(file.sha256)), "name": file.name} for file in files
            ],
            "tokenizer": None if folder is None else str(folder),
            "limit": ask.limit,
        }
    )
    rows = [
        PreviewRow(**{**row, "parts": [PreviewPart(**part) for part in row["parts"]]})
        for row in told["rows"]
    ]
    total = sum(file.num_rows for file in files)
    how = f"as {ask.model} learns them" if ask.model else "as they were sent"
    return BucketPreview(
        summary=f"{len(rows)} of {total:,} rows of bucket {ask.bucket}, {how}.",
        pool=ask.pool,
        bucket=ask.bucket,
        model_id=ask.model,
        rows=rows,
        omitted=max(0, total - len(rows)),
    )


@handles(BUCKETS_REMOVE)
async def buckets_remove(leader: Office, call: Call, ask: BucketsRemove) -> BucketRemoved:
    """Remove a bucket, then the files that nothing else uses."""
    removed: list[bucket_removal.Removed] = []

    def change(tx: Tx) -> BucketRemoved:
        one = bucket_removal.remove(tx, ask.pool, ask.bucket)
        removed.append(one)
        leader.buckets.set_aside(one.files)
        return BucketRemoved(
            summary=f"Bucket {ask.bucket} is gone; {human_bytes(one.freed_bytes)} are free again.",
            pool=ask.pool,
            bucket=ask.bucket,
            freed_bytes=one.freed_bytes,
        )

    # No upload may bring the same bytes in between the commit and the deletion.
    async with leader.buckets.settling:
        try:
            answer = await call.commit(change)
        except BaseException:
            for one in removed:
                leader.buckets.bring_back(one.files)
            raise
        for one in removed:
            await asyncio.to_thread(leader.buckets.forget, one.files)
            await asyncio.to_thread(leader.tokens.forget, one.token_files)
    leader.events.publish("buckets", ask.pool, "removed")
    return answer


@handles(MODELS_LIST)
async def models_list(leader: Office, call: Call, ask: ModelsList) -> ModelsListed:
    """Stored checkpoints, and the adapters of the caller's pools."""

    def read(tx: Tx) -> list[ModelRow]:
        seen = [p.pool for p in pools.every(tx) if call.sees(p.pool)]
        wanted = [ask.pool] if ask.pool else seen
        trained = [_adapter_row(job) for job in jobs.with_adapter(tx, wanted)]
        return [_checkpoint_row(model) for model in buckets.models(tx)] + trained

    rows = await leader.database.read(read)
    trained = sum(row.kind == "adapter" for row in rows)
    return ModelsListed(
        summary=f"{len(rows) - trained} checkpoints and {trained} trained adapters.", models=rows
    )


def _checkpoint_row(model: StoredModel) -> ModelRow:
    return ModelRow(
        model_id=f"local:{model.name}",
        kind="checkpoint",
        base_model_id=None,
        base_revision=None,
        revision=model.revision,
        family=model.told.get("family"),
        layers=model.told.get("layers"),
        parameters=model.told.get("parameters"),
        size_bytes=model.size_bytes,
        created_at=model.created_at,
    )


def _adapter_row(job: Job) -> ModelRow:
    files = job.adapter or {}
    return ModelRow(
        model_id=job.job_id,
        kind="adapter",
        base_model_id=job.model_id,
        base_revision=job.revision,
        revision=None,
        family=None,
        layers=None,
        parameters=None,
        size_bytes=sum(int(file["size_bytes"]) for file in files.values()),
        created_at=job.ended_at or job.created_at,
    )


@handles(MODELS_ADD)
async def models_add(leader: Office, call: Call, ask: ModelsAdd) -> ModelAdded:
    """Take one file of a model, or check the folder and make it usable."""
    if ask.file is None and not ask.finish:
        raise SwarmError(
            "invalid-input",
            "/file: is missing",
            hint="name a file and send its bytes, or set finish to true",
        )
    if ask.file is not None:
        received = await leader.models.receive(ask.name, ask.file, _bytes(call, ask.content))
        call.with_upload_digest(received.sha256)
    if not ask.finish:
        count, size = await asyncio.to_thread(leader.models.added, ask.name)
        return await call.commit(lambda _: _added(ask.name, count, size))
    model = await leader.models.finish(ask.name, await leader.models.check(ask.name))

    def change(tx: Tx) -> ModelAdded:
        leader.models.store(tx, model)
        return _finished(model)

    answer = await call.commit(change)
    leader.events.publish("models", "", "added")
    return answer


def _added(name: str, count: int, size: int) -> ModelAdded:
    finish = Next(
        operation="models_add",
        arguments={"name": name, "finish": True},
        why="check the folder when all its files are here",
    )
    return ModelAdded(
        summary=f"local:{name} has {count} files so far.",
        next=[finish],
        model_id=f"local:{name}",
        files=count,
        size_bytes=size,
        finished=False,
        revision=None,
    )


def _finished(model: StoredModel) -> ModelAdded:
    return ModelAdded(
        summary=f"local:{model.name} can be trained: {model.told['family']}, "
        f"{model.told['layers']} layers, {model.told['parameters']} parameters.",
        model_id=f"local:{model.name}",
        files=len(model.files),
        size_bytes=model.size_bytes,
        finished=True,
        revision=model.revision,
    )


@handles(MODELS_EXPORT)
async def models_export(leader: Office, call: Call, ask: ModelsExport) -> ModelExported:
    """Where the result of a job can be fetched."""
    job = await need_job(leader, call, ask.job_id)
    if job.adapter is None:
        raise SwarmError(
            "conflict",
            f"job {job.job_id} is {job.state} and has no adapter"
            + (" yet" if job.state in ("pending", "starting", "running") else ""),
            hint="wait for it with jobs_wait" if job.ended_at is None else "train it again",
        )
    is_peft = "adapter_config.json" in job.adapter
    path = leader.results.result(job.job_id) / "adapter_config.json"
    config = await asyncio.to_thread(read_json, path, {}) if is_peft else {}
    files = [
        ExportedFile(
            name=name,
            size_bytes=int(file["size_bytes"]),
            sha256=str(file["sha256"]),
            path=f"/api/v1/jobs/{job.job_id}/adapter/{name}",
        )
        for name, file in sorted(job.adapter.items())
    ]
    export = await leader.exports.of_job(job.job_id)
    received = await leader.exports.received_bytes(export) if export is not None else 0
    done = export.files if export is not None and export.state == "done" else {}
    return ModelExported(
        summary=f"The result of {job.job_id} has {len(files)} files. "
        f"`swarm models export {job.job_id} --to FOLDER` writes them.",
        merged=view_of(export, received).merged if export is not None else None,
        merged_files=[
            ExportedFile(
                name=name,
                size_bytes=int(file["size_bytes"]),
                sha256=str(file["sha256"]),
                path=f"/api/v1/jobs/{job.job_id}/merged/{name}",
            )
            for name, file in sorted(done.items())
        ],
        job_id=job.job_id,
        kind="peft" if is_peft else "safetensors",
        base_model_id=job.model_id,
        base_revision=job.revision or "",
        files=files,
        adapter_config=config,
    )


async def _bytes(call: Call, content: str | None) -> AsyncIterator[bytes]:
    """The bytes sent: streamed, or the text of the argument."""
    if call.upload is not None:
        async for chunk in call.upload:
            yield chunk
    elif content is not None:
        yield content.encode("utf-8", "surrogatepass")
    else:
        raise SwarmError(
            "invalid-input",
            "/content: is missing",
            hint="send the text in content, or over REST the bytes as the request body",
        )
