"""The processes of a rehearsal: a leader, fellow daemons each behind a way of its own, and clients.

Starts, stops, freezes and kills only processes that it started. Does not know scripts or jobs.
"""

import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil

from agents.client import Client
from agents.demo.processes import Child, Household, wait_until
from agents.demo.story import ready_url
from agents.rehearse.script import FellowCast
from agents.rehearse.ways import LOOPBACK, Ways
from transport.api.fellows import FELLOWS_LIST, FellowRow, FellowsList
from transport.api.pools import INVITES_CREATE, POOLS_CREATE, InvitesCreate, PoolsCreate
from transport.errors import SwarmError

POOL = "rehearsal/home"
START_S, END_S = 60.0, 15.0
ASK_S = 5.0


class Town:
    """One rehearsal's processes, below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.household = Household(folder)
        self.ways = Ways()
        self.fellow_ids: dict[str, str] = {}
        self.port = 0
        self._data = folder / "leader" / "data"
        self._leader: Child | None = None
        self._daemons: dict[str, Child] = {}
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """A client with the owner's token; it never waits long for a leader that is away."""
        assert self._client is not None, "the leader has not started"
        return self._client

    def open(self, cast: list[FellowCast]) -> None:
        """Start the leader, and join every fellow."""
        self.start_leader()
        token = (self._data / "owner.token").read_text("utf-8").strip()
        self._client = Client(f"http://{LOOPBACK}:{self.port}", token=token, timeout_s=ASK_S)
        self.client.call(POOLS_CREATE, PoolsCreate(pool=POOL))
        for fellow in cast:
            self._join(fellow)
        wait_until("the fellows' readiness", self.all_ready, START_S, self.household)

    def close(self) -> list[int]:
        """End everything; returns the ids of processes that had to be killed."""
        for child in self.household.children:
            for process in _family(child):
                _send(process, signal.SIGCONT)
        if self._client is not None:
            self._client.close()
        try:
            return self.household.stop()
        finally:
            self.ways.close()

    # --- the leader --------------------------------------------------------------------------

    def start_leader(self) -> None:
        """Start the leader: at first on a free port, later on the same one."""
        arguments = ["-m", "mcp_server.main", "--port", str(self.port), "--data", str(self._data)]
        began = self.folder / "leader.log"
        if began.exists():
            began.rename(self.folder / f"leader-{time.monotonic_ns()}.log")
        self._leader = leader = self.household.start("leader", arguments)
        url: str = wait_until("the leader", lambda: ready_url(leader), START_S, self.household)
        self.port = int(url.rsplit(":", 1)[1])

    def end_leader(self, *, kill: bool) -> None:
        """End it, with SIGKILL or in good order."""
        assert self._leader is not None
        self._end(self._leader, signal.SIGKILL if kill else signal.SIGTERM)

    # --- fellows -----------------------------------------------------------------------------

    def _join(self, fellow: FellowCast) -> None:
        way = self.ways.open(fellow.name, self.port, fellow.delay_ms / 1000)
        invite = self.client.call(INVITES_CREATE, InvitesCreate(pool=POOL))
        before = {row.fellow_id for row in self.fellows()}
        url = f"http://{LOOPBACK}:{way.port}"
        arguments = ["-m", "agents.cli.main", "join", url, "--card", fellow.card]
        child = self.household.start(fellow.name, arguments, {"SWARM_INVITE": invite.secret})
        self._daemons[fellow.name] = child

        def joined() -> str | None:
            return next((r.fellow_id for r in self.fellows() if r.fellow_id not in before), None)

        found = wait_until(f"the joining of {fellow.name}", joined, START_S, self.household)
        self.fellow_ids[fellow.name] = found

    def fellows(self) -> list[FellowRow]:
        """The fellows as the leader sees them."""
        return self.client.call(FELLOWS_LIST, FellowsList(pool=POOL)).fellows

    def all_ready(self) -> bool:
        """Whether every fellow that runs is ready for work."""
        ready = [row for row in self.fellows() if row.status == "ready"]
        return len(ready) == len(self._daemons)

    def kill_daemon(self, name: str) -> None:
        """SIGKILL a fellow's daemon; its worker and forkserver end with it."""
        self._end(self._daemons.pop(name), signal.SIGKILL)

    def start_daemon(self, name: str) -> None:
        """Start the daemon of a fellow that joined before."""
        arguments = ["-m", "agents.cli.main", "fellow"]
        self._daemons[name] = self.household.start(name, arguments)

    def kill_worker(self, name: str) -> None:
        """SIGKILL a fellow's stage worker.

        Raises:
            SwarmError: conflict when it runs none now.
        """
        self._worker(name).kill()

    def freeze(self, name: str, *, whole: bool, frozen: bool) -> None:
        """Stop a fellow's worker, or all its processes; or let them go on."""
        number = signal.SIGSTOP if frozen else signal.SIGCONT
        daemon = self._daemons.get(name)
        if daemon is None:
            return
        family = _family(daemon) if whole else [self._worker(name, may_be_gone=not frozen)]
        for process in family:
            _send(process, number)

    def _worker(self, name: str, *, may_be_gone: bool = False) -> psutil.Process:
        daemon = self._daemons.get(name)
        family = _family(daemon) if daemon else []
        servers = [one for one in family if _is_forkserver(one)]
        workers = [one for server in servers for one in server.children()]
        if workers:
            return workers[0]
        if may_be_gone and daemon is not None:
            return psutil.Process(daemon.process.pid)  # SIGCONT does a running process no harm
        raise SwarmError(
            "conflict",
            f"{name} runs no stage at this moment",
            hint="let the trouble come at a step, or name a fellow that the plan uses",
        )

    def _end(self, child: Child, number: int) -> None:
        self.household.children.remove(child)
        family = _family(child)
        child.process.send_signal(number)
        child.process.wait(END_S)
        psutil.wait_procs(family, timeout=END_S)


def _family(child: Child) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        daemon = psutil.Process(child.process.pid)
        return [daemon, *daemon.children(recursive=True)]
    return []


def _is_forkserver(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        # A forked worker has its server's words: the server is who has it for a parent's child.
        return "stage_runtime.forkserver" in " ".join(process.cmdline()) and bool(
            process.children()
        )
    return False


def _send(process: psutil.Process, number: int) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)
