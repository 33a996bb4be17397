"""Two homes and an internet, as network namespaces of this machine that only we see.

    leader  203.0.113.1 ─┐                        ┌─ router a ── 192.168.21.0/24 ── fellow a (.10)
                         ├── the internet (bridge) ┤
    relay   203.0.113.1 ─┘                        └─ router b ── 192.168.22.0/24 ── fellow b (.11)

Both routers hide their home behind one address and let nothing in by themselves. Needs root.
"""

import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Final, Literal, Self

Home = Literal["a", "b"]
HOMES: Final[tuple[Home, Home]] = ("a", "b")
LEADER: Final = "203.0.113.1"
WAN: Final[dict[Home, str]] = {"a": "203.0.113.2", "b": "203.0.113.3"}
HOST: Final[dict[Home, str]] = {"a": "192.168.21.10", "b": "192.168.22.11"}
OURS: Final = "10.219.0.1"
"""This process's own address, from which the leader is asked."""


def why_not() -> str:
    """Why namespaces cannot be made here; "" when they can."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces and packet filters"
    for tool in ("ip", "nft", "tc"):
        if shutil.which(tool) is None:
            return f"no network namespaces on this machine: {tool} is not installed"
    name = f"swarm-try-{secrets.token_hex(3)}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if tried.returncode != 0:
        return "no network namespaces on this machine"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


def inside(namespace: str, *words: str) -> list[str]:
    """The arguments after `python` that run a Python module inside a namespace."""
    return ["-m", "tests.acceptance.namespaces", namespace, *words]


class Internet:
    """All namespaces; gone with everything in them after `close`.

    Args:
        is_seen: whether this process reaches the leader too; then there can be only one at a time.
    """

    def __init__(self, *, is_seen: bool = False) -> None:
        self._mark = secrets.token_hex(2)
        self.names = {key: f"swarm-{key}-{self._mark}" for key in ("pub", "ra", "rb", "a", "b")}
        self._outside = f"sw{self._mark}"
        try:
            self._build()
            if is_seen:
                self._join_us()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove every namespace and interface of ours."""
        subprocess.run(["ip", "link", "del", self._outside], capture_output=True, check=False)
        for name in self.names.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    # --- what happens to it ---

    def open_direct(self) -> None:
        """Let the homes reach each other without any translation, as by a site-to-site link."""
        for router in ("ra", "rb"):
            self._nft(router, "add rule inet home direct ip saddr 192.168.0.0/16 accept")

    def shut_direct(self) -> None:
        """Undo `open_direct`; connections that stand go silent."""
        for router in ("ra", "rb"):
            self._nft(router, "flush chain inet home direct")

    def silence(self, home: Home, direction: Literal["out", "in"]) -> None:
        """Drop everything that leaves, or that enters, a home; the other direction works."""
        interface = "lan" if direction == "out" else "wan"
        self._nft(f"r{home}", f"add rule inet home outage iifname {interface} drop")

    def restore(self, home: Home) -> None:
        """Undo `silence`."""
        self._nft(f"r{home}", "flush chain inet home outage")

    def shape(self, home: Home, mbit: int) -> None:
        """Bound what a home sends to the internet."""
        self._in(f"r{home}", "tc", "qdisc", "add", "dev", "wan", "root", "tbf", "rate",
                 f"{mbit}mbit", "burst", "64kb", "latency", "100ms")  # fmt: skip

    def unshape(self, home: Home) -> None:
        """Undo `shape`."""
        self._in(f"r{home}", "tc", "qdisc", "del", "dev", "wan", "root")

    # --- how it is built ---

    def _build(self) -> None:
        for name in self.names.values():
            _run("ip", "netns", "add", name)
        for key in self.names:
            self._in(key, "ip", "link", "set", "lo", "up")
        self._in("pub", "ip", "link", "add", "net", "type", "bridge")
        self._in("pub", "ip", "link", "set", "net", "up")
        self._in("pub", "ip", "addr", "add", f"{LEADER}/24", "dev", "net")
        for home in ("a", "b"):
            self._build_home(home)
        for near, far in (("a", "b"), ("b", "a")):
            net = HOST[far].rpartition(".")[0] + ".0/24"  # type: ignore[index]
            self._in(f"r{near}", "ip", "route", "add", net, "via", WAN[far])  # type: ignore[index]

    def _build_home(self, home: Home) -> None:
        router, pub, host = self.names[f"r{home}"], self.names["pub"], self.names[home]
        gateway = HOST[home].rpartition(".")[0] + ".1"
        self._pair(f"p{home}", pub, "wan", router)
        self._pair("lan", router, "eth", host)
        self._in("pub", "ip", "link", "set", f"p{home}", "master", "net")
        self._in(f"r{home}", "ip", "addr", "add", f"{WAN[home]}/24", "dev", "wan")
        self._in(f"r{home}", "ip", "addr", "add", f"{gateway}/24", "dev", "lan")
        self._in(home, "ip", "addr", "add", f"{HOST[home]}/24", "dev", "eth")
        self._in(home, "ip", "route", "add", "default", "via", gateway)
        self._in(f"r{home}", "ip", "route", "add", "default", "via", LEADER)
        self._in(f"r{home}", "sysctl", "-qw", "net.ipv4.ip_forward=1")
        self._nft(f"r{home}", _RULES)

    def _pair(self, near: str, near_space: str, far: str, far_space: str) -> None:
        first, second = f"s{self._mark}x", f"s{self._mark}y"
        _run("ip", "link", "add", first, "type", "veth", "peer", "name", second)
        for made, name, space in ((first, near, near_space), (second, far, far_space)):
            _run("ip", "link", "set", made, "netns", space, "name", name)
            _run("ip", "-n", space, "link", "set", name, "up")

    def _join_us(self) -> None:
        """A wire from this process to the internet, for the client of the leader."""
        pub = self.names["pub"]
        _run("ip", "link", "add", self._outside, "type", "veth", "peer", "name", "us", "netns", pub)
        _run("ip", "addr", "add", f"{OURS}/30", "dev", self._outside)
        _run("ip", "link", "set", self._outside, "up")
        _run("ip", "-n", pub, "addr", "add", "10.219.0.2/30", "dev", "us")
        _run("ip", "-n", pub, "link", "set", "us", "up")
        _run("ip", "route", "add", f"{LEADER}/32", "via", "10.219.0.2", "dev", self._outside)

    def _in(self, key: str, *words: str) -> None:
        _run("ip", "netns", "exec", self.names[key], *words)

    def _nft(self, key: str, rules: str) -> None:
        told = subprocess.run(
            ["ip", "netns", "exec", self.names[key], "nft", "-f", "-"],
            input=rules.encode(),
            capture_output=True,
            check=False,
        )
        assert told.returncode == 0, told.stderr.decode()


_RULES: Final = """
table inet home {
    chain direct { }
    chain outage { }
    chain through {
        type filter hook forward priority 0; policy drop;
        jump outage
        ip saddr 192.168.0.0/16 ip daddr 192.168.0.0/16 jump direct
        ip saddr 192.168.0.0/16 ip daddr 192.168.0.0/16 drop
        ct state established,related accept
        iifname "lan" oifname "wan" accept
    }
    chain entry {
        type filter hook input priority 0; policy drop;
        jump outage
        ct state established,related accept
        iifname "lan" accept
    }
    chain exit {
        type nat hook postrouting priority 100;
        ip daddr != 192.168.0.0/16 oifname "wan" masquerade
    }
}
"""


def _run(*words: str) -> None:
    told = subprocess.run(words, capture_output=True, check=False)
    assert told.returncode == 0, f"{' '.join(words)}: {told.stderr.decode()}"


def can_connect(host: str, port: int) -> bool:
    """Whether something listens there, seen from this process."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def main(words: Sequence[str]) -> None:
    """NAMESPACE WORDS...: become `python WORDS...` inside a namespace."""
    namespace, *more = words
    os.execvp("ip", ["ip", "netns", "exec", namespace, sys.executable, *more])


if __name__ == "__main__":
    main(sys.argv[1:])
