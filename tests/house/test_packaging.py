"""What is installed and what is shipped."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.house.tree import ROOMS, ROOT, short

TOP_LEVEL = {*ROOMS, "static_console"}


def project() -> dict[str, object]:
    """The project table of pyproject.toml."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert isinstance(table, dict)
    return table


def normal(requirement: str) -> str:
    """The name of a requirement, as registries compare it."""
    return re.split(r"[<>=!~\[; ]", requirement)[0].lower().replace("_", "-")


def pinned() -> dict[str, str]:
    """Name and version of every line of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pairs = [line.partition("==") for line in lines if line and not line.startswith("#")]
    return {normal(name): version for name, _, version in pairs}


def test_every_requirement_has_one_tested_version() -> None:
    table = project()
    base, extras = table["dependencies"], table["optional-dependencies"]
    assert isinstance(base, list)
    assert isinstance(extras, dict)
    wanted = {normal(one) for one in [*base, *(x for extra in extras.values() for x in extra)]}
    assert wanted - set(pinned()) == set()


def test_the_tested_versions_are_plain_versions() -> None:
    odd = [f"{n}=={v}" for n, v in pinned().items() if not re.fullmatch(r"[0-9][0-9a-z.]*", v)]
    assert odd == []


def test_the_base_install_is_free_of_torch_and_its_kin() -> None:
    base = project()["dependencies"]
    assert isinstance(base, list)
    kin = {"torch", "transformers", "peft", "bitsandbytes", "accelerate"}
    assert {normal(one) for one in base} & kin == set()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=50,
    )
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def test_the_wheel_holds_the_rooms_and_the_console_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = {name.split("/")[0] for name in wheel.namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == TOP_LEVEL


def test_the_wheel_holds_what_is_no_python(wheel: zipfile.ZipFile) -> None:
    kinds = {".sql", ".sh", ".md", ".js", ".css", ".html", ".svg", ".json"}
    here = [
        short(path)
        for folder in sorted(TOP_LEVEL)
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in kinds
    ]
    assert set(here) - set(wheel.namelist()) == set()


def test_the_wheel_holds_the_licence(wheel: zipfile.ZipFile) -> None:
    names = [Path(name).name for name in wheel.namelist() if ".dist-info/licenses/" in name]
    assert sorted(names) == ["LICENSE", "NOTICE"]
