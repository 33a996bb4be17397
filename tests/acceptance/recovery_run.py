"""Random kills and freezes of real processes; every run must end in the undisturbed run's bits.

python -m tests.acceptance.recovery_run --schedules 100 --seed 1    ends at the first difference
python -m tests.acceptance.recovery_run --replay 1/42               one schedule again

Victims: stage workers, fellow daemons, the leader, the relay; SIGKILL and SIGSTOP; at any step and
while the job starts. Prints the SHA-256 of the adapter and how often jobs went on.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.acceptance.recovery_ground import Ground, draw


def main() -> None:
    """Run schedules and say how it went."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--schedules", type=int, default=100)
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--replay", default="")
    asked = words.parse_args()
    seeds = (
        [asked.replay]
        if asked.replay
        else [f"{asked.seed}/{number}" for number in range(asked.schedules)]
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
    counts: Counter[str] = Counter()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        ground = Ground(Path(folder))
        try:
            for seed in seeds:
                one_schedule(ground, seed, counts)
        finally:
            ground.close()
    took = time.monotonic() - began
    print(f"{len(seeds)} schedules of seed {asked.seed} in {took / 60:.1f} min: every adapter is")
    print(f"{ground.undisturbed}")
    print(", ".join(f"{what} {number}" for what, number in sorted(counts.items())))


def one_schedule(ground: Ground, seed: str, counts: "Counter[str]") -> None:
    """One run under blows.

    Raises:
        AssertionError: its adapter is another one, or it did not end; names the seed.
    """
    blows = draw(seed)
    began = time.monotonic()
    try:
        job = ground.run(blows)
        found = ground.adapter_of(job)
    except AssertionError as error:
        raise AssertionError(f"schedule {seed} ({'; '.join(map(str, blows))}): {error}") from None
    told = f"{seed}: {'; '.join(map(str, blows))}: attempt {job.attempt}"
    print(f"{told}, {time.monotonic() - began:.1f} s", file=sys.stderr)
    if found != ground.undisturbed:
        raise AssertionError(f"schedule {seed} ended in {found}, not {ground.undisturbed}: {told}")
    counts["attempts"] += job.attempt
    counts["recoveries"] += job.counts.get("recoveries", 0)
    for blow in blows:
        counts[f"{blow.how} {blow.victim}"] += 1


if __name__ == "__main__":
    main()
