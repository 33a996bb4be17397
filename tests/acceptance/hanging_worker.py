"""`python -m tests.acceptance.hanging_worker`: a stage worker whose device takes long, then hangs.

The real worker. In the first attempt the last of two stages stands still for SLOW_S in the middle
of step SLOW_AT, and for ever in step HANG_AT, as a kernel or a driver may: its links and its other
threads live on.
"""

import threading

from stage_runtime import worker
from stage_runtime.process_group import SwarmGroup

SLOW_AT, SLOW_S, HANG_AT = 3, 7.0, 6
_check = SwarmGroup.check
_slowed: set[int] = set()


def _checked(self: SwarmGroup) -> None:
    link = self._links.previous
    if link is not None and link.name.attempt == 1:
        if self._step == SLOW_AT and SLOW_AT not in _slowed:
            _slowed.add(SLOW_AT)
            threading.Event().wait(SLOW_S)
        if self._step == HANG_AT:
            threading.Event().wait()
    _check(self)


if __name__ == "__main__":
    SwarmGroup.check = _checked  # type: ignore[method-assign]
    worker.main()
