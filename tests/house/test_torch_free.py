"""The leader, the command line and the fellow daemon start without torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.tree import ROOT

TORCH_FREE_ROOMS = ("transport", "control", "mcp_server", "agents")
TORCH_FREE_FILES = ("model_facts", "costs", "places", "spread")
KIN = ("torch", "transformers", "peft", "bitsandbytes", "accelerate")

# Imports every module named on the command line and prints what failed, and which kin came in.
PROBE = """
import importlib, json, sys

blocked = set(json.loads(sys.argv[1]))

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"{name} is blocked in this test", name=name)

sys.meta_path.insert(0, Block())
failed = {}
for name in json.loads(sys.argv[2]):
    try:
        importlib.import_module(name)
    except Exception as error:
        failed[name] = f"{type(error).__name__}: {error}"
loaded = sorted(set(json.loads(sys.argv[3])) & set(sys.modules))
print(json.dumps({"failed": failed, "loaded": loaded}))
"""


def module_names(room: str) -> list[str]:
    """Every module of a room, dotted; of stage_runtime only the files that the planner reads."""
    paths = sorted((ROOT / room).rglob("*.py"))
    if room == "stage_runtime":
        paths = [path for path in paths if path.stem in TORCH_FREE_FILES]
    return [_dotted(path) for path in paths]


def _dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def probe(names: list[str], blocked: tuple[str, ...]) -> dict[str, object]:
    """Import modules in a fresh process, with some packages made unimportable."""
    words = [json.dumps(list(blocked)), json.dumps(names), json.dumps(list(KIN))]
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROBE, *words],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout.splitlines()[-1])
    assert isinstance(told, dict)
    return told


@pytest.mark.parametrize("room", [*TORCH_FREE_ROOMS, "stage_runtime"])
def test_every_module_imports_with_torch_and_its_kin_blocked(room: str) -> None:
    assert probe(module_names(room), blocked=KIN)["failed"] == {}


def test_none_of_them_brings_torch_in_when_it_is_there() -> None:
    names = [name for room in (*TORCH_FREE_ROOMS, "stage_runtime") for name in module_names(room)]
    assert probe(names, blocked=())["loaded"] == []
