"""Fellows that run on one machine: their processors' work shares its cores.

Pure. A card's speed is measured while its neighbours rest. Where several stages on one machine ask
for more threads than it has cores, each gets its part of them while they compute at once: a step is
played through with and without that, and the longer one says how much longer a step takes. Graphics
cards share nothing here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from control.planning.pace import Pace
from control.planning.split import PlacedCard, Split
from stage_runtime.costs import runs_1f1b
from transport.orders import TrainSettings
from transport.units import count_of

ROUNDS = 4
"""Micro-batches that are played, times the stages: a longer step goes on alike."""
WORTH_TELLING = 1.02


@dataclass(frozen=True)
class Crowd:
    """Fellows that share a machine."""

    hosts: tuple[str, ...]
    cores: int
    longer: float
    """So many times as long a step takes, 1 or more."""

    @property
    def words(self) -> str:
        """For people; "" where it makes no difference."""
        if self.longer < WORTH_TELLING:
            return ""
        return (
            f"{', '.join(self.hosts)} run on one machine with {count_of(self.cores, 'core')} and "
            f"share them: a step is predicted {self.longer:.2f} times as long as on machines of "
            "their own"
        )


NOBODY = Crowd((), 0, 1.0)


@dataclass(frozen=True)
class _Worker:
    """A stage: seconds of a micro-batch each way, and where they are computed."""

    forward_s: float
    backward_s: float
    machine: str
    """"" when nobody shares it."""
    threads: int


def crowd_of(split: Split, pace: Pace) -> Crowd:
    """The fellows of a split that stand in each other's way, and what that costs."""
    workers = [_worker(stage, pace) for stage in split.stages]
    cores = _short(split, workers)
    if not cores:
        return NOBODY
    told = _Play(workers, _order(pace.settings, len(workers)), cores).seconds()
    alone = _Play(workers, _order(pace.settings, len(workers)), {}).seconds()
    names = [
        stage[0].card.fellow.hostname
        for stage, worker in zip(split.stages, workers)
        if worker.machine in cores
    ]
    return Crowd(tuple(sorted(names)), min(cores.values()), max(1.0, told / alone))


def _worker(stage: Sequence[PlacedCard], pace: Pace) -> _Worker:
    seconds, settings = pace.stage_s(stage), pace.settings
    backward = (2 if settings.method == "full" else 1) + settings.recompute
    processors = [one.card for one in stage if one.card.report.kind == "cpu"]
    beat = stage[0].card.fellow.heartbeat
    boot = beat.machine.boot if beat is not None else None
    return _Worker(
        seconds / (1 + backward),
        seconds * backward / (1 + backward),
        boot if boot is not None and processors else "",
        max((card.report.threads or 1 for card in processors), default=1),
    )


def _short(split: Split, workers: Sequence[_Worker]) -> dict[str, int]:
    """Machine -> its cores, where its stages ask for more."""
    cores: dict[str, int] = {}
    for stage, worker in zip(split.stages, workers):
        beat = stage[0].card.fellow.heartbeat
        if worker.machine and beat is not None:
            cores[worker.machine] = beat.machine.cores
    return {
        machine: count
        for machine, count in cores.items()
        if sum(one.threads for one in workers if one.machine == machine) > count
    }


Action = tuple[bool, int]
"""(whether forward, micro-batch)."""


def _order(settings: TrainSettings, stages: int) -> list[list[Action]]:
    """What each stage computes in turn: 1F1B, or GPipe."""
    parts = min(settings.micro_batches, ROUNDS * stages)
    alternates = runs_1f1b(settings, stages)
    told = []
    for stage in range(stages):
        ahead = min(parts, stages - stage) if alternates else parts
        actions: list[Action] = [(True, part) for part in range(ahead)]
        for part in range(parts):
            actions.append((False, part))
            if part + ahead < parts:
                actions.append((True, part + ahead))
        told.append(actions)
    return told


@dataclass
class _Play:
    """One step, from event to event."""

    workers: Sequence[_Worker]
    order: Sequence[Sequence[Action]]
    cores: Mapping[str, int]
    """Of machines whose stages share them; others compute as if alone."""
    at: list[int] = field(default_factory=list)
    left_s: dict[int, float] = field(default_factory=dict)
    """Of what each stage computes now, at full speed."""
    done: set[tuple[int, bool, int]] = field(default_factory=set)

    def seconds(self) -> float:
        """Until the last backward is done."""
        self.at, now = [0] * len(self.workers), 0.0
        self._begin()
        while self.left_s:
            speeds = {stage: self._speed(stage) for stage in self.left_s}
            passed = min(left / speeds[stage] for stage, left in self.left_s.items())
            now += passed
            self._advance(passed, speeds)
            self._begin()
        return now

    def _begin(self) -> None:
        for stage, worker in enumerate(self.workers):
            if stage in self.left_s or self.at[stage] == len(self.order[stage]):
                continue
            forward, part = self.order[stage][self.at[stage]]
            before = stage - 1 if forward else stage + 1
            if before in (-1, len(self.workers)) or (before, forward, part) in self.done:
                self.left_s[stage] = worker.forward_s if forward else worker.backward_s

    def _speed(self, stage: int) -> float:
        machine = self.workers[stage].machine
        cores = self.cores.get(machine)
        if cores is None:
            return 1.0
        asked = sum(w.threads for s in self.left_s if (w := self.workers[s]).machine == machine)
        return min(1.0, cores / asked)

    def _advance(self, passed: float, speeds: Mapping[int, float]) -> None:
        for stage, speed in speeds.items():
            self.left_s[stage] -= passed * speed
            if self.left_s[stage] <= 1e-12 * passed:
                del self.left_s[stage]
                forward, part = self.order[stage][self.at[stage]]
                self.done.add((stage, forward, part))
                self.at[stage] += 1
