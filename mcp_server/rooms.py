"""Whether this program's own rooms are the ones that Python finds under their names."""

from importlib.metadata import packages_distributions

from transport.errors import SwarmError

ROOMS = ("transport", "stage_runtime", "control", "mcp_server", "agents")
DISTRIBUTION = "swarm-pool"


def refuse_strangers() -> None:
    """Refuse to start beside a distribution that brings a package of the same name.

    Raises:
        SwarmError: conflict, naming it.
    """
    owners = packages_distributions()
    for room in ROOMS:
        strangers = [name for name in owners.get(room, ()) if name != DISTRIBUTION]
        if strangers:
            raise SwarmError(
                "conflict",
                f"the package {strangers[0]!r} brings a module {room!r}, as Swarm does",
                hint=f"uninstall {strangers[0]}, or install Swarm into an environment of its own",
                facts={"module": room, "distribution": strangers[0]},
            )
