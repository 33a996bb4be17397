"""A wrong argument is told with the one that was meant, or with what can stand there."""

import pytest

from transport.api.inventory import InventoryFile
from transport.api.job_config import JobConfig
from transport.nearest import meant


@pytest.mark.parametrize(
    ("pointer", "name"),
    [
        ("/train/stepps", "steps"),
        ("/modell", "model"),
        ("/model/lora/rnak", "rank"),
        # It is one, in another place: that place is told.
        ("/steps", "train.steps"),
        ("/train/rank", "model.lora.rank"),
        ("/qwertz", ""),
    ],
)
def test_the_nearest_argument_of_a_job_is_named(pointer: str, name: str) -> None:
    assert meant(JobConfig, pointer) == (f"did you mean {name!r}?" if name else "leave it out")


def test_a_name_is_never_its_own_correction_and_what_can_stand_there_is_listed() -> None:
    hint = meant(InventoryFile, "/fellows/0/cards/3/name")
    assert hint.startswith("leave it out; what can stand there: ")
    assert {"card", "count", "memory_gb"} < set(hint.rsplit(": ", 1)[1].split(", "))


def test_items_of_a_list_have_the_arguments_of_their_kind() -> None:
    assert meant(InventoryFile, "/fellows/12/nam") == "did you mean 'name'?"
    hint = meant(InventoryFile, "/fellows/0/cards/0/memory")
    assert hint == "did you mean 'memory_gb'?"
