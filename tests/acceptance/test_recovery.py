"""A run under the loss of each kind of process ends in the bits of a run that nothing disturbed.

`python -m tests.acceptance.recovery_run` draws a hundred such schedules, with several losses each.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.acceptance.recovery_ground import VICTIMS, Ground, draw

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
