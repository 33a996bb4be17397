"""Handlers: whole checkpoints made of jobs' results."""

from control.operations.call import Call, handles
from control.operations.jobs import need_job
from control.operations.office import Office
from transport.api.exports import MODELS_MERGE, MergeView, ModelsMerge


@handles(MODELS_MERGE)
async def models_merge(leader: Office, call: Call, ask: ModelsMerge) -> MergeView:
    """Begin, or tell how far it is."""
    job = await need_job(leader, call, ask.job_id)
    return await leader.exports.ask(job, ask.dtype, call.commit)
