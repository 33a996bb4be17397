"""The processes of a rehearsal: a leader, fellow daemons each behind ways of its own, and clients.

Starts, stops, freezes and kills only processes that it started. Does not know scripts or jobs.
"""

import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

import psutil

from agents.client import Client
from agents.demo.processes import Child, Household, wait_until
from agents.demo.story import ready_url
from agents.rehearse.disks import Disks
from agents.rehearse.script import FellowCast, LineCast, Script
from agents.rehearse.ways import LOOPBACK, Ways
from transport.api.fellows import FELLOWS_LIST, FellowRow, FellowsList
from transport.api.pools import INVITES_CREATE, POOLS_CREATE, InvitesCreate, PoolsCreate
from transport.errors import SwarmError

POOL = "rehearsal/home"
START_S, END_S = 60.0, 15.0
ASK_S = 5.0


def way_of(fellow: str) -> str:
    """The name of the way between a fellow and the leader."""
    return f"{fellow}/way"


def link_of(fellow: str) -> str:
    """The name of the way that the stage before a fellow's takes to it."""
    return f"{fellow}/link"


class Town:
    """One rehearsal's processes, below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.household = Household(folder)
        self.ways = Ways()
        self.disks = Disks()
        self.fellow_ids: dict[str, str] = {}
        self.port = 0
        self._data = folder / "leader" / "data"
        self._leader: Child | None = None
        self._daemons: dict[str, Child] = {}
        self._listens: dict[str, list[str]] = {}
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """A client with the owner's token; it never waits long for a leader that is away."""
        assert self._client is not None, "the leader has not started"
        return self._client

    def open(self, script: Script) -> None:
        """Start the leader, and join every fellow.

        Raises:
            SwarmError: forbidden when a disk of its own cannot be had here.
        """
        if script.leader.disk_mb is not None:
            self.disks.plan("leader", self.folder / "leader", script.leader.disk_mb)
        for fellow in script.fellows:
            if fellow.disk_mb is not None:
                self.disks.plan(fellow.name, self.folder / fellow.name, fellow.disk_mb)
        self.start_leader()
        seen = self.disks.seen(self._leader_process, self._data, "leader")
        token = (seen / "owner.token").read_text("utf-8").strip()
        self._client = Client(f"http://{LOOPBACK}:{self.port}", token=token, timeout_s=ASK_S)
        self.client.call(POOLS_CREATE, PoolsCreate(pool=POOL))
        for fellow in script.fellows:
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
        self._leader = leader = self.household.start(
            "leader", arguments, before=self.disks.before("leader")
        )
        url: str = wait_until("the leader", lambda: ready_url(leader), START_S, self.household)
        self.port = int(url.rsplit(":", 1)[1])

    @property
    def _leader_process(self) -> psutil.Process:
        assert self._leader is not None
        return psutil.Process(self._leader.process.pid)

    def kill_relay(self) -> None:
        """SIGKILL the leader's relay, which the leader starts again.

        Raises:
            SwarmError: conflict when it has none now.
        """
        for process in self._leader_process.children(recursive=True):
            with suppress(psutil.Error):
                if "transport.relay_server" in process.cmdline():
                    process.kill()
                    return
        raise SwarmError("conflict", "the leader has no relay at this moment")

    def fill_disk(self, name: str, *, is_full: bool) -> None:
        """Leave no free byte on a machine's own disk, or give them back."""
        child = self._daemons[name] if name else self._leader
        assert child is not None
        self.disks.fill(name or "leader", psutil.Process(child.process.pid), is_full=is_full)

    def end_leader(self, *, kill: bool) -> None:
        """End it, with SIGKILL or in good order."""
        assert self._leader is not None
        self._end(self._leader, signal.SIGKILL if kill else signal.SIGTERM)

    # --- fellows -----------------------------------------------------------------------------

    def _join(self, fellow: FellowCast) -> None:
        line = LineCast(delay_ms=fellow.delay_ms, mbit=fellow.mbit)
        way = self.ways.open(way_of(fellow.name), self.port, line.shape())
        invite = self.client.call(INVITES_CREATE, InvitesCreate(pool=POOL))
        known = {row.fellow_id for row in self.fellows()}
        url = f"http://{LOOPBACK}:{way.port}"
        self._listens[fellow.name] = self._listen(fellow)
        words = ["-m", "agents.cli.main", "join", url, "--card", fellow.card_spec]
        words += ["--name", fellow.name, *self._listens[fellow.name]]
        extra, before = {"SWARM_INVITE": invite.secret}, self.disks.before(fellow.name)
        child = self.household.start(fellow.name, words, extra, before)
        self._daemons[fellow.name] = child

        def joined() -> str | None:
            return next((r.fellow_id for r in self.fellows() if r.fellow_id not in known), None)

        found = wait_until(f"the joining of {fellow.name}", joined, START_S, self.household)
        self.fellow_ids[fellow.name] = found

    def _listen(self, fellow: FellowCast) -> list[str]:
        """Where its stages listen, and the way before it that neighbours dial."""
        with socket.create_server((LOOPBACK, 0)) as free:
            port = int(free.getsockname()[1])
        link = self.ways.open(link_of(fellow.name), port, fellow.link.shape())
        return ["--listen", f"{LOOPBACK}:{port}", "--announce", f"{LOOPBACK}:{link.port}"]

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
        arguments = ["-m", "agents.cli.main", "fellow", *self._listens[name]]
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
