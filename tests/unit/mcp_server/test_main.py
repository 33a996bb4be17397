"""Starting the leader: what is refused, and in which words."""

import socket
from importlib import metadata
from pathlib import Path

import pytest

from control.settings import Settings
from mcp_server import rooms
from mcp_server.main import listen, main, own_url, refuse_clear_text
from transport.errors import SwarmError


def test_a_port_in_use_is_said_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_server.main.start_logging", lambda level: None)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code = main(["--port", str(port), "--data", str(tmp_path)])
    told = capsys.readouterr()
    assert code == 5
    assert told.err == (
        f"conflict: port {port} on 127.0.0.1 is in use. "
        "Next: stop the program that has it, or choose another with --port\n"
    )
    assert told.out == ""
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_is_not_this_machine_s_is_refused() -> None:
    with pytest.raises(SwarmError) as refusal:
        listen("192.0.2.1", 0)
    assert refusal.value.code == "invalid-input"


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "pool.example"])
def test_other_machines_are_not_served_in_clear_text_unasked(host: str) -> None:
    with pytest.raises(SwarmError) as refusal:
        refuse_clear_text(host, is_lan=False, proxy=None)
    assert "--trusted-proxy" in refusal.value.hint
    refuse_clear_text(host, is_lan=True, proxy=None)
    refuse_clear_text(host, is_lan=False, proxy="10.0.0.1")


def test_loopback_needs_no_word() -> None:
    refuse_clear_text("127.0.0.1", is_lan=False, proxy=None)
    refuse_clear_text("::1", is_lan=False, proxy=None)


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:7"), ("0.0.0.0", "http://127.0.0.1:7"),
     ("::1", "http://[::1]:7"), ("pool.example", "http://pool.example:7")],
)  # fmt: skip
def test_the_printed_address_is_one_that_this_machine_can_use(host: str, url: str) -> None:
    assert own_url(Settings(host=host, port=7)) == url


def test_a_wrong_setting_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWARM_PUBLIC_URL", "pool.example")
    assert main([]) == 2
    assert "SWARM_PUBLIC_URL" in capsys.readouterr().err


def test_a_distribution_with_a_module_of_the_same_name_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rooms.refuse_strangers()
    monkeypatch.setattr(rooms, "packages_distributions", lambda: {"control": ["control"]})
    with pytest.raises(SwarmError) as refusal:
        rooms.refuse_strangers()
    assert refusal.value.facts == {"module": "control", "distribution": "control"}


def test_the_rooms_are_those_of_this_distribution() -> None:
    assert metadata.version(rooms.DISTRIBUTION)
