"""What a job would do without one of its fellows, in one line for people."""

from agents.log_lines import clean
from transport.api.jobs import IfLost, JobView
from transport.units import count_of, human_seconds


def if_lost_text(job: JobView, ready: IfLost) -> str:
    """The fellow, and who goes on in its place or what the job waits for."""
    without, why = f"without {ready.fellow_id}", f" ({clean(ready.why, 200)})" if ready.why else ""
    if ready.then == "standby":
        there = {stage.fellow_id for stage in job.stages}
        taker = next((one for one in ready.fellows if one not in there), "another fellow")
        return f"{without}: {taker} takes its stage"
    if ready.then == "split":
        when = f"after {human_seconds(ready.after_s)} " if ready.after_s else ""
        over = count_of(len(ready.fellows), "fellow")
        return f"{without}: {when}split again over {over}"
    if ready.then == "wait":
        limit = human_seconds(job.config.train.recovery_wait_s)
        return f"{without}: waits up to {limit} for it or a standby{why}"
    return f"{without}: {'fails' if ready.then == 'fail' else 'not planned'}{why}"
