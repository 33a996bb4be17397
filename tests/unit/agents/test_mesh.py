"""What Tailscale and WireGuard tell is read; what they do not tell stays unknown."""

import json
from pathlib import Path

import pytest

from agents.fellow.mesh import Mesh, meshes, tailscale, wireguard

NOW = 1_800_000_000.0  # 2027-01-15T08:00:00Z
STATUS = {
    "BackendState": "Running",
    "Peer": {
        "a": {"LastHandshake": "2027-01-15T07:59:30.123456Z"},
        "b": {"LastHandshake": "0001-01-01T00:00:00Z"},
    },
}
DUMP = (
    "wg0\tprivate\tpublic\t51820\toff\n"
    f"wg0\tkey\t(none)\t192.0.2.1:51820\t10.8.0.2/32\t{int(NOW) - 90}\t1\t1\toff\n"
    "wg0\tkey2\t(none)\t(none)\t10.8.0.3/32\t0\t0\t0\toff\n"
    "wg1\tprivate\tpublic\t51821\toff\n"
)


def test_the_newest_handshake_of_a_mesh_is_told() -> None:
    assert tailscale(json.dumps(STATUS), NOW) == Mesh("Tailscale", True, 2, 30.0)
    assert list(wireguard(DUMP, NOW)) == [
        Mesh("WireGuard wg0", True, 2, 90.0),
        Mesh("WireGuard wg1", False, 0, None),
    ]


@pytest.mark.parametrize("told", ["", "no json", "[]", "null", '{"Peer": 3}'])
def test_what_is_no_status_is_unknown(told: str) -> None:
    assert tailscale(told, NOW) is None
    assert list(wireguard(told, NOW)) == []


def test_their_own_commands_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, script in (
        ("tailscale", f"cat <<'END'\n{json.dumps(STATUS)}\nEND\n"),
        ("wg", "exit 1\n"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert [mesh.name for mesh in meshes(NOW)] == ["Tailscale"]
