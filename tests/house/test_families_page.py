"""docs/families.md says what the code says: families, their adapters, and what certifies them."""

import ast
import re

from stage_runtime.families import FAMILIES
from tests.house.tree import ROOT
from tests.oracle.checkpoints import BLOCKS, TINY

ROW = re.compile(
    r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE
)
NAME = re.compile(r"`([^`]+)`")


def rows() -> dict[str, tuple[tuple[str, ...], tuple[str, ...], list[str]]]:
    """Family -> (attention targets, feed-forward targets, tiny checkpoints) of the page."""
    page = (ROOT / "docs" / "families.md").read_text("utf-8")
    found = {}
    for family, targets, certified, _, _ in ROW.findall(page):
        attention, mlp = (tuple(NAME.findall(part)) for part in targets.split(";"))
        found[family] = (attention, mlp, NAME.findall(certified))
    return found


def formats() -> dict[str, tuple[list[str], list[str]]]:
    """Family -> (number formats, checkpoints that certify 4 and 8 bits) of the page."""
    page = (ROOT / "docs" / "families.md").read_text("utf-8")
    told = ROW.findall(page)
    return {row[0]: (NAME.findall(row[3]), NAME.findall(row[4])) for row in told}


def test_the_page_names_every_family_and_its_adapter_targets() -> None:
    told = {family: (attention, mlp) for family, (attention, mlp, _) in rows().items()}
    assert told == {name: (one.attention, one.mlp) for name, one in FAMILIES.items()}


def test_every_family_is_certified_by_checkpoints_of_its_own_and_none_is_left_out() -> None:
    told = {model: family for family, (_, _, models) in rows().items() for model in models}
    assert told == {model: family for model, (family, _) in TINY.items()}


def test_the_number_formats_of_every_family_are_those_that_a_plan_may_take() -> None:
    for name, (told, _) in formats().items():
        wide = ["float32", "bfloat16"]
        assert told == (wide if FAMILIES[name].wide_norm else [*wide, "float16"]), name


def test_four_and_eight_bits_are_certified_for_every_family() -> None:
    told = {model: family for family, (_, models) in formats().items() for model in models}
    assert told == {model: family for model, (family, _) in BLOCKS.items()}


def test_the_spread_of_the_default_suite_has_every_family() -> None:
    tree = ast.parse((ROOT / "tests" / "flow" / "test_equality.py").read_text("utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = {
        call.args[0].value
        for call in calls
        if isinstance(call.func, ast.Name)
        and call.func.id == "Point"
        and isinstance(call.args[0], ast.Constant)
    }
    assert {TINY[str(model)][0] for model in named} == FAMILIES.keys()
