"""Handlers: verifications of jobs."""

from control.operations.call import Call, handles
from control.operations.jobs import need_job
from control.operations.office import Office
from transport.api.verify import JOBS_VERIFY, JobsVerify, VerifyView


@handles(JOBS_VERIFY)
async def jobs_verify(leader: Office, call: Call, ask: JobsVerify) -> VerifyView:
    """Begin, or tell how far it is; then wait as long as is asked."""
    job = await need_job(leader, call, ask.job_id)
    view = await leader.verifications.ask(job, call.commit, again=ask.again)
    if ask.timeout_s:
        return await leader.verifications.wait(ask.job_id, ask.timeout_s)
    return view
