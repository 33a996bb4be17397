"""What the loss holds: a chunk's logits once, never those of a whole micro-batch."""

import pytest

from stage_runtime.costs import loss_chunk_tokens
from tests.oracle.loss_memory import CHUNK, HALF_BAR, SHARE_BAR, WORDS, quarters, share


@pytest.mark.parametrize("trains", [False, True], ids=["frozen head", "trained head"])
def test_chunks_take_at_most_8_percent_of_the_whole_logits_peak(trains: bool) -> None:
    assert loss_chunk_tokens(WORDS) == CHUNK
    assert share(trains=trains) <= SHARE_BAR


def test_four_micro_batches_at_least_halve_the_head_stages_peak() -> None:
    assert quarters() <= HALF_BAR
