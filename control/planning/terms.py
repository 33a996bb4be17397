"""What comes with an inventory beside its cards.

Pure data.
"""

from dataclasses import dataclass

from control.planning.pace import Links


@dataclass(frozen=True)
class Terms:
    """What comes with an inventory."""

    links: Links | None = None
    """Figures of the network; None = the network is left out."""
    what_if: bool = False
    """The inventory is not the live pool: nothing can be started from such a plan."""
    datasheet: frozenset[str] = frozenset()
    """Cards whose speed is a datasheet figure."""


LIVE = Terms()
