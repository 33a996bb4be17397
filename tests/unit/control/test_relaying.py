"""Which relay stages meet at; what of it reaches a job's stages and its view."""

from pathlib import Path

import pytest

from control.fellows.link_board import JOBS_KEPT, LinkBoard
from control.jobs.relaying import Meeting, RelayTerms, relay_terms
from control.settings import Settings
from transport.cards import Heartbeat, LinkStatus, MachineReport, StageStatus
from transport.errors import SwarmError
from transport.relay import TICKET_S, Side, read_ticket

KEY = bytes(range(32))


def test_both_ends_of_a_boundary_get_tickets_of_one_session_that_end_with_the_attempt() -> None:
    terms = RelayTerms("", 7421, KEY)
    meeting = Meeting("ada/home", "j-aaaabbbb", 1, 0, started_at=1000.0)
    dials, answers = (read_ticket(KEY, one.ticket, now=1000.0) for one in terms.routes(meeting))
    assert dials is not None
    assert answers is not None
    assert (dials.session, dials.pool) == (answers.session, answers.pool)
    assert (dials.side, answers.side) == (Side.DIALS, Side.ANSWERS)
    assert dials.expires_at == 1000 + TICKET_S
    assert terms.routes(meeting) == terms.routes(meeting)
    later = Meeting("ada/home", "j-aaaabbbb", 2, 0, started_at=1000.0)
    again = read_ticket(KEY, terms.routes(later)[0].ticket, now=1000.0)
    assert again is not None
    assert again.session != dials.session


def test_a_relay_elsewhere_needs_an_address_and_the_shared_key(tmp_path: Path) -> None:
    def terms(**told: object) -> RelayTerms | None:
        return relay_terms(Settings.model_validate({"data": tmp_path, **told}), KEY)

    shared = tmp_path / "relay.key"
    shared.write_text("ab" * 32)
    assert terms(relay="none") is None
    assert terms() is None  # no port is open: nothing was started
    assert terms(relay_port=7421) == RelayTerms("", 7421, KEY)
    elsewhere = terms(relay="relay.example.org:9000", relay_key_file=shared)
    assert elsewhere == RelayTerms("relay.example.org", 9000, bytes.fromhex("ab" * 32))
    six = terms(relay="[2001:db8::1]:9000", relay_key_file=shared)
    assert six is not None
    assert six.host == "2001:db8::1"
    for wrong in (
        {"relay": "relay.example.org"},
        {"relay": "relay.example.org:0", "relay_key_file": shared},
        {"relay": "relay.example.org:9000"},
        {"relay": "relay.example.org:9000", "relay_key_file": tmp_path / "gone"},
    ):
        with pytest.raises(SwarmError) as refusal:
            terms(**wrong)
        assert refusal.value.code == "invalid-input"


def beat(job_id: str, attempt: int, path: str) -> Heartbeat:
    """A heartbeat of a fellow that runs stage 0."""
    link = LinkStatus.model_validate(
        {"neighbour": 1, "path": path, "sent_bytes": 10, "received_bytes": 20}
    )
    return Heartbeat(
        protocol=1,
        fellow_id="f-aaaaaaaa",
        machine=MachineReport(
            hostname="x", system="x", cores=1, memory_bytes=1, memory_free_bytes=1,
            disk_free_bytes=None, version="1", listen_address="127.0.0.1",
        ),
        cards=[],
        stages=[
            StageStatus(job_id=job_id, attempt=attempt, stage=0, phase="training", links=[link])
        ],
    )  # fmt: skip


def test_the_board_keeps_the_newest_word_of_the_newest_attempt() -> None:
    board = LinkBoard()
    board.note(beat("j-aaaabbbb", 1, "relay"))
    board.note(beat("j-aaaabbbb", 2, "lan"))
    board.note(beat("j-aaaabbbb", 1, "none"))  # a late one
    link = board.of("j-aaaabbbb", 2, 0, 1)
    assert link is not None
    assert (link.path, link.sent_bytes) == ("lan", 10)
    assert board.of("j-aaaabbbb", 1, 0, 1) is None
    assert board.of("j-aaaabbbb", 2, 1, 2) is None


def test_the_board_is_bounded() -> None:
    board = LinkBoard()
    letters = "abcdefghijkmnpqr"
    ids = [f"j-{a}{b}{c}aaaaa" for a in letters for b in letters for c in "ab"]
    for job_id in ids:
        board.note(beat(job_id, 1, "lan"))
    kept = [job_id for job_id in ids if board.of(job_id, 1, 0, 1) is not None]
    assert kept == ids[-JOBS_KEPT:]
