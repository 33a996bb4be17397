"""Who may import whom, and the figures of the house."""

import subprocess
import sys
import tomllib

from scripts import house_figures, house_files
from tests.house.tree import ROOMS, ROOT, files, short


def test_the_import_contracts_hold() -> None:
    lint = (sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()")
    run = subprocess.run(
        [*lint, "--no-logo", "--cache-dir", ".cache/imports"],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_files_and_functions_stay_within_the_limits_and_there_is_no_circle() -> None:
    rooms = [file for room in ROOMS for file in house_figures.read_folder(room)]
    others = [file for folder in ("tests", "scripts") for file in house_figures.read_folder(folder)]
    rings = house_figures.circles(house_figures.build_graph())
    assert house_figures.breaches(rooms, [*others, *house_figures.console_files()], rings) == []


def test_the_page_of_files_is_current() -> None:
    told = (ROOT / "docs" / "files.md").read_text(encoding="utf-8")
    assert told == house_files.render(), "run scripts/house --files"


def test_every_python_file_says_what_it_is() -> None:
    silent = [short(p) for p in files() if p.suffix == ".py" and not house_files.says(p)]
    assert silent == []


def test_the_table_of_banned_calls_in_control_holds_all_of_the_projects_own() -> None:
    everywhere = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["ruff"]["lint"]
    control = tomllib.loads((ROOT / "control" / "ruff.toml").read_text("utf-8"))["lint"]
    banned = set(control["flake8-tidy-imports"]["banned-api"])
    wanted = set(everywhere["flake8-tidy-imports"]["banned-api"])
    # "torch" as a whole is banned there, which covers torch.load.
    assert wanted - banned <= {"torch.load"}
