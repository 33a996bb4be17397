"""How long the command line and the leader take to start. No torch may be among what they import.

    python -m tests.bench.start_up

Seconds from spawn to end (`swarm --help`, `swarm version`) or to the leader's line of readiness,
median of 7 after one warm-up, beside a Python that does nothing. Exit code 1 past a limit.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

RUNS = 7
LIMITS_S = {"swarm --help": 0.25, "leader ready": 1.5}


def seconds_of(*words: str) -> float:
    """From spawn to a good end."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def seconds_to_ready() -> float:
    """From spawn to the leader's line, on an empty data folder."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["-m", "mcp_server.main", "--port", "0", "--data", folder, "--log-level", "error"]
        environment = os.environ | {"SWARM_CONFIG": str(Path(folder) / "none.toml")}
        began = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.PIPE, env=environment
        ) as leader:
            assert leader.stdout is not None
            line = leader.stdout.readline()
            taken = time.perf_counter() - began
            leader.terminate()
        assert json.loads(line)["ready"], line
    return taken


def measure() -> dict[str, list[float]]:
    """Every figure's runs, interleaved so that a busy moment hits all alike."""
    what: dict[str, Callable[[], float]] = {
        "bare interpreter": lambda: seconds_of("-c", "pass"),
        "swarm --help": lambda: seconds_of("-m", "agents.cli.main", "--help"),
        "swarm version": lambda: seconds_of("-m", "agents.cli.main", "version"),
        "leader ready": seconds_to_ready,
    }
    for once in what.values():
        once()
    runs: dict[str, list[float]] = {name: [] for name in what}
    for _ in range(RUNS):
        for name, once in what.items():
            runs[name].append(once())
    return runs


def main() -> int:
    """Print the figures."""
    argparse.ArgumentParser(description="Measure start-up times.").parse_args()
    over = 0
    for name, runs in measure().items():
        limit = LIMITS_S.get(name)
        verdict = ""
        if limit is not None:
            verdict = f"  limit {limit} s: {'ok' if median(runs) <= limit else 'OVER'}"
            over += median(runs) > limit
        span = f"{min(runs):.3f}-{max(runs):.3f}"
        print(f"{name:18} median {median(runs):.3f} s  ({span}, {RUNS} runs){verdict}")
    return 1 if over else 0


if __name__ == "__main__":
    raise SystemExit(main())
