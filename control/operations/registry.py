"""All handlers, gathered: importing this module makes every declared operation answerable."""

from collections.abc import Mapping

from control.operations import buckets, exports, fellows, jobs, pools, saved_states, serving, verify
from control.operations.call import HANDLERS, Handler

MODULES = (pools, fellows, jobs, saved_states, buckets, exports, serving, verify)


def handlers() -> Mapping[str, Handler]:
    """The handler of every operation, by name."""
    return dict(HANDLERS)
