"""Two homes behind routers, a relay between them, and what happens to networks in mid-run.

The quick test moves frames between two processes; the slow ones train with the real leader and
real fellows, and every run must equal the undisturbed one bit for bit: losses and adapter.
"""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest
from safetensors.numpy import load_file

from agents.demo.processes import Child, wait_until
from tests.acceptance.link_end import payload
from tests.acceptance.namespaces import HOMES, HOST, LEADER, Home, Internet, inside, why_not
from tests.acceptance.real_pool import POOL, RealPool
from tests.oracle.checkpoints import write_tiny_model
from tests.unit.transport.relay_child import KEY, routes
from transport.api.jobs import JOBS_RECORDS, JobsRecords, JobView
from transport.api.pools import INVITES_CREATE, InvitesCreate
from transport.orders import Links, Neighbour

WHY_NOT = why_not()
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "namespaces can be made"),
]


# --- quick: frames ---


class End:
    """A `link_end` process in a home."""

    def __init__(self, net: Internet, home: Home, stage: int, frames: int) -> None:
        words = inside(net.names[home], "-m", "tests.acceptance.link_end", str(stage), HOST[home])
        self.child = subprocess.Popen(
            [sys.executable, *words, str(frames)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.told: list[dict[str, Any]] = []
        self.endpoint = self.read_until(lambda told: "public_key" in told)

    def read_until(self, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Its next line that is the one wanted."""
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.told.append(json.loads(line))
            if is_it(self.told[-1]):
                return self.told[-1]
        raise AssertionError(f"it ended: {self.told[-5:]}")

    def neighbour(self, relay: Any) -> Neighbour:
        """As its neighbour is told of it."""
        stage = int(bool(self.endpoint["endpoints"]))
        return Neighbour(stage=stage, fellow_id="f-aaaaaaaa", relay=relay, **self.endpoint)

    def connect(self, links: Links) -> None:
        """Hand it its neighbour."""
        assert self.child.stdin is not None
        self.child.stdin.write(links.model_dump_json() + "\n")
        self.child.stdin.flush()

    def close(self) -> None:
        """End it."""
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait(10)
        for stream in (self.child.stdin, self.child.stdout):
            assert stream is not None
            stream.close()


class Relay:
    """`swarm relay` on the internet."""

    def __init__(self, net: Internet, folder: Path) -> None:
        key = folder / "relay.key"
        key.write_text(KEY.hex())
        self._words = inside(
            net.names["pub"], "-m", "transport.relay_server", "--key-file", str(key),
            "--host", LEADER,
        )  # fmt: skip
        self.start()

    def start(self) -> None:
        """Start one and wait until it listens."""
        self.child = subprocess.Popen([sys.executable, *self._words], stdout=subprocess.PIPE)
        assert self.child.stdout is not None
        assert b"ready" in self.child.stdout.readline()

    def kill(self) -> None:
        """SIGKILL."""
        self.child.kill()
        self.child.wait(10)
        assert self.child.stdout is not None
        self.child.stdout.close()

    def close(self) -> None:
        """The same, at the end."""
        self.kill()


def test_stages_in_two_homes_meet_at_the_relay_which_dies_and_comes_back(tmp_path: Path) -> None:
    frames = 60
    with ExitStack() as stack:
        net = stack.enter_context(Internet())
        relay = stack.enter_context(closing(Relay(net, tmp_path)))
        one, two = (
            stack.enter_context(closing(End(net, home, stage, frames)))
            for stage, home in enumerate(HOMES)
        )
        dials, answers = (route.model_copy(update={"host": LEADER}) for route in routes(7421))
        two.connect(Links(previous=one.neighbour(answers), next=None))
        one.connect(Links(previous=None, next=two.neighbour(dials)))
        one.read_until(lambda told: told.get("path") == "relay")
        one.read_until(lambda told: told.get("number") == 10)
        relay.kill()
        relay.start()
        ends = [end.read_until(lambda told: "digest" in told) for end in (one, two)]
    for stage, end in ((1, ends[0]), (0, ends[1])):
        sent = b"".join(payload(stage, number) for number in range(frames))
        assert end["digest"] == hashlib.sha256(sent).hexdigest()


# --- slow: training ---

STEPS = 300
OUTAGE_S = 4.0
WAY_S = 60.0


class TwoHomes(RealPool):
    """A leader on the internet and a fellow in each home."""

    def __init__(self, folder: Path, net: Internet) -> None:
        self.net = net
        super().__init__(folder)

    def _start_leader(self, port: int) -> Child:
        words = ["-m", "mcp_server.main", "--host", LEADER, "--insecure-lan"]
        words += ["--port", str(port or 7420), "--data", str(self.data)]
        return self.household.start("leader", inside(self.net.names["pub"], *words))

    def join_homes(self) -> None:
        """One fellow in each; the one in home a joins first."""
        for home in ("a", "b"):
            invite = self.client.call(INVITES_CREATE, InvitesCreate(pool=POOL))
            words = ["-m", "agents.cli.main", "join", self.url, "--card", "cpu:300MB:1"]
            self.household.start(
                f"fellow-{home}",
                inside(self.net.names[home], *words),
                {"SWARM_INVITE": invite.secret},
            )
        wait_until("the fellows' readiness", self.all_ready, 90, self.household)

    def home_of(self, stage: int, job: JobView) -> Home:
        """Where a stage of a job runs."""
        first = self.fellows()[0].fellow_id
        return "a" if job.stages[stage].fellow_id == first else "b"

    def begin(self) -> JobView:
        """Start the one job of all these tests."""
        self.wait_ready()
        train = {"steps": STEPS, "seq_len": 64, "batch_size": 8, "micro_batches": 4}
        config = {
            "model": {"id": "local:tiny", "dtype": "float32"},
            "data": {"bucket": "rows"},
            "train": {**train, "learning_rate": 1e-3, "seed": 11, "eval_sequences": 0},
            "partition": "equal",
            "min_workers": 2,
        }
        return self.submit(self.plan(config))

    def wait_way(self, job_id: str, *ways: str) -> JobView:
        """Wait until the two stages reach each other in one of these ways."""

        def look() -> JobView | None:
            job = self.job(job_id)
            assert job.state not in ("failed", "completed"), (job.state, job.reason, job.boundaries)
            return job if job.boundaries and job.boundaries[0].path in ways else None

        answer: JobView = wait_until(f"the way {ways}", look, WAY_S, self.household)
        return answer

    def outcome(self, job_id: str) -> tuple[list[float], dict[str, bytes]]:
        """Losses of all steps, and the trained tensors, once it has completed."""
        job = self.wait_step(job_id, STEPS // 2)
        job = self.wait_step(job_id, STEPS)
        job = self.wait_end(job_id)
        assert job.state == "completed", (job.reason, job.untrusted_error)
        told = self.client.call(JOBS_RECORDS, JobsRecords(job_id=job_id, limit=5000))
        file = self.data / "jobs" / job_id / "adapter" / "adapter_model.safetensors"
        tensors = {name: one.tobytes() for name, one in sorted(load_file(file).items())}
        assert len(told.steps) == STEPS
        return [row.loss for row in told.steps], tensors


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHomes]:
    folder = tmp_path_factory.mktemp("homes")
    with Internet(is_seen=True) as net, pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", LEADER)
        pool = TwoHomes(folder, net)
        try:
            pool.join_homes()
            pool.add_model(write_tiny_model(folder / "tiny", "llama"), "tiny")
            text = "In the beginning was the word, and the word was with them. "
            pool.add_rows("rows", [{"text": f"{number} {text * 3}"} for number in range(300)])
            yield pool
        finally:
            killed = pool.close()
        assert killed == [], "a process did not end by itself"


@pytest.fixture(scope="module")
def undisturbed(homes: TwoHomes) -> tuple[list[float], dict[str, bytes]]:
    """The run whose two stages dial each other and are left alone."""
    homes.net.open_direct()
    job = homes.begin()
    homes.wait_way(job.job_id, "lan")
    told = homes.outcome(job.job_id)
    homes.net.shut_direct()
    return told


Undisturbed = tuple[list[float], dict[str, bytes]]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_two_homes_that_let_nothing_in_train_through_the_relay(
    homes: TwoHomes, undisturbed: Undisturbed
) -> None:
    job = homes.begin()
    (told,) = homes.wait_way(job.job_id, "relay").boundaries
    assert told.untrusted_why is not None
    assert told.untrusted_why.startswith("lan 192.168.2")
    assert homes.outcome(job.job_id) == undisturbed


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_an_uplink_of_100_mbit_changes_no_loss(homes: TwoHomes, undisturbed: Undisturbed) -> None:
    homes.net.shape("a", 100)
    try:
        assert homes.outcome(homes.begin().job_id) == undisturbed
    finally:
        homes.net.unshape("a")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_outages_of_one_direction_at_a_time_lose_nothing(
    homes: TwoHomes, undisturbed: Undisturbed
) -> None:
    job = homes.begin()
    step = 5
    for stage in (0, 1):
        for direction in ("out", "in"):
            home = homes.home_of(stage, homes.wait_step(job.job_id, step))
            homes.net.silence(home, direction)
            Event().wait(OUTAGE_S)
            homes.net.restore(home)
            step = homes.job(job.job_id).step + 5
    assert homes.outcome(job.job_id) == undisturbed


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_relay_that_is_killed_in_the_middle_of_steps_loses_nothing(
    homes: TwoHomes, undisturbed: Undisturbed
) -> None:
    job = homes.begin()
    homes.wait_way(job.job_id, "relay")
    for number in range(1, 4):
        homes.wait_step(job.job_id, 60 * number)
        relay = relay_of(homes)
        relay.kill()
        relay.wait(10)
    assert homes.outcome(job.job_id) == undisturbed


def relay_of(homes: TwoHomes) -> psutil.Process:
    """The relay's process: a child of the leader."""

    def find() -> psutil.Process | None:
        for child in psutil.Process(homes.leader.process.pid).children():
            with suppress(psutil.Error):
                if "transport.relay_server" in child.cmdline():
                    return child
        return None

    found: psutil.Process = wait_until("the relay", find, 20, homes.household)
    return found


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_run_moves_to_the_direct_way_when_it_opens_and_back_when_it_shuts(
    homes: TwoHomes, undisturbed: Undisturbed
) -> None:
    job = homes.begin()
    homes.wait_way(job.job_id, "relay")
    homes.net.open_direct()
    try:
        homes.wait_way(job.job_id, "lan")
    finally:
        homes.net.shut_direct()
    homes.wait_way(job.job_id, "relay")
    assert homes.outcome(job.job_id) == undisturbed
