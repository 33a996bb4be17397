"""Settings: flag over environment over file over default, and each says where it came from."""

from pathlib import Path

import pytest

from control.settings import load
from transport.errors import SwarmError


def origins(flags: dict[str, object], environ: dict[str, str]) -> dict[str, tuple[object, str]]:
    return {row.name: (row.value, row.origin) for row in load(flags, environ).origins}


def test_the_nearest_source_wins_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[leader]\nport = 1\nheartbeat_s = 2.0\nhost = '::1'\n[other]\nx = 1\n")
    environ = {"SWARM_CONFIG": str(path), "SWARM_PORT": "2", "SWARM_HEARTBEAT_S": "3"}
    told = origins({"port": 3, "log_level": None}, environ)
    assert told["port"] == (3, "flag")
    assert told["heartbeat_s"] == (3.0, "SWARM_HEARTBEAT_S")
    assert told["host"] == ("::1", str(path))
    assert told["log_level"] == ("info", "default")


def test_hosts_come_as_a_list_from_a_variable() -> None:
    environ = {"SWARM_CONFIG": "/nowhere/config.toml", "SWARM_ALLOWED_HOSTS": "a.example, b"}
    assert load({}, environ).settings.allowed_hosts == ["a.example", "b"]


@pytest.mark.parametrize(
    "text, told",
    [
        ("[leader]\nprot = 1\n", "'prot'"),
        ("[leader]\nport = 'x'\n", "port"),
        ("[leader]\nport = 70000\n", "port"),
        ("[leader\n", "cannot be read"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(SwarmError) as refusal:
        load({}, {"SWARM_CONFIG": str(path)})
    assert refusal.value.code == "invalid-input"
    assert told in refusal.value.message


def test_a_misspelt_setting_gets_the_nearest_name(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[leader]\nprot = 1\n")
    with pytest.raises(SwarmError) as refusal:
        load({}, {"SWARM_CONFIG": str(path)})
    assert "'port'" in refusal.value.hint


def test_the_leaders_address_is_the_public_one_when_there_is_one() -> None:
    nothing = {"SWARM_CONFIG": "/nowhere/config.toml"}
    assert load({}, nothing).settings.url == "http://127.0.0.1:7420"
    public = load({"public_url": "https://swarm.example/"}, nothing).settings
    assert public.url == "https://swarm.example"
    with pytest.raises(SwarmError):
        load({"public_url": "swarm.example"}, nothing)
