"""The whole path in a network namespace that holds nothing but the loopback interface.

Who tries to leave such a namespace finds no route, and the kernel counts every try: a count of 0
says that nobody was called, not only that nobody was needed. The other half of this file runs
inside: `unshare --net python -m tests.acceptance.test_loopback_only path FOLDER`.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from agents.demo.sources import MODEL_FILE
from tests.acceptance.real_pool import RealPool

ROOT = Path(__file__).parents[2]
ELSEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses of documents (RFC 5737, RFC 3849): nobody's."""
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
DEMO_S = 420


def run_inside(words: list[str], timeout_s: float) -> dict[str, Any]:
    """Run this module in a fresh namespace; what its last line tells."""
    if os.geteuid() != 0:
        pytest.skip("a network namespace needs root")
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "--net", "true"], check=False).returncode:
        pytest.skip("no network namespaces on this machine")
    done = subprocess.run(
        [unshare, "--net", sys.executable, "-m", "tests.acceptance.test_loopback_only", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.root
def test_the_whole_path_needs_no_network_but_loopback_and_calls_no_one(tmp_path: Path) -> None:
    # Imported here: torch would double the time of the process inside, which has no use for it.
    from tests.oracle.checkpoints import write_tiny_model

    write_tiny_model(tmp_path / "tiny", "llama")
    told = run_inside(["path", str(tmp_path)], 50)
    assert told["interfaces"] == ["lo"]
    assert told["result"]["state"] == "completed"
    assert told["result"]["left_alive"] == []
    assert told["calls_outside"] == 0
    assert told["counted_on_purpose"] == len(ELSEWHERE)


@pytest.mark.root
@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(DEMO_S + 30)
def test_the_demo_runs_whole_on_loopback_only_and_calls_no_one(tmp_path: Path) -> None:
    if find_spec(MODEL_FILE[0]) is None:
        pytest.skip("real model weights are not in the cache")
    told = run_inside(["demo", str(tmp_path / "demo")], DEMO_S)
    assert told["interfaces"] == ["lo"]
    assert told["result"]["state"] == "completed"
    assert told["calls_outside"] == 0
    assert told["counted_on_purpose"] == len(ELSEWHERE)


# --- inside the namespace ------------------------------------------------------------------------


def raise_loopback() -> None:
    """Bring the interface up, as `ip link set lo up` does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("16sh", b"lo", 0)
        flags = struct.unpack("16sh", fcntl.ioctl(any_socket, SIOCGIFFLAGS, asked)[:18])[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | IFF_UP))


def calls_outside() -> int:
    """How often this namespace had no route for somebody, IPv4 and IPv6."""
    names, values = (
        line.split()[1:]
        for line in Path("/proc/net/snmp").read_text().splitlines()
        if line.startswith("Ip:")
    )
    four = int(values[names.index("OutNoRoutes")])
    six = re.search(r"^Ip6OutNoRoutes\s+(\d+)", Path("/proc/net/snmp6").read_text(), re.MULTILINE)
    return four + (int(six[1]) if six else 0)


def call_outside() -> None:
    """One try each way, to show that it would have been counted."""
    for family, address in ELSEWHERE:
        with socket.socket(family) as one, contextlib.suppress(OSError):
            one.connect((address, 80))


def walk_path(folder: Path) -> dict[str, Any]:
    """A tiny model over two fellows, from invite to adapter."""
    pool = RealPool(folder)
    try:
        pool.join(("cpu:220MB:1", "cpu:160MB:1"))
        pool.add_model(folder / "tiny", "tiny")
        pool.add_rows(
            "rows", [{"text": f"{number} and the word was with them"} for number in range(60)]
        )
        config = {
            "model": {"id": "local:tiny", "dtype": "float32"},
            "data": {"bucket": "rows"},
            "train": {"steps": 3, "seq_len": 32, "batch_size": 4},
        }
        job = pool.wait_end(pool.submit(pool.plan(config)).job_id)
        assert len(job.stages) == 2
    finally:
        killed = pool.close()
    return {"state": job.state, "why": job.untrusted_error or job.reason, "left_alive": killed}


def run_demo(folder: Path) -> dict[str, Any]:
    """`swarm demo` as anyone runs it."""
    words = ["-m", "agents.cli.main", "demo", "--steps", "30", "--folder", str(folder), "--json"]
    done = subprocess.run(
        [sys.executable, *words], stdout=subprocess.PIPE, text=True, timeout=DEMO_S, check=True
    )
    told = json.loads(done.stdout)
    return {"state": told["job"]["state"], "fell_enough": told["fell_enough"]}


def main(what: str, folder: Path) -> dict[str, Any]:
    """Run one of the two, and count."""
    raise_loopback()
    before = calls_outside()
    result = {"path": walk_path, "demo": run_demo}[what](folder)
    called = calls_outside() - before
    call_outside()
    return {
        "interfaces": [name for _, name in socket.if_nameindex()],
        "result": result,
        "calls_outside": called,
        "counted_on_purpose": calls_outside() - before - called,
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
