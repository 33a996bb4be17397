"""The declared operations, seen as a whole."""

import string

import pytest

from transport.api.catalog import OPERATIONS
from transport.api.operation import Change, Operation

EVERY = [pytest.param(operation, id=name) for name, operation in OPERATIONS.items()]


@pytest.mark.parametrize("operation", EVERY)
def test_an_operation_is_described_and_so_is_each_of_its_arguments(operation: Operation) -> None:
    assert operation.doc
    assert operation.name.isidentifier()
    assert len(operation.name) <= 30


@pytest.mark.parametrize("operation", EVERY)
def test_what_reads_needs_no_request_id_and_what_changes_takes_one(operation: Operation) -> None:
    assert issubclass(operation.asks, Change) == (operation.effect != "read")


@pytest.mark.parametrize("operation", EVERY)
def test_path_and_positional_arguments_are_fields_of_the_input(operation: Operation) -> None:
    in_path = {name for _, name, _, _ in string.Formatter().parse(operation.path) if name}
    named = (
        in_path | set(operation.positional) | ({operation.upload} if operation.upload else set())
    )
    assert named <= set(operation.asks.model_fields)


@pytest.mark.parametrize("operation", EVERY)
def test_a_get_request_never_changes_anything(operation: Operation) -> None:
    assert operation.method != "GET" or operation.effect == "read"


def test_no_two_operations_share_a_route_or_a_command() -> None:
    routes = [(o.method, o.path) for o in OPERATIONS.values()]
    words = [o.words for o in OPERATIONS.values()]
    assert len(set(routes)) == len(routes)
    assert len(set(words)) == len(words)


def test_at_most_twenty_operations_are_listed() -> None:
    assert sum(operation.listed for operation in OPERATIONS.values()) <= 20
