"""A forkserver without torch: forks the stand-in worker, and tells the daemon what became of it."""

import json
import os
import select
import signal
import socket
import sys
from pathlib import Path

# Started by its path: the repository's root is not on the way yet.
sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.unit.agents import stand_in_worker


def main() -> None:
    """Serve until the daemon hangs up."""
    daemon = socket.socket(fileno=0)
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: os.write(woken, b"x"))
    children: dict[int, str] = {}
    tell(daemon, {"ready": True, "preload_s": 0.0})
    while True:
        ready, _, _ = select.select([daemon.fileno(), wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            reap(daemon, children)
        if daemon.fileno() in ready and not serve(daemon, children, (wake, woken)):
            break
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def serve(daemon: socket.socket, children: dict[int, str], pipes: tuple[int, int]) -> bool:
    """One request; False when the daemon has hung up."""
    data, handles, _, _ = socket.recv_fds(daemon, 65536, 8)
    if not data:
        return False
    asked = [json.loads(line) for line in data.splitlines()]
    if any("prove" in one for one in asked):
        found = {"formats": ["float32", "bfloat16", "nf4"], "failed": "int8: a product is wrong"}
        tell(daemon, {"proven": {"cpu": found}})
    name = next((one["start"] for one in asked if "start" in one), None)
    if name is None:
        return True
    if name.startswith("j-refused"):
        os._exit(9)
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        daemon.close()
        for pipe in pipes:
            os.close(pipe)
        os.dup2(handles[1], 1)
        os.dup2(handles[1], 2)
        lines, out = os.fdopen(handles[0], "rb", buffering=0), os.fdopen(os.dup(handles[0]), "wb")
        os._exit(stand_in_worker.run(lines, out))
    for handle in handles:
        os.close(handle)
    children[pid] = name
    tell(daemon, {"started": name, "pid": pid})
    return True


def reap(daemon: socket.socket, children: dict[int, str]) -> None:
    """Tell of every child that has ended."""
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            break
        code = os.waitstatus_to_exitcode(status)
        how = {"code": code, "signal": None} if code >= 0 else {"code": None, "signal": -code}
        tell(daemon, {"exited": children.pop(pid), "pid": pid, **how})


def tell(daemon: socket.socket, what: dict[str, object]) -> None:
    """One line to the daemon."""
    daemon.sendall(json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    main()
