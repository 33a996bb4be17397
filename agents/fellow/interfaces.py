"""The addresses under which neighbours may dial this machine: its own interfaces, best first.

Networks that exist inside this machine only (containers, virtual machines) are left out: their
addresses are the same on every machine. Nothing is asked of the network.
"""

import ipaddress
import socket

import psutil

from transport.candidates import MESH_MARK, RANKS, kind_of

MOST = 7
_INNER = ("docker", "br-", "veth", "virbr", "lxc", "lxd", "cni", "flannel", "podman", "vmnet")
_MESH = ("tailscale", "wg", "zt", "nebula", "utun", "nordlynx", "netbird", "wt")


def more_addresses(first: str) -> tuple[str, ...]:
    """Addresses beside the first one, "mesh+ADDRESS" on a mesh interface.

    Args:
        first: the address that stages listen on anyway. A loopback one stays alone: then everything
            is on this machine.
    """
    if kind_of(first) == "local":
        return ()
    found: dict[str, str] = {}
    up = {name for name, one in psutil.net_if_stats().items() if one.isup}
    for name, addresses in psutil.net_if_addrs().items():
        if name in up and not name.startswith(_INNER):
            for one in addresses:
                if one.family in (socket.AF_INET, socket.AF_INET6) and _is_of_use(one.address):
                    found.setdefault(one.address, _told(name, one.address))
    found.pop(first, None)
    return tuple(sorted(found.values(), key=_rank)[:MOST])


def _is_of_use(address: str) -> bool:
    if "%" in address:  # link-local: good in one network only, and only with its name
        return False
    found = ipaddress.ip_address(address)
    return not (found.is_loopback or found.is_link_local or found.is_unspecified)


def _told(interface: str, address: str) -> str:
    is_mesh = interface.startswith(_MESH) or kind_of(address) == "mesh"
    return f"{MESH_MARK if is_mesh else ''}{address}"


def _rank(told: str) -> int:
    plain = told.removeprefix(MESH_MARK)
    return RANKS["mesh" if plain != told else kind_of(plain)]
