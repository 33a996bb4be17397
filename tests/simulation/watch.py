"""What must hold in every world, whatever happens in it; each break names the moment.

one live attempt       the leader orders at most one attempt of a job, one stage a fellow
accepted only grows    what a machine was told is stored, and what an agent was told is accepted,
                       is there in every later life of the leader
no order lost          with everything up again, each machine runs what the leader wants
sent = acknowledged + refused
saved step monotone    a job's saved step never falls; what is read back is what was saved
quota exact            an owner is charged what lies on the disk, byte for byte
exact                  a completed job has every step of every stage once, with the loss of an
                       undisturbed run, and its adapter
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agents.fellow.reconcile import Key
from control.store import fellows, jobs, records, stages, storage
from control.store.database import Tx
from tests.leader_twins import POOL
from tests.saved_files import tensor_of, tensors_in
from tests.simulation.pipeline import loss_of, model_after
from transport.orders import StageOrder

if TYPE_CHECKING:
    from tests.simulation.world import World


class Broken(AssertionError):
    """An invariant does not hold."""


@dataclass
class Watch:
    """Sees everything in one world."""

    world: "World"
    told: list[str] = field(default_factory=list)
    """Every event in its order: the world's trace."""
    counts: dict[str, int] = field(default_factory=dict)
    _acknowledged: dict[str, int] = field(default_factory=dict)
    _accepted: dict[str, int] = field(default_factory=dict)
    _saved: dict[str, int] = field(default_factory=dict)
    _stepped: dict[Key, int] = field(default_factory=dict)

    def note(self, what: str, **values: Any) -> None:
        """Write an event into the trace."""
        at = self.world.clock.monotonic()
        self.told.append(f"{at:.6f} {what} " + " ".join(f"{k}={v}" for k, v in values.items()))
        self.counts[what] = self.counts.get(what, 0) + 1

    def broken(self, what: str) -> Broken:
        """The error of a broken invariant."""
        return Broken(f"{what} (at {self.world.clock.monotonic():.3f} s of seed {self.world.seed})")

    # --- as it happens -----------------------------------------------------------------------

    def began(self) -> None:
        """A life of the leader began."""
        self.note("leader", life=self.world.lives)

    def accepted(self, job_id: str) -> None:
        """The leader said that it has a job."""
        self._accepted[job_id] = 0
        self.note("accepted", job=job_id)

    def acknowledged(self, fellow_id: str, number: int) -> None:
        """The leader told a machine up to which report it has all. Answers overtake each other."""
        if number > self._acknowledged.get(fellow_id, 0):
            self._acknowledged[fellow_id] = number
            self.note("acknowledged", fellow=fellow_id, number=number)

    def started(self, fellow_id: str, order: StageOrder) -> None:
        """A machine starts a worker."""
        self.note(
            "started",
            fellow=fellow_id,
            stage=f"{order.job_id}/{order.attempt}/{order.stage}",
            layers=f"{order.first_layer}-{order.last_layer}",
        )

    def stepped(self, key: Key, step: int) -> None:
        """A worker has done a step."""
        before = self._stepped.get(key)
        if before is not None and step != before + 1:
            raise self.broken(f"{key} did step {step} after {before}")
        self._stepped[key] = step
        self.note("step", stage=key, step=step)

    # --- looked up ---------------------------------------------------------------------------

    async def check(self) -> None:
        """Everything that must hold at any moment at which the leader is up."""
        if not self.world.door.is_open:
            return
        leader = self.world.leader
        await leader.office.database.read(self._check_rows)
        self._check_orders()
        for machine in self.world.machines:
            machine.raise_what_ended_a_loop()

    def _check_rows(self, tx: Tx) -> None:
        for fellow_id, number in self._acknowledged.items():
            stored = fellows.find(tx, fellow_id)
            if stored is None or stored.reports_committed < number:
                have = stored and stored.reports_committed
                raise self.broken(f"{fellow_id} was told {number}, stored is {have}")
        for job_id in self._accepted:
            job = jobs.find(tx, job_id)
            if job is None:
                raise self.broken(f"the accepted job {job_id} is not there")
            self._check_saved(job)

    def _check_saved(self, job: jobs.Job) -> None:
        step, before = job.saved_step or 0, self._saved.get(job.job_id, 0)
        if step < before:
            raise self.broken(f"the saved step of {job.job_id} fell from {before} to {step}")
        if step != before:
            self._saved[job.job_id] = step
            self.note("saved", job=job.job_id, step=step)

    def _check_storage(self, tx: Tx) -> None:
        """What an owner is charged is what lies on the disk."""
        data = self.world.settings.data
        files = [*data.glob("jobs/*/snapshots/**/*.safetensors"), *data.glob("buckets/*")]
        lies = sum(file.stat().st_size for file in files)
        charged = storage.used_bytes(tx, storage.owner_of(POOL))
        if lies != charged:
            raise self.broken(f"{charged} bytes are charged, {lies} lie on the disk")

    def _check_orders(self) -> None:
        attempts: dict[str, set[int]] = {}
        places: set[tuple[str, int]] = set()
        for member in self.world.leader.office.registry.every():
            if len(member.assignments) > 1:
                raise self.broken(f"{member.fellow_id} is to run {len(member.assignments)} stages")
            for one in member.assignments:
                attempts.setdefault(one.order.job_id, set()).add(one.order.attempt)
                place = (one.order.job_id, one.order.stage)
                if place in places:
                    raise self.broken(f"stage {place} is ordered twice")
                places.add(place)
        for job_id, numbers in attempts.items():
            if len(numbers) > 1:
                raise self.broken(f"attempts {sorted(numbers)} of {job_id} are ordered at once")

    # --- at the end --------------------------------------------------------------------------

    async def check_end(self) -> None:
        """What must hold once everything is up again and has had its time."""
        await self.check()
        self._check_machines()
        await self.world.leader.office.database.read(self._check_jobs)
        await self.world.leader.office.database.read(self._check_storage)

    def _check_machines(self) -> None:
        registry = self.world.leader.office.registry
        for machine in self.world.machines:
            disk = machine.disk
            if disk.number != disk.acknowledged + len(disk.spool):
                raise self.broken(
                    f"{machine.fellow_id} numbered {disk.number} reports, of which "
                    f"{disk.acknowledged} are acknowledged and {len(disk.spool)} wait"
                )
            wanted = {
                (a.order.job_id, a.order.attempt, a.order.stage)
                for a in registry.desired(machine.fellow_id).stages
            }
            runs = {(k.job_id, k.attempt, k.stage) for k in machine.stages}
            if wanted != runs:
                raise self.broken(f"{machine.fellow_id} runs {runs}, wanted is {wanted}")

    def _check_jobs(self, tx: Tx) -> None:
        for job_id in self._accepted:
            job = jobs.find(tx, job_id)
            assert job is not None
            self.note("ended", job=job_id, state=job.state, step=job.step, attempt=job.attempt)
            if job.state not in ("completed", "failed", "cancelled"):
                raise self.broken(f"{job_id} is still {job.state}: {job.reason}")
            if job.state == "completed":
                self._check_exact(tx, job_id)

    def _check_exact(self, tx: Tx, job_id: str) -> None:
        job = jobs.find(tx, job_id)
        assert job is not None
        seed = job.config.train.seed
        for stage in stages.of_job(tx, job_id, job.attempt):
            told = records.losses(tx, job_id, stage.stage, (0, job.steps))
            right = [loss_of(model_after(seed, step)) for step in range(1, job.steps + 1)]
            if list(told) != right:
                raise self.broken(
                    f"stage {stage.stage} of {job_id} has other losses than it should"
                )
        self._check_adapter(job_id, model_after(seed, job.steps))

    def _check_adapter(self, job_id: str, state: bytes) -> None:
        folder = self.world.settings.data / "jobs" / job_id / "adapter"
        tensors = tensors_in((folder / "adapter_model.safetensors").read_bytes())
        if not tensors or any(tensor_of(state, name) != data for name, data in tensors.items()):
            raise self.broken(f"the adapter of {job_id} is not an undisturbed run's")
