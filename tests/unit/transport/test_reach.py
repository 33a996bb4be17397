"""Addresses of a neighbour: told, tried at once, chosen; from the relay to a direct way mid-run."""

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import groupby

import pytest

from tests.unit.transport.ends import JOB, Ends, data, neighbour, number_of
from tests.unit.transport.relay_child import RelayChild, routes
from tests.unit.transport.splice import Splice
from transport.candidates import Candidate, Trials, kind_of, told_endpoint
from transport.cards import PathKind
from transport.direct import LinkOptions, PipelineLinks
from transport.errors import SwarmError
from transport.link import LinkName
from transport.orders import Links
from transport.reach import Reached


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("127.0.0.1", "local"),
        ("::1", "local"),
        ("192.168.1.20", "lan"),
        ("10.3.2.1", "lan"),
        ("fd00::7", "lan"),
        ("100.101.102.103", "mesh"),
        ("fd7a:115c:a1e0::1", "mesh"),
        ("8.8.8.8", "public"),
        ("2a00:1450::1", "public"),
    ],
)
def test_an_address_says_what_kind_of_way_it_is(address: str, kind: PathKind) -> None:
    assert kind_of(address) == kind
    read = Candidate.read(told_endpoint(address, 4000))
    assert (read.kind, read.host, read.port) == (kind, address, 4000)


def test_a_mesh_interface_with_a_private_address_is_told_as_one() -> None:
    read = Candidate.read(told_endpoint("10.8.0.2", 4000, is_mesh=True))
    assert (read.kind, read.endpoint) == ("mesh", "tcp://10.8.0.2:4000")


@pytest.mark.parametrize(
    "told",
    ["", "10.0.0.1:40", "tcp://host:40", "tcp://10.0.0.1", "tcp://10.0.0.1:0", "ipc:///tmp/x",
     "tcp://10.0.0.1:99999", "mesh+ipc://10.0.0.1:5", "tcp://10.0.0.1:4x"],
)  # fmt: skip
def test_what_is_no_address_of_ours_is_refused(told: str) -> None:
    with pytest.raises(SwarmError) as refusal:
        Candidate.read(told)
    assert refusal.value.code == "invalid-input"


@contextmanager
def nobody() -> Iterator[int]:
    """A port at which nothing listens: bound, never listening."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_all_addresses_are_tried_at_once_and_the_best_that_answers_is_taken() -> None:
    with (
        nobody() as dead,
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
        closing(
            Trials(
                [
                    Candidate("public", "127.0.0.1", two.getsockname()[1]),
                    Candidate("lan", "127.0.0.1", dead),
                    Candidate("mesh", "127.0.0.1", one.getsockname()[1]),
                ]
            )
        ) as trials,
    ):
        trials.begin()
        found = trials.best(wait_s=5)
        assert found is not None
        assert found.kind == "mesh"
        assert trials.why_not(found) == "lan 127.0.0.1: nothing listens there"

        trials.rule_out(found, "another machine answers there")
        found = trials.best(wait_s=5)
        assert found is not None
        assert found.kind == "public"
        assert "mesh 127.0.0.1: another machine answers there" in trials.why_not(found)


def test_a_round_without_any_answer_is_over_and_says_why_of_each() -> None:
    now = [0.0]
    with nobody() as dead:
        trials = Trials(
            [Candidate("lan", "127.0.0.1", dead), Candidate("public", "192.0.2.1", 9)],
            clock=lambda: now[0],
        )
    with closing(trials):
        trials.begin()
        assert trials.best(wait_s=0.05) is None
        now[0] = 60.0
        assert trials.best() is None
        assert trials.is_over
        told = trials.why_not(None)
        assert told.startswith("lan 127.0.0.1: nothing listens there; public 192.0.2.1: ")


class Moving:
    """Two stages with a direct way that opens and closes, and a relay."""

    def __init__(self, relay: RelayChild) -> None:
        self.told: list[Reached] = []
        options = LinkOptions(on_path=lambda _, reached: self.told.append(reached))
        self.near = PipelineLinks.open(LinkName(JOB, 1, 0, 0), 2, "127.0.0.1", options)
        self.far = PipelineLinks.open(LinkName(JOB, 1, 1, 1), 2, "127.0.0.1")
        self.splice = Splice(int(self.far.endpoint.endpoints[0].rsplit(":", 1)[1]))
        self.splice.cut(for_good=True)
        dials, answers = routes(relay.port)
        endpoints = [f"tcp://127.0.0.1:{self.splice.port}"]
        far = neighbour(1, self.far, endpoints).model_copy(update={"relay": dials})
        near = neighbour(0, self.near).model_copy(update={"relay": answers})
        self.near.connect(Links(previous=None, next=far))
        self.far.connect(Links(previous=near, next=None))
        assert self.near.next is not None
        assert self.far.previous is not None
        self.ends = Ends(self.near.next, self.far.previous, lambda: None, lambda: None)
        self.there: list[int] = []
        self.sent = 0

    def trickle_until(self, kind: PathKind) -> None:
        """Send frame after frame until the neighbour is reached that way and one wire is left."""

        def is_done() -> bool:
            if self.ends.near.is_clear(self.sent):
                self.ends.near.send(*data(self.sent))
                self.sent += 1
            while (frame := self.ends.far.receive()) is not None:
                self.there.append(number_of(frame))
            ways = {"relay": 1, "local": 0}
            is_calm = len(self.ends.near.pollables) <= 3 + ways[kind] * 2
            return self.told[-1].kind == kind and is_calm

        self.ends.run_until(is_done, timeout_s=20)

    def close(self) -> None:
        self.near.close(0)
        self.far.close(0)
        self.splice.close()


def test_a_run_moves_from_the_relay_to_a_direct_way_and_back_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, seconds in (
        ("RELAY_AFTER_S", 0.0),
        ("CANDIDATE_S", 0.2),
        ("FIRST_PAUSE_S", 0.05),
        ("LONGEST_PAUSE_S", 0.2),
        ("CALM_S", 0.2),
    ):
        monkeypatch.setattr(f"transport.reach.{name}", seconds)
    with RelayChild() as relay, closing(Moving(relay)) as run:
        run.trickle_until("relay")
        assert run.told[-1].kind == "relay"
        run.splice.mend()
        run.trickle_until("local")
        assert run.told[-1] == Reached("local", f"tcp://127.0.0.1:{run.splice.port}")
        run.splice.cut(for_good=True)
        run.trickle_until("relay")
        run.splice.mend()
        run.trickle_until("local")

        run.ends.run_until(lambda: run.ends.near.unconfirmed == 0 or _take(run))
        assert run.there == list(range(run.sent))
        assert (run.ends.near.failure, run.ends.far.failure) == (None, None)
        ways = [kind for kind, _ in groupby(one.kind for one in run.told) if kind != "none"]
        assert ways == ["relay", "local", "relay", "local"]


def _take(run: Moving) -> bool:
    while (frame := run.ends.far.receive()) is not None:
        run.there.append(number_of(frame))
    run.ends.far.acknowledge()
    return len(run.there) == run.sent
