"""A run under the loss of each kind of process ends in the bits of a run that nothing disturbed.

`python -m tests.acceptance.recovery_run` draws a hundred such schedules, with several losses each.
"""

import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.acceptance.recovery_ground import VICTIMS, Ground, _config, draw

STEPS = 20


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    made = Ground(tmp_path_factory.mktemp("recovery"), fellows=2, steps=STEPS)
    yield made
    made.close()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_run_that_loses_a_process_ends_in_the_bits_of_one_that_lost_none(
    ground: Ground, victim: str
) -> None:
    (drawn,) = draw(f"suite/{victim}", victim)
    blow = replace(drawn, at_step=drawn.at_step % STEPS, lasts_s=0.2)
    job = ground.run([blow])
    assert ground.adapter_of(job) == ground.undisturbed, str(blow)


@pytest.mark.timeout(120)
def test_a_fellow_that_is_killed_is_found_by_what_its_system_and_its_neighbour_tell(
    ground: Ground,
) -> None:
    (drawn,) = draw("suite/vanished", "daemon")
    job = ground.run([replace(drawn, at_step=4, lasts_s=2.5)])
    assert ground.adapter_of(job) == ground.undisturbed
    assert ["vanished" in one.why for one in job.config.resumes] == [True]
    assert "lost its link to it" in job.config.resumes[0].why


@pytest.mark.timeout(120)
def test_a_copy_of_a_fellow_s_disk_is_refused_while_the_fellow_works_on(ground: Ground) -> None:
    ground.until("readiness", ground._all_ready, 60)
    job_id = ground.pool.submit(ground.pool.plan(_config(STEPS))).job_id
    ground.pool.wait_step(job_id, 2)
    household = ground.pool.household
    shutil.copytree(household.folder / ground.names[0], household.folder / "copy")
    copy = household.start("copy", ["-m", "agents.cli.main", "fellow"])
    household.children.remove(copy)
    code = copy.process.wait(60)
    assert code == 5, copy.last_lines()
    assert "is a copy of the other's disk" in copy.last_lines()
    assert ["two machines have its credential" in str(row.causes) for row in ground.pool.fellows()]
    job = ground.pool.wait_end(job_id)
    assert (job.attempt, ground.adapter_of(job)) == (1, ground.undisturbed)
