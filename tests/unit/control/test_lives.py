"""A daemon that starts again is let in; a second one beside it, from a copied disk, is not."""

import pytest

from control.clock import HandClock
from control.fellows.lives import OVER_AFTER_S, SURE_AFTER_S, Lives
from control.fellows.vanished import Vanished
from transport.errors import SwarmError

FELLOW = "f-aaaaaaaa"
ONE, TWO = "1" * 16, "2" * 16
SILENT_S = 13.0


class Door:
    """Where two daemons with one credential knock."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.vanished = Vanished(self.clock)
        self.lives = Lives(self.clock, self.vanished, SILENT_S)

    def says(self, life: str) -> str:
        """The code of the refusal; "" when it is let in."""
        try:
            self.lives.admit(FELLOW, life)
        except SwarmError as error:
            return str(error.facts.get("reason", error.code))
        return ""


async def test_a_copy_that_speaks_beside_the_first_is_refused_for_good() -> None:
    door = Door()
    with door.vanished.asking(FELLOW):
        assert door.says(ONE) == ""
        await door.clock.advance(3)
        assert door.says(TWO) == "unavailable"
        await door.clock.advance(SURE_AFTER_S + 0.1)
        assert door.says(ONE) == ""
        assert door.says(TWO) == "two-daemons"
        assert FELLOW in door.lives.copies
    await door.clock.advance(1000)
    assert door.says(TWO) == "two-daemons"
    assert door.says(ONE) == ""


async def test_a_restart_is_let_in_as_soon_as_the_old_connections_are_closed() -> None:
    door = Door()
    with door.vanished.asking(FELLOW):
        assert door.says(ONE) == ""
        await door.clock.advance(1)
        assert door.says(TWO) == "unavailable"
    await door.clock.advance(OVER_AFTER_S)
    assert door.says(TWO) == ""
    assert not door.lives.copies


async def test_a_restart_after_a_power_cut_is_let_in_when_the_old_life_was_silent_long_enough() -> (
    None
):
    door = Door()
    with door.vanished.asking(FELLOW):
        assert door.says(ONE) == ""
        await door.clock.advance(SILENT_S - 1)
        assert door.says(TWO) == "unavailable"
        await door.clock.advance(1)
        assert door.says(TWO) == ""


async def test_a_last_word_that_comes_late_makes_no_copy_of_a_restart() -> None:
    door = Door()
    with door.vanished.asking(FELLOW):
        assert door.says(ONE) == ""
        await door.clock.advance(1)
        assert door.says(TWO) == "unavailable"
        assert door.says(ONE) == ""  # sent before, read after
    await door.clock.advance(OVER_AFTER_S)
    assert door.says(TWO) == ""


async def test_a_machine_that_slept_while_its_copy_took_over_is_told_so() -> None:
    door = Door()
    assert door.says(ONE) == ""
    await door.clock.advance(SILENT_S)
    assert door.says(TWO) == ""
    assert door.says(ONE) == "two-daemons"
    assert door.says(TWO) == ""


async def test_daemons_that_name_no_life_are_let_in_as_ever() -> None:
    door = Door()
    assert door.says("") == ""
    assert door.says(ONE) == ""
    assert door.says("") == ""


async def test_what_is_kept_of_many_lives_is_bounded() -> None:
    door = Door()
    for number in range(500):
        assert door.says(f"{number:016x}") == ""
        await door.clock.advance(1)
    known = door.lives._known[FELLOW]
    with door.vanished.asking(FELLOW):
        door.says(known.life)
        for number in range(1000, 1500):
            door.says(f"{number:016x}")
    assert len(known.refused) + len(known.others) < 100


@pytest.mark.parametrize("seconds", [0.0, 0.3])
async def test_between_two_questions_of_a_living_daemon_a_copy_is_not_let_in(
    seconds: float,
) -> None:
    door = Door()
    with door.vanished.asking(FELLOW):
        await door.clock.advance(25)
        assert door.says(ONE) == ""
    await door.clock.advance(seconds)
    assert door.says(TWO) == "unavailable"
