"""From a desired state to actions: pure, level-triggered, at most one worker a card."""

from hypothesis import given
from hypothesis import strategies as st

from agents.fellow.reconcile import (
    Action,
    Connect,
    Key,
    Phase,
    Seen,
    Start,
    Stop,
    key_of,
    reconcile,
)
from tests.unit.agents.build import an_assignment, links
from transport.orders import StageAssignment

JOBS = ("j-aaaaaaaa", "j-bbbbbbbb")
KEYS = st.builds(Key, st.sampled_from(JOBS), st.integers(1, 3), st.integers(0, 1))
PHASES: list[Phase] = ["running", "stopping"]
WORKERS = st.dictionaries(
    KEYS, st.builds(Seen, st.sampled_from(PHASES), st.just(frozenset({0})), st.booleans())
)
ASSIGNMENTS = st.lists(
    st.builds(
        lambda key, with_links, pause: an_assignment(
            with_links=with_links,
            pause=pause,
            job_id=key.job_id,
            attempt=key.attempt,
            stage=key.stage,
        ),
        KEYS,
        st.booleans(),
        st.booleans(),
    ),
    max_size=4,
)


def after(workers: dict[Key, Seen], actions: list[Action]) -> dict[Key, Seen]:
    """The workers once the actions were carried out and everything that stops has stopped."""
    now = {key: seen for key, seen in workers.items() if seen.phase == "running"}
    for action in actions:
        match action:
            case Stop(key, _):
                del now[key]
            case Connect(key, _):
                now[key] = Seen("running", now[key].cards, True)
            case Start(assignment):
                now[key_of(assignment)] = Seen("running", frozenset({0}), False)
    return now


@given(ASSIGNMENTS, WORKERS, st.frozensets(KEYS, max_size=3))
def test_repeated_it_settles_on_exactly_what_is_wanted(
    desired: list[StageAssignment], workers: dict[Key, Seen], ended: frozenset[Key]
) -> None:
    now = workers
    for _ in range(4):
        now = after(now, reconcile(desired, now, ended))
    assert reconcile(desired, now, ended) == []

    newest: dict[tuple[str, int], StageAssignment] = {}
    for one in desired:
        place = (one.order.job_id, one.order.stage)
        if place not in newest or one.order.attempt >= newest[place].order.attempt:
            newest[place] = one
    wanted = {key_of(one) for one in newest.values() if not one.pause}
    kept = {key for key, seen in workers.items() if seen.phase == "running"} & wanted
    assert set(now) == kept | (wanted - ended - kept)


@given(ASSIGNMENTS, WORKERS, st.frozensets(KEYS, max_size=3))
def test_nothing_that_has_ended_or_exists_is_started_and_only_running_workers_are_stopped(
    desired: list[StageAssignment], workers: dict[Key, Seen], ended: frozenset[Key]
) -> None:
    for action in reconcile(desired, workers, ended):
        match action:
            case Start(assignment):
                assert key_of(assignment) not in ended | workers.keys()
                assert all(seen.phase == "running" for seen in workers.values())
            case Stop(key, reason):
                assert workers[key].phase == "running"
                assert reason
            case Connect(key, _):
                assert not workers[key].has_links


def test_a_newer_attempt_waits_until_the_older_has_left_the_card() -> None:
    old = Key("j-aaaaaaaa", 1, 0)
    desired = [an_assignment(attempt=2)]
    running = {old: Seen("running", frozenset({0}), False)}
    stopping = {old: Seen("stopping", frozenset({0}), False)}

    assert [type(a) for a in reconcile(desired, running, frozenset())] == [Stop]
    assert reconcile(desired, stopping, frozenset()) == []
    assert [type(a) for a in reconcile(desired, {}, frozenset({old}))] == [Start]


def test_links_are_told_once() -> None:
    key = Key("j-aaaaaaaa", 1, 0)
    desired = [an_assignment(with_links=True)]
    before = {key: Seen("running", frozenset({0}), False)}
    assert reconcile(desired, before, frozenset()) == [Connect(key, links())]
    assert reconcile(desired, {key: Seen("running", frozenset({0}), True)}, frozenset()) == []
