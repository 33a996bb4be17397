"""What links cost a step: encryption on a fast line, and a slow line at a quarter of the bytes.

    python -m tests.bench.links [--rounds 2] [--compute 0.9]

Two stages in two network namespaces, joined by a line that tbf shapes both ways. Compute is a wait
of 0.9 s for each forward, recompute and backward of a micro-batch (served block by block, as a
stage serves its links); 8 micro-batches in 1F1B; hidden 4,096 x 1,024 tokens in 16 bits, 8.4 MB a
frame; the plain arms send each frame whole. "A quarter" sends a quarter of these bytes and leaves
the codec's own time out; "early" rebuilds blocks while it waits for their gradient, as stages do,
and the rest after. Arms take turns, in an order that is mirrored in the next round, and one arm
stands twice. Needs root. Exit code 1 past a limit: CURVE 1.03 of plain at 1 Gbit; 40 Mbit at a
quarter 1.25, and 1.05 with early recompute, of the unshaped run without it.
"""

import argparse
import json
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from threading import Event
from typing import Any, Final

import zmq

from tests.acceptance.namespaces import inside, why_not
from transport.direct import PipelineLinks
from transport.frames import Direction, Frame, Header, Kind
from transport.link import Link, LinkName, poller_of
from transport.orders import Links, Neighbour
from transport.pieces import MAX_FRAME_BYTES, FrameSizes
from transport.zmq_wire import ZmqWire

JOB: Final = "j-aaaabbbb"
FRAME_BYTES: Final = 4096 * 1024 * 2
MICRO_BATCHES: Final = 8
BLOCKS: Final = 12
"""Between which a computing stage serves its links."""
ADDRESS: Final = ("10.77.0.1", "10.77.0.2")
LIMITS: Final = {"curve": 1.03, "slow": 1.25, "slow, early": 1.05}


@dataclass(frozen=True)
class Arm:
    """One way to run the step."""

    name: str
    mbit: int | None
    encrypted: bool
    share: float = 1.0
    is_early: bool = False


ARMS: Final = (
    Arm("unshaped, plain", None, encrypted=False),
    Arm("1 Gbit, plain", 1000, encrypted=False),
    Arm("1 Gbit, CURVE", 1000, encrypted=True),
    Arm("1 Gbit, plain again", 1000, encrypted=False),
    Arm("40 Mbit, CURVE, a quarter", 40, encrypted=True, share=0.25),
    Arm("40 Mbit, CURVE, a quarter, early", 40, encrypted=True, share=0.25, is_early=True),
)


# --- a stage ---


class Stage:
    """One end of the step: computes by waiting, sends and takes frames."""

    def __init__(
        self, link: Link, compute_s: float, frame_bytes: int, *, is_early: bool = False
    ) -> None:
        self._link, self._compute_s, self._is_early = link, compute_s, is_early
        self._payload = secrets.token_bytes(frame_bytes)
        self._never = Event()
        self._frame: Frame | None = None

    def step(self, stage: int) -> float:
        """One step in 1F1B order; its seconds."""
        self.send()  # both are there
        self.take()
        began = time.monotonic()
        (self._first if stage == 0 else self._last)()
        return time.monotonic() - began

    def _first(self) -> None:
        self.compute(BLOCKS)
        self.send()
        for number in range(MICRO_BATCHES):
            if number + 1 < MICRO_BATCHES:
                self.compute(BLOCKS)
                self.send()
            rebuilt = self._rebuild() if self._is_early else 0
            self.take()
            self.compute(BLOCKS - rebuilt)
            self.compute(BLOCKS)  # backward

    def _rebuild(self) -> int:
        """Recompute blocks until the gradient is there; how many."""
        for number in range(BLOCKS):
            if self._frame is not None or self._arrived():
                return number
            self.compute(1)
        return BLOCKS

    def _last(self) -> None:
        for _ in range(MICRO_BATCHES):
            self.take()
            self.compute(3 * BLOCKS)
            self.send()

    def compute(self, blocks: int) -> None:
        """Wait, serving the link between blocks. Late wakings do not add up."""
        due = time.monotonic()
        for _ in range(blocks):
            due += self._compute_s / BLOCKS
            self._never.wait(max(0.0, due - time.monotonic()))
            self._link.service()

    def send(self) -> None:
        """One frame to the neighbour."""
        header = Header(
            Kind.DATA, b"", 0, direction=Direction.FORWARD, dtype="uint8",
            shape=(len(self._payload),),
        )  # fmt: skip
        self._link.send(header, self._payload)

    def take(self) -> Frame:
        """The next frame of the neighbour."""
        while not self._arrived():
            self._link.acknowledge()
            poller_of([self._link]).poll(100)
            self._link.service()
        frame, self._frame = self._frame, None
        assert frame is not None
        return frame

    def _arrived(self) -> bool:
        self._frame = self._frame or self._link.receive()
        assert self._link.failure is None, self._link.failure
        return self._frame is not None


def run_stage(stage: int, told: argparse.Namespace) -> None:
    """A stage as a process: its endpoint out, its neighbour in, its seconds out."""
    if told.encrypted:
        name = LinkName(JOB, 1, stage, stage)
        links = PipelineLinks.open(name, 2, ADDRESS[stage])
        say(asdict(links.endpoint))
        links.connect(Links.model_validate_json(sys.stdin.readline()))
        link = links.next or links.previous
    else:
        link = plain_link(stage)
    assert link is not None
    seconds = Stage(link, told.compute, told.bytes, is_early=told.early).step(stage)
    link.close(5.0)
    say({"seconds": seconds})


def plain_link(stage: int) -> Link:
    """The same link without encryption."""
    socket = zmq.Context().socket(zmq.DEALER)
    socket.sndhwm = 0
    socket.linger = 0
    wire = ZmqWire(socket, is_bound=stage == 1)
    if stage == 1:
        socket.bind(f"tcp://{ADDRESS[1]}:*")
        say({"public_key": "0" * 40, "endpoints": [socket.getsockopt_string(zmq.LAST_ENDPOINT)]})
        sys.stdin.readline()
    else:
        say({"public_key": "0" * 40, "endpoints": []})
        socket.immediate = True
        told = Links.model_validate_json(sys.stdin.readline())
        assert told.next is not None
        wire.dial(told.next.endpoints[0])
    name = LinkName(JOB, 1, stage, 1 - stage)
    return Link(name, wire, reconnect_grace_s=60, sizes=FrameSizes(piece_bytes=MAX_FRAME_BYTES))


def say(told: dict[str, Any]) -> None:
    """One line of JSON."""
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


# --- the line, and the arms ---


@contextmanager
def a_line(mbit: int | None) -> Iterator[tuple[str, str]]:
    """Two namespaces joined by a line of that speed, both ways."""
    mark = secrets.token_hex(2)
    names = (f"swarm-l0-{mark}", f"swarm-l1-{mark}")
    try:
        for name in names:
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        _run("ip", "-n", names[0], "link", "add", "eth", "type", "veth", "peer", "name", "eth",
             "netns", names[1])  # fmt: skip
        for name, address in zip(names, ADDRESS, strict=True):
            _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth")
            _run("ip", "-n", name, "link", "set", "eth", "up")
            if mbit is not None:
                _run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth", "root",
                     "tbf", "rate", f"{mbit}mbit", "burst", "256kb", "latency", "50ms")  # fmt: skip
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _run(*words: str) -> None:
    told = subprocess.run(words, capture_output=True, check=False)
    assert told.returncode == 0, f"{' '.join(words)}: {told.stderr.decode()}"


def measure(arm: Arm, compute_s: float) -> float:
    """Seconds of one step of an arm, as its first stage saw it."""
    with a_line(arm.mbit) as names:
        children = []
        for stage in (0, 1):
            words = ["-m", "tests.bench.links", "--stage", str(stage), "--compute", str(compute_s)]
            words += ["--bytes", str(int(FRAME_BYTES * arm.share))]
            words += ["--encrypted"] if arm.encrypted else []
            words += ["--early"] if arm.is_early else []
            children.append(
                subprocess.Popen(
                    [sys.executable, *inside(names[stage], *words)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        ends = [
            Neighbour(stage=stage, fellow_id="f-aaaaaaaa", **_line_of(child))
            for stage, child in enumerate(children)
        ]
        _tell(children[1], Links(previous=ends[0], next=None))
        _tell(children[0], Links(previous=None, next=ends[1]))
        seconds = [float(_line_of(child)["seconds"]) for child in children]
        for child in children:
            child.wait(30)
        return seconds[0]


def _line_of(child: "subprocess.Popen[str]") -> dict[str, Any]:
    assert child.stdout is not None
    return dict(json.loads(child.stdout.readline()))


def _tell(child: "subprocess.Popen[str]", links: Links) -> None:
    assert child.stdin is not None
    child.stdin.write(links.model_dump_json() + "\n")
    child.stdin.flush()


def main() -> int:
    """Run the arms; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--compute", type=float, default=0.9)
    parser.add_argument("--stage", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--bytes", type=int, default=FRAME_BYTES, help=argparse.SUPPRESS)
    parser.add_argument("--encrypted", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--early", action="store_true", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.stage is not None:
        run_stage(told.stage, told)
        return 0
    if why := why_not():
        sys.stderr.write(f"left out: {why}\n")
        return 0
    took: dict[str, list[float]] = {arm.name: [] for arm in ARMS}
    for number in range(told.rounds):
        for arm in ARMS if number % 2 == 0 else ARMS[::-1]:
            took[arm.name].append(measure(arm, told.compute))
            sys.stderr.write(f"{arm.name}: {took[arm.name][-1]:.2f} s\n")
    return report(took)


def report(took: dict[str, list[float]]) -> int:
    """Print the ratios; 1 when one is past its limit."""
    unshaped, plain, curve, again, slow, early = (took[arm.name] for arm in ARMS)
    ratios = {
        "curve": _ratio(curve, plain),
        "same again": _ratio(again, plain),
        "slow": _ratio(slow, unshaped),
        "slow, early": _ratio(early, unshaped),
    }
    figures = {
        "step_s": {name: [round(one, 3) for one in all_] for name, all_ in took.items()},
        "ratios": {name: round(ratio, 4) for name, ratio in ratios.items()},
        "limits": LIMITS,
    }
    sys.stdout.write(json.dumps(figures) + "\n")
    return int(any(ratios[name] > limit for name, limit in LIMITS.items()))


def _ratio(one: list[float], other: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


if __name__ == "__main__":
    sys.exit(main())
