"""The peak envelope: real processes on a CPU card, a driver that is not there, parents' peaks."""

import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from agents.fellow.envelope import Envelopes
from control.fellows.loads import busy_peak, memory_peak
from transport.cards import CardLoad, CardReport, Envelope

MB = 1_000_000
SPIN = "x = bytearray(80_000_000); print('ready', flush=True)\nwhile True: pass"
SLEEP = "print('ready', flush=True)\nimport signal; signal.pause()"


def a_card(index: int = 0, kind: Any = "cpu", uuid: str = "") -> CardReport:
    return CardReport(
        index=index, kind=kind, name="c", uuid=uuid or f"{kind}-{index}", total_bytes=10**9,
        free_bytes=10**9, threads=1 if kind == "cpu" else None, number_formats=["float32"],
    )  # fmt: skip


@pytest.fixture
def children() -> Iterator[list[int]]:
    """A process that works and holds 80 MB, and one that rests."""
    started = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        for program in (SPIN, SLEEP)
    ]
    for one in started:
        assert one.stdout is not None
        assert one.stdout.readline() == b"ready\n"
    yield [one.pid for one in started]
    for one in started:
        one.kill()
        one.wait()
        assert one.stdout is not None
        one.stdout.close()


def used_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def test_a_cpu_card_s_memory_and_work_are_those_of_its_workers(children: list[int]) -> None:
    working, resting = children
    now = [0.0]
    envelopes = Envelopes({0: [working], 1: [resting], 2: []}.__getitem__, lambda: now[0])
    cards = [a_card(0), a_card(1), a_card(2)]
    assert envelopes.lap(cards) == []
    envelopes.sample()
    began = used_s(working)
    while used_s(working) < began + 0.2:
        pass
    now[0] += 0.25  # so much of it, by our clock, however busy this machine is
    envelopes.sample()
    busy, idle, empty = envelopes.lap(cards)
    assert [one.samples for one in (busy, idle, empty)] == [2, 2, 2]
    assert busy.memory_bytes is not None
    assert idle.memory_bytes is not None
    assert busy.memory_bytes.most > 80 * MB > idle.memory_bytes.most > 0
    assert busy.busy is not None
    assert busy.busy.most >= 0.8
    assert idle.busy is not None
    assert idle.busy.most < 0.2
    assert empty.busy == empty.memory_bytes == Envelope(least=0, mean=0, most=0)


def test_what_a_leader_did_not_take_is_told_again_with_what_came_since() -> None:
    envelopes = Envelopes(lambda _: [])
    cards = [a_card()]
    envelopes.lap(cards)
    envelopes.sample()
    assert [one.samples for one in envelopes.lap(cards)] == [1]
    envelopes.sample()
    assert [one.samples for one in envelopes.lap(cards)] == [2]
    envelopes.sample()
    envelopes.taken()
    assert [one.samples for one in envelopes.lap(cards)] == [1]
    envelopes.taken()
    assert envelopes.lap(cards) == []


class Driver(types.ModuleType):
    """What stands where the driver's library would be: two cards, one of which tells no load."""

    class NVMLError(Exception):
        """Its error."""

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.memory, self.busy = [1, 2], [30, 0]
        self.opened = 0

    def nvmlInit(self) -> None:  # noqa: N802
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.opened -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:  # noqa: N802
        return number

    def nvmlDeviceGetUUID(self, number: int) -> str:  # noqa: N802
        return f"GPU-{number}"

    def nvmlDeviceGetMemoryInfo(self, number: int) -> Any:  # noqa: N802
        return types.SimpleNamespace(used=self.memory[number])

    def nvmlDeviceGetUtilizationRates(self, number: int) -> Any:  # noqa: N802
        if number == 1:
            raise self.NVMLError
        return types.SimpleNamespace(gpu=self.busy[number])


def test_a_graphics_card_s_figures_are_its_driver_s_by_uuid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    envelopes = Envelopes(lambda _: [])
    cards = [a_card(0, "cuda", "GPU-1"), a_card(1, "cuda", "GPU-0")]  # torch's order, not its
    envelopes.lap(cards)
    for memory, busy in ((100, 10), (400, 90), (100, 20)):
        driver.memory, driver.busy = [memory, 7], [busy, 0]
        envelopes.sample()
    silent, told = envelopes.lap(cards)
    assert told.memory_bytes == Envelope(least=100, mean=200, most=400)
    assert told.busy == Envelope(least=0.1, mean=0.4, most=0.9)
    assert silent.memory_bytes == Envelope(least=7, mean=7, most=7)
    assert silent.busy is None
    assert driver.opened == 1
    envelopes.close()
    assert driver.opened == 0


def test_without_a_driver_a_graphics_card_s_load_is_unknown_and_not_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    envelopes = Envelopes(lambda _: [])
    envelopes.lap([a_card(0, "cuda")])
    envelopes.sample()
    (load,) = envelopes.lap([a_card(0, "cuda")])
    assert (load.memory_bytes, load.busy) == (None, None)


def test_a_parent_s_utilisation_peak_is_the_highest_and_memory_peaks_add_up() -> None:
    def load(memory: float | None, busy: float | None) -> CardLoad:
        def three(most: float | None) -> Envelope | None:
            return None if most is None else Envelope(least=0, mean=most / 2, most=most)

        return CardLoad(index=0, samples=3, memory_bytes=three(memory), busy=three(busy))

    loads = [load(3e9, 0.4), load(2e9, 0.9), load(None, None)]
    assert (memory_peak(loads), busy_peak(loads)) == (5_000_000_000, 0.9)
    assert (memory_peak([]), busy_peak([])) == (None, None)
    assert (memory_peak(loads[2:]), busy_peak(loads[2:])) == (None, None)
