"""The small parts of a fellow: cards, channels, reports, identity, log lines, measuring."""

import asyncio
import json
import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from agents.addresses import is_loopback, leader_url
from agents.fellow import identity as identities
from agents.fellow import nvidia
from agents.fellow.attempts import Attempts
from agents.fellow.channel import pair
from agents.fellow.cpu_card import CpuCard, CudaCards, default_budget, parse_card
from agents.fellow.inventory import Inventory, Places, address_towards, read_offers
from agents.fellow.launcher import Ended, child_environment
from agents.fellow.outbox import Backoff
from agents.fellow.probe import measure
from agents.fellow.reports import LINES_AT_ONCE, Intake
from agents.log_lines import JsonLines, clean, redact
from tests.unit.agents.build import JOB, a_key
from transport.cards import CardReport
from transport.errors import SwarmError
from transport.reports import LogLine, Report, StageDone
from transport.units import GB, MB


@pytest.mark.parametrize(
    ("text", "card"),
    [
        ("cpu:4GB:2", CpuCard(4 * GB, 2)),
        ("cpu:1.6GB:1", CpuCard(1600 * MB, 1)),
        ("CPU:800mb", CpuCard(800 * MB, 8)),
        ("cpu", CpuCard(8 * GB, 8)),
        ("cuda", CudaCards()),
        ("cuda:1", CudaCards(1)),
    ],
)
def test_the_words_of_a_card(text: str, card: object) -> None:
    assert parse_card(text, cores=8, memory_bytes=16 * GB) == card


@pytest.mark.parametrize(
    "text",
    ["", "gpu:1", "cpu:4", "cpu:4TB", "cpu:99GB", "cpu:1MB", "cpu:-4GB", "cpu:4GB:0", "cpu:4GB:x",
     "cpu:4GB:2:3", "cuda:x", "cuda:99", "cpu:NaNGB", "cpu:٣GB"],
)  # fmt: skip
def test_words_that_are_no_card_are_refused_with_what_would_be_right(text: str) -> None:
    with pytest.raises(SwarmError) as refusal:
        parse_card(text, cores=8, memory_bytes=16 * GB)
    assert refusal.value.code == "invalid-input"
    assert refusal.value.hint


def test_a_card_s_words_make_it_again() -> None:
    for card in (CpuCard(1600 * MB, 3), CudaCards(), CudaCards(2)):
        assert parse_card(card.spec(), cores=8, memory_bytes=16 * GB) == card


def test_a_card_that_names_no_size_takes_half_of_the_memory() -> None:
    assert default_budget(16_777_000_000) == 8_300_000_000


@pytest.mark.skipif(bool(nvidia.read_cards(frozenset())), reason="this machine has a card")
def test_a_graphics_card_that_is_not_there_cannot_be_offered() -> None:
    with pytest.raises(SwarmError) as refusal:
        read_offers(("cuda",))
    assert "cpu" in refusal.value.hint
    assert isinstance(read_offers(())[0], CpuCard)


@pytest.mark.parametrize(
    ("capability", "formats"),
    [
        ((8, 6), ("float32", "bfloat16", "float16", "int8", "nf4")),
        ((7, 5), ("float32", "float16", "int8", "nf4")),
        ((5, 0), ("float32",)),
    ],
)
def test_number_formats_follow_the_generation_of_a_card(
    capability: tuple[int, int], formats: tuple[str, ...]
) -> None:
    assert nvidia.formats_of(*capability) == formats


def test_stored_formats_are_told_only_once_a_self_test_has_proved_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inventory = Inventory([CpuCard(300 * MB, 1)], "f-aaaaaaaa", "desk", Places(tmp_path, "::1"))

    def formats() -> list[str]:
        return list(inventory.cards(lambda _: 0, frozenset())[0].number_formats)

    assert formats() == ["float32", "bfloat16"]
    nonsenses: list[object] = [None, [], {"cpu": 1}, {"cpu": {"formats": ["x"], "failed": ""}}]
    for nonsense in nonsenses:
        inventory.proofs.take(nonsense)
    assert formats() == ["float32", "bfloat16"]
    failed = "int8: a product is wrong by 0.25 of its size"
    inventory.proofs.take({"cpu": {"formats": ["float32", "nf4"], "failed": failed}})
    assert formats() == ["float32", "nf4"]
    assert failed in [vars(record).get("why") for record in caplog.records]
    generation = nvidia.formats_of(8, 6)
    assert inventory.proofs.formats("GPU-1", generation) == ["float32", "bfloat16", "float16"]


def test_a_cpu_card_s_free_memory_is_its_budget_less_what_its_workers_hold(tmp_path: Path) -> None:
    offers = [CpuCard(300 * MB, 1), CpuCard(200 * MB, 2)]
    inventory = Inventory(
        list(offers), "f-aaaaaaaa", "desk", Places(tmp_path / "not" / "yet", "::1")
    )
    cards = inventory.cards(lambda index: 100 * MB if index == 1 else 0, frozenset())
    assert [(c.index, c.total_bytes, c.free_bytes, c.threads) for c in cards] == [
        (0, 300 * MB, 300 * MB, 1),
        (1, 200 * MB, 100 * MB, 2),
    ]
    assert len({c.uuid for c in cards}) == 2
    assert inventory.machine().disk_free_bytes


def test_cached_models_are_told(tmp_path: Path) -> None:
    (tmp_path / "hub" / "models--org--name").mkdir(parents=True)
    inventory = Inventory([], "f-aaaaaaaa", "desk", Places(tmp_path, "::1"))
    assert inventory.machine().cached_models == ["org/name"]


def test_fellows_of_one_machine_tell_one_name_of_its_start(tmp_path: Path) -> None:
    one, other = (Inventory([], f"f-{x * 8}", "desk", Places(tmp_path, "::1")) for x in "ab")
    assert one.machine().boot == other.machine().boot
    if Path("/proc/sys/kernel/random/boot_id").exists():
        assert one.machine().boot


def test_towards_a_leader_on_this_machine_the_address_is_loopback() -> None:
    assert address_towards("http://127.0.0.1:7420") == "127.0.0.1"
    assert address_towards("http://no-such-host.invalid") == "127.0.0.1"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7420",
        "ftp://a",
        "http://",
        "http://a:b@c",
        "http://a?x=1",
        "http://a:99999",
        "http://[x",
    ],
)
def test_what_is_no_leader_s_address_is_refused(text: str) -> None:
    with pytest.raises(SwarmError):
        leader_url(text)
    assert leader_url(" http://a:1/ ") == "http://a:1"


def test_loopback_is_known_by_name_and_number() -> None:
    assert all(is_loopback(f"http://{host}:1") for host in ("127.0.0.1", "localhost", "[::1]"))
    assert not is_loopback("http://example.org")


@pytest.mark.anyio
async def test_a_channel_cuts_a_line_that_is_too_long_and_goes_on_with_the_next() -> None:
    ours, theirs = pair(limit_bytes=10)

    def talk() -> None:
        theirs.sendall(b"one\n" + b"x" * 300_000 + b"\ntwo\nlast")
        theirs.close()

    talking = asyncio.create_task(asyncio.to_thread(talk))
    assert [line async for line in ours.lines()] == ["one", "x" * 10, "two", "last"]
    await talking
    ours.close()


@pytest.mark.anyio
async def test_a_channel_whose_other_end_does_not_read_gives_up_in_time() -> None:
    ours, theirs = pair()
    assert await ours.send("x" * 10_000_000, timeout_s=0.1) is False
    theirs.close()
    assert await ours.send("x") is False
    ours.close()


def an_intake(ticks: list[float]) -> tuple[Intake, list[Report]]:
    taken: list[Report] = []
    return Intake(a_key(), taken.append, clock=lambda: 7.0, ticks=lambda: ticks[0]), taken


def test_log_lines_are_limited_and_the_gap_is_told() -> None:
    ticks = [0.0]
    intake, taken = an_intake(ticks)
    for number in range(500):
        intake.say("info", f"line {number}")
    assert len(taken) == LINES_AT_ONCE
    intake.say("error", "an error always comes through")
    ticks[0] = 1.0
    intake.say("info", "later")
    texts = [line.text for line in taken if isinstance(line, LogLine)]
    assert texts[-3:] == [
        "300 log lines were left out here",
        "an error always comes through",
        "later",
    ]


@pytest.mark.parametrize(
    "line",
    ["", "{}", "[]", "not json", '{"kind":"step"}', '{"kind":"done","job_id":1}', "\x00" * 9],
)
def test_a_line_that_is_no_report_becomes_a_warning(line: str) -> None:
    intake, taken = an_intake([0.0])
    assert intake.take(line) is None
    assert [report.kind for report in taken] == ["log"]


def test_a_report_for_another_stage_or_attempt_is_dropped() -> None:
    intake, taken = an_intake([0.0])
    for attempt, stage in ((2, 0), (1, 1)):
        report = StageDone(
            job_id=JOB, attempt=attempt, stage=stage, at=1.0, sent_bytes=0, received_bytes=0
        )
        assert intake.take(report.model_dump_json()) is None
    assert taken == []


def test_text_is_cleaned_capped_and_freed_of_secrets() -> None:
    assert clean("a\x1b[31m\u202eb\nc", 100) == "a[31mb c"
    assert clean("x" * 50, 10) == "x" * 9 + "…"
    secret = identities.new_credential()
    assert redact(f"token {secret}, Bearer abc.def hf_{'a' * 30}") == (
        "token [hidden], Bearer [hidden] [hidden]"
    )


def test_a_log_line_is_one_json_object_without_secrets() -> None:
    secret = identities.new_credential()
    record = logging.makeLogRecord(
        {"msg": "joined with %s", "args": (secret,), "levelname": "INFO", "stage": f"a\n{secret}"}
    )
    line = JsonLines().format(record)
    assert "\n" not in line
    assert secret not in line
    assert json.loads(line)["message"] == "joined with [hidden]"


def test_started_stages_are_remembered_until_their_end_was_told(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path)
    attempts.note_start(a_key(1))
    attempts.note_start(a_key(2))
    attempts.note_end(a_key(1))
    again = Attempts(tmp_path)
    assert again.unfinished() == [a_key(2)]
    assert again.started() == {a_key(1), a_key(2)}
    (tmp_path / "attempts.json").write_text("[[")
    assert Attempts(tmp_path).started() == frozenset()


def test_starts_and_ends_noted_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: attempts.note_start(a_key(n)), range(1, 30)))
    assert len(Attempts(tmp_path).started()) == 29


def test_a_damaged_identity_is_said_and_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_text("{")
    with pytest.raises(SwarmError) as refusal:
        identities.prepare(tmp_path, "http://a", "i" * 20, ())
    assert refusal.value.code == "conflict"
    assert (tmp_path / "identity.json").read_text() == "{"


def test_another_invite_makes_another_credential(tmp_path: Path) -> None:
    first = identities.prepare(tmp_path, "http://a", "i" * 20, ("cpu",))
    same = identities.prepare(tmp_path, "http://a", "i" * 20, ())
    other = identities.prepare(tmp_path, "http://a", "j" * 20, ())
    assert first == same
    assert first.credential != other.credential
    assert first.credential.startswith("swn_")
    assert len(first.credential) == 47


def test_pauses_grow_to_their_limit_and_are_spread() -> None:
    backoff = Backoff(first_s=1.0, most_s=8.0)
    pauses = [backoff.pause_s() for _ in range(50)]
    assert all(4.0 <= pause <= 8.0 for pause in pauses[3:])
    assert 0.5 <= pauses[0] <= 1.0
    assert len(set(pauses[3:])) > 10
    backoff.succeeded()
    assert backoff.pause_s() <= 1.0


def test_the_ends_of_processes_in_words() -> None:
    assert Ended(None, 9).words() == "was killed by signal 9 (SIGKILL)"
    assert Ended(7, None).words() == "ended with exit code 7"
    assert "nobody could tell" in Ended(None, None).words()


def test_children_inherit_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWARM_INVITE", "secret")
    monkeypatch.setenv("SWARM_TOKEN", "secret")
    assert "secret" not in child_environment().values()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("import sys; sys.exit('no torch here')", "no torch here"),
        ("print('{\"speeds\": []}')", ""),
        ("print('nothing')", "the probe printed no figures"),
        ("import os; os.abort()", "probe"),
    ],
)
async def test_a_card_that_cannot_be_measured_says_why(program: str, says: str) -> None:
    card = CardReport(
        index=0,
        kind="cpu",
        name="x",
        uuid="u",
        total_bytes=1,
        free_bytes=1,
        number_formats=["float32"],
    )
    others = set(psutil.Process(os.getpid()).children())  # of other tests' fixtures
    told = await measure(card, "m", (sys.executable, "-c", program))
    assert told.speeds == []
    assert says in told.error
    assert set(psutil.Process(os.getpid()).children()) <= others
