"""Every socket that a running pool listens on refuses whoever has no business there.

One pool with a job over three workers serves all tests; it must still be at work after each.
"""

import hashlib
import json
import re
import secrets
import socket
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from tests.acceptance.real_pool import POOL, RealPool
from tests.flow.open_leader import heartbeat
from tests.oracle.checkpoints import write_tiny_model
from transport.api.catalog import OPERATIONS
from transport.api.pools import (
    INVITES_CREATE,
    POOLS_CREATE,
    TOKENS_CREATE,
    InvitesCreate,
    PoolsCreate,
    TokensCreate,
)
from transport.keys import KeyPair, new_key_pair

OTHER_POOL = "test/other"
CARDS = ("cpu:300MB:1", "cpu:220MB:1", "cpu:160MB:1")
UNAUTHENTICATED, RATE_LIMITED = 401, 429
REFUSED = {UNAUTHENTICATED, RATE_LIMITED}
LOOPBACK = "127.0.0.1"
VERDICT_S, VERDICT_MS = 8, 8_000
"""A ZeroMQ handshake that nobody finishes is given up after 5 s."""
ADMITTED = zmq.EVENT_HANDSHAKE_SUCCEEDED
TURNED_AWAY = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_DISCONNECTED,
)
Socket = zmq.Socket[Any]


@dataclass(frozen=True)
class Door:
    """A stage's listening ZeroMQ socket and the public key that it answers with."""

    stage: int
    endpoint: str
    key: str

    @property
    def port(self) -> int:
        """Of its endpoint, tcp://HOST:PORT."""
        return int(self.endpoint.rsplit(":", 1)[1])


@dataclass(frozen=True)
class Running:
    """A pool at work, and a fellow of another pool who has every right there and none here."""

    pool: RealPool
    job_id: str
    stranger_id: str
    stranger: str
    """His credential."""
    foreign_token: str
    """An access token that sees the other pool only."""

    def assert_still_at_work(self) -> None:
        """The job's steps go on, in the same attempt."""
        before = self.pool.job(self.job_id)
        assert (before.state, before.attempt) == ("running", 1), before.reason
        after = self.pool.wait_step(self.job_id, before.step + 3)
        assert (after.state, after.attempt) == ("running", 1), after.reason

    def http(self, secret: str | None = None, **headers: str) -> httpx2.Client:
        """A client with any secret, or none."""
        told = headers if secret is None else {"authorization": f"Bearer {secret}", **headers}
        return httpx2.Client(base_url=self.pool.url, headers=told, timeout=10)

    def doors(self) -> list[Door]:
        """What the leader's store says of the stages' sockets."""
        file = f"file:{self.pool.data / 'leader.db'}?mode=ro"
        with closing(sqlite3.connect(file, uri=True)) as tx:
            rows = tx.execute(
                "SELECT stage, endpoints, public_key FROM stages WHERE job_id = ?", (self.job_id,)
            ).fetchall()
        dialled = [(stage, *json.loads(told or "[]"), key) for stage, told, key in rows]
        return [Door(*one) for one in dialled if len(one) == 3]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("closed")
    pool = RealPool(folder)
    try:
        pool.join(CARDS)
        pool.add_model(write_tiny_model(folder / "tiny", "llama"), "tiny")
        pool.add_rows("rows", [{"text": f"{n} and the word was with them"} for n in range(60)])
        train = {"steps": 50_000, "seq_len": 32, "batch_size": 4, "eval_sequences": 0}
        config = {
            "model": {"id": "local:tiny", "dtype": "float32"},
            "data": {"bucket": "rows"},
            "train": {**train, "learning_rate": 1e-4},
        }
        job = pool.submit(pool.plan(config))
        assert pool.wait_step(job.job_id, 2).state == "running"
        pool.client.call(POOLS_CREATE, PoolsCreate(pool=OTHER_POOL))
        token = pool.client.call(TOKENS_CREATE, TokensCreate(name="other", pools=[OTHER_POOL]))
        fellow_id, credential = join_stranger(pool)
        yield Running(pool, job.job_id, fellow_id, credential, token.secret)
    finally:
        killed = pool.close()
    assert killed == [], "a process did not end by itself"


def join_stranger(pool: RealPool) -> tuple[str, str]:
    """A fellow of the other pool, by hand: its id and its credential."""
    invite = pool.client.call(INVITES_CREATE, InvitesCreate(pool=OTHER_POOL))
    credential = "swn_" + secrets.token_hex(32)
    ask = {
        "protocol": 1,
        "invite": invite.secret,
        "credential_sha256": hashlib.sha256(credential.encode()).hexdigest(),
        "hostname": "stranger",
        "version": "0.1.0",
    }
    with httpx2.Client(base_url=pool.url, headers={"authorization": f"Bearer {credential}"}) as one:
        fellow_id = str(one.post("/fellow/v1/join", json=ask).json()["fellow_id"])
        beat = one.post("/fellow/v1/heartbeat", json=heartbeat(fellow_id))
    assert beat.status_code == 200, beat.text
    return fellow_id, credential


# --- what listens --------------------------------------------------------------------------------


def processes(pool: RealPool) -> dict[int, str]:
    """Every process of the pool: its id, and what it is."""
    found = {}
    for child in pool.household.children:
        process = psutil.Process(child.process.pid)
        found[process.pid] = child.name.split("-")[0]
        workers = {worker.pid for worker in pool.workers()}
        for below in process.children(recursive=True):
            found[below.pid] = "worker" if below.pid in workers else "helper"
    return found


def test_only_leader_and_workers_listen_and_only_on_loopback(running: Running) -> None:
    told = processes(running.pool)
    kinds = {"leader": 1, "fellow": 3, "helper": 3, "worker": 3}
    assert Counter(told.values()) == kinds
    sockets = [
        (what, one)
        for pid, what in told.items()
        for one in psutil.Process(pid).net_connections("inet")
        if one.status == psutil.CONN_LISTEN or one.type == socket.SOCK_DGRAM
    ]
    # The first stage dials and does not listen. The leader's other socket is its relay's, which is
    # started by the first who dials it.
    assert Counter(what for what, _ in sockets) == {"leader": 2, "worker": 2}
    # ZeroMQ writes an IPv4 address as IPv6 does.
    assert {one.laddr.ip.removeprefix("::ffff:") for _, one in sockets} == {LOOPBACK}
    leader = int(running.pool.url.rsplit(":", 1)[1])
    of_leader = {one.laddr.port for what, one in sockets if what == "leader"}
    assert leader in of_leader
    doors = {door.port for door in running.doors()}
    assert {one.laddr.port for what, one in sockets if what == "worker"} == doors


def test_no_socket_has_a_name_in_the_file_system(running: Running) -> None:
    names = {
        str(one.laddr)
        for pid in processes(running.pool)
        for one in psutil.Process(pid).net_connections("unix")
    }
    assert names <= {""}


# --- the leader's port ---------------------------------------------------------------------------


def addresses_of_operations() -> list[tuple[str, str]]:
    """Method and path of every operation, each {field} filled in."""
    filled = {"fellow_id": "f-aaaabbbb", "job_id": "j-aaaabbbb", "token_id": "t-aaaabbbb"}
    return [
        (one.method, "/api/v1" + re.sub(r"{(\w+)}", lambda m: filled.get(m[1], "any"), one.path))
        for one in OPERATIONS.values()
    ]


OPERATION_DOORS = [
    *addresses_of_operations(),
    ("GET", "/api/v1/events"),
    ("GET", "/metrics"),
    ("POST", "/signin"),
    ("POST", "/mcp"),
    ("GET", "/mcp"),
]
FELLOW_DOORS = [
    ("POST", "/fellow/v1/heartbeat"),
    ("GET", "/fellow/v1/orders"),
    ("POST", "/fellow/v1/reports"),
    ("PUT", "/fellow/v1/jobs/j-aaaabbbb/attempts/1/stages/0/adapter"),
    ("GET", "/fellow/v1/tokens/" + "0" * 64),
    ("GET", "/fellow/v1/hub/local/tiny/resolve/main/config.json"),
    ("GET", "/fellow/v1/hub/api/models/local/tiny/revision/main"),
    ("GET", "/fellow/v1/hub/api/models/local/tiny/tree/main"),
]


def answers(client: httpx2.Client, doors: list[tuple[str, str]]) -> dict[str, int]:
    """The status that each door answers with."""
    told = {}
    for method, path in doors:
        body: dict[str, str] | None = {} if method in ("POST", "PUT") else None
        told[f"{method} {path}"] = client.request(method, path, json=body).status_code
    return told


def not_refused(told: dict[str, int], refused: set[int]) -> dict[str, int]:
    return {door: status for door, status in told.items() if status not in refused}


def test_without_a_secret_every_door_of_the_leader_is_shut(running: Running) -> None:
    with running.http() as nobody:
        told = answers(nobody, OPERATION_DOORS + FELLOW_DOORS)
    assert not_refused(told, REFUSED) == {}
    running.assert_still_at_work()


@pytest.mark.parametrize("kind", ["swt_", "swn_", "swi_", ""])
def test_a_made_up_secret_opens_no_door(running: Running, kind: str) -> None:
    with running.http(kind + secrets.token_hex(32)) as guesser:
        told = answers(guesser, OPERATION_DOORS + FELLOW_DOORS)
    assert not_refused(told, REFUSED) == {}
    running.assert_still_at_work()


def test_a_secret_is_good_at_its_own_doors_only(running: Running) -> None:
    with running.http(running.stranger) as fellow:
        assert fellow.get("/fellow/v1/orders?since=-1").status_code == 200
        at_operations = answers(fellow, OPERATION_DOORS)
    with running.http(running.pool.token) as owner:
        assert owner.get("/api/v1/pools").status_code == 200
        at_fellow_doors = answers(owner, FELLOW_DOORS)
    assert not_refused(at_operations, REFUSED) == {}
    assert not_refused(at_fellow_doors, REFUSED) == {}
    running.assert_still_at_work()


def test_a_token_of_another_pool_neither_sees_the_job_nor_stops_it(running: Running) -> None:
    job = f"/api/v1/jobs/{running.job_id}"
    doors = [("GET", job), ("GET", f"{job}/records"), ("GET", f"{job}/logs")]
    with running.http(running.foreign_token) as foreigner:
        assert foreigner.get("/api/v1/jobs").json()["jobs"] == []
        seen = answers(foreigner, doors)
        stopped = foreigner.post(f"{job}/cancel", json={}).status_code
        planned = foreigner.post("/api/v1/jobs/plan", json={"pool": POOL}).status_code
    assert set(seen.values()) == {404}
    assert stopped in (403, 404)
    assert planned in (403, 404, 422)
    running.assert_still_at_work()


def test_a_fellow_of_another_pool_gets_no_orders_no_data_and_no_hearing(running: Running) -> None:
    stage = next(one for one in running.pool.job(running.job_id).stages if one.stage == 0)
    tokens = next((running.pool.data / "tokens").glob("*.safetensors")).stem
    failed = {
        "kind": "failed", "job_id": running.job_id, "attempt": 1, "stage": 0, "at": 1.0,
        "code": "stage-failed", "message": "lies",
    }  # fmt: skip
    batch = {"protocol": 1, "reports": [{"sequence": 1, "report": failed}]}
    adapter = f"/fellow/v1/jobs/{running.job_id}/attempts/1/stages/0/adapter"
    digest = {"x-content-sha256": hashlib.sha256(b"").hexdigest()}
    with running.http(running.stranger) as fellow:
        orders = fellow.get("/fellow/v1/orders?since=-1").json()
        data = fellow.get(f"/fellow/v1/tokens/{tokens}").status_code
        upload = fellow.put(adapter, content=b"", headers=digest).status_code
        own_name = {**batch, "fellow_id": running.stranger_id}
        in_own_name = fellow.post("/fellow/v1/reports", json=own_name).json()
        other_name = {**batch, "fellow_id": stage.fellow_id}
        in_other_name = fellow.post("/fellow/v1/reports", json=other_name).status_code
        beat = fellow.post("/fellow/v1/heartbeat", json=heartbeat(stage.fellow_id)).status_code
    assert (orders["stages"], data, upload) == ([], 404, 404)
    assert in_own_name["refused"] == [1]
    assert (in_other_name, beat) == (403, 403)
    running.assert_still_at_work()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example:7420"}, 421),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
    ],
)
def test_a_page_of_another_site_is_refused_even_with_the_owners_token(
    running: Running, headers: dict[str, str], status: int
) -> None:
    with running.http(running.pool.token, **headers) as browser:
        told = answers(browser, [*OPERATION_DOORS[:3], *FELLOW_DOORS[:2], ("POST", "/mcp")])
    assert set(told.values()) == {status}


def test_garbage_on_the_leaders_port_is_answered_by_closing_it(running: Running) -> None:
    port = int(running.pool.url.rsplit(":", 1)[1])
    for noise in (secrets.token_bytes(4096), b"\xff" + b"\0" * 63, b"GET / HTTP/1.1\r\n\r\n"):
        answer = send_garbage(LOOPBACK, port, noise)
        assert answer == b"" or re.match(rb"HTTP/1.1 4\d\d ", answer), answer[:200]
    running.assert_still_at_work()


def send_garbage(host: str, port: int, noise: bytes) -> bytes:
    """Send bytes, say that there is no more, and read until the other side closes."""
    answer = b""
    with socket.create_connection((host, port), timeout=VERDICT_S) as one:
        # A door may close before all was said: then there is nothing left to shut either.
        with suppress(ConnectionError):
            one.sendall(noise)
        with suppress(OSError):
            one.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while piece := one.recv(65536):
                answer += piece
    return answer


# --- the stages' ports ---------------------------------------------------------------------------


def without_keys(client: Socket, door: Door) -> None:
    """NULL: ZeroMQ's mechanism without any secret."""


def with_a_password(client: Socket, door: Door) -> None:
    client.plain_username, client.plain_password = b"admin", b"admin"


def with_an_unknown_key(client: Socket, door: Door) -> None:
    set_keys(client, new_key_pair(), door.key)


def for_another_server(client: Socket, door: Door) -> None:
    set_keys(client, new_key_pair(), new_key_pair().public)


def set_keys(client: Socket, keys: KeyPair, server_key: str) -> None:
    client.setsockopt_string(zmq.CURVE_PUBLICKEY, keys.public)
    client.setsockopt_string(zmq.CURVE_SECRETKEY, keys.secret)
    client.setsockopt_string(zmq.CURVE_SERVERKEY, server_key)


@contextmanager
def stranger_socket() -> Iterator[Socket]:
    """A DEALER of a context of its own that dials once."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.linger = 0
        client.reconnect_ivl = -1
        yield client


def verdict(client: Socket, door: Door) -> tuple[bool, int | None]:
    """Dial: whether the handshake succeeded, and what turned the client away."""
    monitor = client.get_monitor_socket(ADMITTED | sum(TURNED_AWAY))
    try:
        client.connect(door.endpoint)
        with suppress(zmq.Again):  # one that was turned away before it spoke has no queue
            client.send(b"let me in", zmq.NOBLOCK)
        admitted = False
        while monitor.poll(VERDICT_MS):
            event = int(recv_monitor_message(monitor)["event"])
            admitted = admitted or event == ADMITTED
            if event in TURNED_AWAY:
                return admitted, event
        return admitted, None
    finally:
        client.disable_monitor()
        monitor.close()


@pytest.mark.parametrize(
    "arm", [without_keys, with_a_password, with_an_unknown_key, for_another_server]
)
def test_a_stages_socket_turns_every_stranger_away(
    running: Running, arm: Callable[[Socket, Door], None]
) -> None:
    doors = running.doors()
    assert [door.stage for door in doors] == [1, 2]
    for door in doors:
        with stranger_socket() as client:
            arm(client, door)
            admitted, event = verdict(client, door)
        assert (admitted, event is not None) == (False, True), door
    running.assert_still_at_work()


def test_garbage_on_a_stages_socket_is_answered_by_closing_it(running: Running) -> None:
    greeting = 64  # bytes; ZeroMQ's own, which says version and mechanism before anything is asked
    for door in running.doors():
        for noise in (secrets.token_bytes(4096), b"GET / HTTP/1.1\r\n\r\n", b"\xff" + b"\0" * 200):
            assert len(send_garbage(LOOPBACK, door.port, noise)) <= greeting
    running.assert_still_at_work()


def test_the_friends_key_is_what_the_others_lacked(running: Running, tmp_path: Path) -> None:
    """The verdict tells friend from stranger: a door of ours with a known key lets it in."""
    server, friend = new_key_pair(), new_key_pair()
    with zmq.Context() as context, context.socket(zmq.DEALER) as bound:
        set_server(bound, server)
        port = bound.bind_to_random_port("tcp://127.0.0.1")
        with stranger_socket() as client:
            set_keys(client, friend, server.public)
            monitor = client.get_monitor_socket(ADMITTED)
            client.connect(f"tcp://127.0.0.1:{port}")
            assert monitor.poll(VERDICT_MS)
            client.disable_monitor()
            monitor.close()


def set_server(bound: Socket, keys: KeyPair) -> None:
    bound.linger = 0
    bound.curve_server = True
    bound.setsockopt_string(zmq.CURVE_PUBLICKEY, keys.public)
    bound.setsockopt_string(zmq.CURVE_SECRETKEY, keys.secret)
