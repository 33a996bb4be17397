"""A real pool whose processes are killed and frozen while it trains, and put up again.

Three fellows of one card each; a job takes two of them, always with the same split, so that every
run of the one configuration must end in the same bits, whoever ran it and whatever happened.
"""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from agents.demo.processes import Child
from tests.acceptance.real_pool import RealPool
from tests.oracle.checkpoints import write_tiny_model
from transport.api.buckets import MODELS_EXPORT, ModelsExport
from transport.api.jobs import ENDED, JOBS_CANCEL, JobsCancel, JobView
from transport.errors import SwarmError

T = TypeVar("T")
CARD, FELLOWS = "cpu:300MB:1", 3
STEPS, EVERY = 40, 4
LOOK_S = 0.05
END_S, READY_S = 90.0, 60.0
VICTIMS = ("worker", "daemon", "leader", "relay")
SETTINGS = "[leader]\nheartbeat_s = 0.5\noffline_after_s = 3.0\n"


@dataclass(frozen=True)
class Blow:
    """One process is killed, or frozen for a while."""

    victim: str
    how: str
    """kill or freeze."""
    at_step: int
    """0: while the job starts."""
    delay_s: float
    lasts_s: float
    which: float
    """Of several such processes, as a share."""

    def __str__(self) -> str:
        return (
            f"{self.how} a {self.victim} at step {self.at_step} + {self.delay_s:.2f} s"
            f" for {self.lasts_s:.1f} s"
        )


def draw(seed: str, victim: str | None = None) -> list[Blow]:
    """One to three blows, in order of steps."""
    dice = random.Random(seed)
    count = 1 if victim else dice.choice((1, 1, 2, 3))
    blows = [
        Blow(
            victim or dice.choice(VICTIMS),
            "kill" if victim else dice.choice(("kill", "kill", "freeze")),
            dice.randrange(STEPS),
            dice.uniform(0.0, 0.4),
            dice.uniform(0.3, 8.0),
            dice.random(),
        )
        for _ in range(count)
    ]
    return sorted(blows, key=lambda blow: blow.at_step)


class Ground:
    """The pool, and what an undisturbed run gives."""

    def __init__(self, folder: Path, fellows: int = FELLOWS, steps: int = STEPS) -> None:
        self.steps = steps
        settings = folder / "leader" / ".config" / "swarm"
        settings.mkdir(parents=True)
        (settings / "config.toml").write_text(SETTINGS)
        self.pool = RealPool(folder)
        self.names: list[str] = []
        try:
            self.pool.join([CARD] * fellows)
            self.names = [child.name for child in self.pool.fellow_daemons]
            self.pool.add_model(write_tiny_model(folder / "tiny", "llama"), "tiny")
            text = "In the beginning was the word, and the word was with them. "
            self.pool.add_rows("rows", [{"text": f"{n} {text * 3}"} for n in range(100)])
            self.undisturbed = self.adapter_of(self.run([]))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End everything."""
        self.pool.close()

    # --- one run -----------------------------------------------------------------------------

    def run(self, blows: list[Blow]) -> JobView:
        """A job from its submission to its end, under these blows."""
        self.until("readiness", self._all_ready, READY_S)
        job_id = self.pool.submit(self.pool.plan(_config(self.steps))).job_id
        thaws: list[tuple[float, Callable[[], None]]] = []
        for blow in blows:
            self._reach(job_id, blow, thaws)
            after = self._strike(blow)
            if after is not None:
                thaws.append((time.monotonic() + blow.lasts_s, after))
        self.until("the job's end", lambda: self._end_of(job_id, thaws), END_S)
        for _, after in thaws:
            after()
        return self.until("the leader", lambda: self._view(job_id), READY_S)

    def adapter_of(self, job: JobView) -> str:
        """SHA-256 of what a completed job trained."""
        if job.state != "completed":
            with contextlib.suppress(SwarmError):
                self.pool.client.call(JOBS_CANCEL, JobsCancel(job_id=job.job_id))
            raise AssertionError(f"{job.job_id} is {job.state}: {job.reason} {job.untrusted_error}")
        told = self.pool.client.call(MODELS_EXPORT, ModelsExport(job_id=job.job_id))
        return next(f.sha256 for f in told.files if f.name == "adapter_model.safetensors")

    def _reach(
        self, job_id: str, blow: Blow, thaws: list[tuple[float, Callable[[], None]]]
    ) -> None:
        def there() -> bool:
            self._thaw(thaws)
            job = self._view(job_id)
            return job is not None and (job.step >= blow.at_step or job.state in ENDED)

        self.until(f"step {blow.at_step}", there, END_S)
        self._rest(blow.delay_s)

    def _end_of(self, job_id: str, thaws: list[tuple[float, Callable[[], None]]]) -> bool:
        self._thaw(thaws)
        job = self._view(job_id)
        return job is not None and job.state in ENDED

    def _thaw(self, thaws: list[tuple[float, Callable[[], None]]]) -> None:
        due = [one for one in thaws if one[0] <= time.monotonic()]
        for one in due:
            thaws.remove(one)
            one[1]()

    # --- blows -------------------------------------------------------------------------------

    def _strike(self, blow: Blow) -> Callable[[], None] | None:
        """Do it; returns what must be done when its time is over."""
        victim = self._victim(blow)
        if victim is None:
            return None
        if blow.how == "freeze":
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.suspend()
            # Whoever asks a frozen leader waits: the thaw comes from elsewhere.
            thaw = threading.Timer(blow.lasts_s, _resume, [victim])
            thaw.daemon = True
            thaw.start()
            return None
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
        if blow.victim == "leader":
            return self._restart_leader
        if blow.victim == "daemon":
            return lambda: self._restart_daemon(victim.pid)
        return None

    def _victim(self, blow: Blow) -> psutil.Process | None:
        found = {
            "worker": self._workers,
            "daemon": lambda: [psutil.Process(c.process.pid) for c in self.pool.fellow_daemons],
            "leader": lambda: [psutil.Process(self.pool.leader.process.pid)],
            "relay": self._relays,
        }[blow.victim]()
        return found[int(blow.which * len(found))] if found else None

    def _workers(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return self.pool.workers()
        return []

    def _relays(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.pool.leader.process.pid).children(recursive=True)
            return [one for one in children if "relay" in " ".join(one.cmdline())]
        return []

    def _restart_leader(self) -> None:
        self.pool.restart_leader(kill=True)
        # Not by the pool's own wait, to which nobody may be dead: a daemon may be, by another blow.
        self.until("the leader's return", self.pool.leader_url, READY_S)

    def _restart_daemon(self, pid: int) -> None:
        """Start the daemon of a killed one again, on the same home; once, if two blows met it."""
        dead = next((c for c in self.pool.fellow_daemons if c.process.pid == pid), None)
        if dead is None:
            return
        dead.process.wait(5)
        place = self.pool.household.children.index(dead)
        again = self.pool.household.start(dead.name, ["-m", "agents.cli.main", "fellow"])
        self.pool.household.children.remove(again)
        self.pool.household.children[place] = again

    # --- looking -----------------------------------------------------------------------------

    def until(self, what: str, check: Callable[[], T | None], timeout_s: float) -> T:
        """Ask again and again until something true comes; fails past the limit."""
        deadline = time.monotonic() + timeout_s
        while True:
            answer = check()
            if answer:
                return answer
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{what} did not come within {timeout_s:.0f} s: {self.story()}"
                )
            self._rest(LOOK_S)

    def story(self) -> str:
        """The ends of all logs."""
        return "\n".join(
            f"--- {child.name}\n{_end(child)}" for child in self.pool.household.children
        )

    def _view(self, job_id: str) -> JobView | None:
        with contextlib.suppress(SwarmError):
            return self.pool.job(job_id)
        return None

    def _all_ready(self) -> bool:
        for child in list(self.pool.fellow_daemons):
            if child.process.poll() is not None:
                self._restart_daemon(child.process.pid)
        with contextlib.suppress(SwarmError):
            return self.pool.all_ready()
        return False

    @staticmethod
    def _rest(seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            signal.sigtimedwait([], left)


def _resume(process: psutil.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGCONT)


def _end(child: Child) -> str:
    return child.last_lines(15)


def _config(steps: int = STEPS) -> dict[str, Any]:
    return {
        "model": {"id": "local:tiny", "dtype": "float32", "quantization": "none"},
        "data": {"bucket": "rows"},
        "train": {
            "steps": steps, "seq_len": 48, "batch_size": 8, "micro_batches": 4,
            "learning_rate": 1e-3, "eval_sequences": 2, "snapshot_every_steps": EVERY,
            "recovery_wait_s": 60,
        },
        "min_workers": 2,
        "max_workers": 2,
        "layer_index": [3],
    }  # fmt: skip
