"""Every pattern that a caller can miss is told in words."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from transport.api.catalog import OPERATIONS
from transport.errors import SwarmError
from transport.forms import FORMS
from transport.schema import parse


def patterns(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("pattern"), str):
            yield node["pattern"]
        for part in node.values():
            yield from patterns(part)
    elif isinstance(node, list):
        for part in node:
            yield from patterns(part)


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_pattern_of_an_operation_has_words(name: str) -> None:
    lacking = {*patterns(OPERATIONS[name].asks.model_json_schema())} - FORMS.keys()
    assert lacking == set()


@pytest.mark.parametrize("pattern, words", FORMS.items())
def test_the_example_in_the_words_matches_the_pattern(pattern: str, words: str) -> None:
    _, such, example = words.partition("such as ")
    if such:
        assert re.fullmatch(pattern, example)
    assert "^" not in words


def test_a_refusal_says_the_form_and_no_regular_expression() -> None:
    with pytest.raises(SwarmError) as refusal:
        parse(OPERATIONS["jobs_get"].asks, {"job_id": "12"})
    assert refusal.value.message == "/job_id: should be a job's id, such as j-8fq2m4xc"
