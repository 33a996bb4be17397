"""How the stages of jobs reach each other, as their fellows last told; in memory only."""

from collections import OrderedDict

from transport.cards import Heartbeat, LinkStatus

JOBS_KEPT = 256


class LinkBoard:
    """The newest word on every link of the newest attempt of each job."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, tuple[int, dict[tuple[int, int], LinkStatus]]] = OrderedDict()

    def note(self, beat: Heartbeat) -> None:
        """Take what a (cleaned) heartbeat says."""
        for stage in beat.stages:
            if not stage.links:
                continue
            attempt, links = self._jobs.get(stage.job_id, (0, {}))
            if stage.attempt < attempt:
                continue
            if stage.attempt > attempt:
                links = {}
            links |= {(stage.stage, link.neighbour): link for link in stage.links}
            self._jobs[stage.job_id] = (stage.attempt, links)
            self._jobs.move_to_end(stage.job_id)
        while len(self._jobs) > JOBS_KEPT:
            self._jobs.popitem(last=False)

    def of(self, job_id: str, attempt: int, stage: int, neighbour: int) -> LinkStatus | None:
        """What a stage told of its link to a neighbour; None when nothing is known."""
        known, links = self._jobs.get(job_id, (0, {}))
        return links.get((stage, neighbour)) if known == attempt else None
