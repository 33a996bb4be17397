"""Which runs may go on under another split."""

import pytest

from control.jobs.going_on import may_split
from tests.unit.control.planning.pools import a_job


@pytest.mark.parametrize("kind", ["none", "fixed_int8", "fixed_int4", "rotation"])
def test_codes_that_belong_to_no_boundary_let_a_run_be_split_again(kind: str) -> None:
    assert may_split(a_job(compression={"kind": kind}))


@pytest.mark.parametrize("method", ["lora", "boundary"])
def test_a_learned_bottleneck_keeps_its_split(method: str) -> None:
    assert not may_split(a_job(method=method, compression={"kind": "learned"}))
