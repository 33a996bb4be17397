"""Fellows: invites are spent once, silence is judged by the leader's clock, orders are a state."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from control.fellows.clean_text import clean
from tests.leader_twins import POOL, Pool, open_pool
from transport.cards import PROTOCOL, CardReport, Speed, StageStatus
from transport.errors import SwarmError
from transport.reports import JoinAsk, Measured


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    async with open_pool(tmp_path) as made:
        yield made


def join_ask(secret: str, credential: str = "swn_one", **changes: Any) -> JoinAsk:
    digest = hashlib.sha256(credential.encode()).hexdigest()
    told = {"protocol": 1, "hostname": "h", "version": "0.1.0", **changes}
    return JoinAsk(invite=secret, credential_sha256=digest, **told)


async def code(asked: Any) -> str:
    with pytest.raises(SwarmError) as refusal:
        await asked
    return refusal.value.code


async def test_an_invite_works_once_and_again_for_the_same_machine_only(pool: Pool) -> None:
    invite = await pool.ask("invites_create", pool=POOL)
    first = await pool.leader.join(join_ask(invite.secret))
    again = await pool.leader.join(join_ask(invite.secret))
    assert again == first
    assert first.pool == POOL
    assert pool.leader.fellow("swn_one") == first.fellow_id
    assert await code(pool.leader.join(join_ask(invite.secret, "swn_two"))) == "not-found"


async def test_an_old_and_an_unknown_invite_are_refused_alike(pool: Pool) -> None:
    invite = await pool.ask("invites_create", pool=POOL)
    await pool.clock.advance(3601)
    assert await code(pool.leader.join(join_ask(invite.secret))) == "not-found"
    assert await code(pool.leader.join(join_ask("swi_" + "x" * 40))) == "not-found"


async def test_one_credential_cannot_be_two_fellows(pool: Pool) -> None:
    one, two = [await pool.ask("invites_create", pool=POOL) for _ in range(2)]
    await pool.leader.join(join_ask(one.secret))
    assert await code(pool.leader.join(join_ask(two.secret))) == "conflict"


async def test_of_many_machines_with_one_invite_one_gets_in(pool: Pool) -> None:
    invite = await pool.ask("invites_create", pool=POOL)
    asked = (pool.leader.join(join_ask(invite.secret, f"swn_{n}")) for n in range(20))
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(not isinstance(answer, Exception) for answer in answers) == 1


async def test_a_removed_fellow_is_a_stranger_even_after_a_restart(pool: Pool) -> None:
    fellow = await pool.add_fellow()
    await pool.ask("fellows_remove", fellow_id=fellow.fellow_id)
    assert pool.leader.fellow(fellow.credential) is None
    await pool.reopen()
    assert pool.leader.fellow(fellow.credential) is None


async def test_a_fellow_is_offline_after_thirteen_seconds_of_silence_and_back_at_its_next_beat(
    pool: Pool,
) -> None:
    fellow = await pool.add_fellow()
    pool.leader.start()
    await pool.clock.advance(12)
    assert (await pool.ask("fellows_list")).fellows[0].status == "ready"
    await pool.clock.advance(2)
    row = (await pool.ask("fellows_list")).fellows[0]
    assert (row.status, row.health) == ("offline", "F")
    assert "heartbeat" in row.causes[0]
    fellow.beat()
    assert (await pool.ask("fellows_list")).fellows[0].health == "A"


async def test_when_the_leader_itself_stood_still_its_fellows_get_that_time_on_top(
    pool: Pool,
) -> None:
    await pool.add_fellow()
    registry = pool.leader.office.registry
    await pool.clock.advance(60)
    assert registry.sweep() == []
    await pool.clock.advance(2)
    assert registry.sweep() == []
    await pool.clock.advance(1)
    assert len(registry.sweep()) == 1


async def test_rates_are_over_the_last_interval_and_unknown_when_a_counter_goes_back(
    pool: Pool,
) -> None:
    fellow = await pool.add_fellow()
    assert (await pool.ask("fellows_list")).fellows[0].sent_bytes_s is None
    await pool.clock.advance(5)
    fellow.beat(sent_bytes=1000, pipeline_sent_bytes=4000, received_bytes=500)
    row = (await pool.ask("fellows_list")).fellows[0]
    assert (row.sent_bytes_s, row.received_bytes_s) == (1000.0, 100.0)
    traffic = (await pool.ask("fellows_get", fellow_id=fellow.fellow_id)).traffic
    assert traffic is not None
    assert (traffic.leader_sent_bytes_s, traffic.pipeline_sent_bytes_s) == (200.0, 800.0)
    assert (traffic.leader_received_bytes_s, traffic.pipeline_received_bytes_s) == (100.0, 0.0)
    await pool.clock.advance(5)
    fellow.beat(sent_bytes=10)
    assert (await pool.ask("fellows_list")).fellows[0].sent_bytes_s is None


async def test_a_fellow_whose_link_goes_through_the_relay_is_graded_b_and_says_so(
    pool: Pool,
) -> None:
    fellow = await pool.add_fellow()
    link = {"neighbour": 1, "path": "relay", "sent_bytes": 1, "received_bytes": 1}
    stage = {"job_id": "j-aaaabbbb", "attempt": 1, "stage": 0, "phase": "training"}
    fellow.beat(stages=[StageStatus.model_validate({**stage, "links": [link]})])
    row = (await pool.ask("fellows_list")).fellows[0]
    assert row.health == "B"
    assert row.causes == ["its link from stage 0 to stage 1 goes through the relay"]


async def test_a_held_request_for_orders_ends_at_once_when_they_change(pool: Pool) -> None:
    fellow = await pool.add_fellow()
    since = pool.leader.office.registry.desired(fellow.fellow_id).revision
    waiting = asyncio.ensure_future(pool.leader.wait_orders(fellow.fellow_id, since, 25))
    await checkpoint()
    await pool.ask("fellows_measure", fellow_id=fellow.fellow_id)
    told = await asyncio.wait_for(waiting, 5)
    assert told.measure is not None
    assert told.revision > since


async def test_a_held_request_ends_with_the_same_state_when_nothing_changes(pool: Pool) -> None:
    fellow = await pool.add_fellow()
    before = pool.leader.office.registry.desired(fellow.fellow_id)
    asked = pool.leader.wait_orders(fellow.fellow_id, before.revision, 25)
    waiting = asyncio.ensure_future(asked)
    await pool.clock.advance(24)
    assert not waiting.done()
    await pool.clock.advance(2)
    assert await asyncio.wait_for(waiting, 5) == before


async def test_measured_speeds_are_kept_and_the_order_ends_with_the_last_card(pool: Pool) -> None:
    fellow = await pool.add_fellow()
    await pool.ask("fellows_measure", fellow_id=fellow.fellow_id)
    assert await code(pool.ask("fellows_measure", fellow_id=fellow.fellow_id)) == "conflict"
    order = fellow.beat().measure
    assert order is not None
    speed = Speed(number_format="float32", tflops=0.2, measured_at=5.0)
    await fellow.report(Measured(token=order.token, at=5.0, card_index=0, speeds=[speed]))
    assert fellow.beat().measure is None
    await pool.reopen()
    fellow.beat()
    view = await pool.ask("fellows_get", fellow_id=fellow.fellow_id)
    assert view.cards[0].speeds == [speed]


async def test_causes_make_the_grade(pool: Pool) -> None:
    fellow = await pool.add_fellow()
    beat = pool.leader.office.registry.get(fellow.fellow_id).beat
    assert beat is not None
    full = beat.machine.model_copy(update={"disk_free_bytes": 1, "disk_total_bytes": 100})
    fellow.beat(machine=full)
    assert (await pool.ask("fellows_list")).fellows[0].health == "B"
    fellow.beat(machine=full, protocol=PROTOCOL - 1) if PROTOCOL > 1 else None
    broken = CardReport(
        index=0, kind="cpu", name="CPU", uuid="u", total_bytes=1, free_bytes=1, number_formats=[]
    )
    fellow.beat(machine=full, cards=[broken])
    row = (await pool.ask("fellows_list")).fellows[0]
    assert row.health == "C"
    assert len(row.causes) == 2


async def test_a_fellow_cannot_beat_for_another(pool: Pool) -> None:
    one, two = await pool.add_fellow(), await pool.add_fellow()
    with pytest.raises(SwarmError) as refusal:
        one.beat(fellow_id=two.fellow_id)
    assert refusal.value.code == "forbidden"


async def test_text_of_a_fellow_is_cleaned_at_the_door(pool: Pool) -> None:
    fellow = await pool.add_fellow()
    beat = pool.leader.office.registry.get(fellow.fellow_id).beat
    assert beat is not None
    evil = "a\x1b[2J\u202eb\x00\nc"
    fellow.beat(machine=beat.machine.model_copy(update={"hostname": evil}))
    assert (await pool.ask("fellows_list")).fellows[0].untrusted_hostname == "ab c"


@given(st.text())
def test_cleaned_text_has_no_character_that_moves_or_hides_and_stays_the_same_when_cleaned_again(
    text: str,
) -> None:
    cleaned = clean(text, 100)
    assert len(cleaned) <= 100
    assert all(c.isprintable() or c == "\u3000" or c.isspace() for c in cleaned)
    assert "\n" not in cleaned
    assert clean(cleaned, 100) == cleaned
