"""A job that hangs is found by its stages' progress; a slow one is left in peace."""

from control.clock import HandClock
from control.fellows.registry import Registry, Timing
from control.jobs.moving import Movement
from control.store.fellows import StoredFellow
from tests.unit.mcp_server.twin import sample
from transport.cards import Heartbeat, MachineReport, StageStatus

JOB, ATTEMPT = "j-aaaaaaaa", ("j-aaaaaaaa", 1)
FELLOWS = ("f-aaaaaaaa", "f-bbbbbbbb")


class Pool:
    """Two fellows with a stage each, and what they tell of it."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.registry = Registry(self.clock, Timing(5.0, 15.0), lambda *_: None)
        self.movement = Movement(self.clock)
        for number, fellow_id in enumerate(FELLOWS):
            stored = StoredFellow(
                fellow_id=fellow_id,
                pool="ann/lab",
                credential_sha256=str(number) * 64,
                hostname="box",
                version="0.1.0",
                joined_at=0.0,
            )
            self.registry.add(stored)

    async def pass_time(
        self, seconds: int, *, moved: tuple[int, int], waits: tuple[str, str] = ("", "")
    ) -> None:
        """Heartbeats every 5 s that say how far each stage has moved."""
        for _ in range(seconds // 5):
            await self.clock.advance(5)
            for stage, fellow_id in enumerate(FELLOWS):
                told = sample(Heartbeat, protocol=1, fellow_id=fellow_id) | {
                    "machine": sample(MachineReport, hostname="box"),
                    "stages": [
                        sample(StageStatus, job_id=JOB, attempt=1, stage=stage, phase="training")
                        | {"moved": moved[stage], "waits_for": waits[stage]}
                    ],
                }
                self.registry.beat(fellow_id, Heartbeat.model_validate(told))
            self.registry.sweep()
            self.movement.note(self.registry.every())


async def test_a_job_that_stands_still_is_found_and_the_one_that_others_wait_for_is_named() -> None:
    pool = Pool()
    await pool.pass_time(5, moved=(10, 10))
    frame = "the gradients of micro-batch 2 of step 7 (float32[2, 24, 64]) from stage 1"
    await pool.pass_time(50, moved=(11, 11), waits=(frame, ""))
    assert pool.movement.stuck(ATTEMPT, 2, 0.5) is None
    await pool.pass_time(20, moved=(11, 11), waits=(frame, ""))
    stuck = pool.movement.stuck(ATTEMPT, 2, 0.5)
    assert stuck is not None
    assert "stage 1 of 2 on f-bbbbbbbb" in stuck.words
    assert stuck.waits == (f"stage 0 on f-aaaaaaaa waits for {frame}",)
    assert frame not in stuck.words


async def test_a_slow_stage_is_told_from_one_that_hangs() -> None:
    pool = Pool()
    for number in range(4):
        await pool.pass_time(40, moved=(number, number))
    await pool.pass_time(200, moved=(9, 9))
    assert pool.movement.stuck(ATTEMPT, 2, 40.0) is None  # ten steps of 40 s
    await pool.pass_time(250, moved=(9, 9))
    assert pool.movement.stuck(ATTEMPT, 2, 40.0) is not None


async def test_one_stage_that_moves_is_enough_and_an_unknown_one_is_no_proof() -> None:
    pool = Pool()
    for number in range(30):
        await pool.pass_time(5, moved=(number, 1))
    assert pool.movement.stuck(ATTEMPT, 2, 0.5) is None
    await pool.pass_time(200, moved=(30, 1))
    assert pool.movement.stuck(ATTEMPT, 3, 0.5) is None
    assert pool.movement.stuck(ATTEMPT, 2, 0.5) is not None


async def test_when_most_fellows_fall_silent_at_once_the_leader_suspects_itself_for_a_while() -> (
    None
):
    pool = Pool()
    await pool.pass_time(10, moved=(1, 1))
    lost: list[str] = []
    for _ in range(20):
        await pool.clock.advance(1)
        lost += pool.registry.sweep()
    assert lost == []
    assert pool.registry.suspects_itself
    assert [member.online for member in pool.registry.every()] == [False, False]
    for _ in range(125):
        await pool.clock.advance(1)
        lost = pool.registry.sweep()
    assert sorted(lost) == sorted(FELLOWS)
