"""`python -m tests.acceptance.hanging_fellow WORDS…`: `swarm WORDS…`, with workers that hang."""

import sys
from functools import partial

from agents.cli.main import main
from agents.fellow import daemon
from agents.fellow.launcher import PlainLauncher

HANGING = (sys.executable, "-m", "tests.acceptance.hanging_worker")

if __name__ == "__main__":
    daemon.PlainLauncher = partial(PlainLauncher, HANGING)  # type: ignore[assignment,attr-defined]
    main()
