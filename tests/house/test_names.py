"""Names: who owns the rooms, which names are not used, what is not written into the project."""

import ast
from importlib.metadata import packages_distributions

from tests.house.tree import ROOMS, ROOT, modules, short, texts

BANNED_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "base", "misc"}
# Written in two halves so that this file does not name them itself.
MACHINE_PATHS = ("/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/", "/opt" + "/pypi", "/opt" + "/wheels")
REGISTRIES = ("pypi" + ".org/simple", "pythonhosted" + ".org", "--extra-" + "index-url http")


def test_no_other_distribution_owns_the_name_of_a_room() -> None:
    owners = packages_distributions()
    strangers = {room: set(owners.get(room, ())) - {"swarm-pool"} for room in ROOMS}
    assert strangers == {room: set() for room in ROOMS}


def test_no_module_has_a_name_that_says_nothing() -> None:
    named = [p for p in modules() if BANNED_NAMES & {p.stem, *p.relative_to(ROOT).parts}]
    assert [short(p) for p in named] == []


def test_init_files_hold_a_docstring_only() -> None:
    full = [
        short(path)
        for path in [*modules(), *sorted((ROOT / "tests").rglob("__init__.py"))]
        if path.name == "__init__.py" and not _is_docstring_only(path.read_text("utf-8"))
    ]
    assert full == []


def _is_docstring_only(text: str) -> bool:
    tree = ast.parse(text)
    return len(tree.body) == 1 and ast.get_docstring(tree) is not None


def test_every_folder_of_a_room_that_holds_python_is_a_package() -> None:
    folders = {path.parent for path in modules()}
    assert [short(f) for f in sorted(folders) if not (f / "__init__.py").is_file()] == []


def test_no_text_names_a_path_of_one_machine_or_a_registry() -> None:
    found = [
        f"{short(path)}: {word}"
        for path, text in texts()
        for word in (*MACHINE_PATHS, *REGISTRIES)
        if word in text
    ]
    assert found == []


def test_conftest_stays_short() -> None:
    assert len((ROOT / "tests" / "conftest.py").read_text("utf-8").splitlines()) <= 100


def test_no_test_sleeps() -> None:
    call = "sle" + "ep("
    sleepers = [
        short(path)
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if call in path.read_text("utf-8")
    ]
    assert sleepers == []
