"""The peak envelope of this machine's cards: sampled about every 500 ms between two reports.

A graphics card is asked by its driver's library, a CPU card by what the system counts of its
workers; never by torch, which sees only itself. Samples are kept until a leader has taken them.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import psutil

from agents.fellow.nvidia import DriverWatch
from transport.cards import CardLoad, CardReport, Envelope

SAMPLE_S: Final = 0.5
KEPT: Final = 1200
"""Samples of a card while no leader takes them: ten minutes."""
Reading = tuple[float | None, float | None]
"""(bytes in use, share of the time busy); None where nobody knows."""


@dataclass
class _Card:
    """One card as it is sampled."""

    report: CardReport
    readings: deque[Reading] = field(default_factory=lambda: deque(maxlen=KEPT))
    told: int = 0
    """How many of them the last heartbeat told."""


class Envelopes:
    """Samples of all cards.

    Args:
        pids_on: card index -> the processes of this fellow's workers on it.
    """

    def __init__(
        self,
        pids_on: Callable[[int], Iterable[int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pids_on = pids_on
        self._clock = clock
        self._cards: dict[str, _Card] = {}
        self._driver = DriverWatch()
        self._worked: dict[int, tuple[float, float]] = {}
        """Process -> (when, seconds of a core that it had used by then)."""
        self._lock = threading.Lock()

    def sample(self) -> None:
        """Read every card once. Blocks as long as a driver takes."""
        with self._lock:
            cards = list(self._cards.values())
        driver = self._driver.read() if any(one.report.kind != "cpu" for one in cards) else {}
        for one in cards:
            report = one.report
            is_cpu = report.kind == "cpu"
            found = self._of_workers(report) if is_cpu else driver.get(report.uuid, (None, None))
            with self._lock:
                one.readings.append(found)
        alive = {pid for one in cards for pid in self._pids_on(one.report.index)}
        self._worked = {pid: told for pid, told in self._worked.items() if pid in alive}

    def lap(self, cards: Iterable[CardReport]) -> list[CardLoad]:
        """What was sampled since the leader took a report; these cards are sampled from now on."""
        with self._lock:
            self._cards = {
                card.uuid: _Card(card, old.readings) if old else _Card(card)
                for card in cards
                for old in [self._cards.get(card.uuid)]
            }
            loads = []
            for one in self._cards.values():
                one.told = len(one.readings)
                if one.told:
                    loads.append(_load(one.report.index, list(one.readings)))
            return loads

    def taken(self) -> None:
        """The leader has taken what `lap` told last."""
        with self._lock:
            for one in self._cards.values():
                for _ in range(min(one.told, len(one.readings))):
                    one.readings.popleft()
                one.told = 0

    def close(self) -> None:
        """Let go of the driver."""
        self._driver.close()

    def _of_workers(self, card: CardReport) -> Reading:
        """Of a CPU card: what its workers hold, and the share of its threads that they use."""
        held, used_s, elapsed_s, is_new = 0, 0.0, 0.0, False
        for pid in self._pids_on(card.index):
            try:
                process = psutil.Process(pid)
                held += process.memory_info().rss
                times = process.cpu_times()
            except psutil.Error:
                continue
            now, worked = self._clock(), times.user + times.system
            before = self._worked.get(pid)
            self._worked[pid] = (now, worked)
            if before is None or now <= before[0]:
                is_new = True
                continue
            elapsed_s = now - before[0]
            used_s += worked - before[1]
        if is_new:
            return held, None
        if not elapsed_s:
            return held, 0.0  # nothing runs on it
        return held, min(1.0, max(0.0, used_s / elapsed_s / (card.threads or 1)))


def _load(index: int, readings: list[Reading]) -> CardLoad:
    return CardLoad(
        index=index,
        samples=len(readings),
        memory_bytes=_envelope([held for held, _ in readings if held is not None], 0),
        busy=_envelope([busy for _, busy in readings if busy is not None], 3),
    )


def _envelope(values: list[float], digits: int) -> Envelope | None:
    if not values:
        return None
    three = (min(values), sum(values) / len(values), max(values))
    least, mean, most = (round(value, digits) for value in three)
    return Envelope(least=least, mean=mean, most=most)
