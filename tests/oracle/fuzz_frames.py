"""Mutated frames, half of them through a live CURVE link with the right key: nothing may break.

    python -m tests.oracle.fuzz_frames --frames 200000 [--seed N]

Every frame must be taken, dropped and counted, or refused with a SwarmError; any other exception
is a failure, and so is memory that grows. Prints one JSON object; exit code 1 on a failure. The
seed replays the run.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import psutil
import zmq

from transport.errors import SwarmError
from transport.frames import (
    DTYPES,
    HEADER_BYTES,
    TAKES_PIECES,
    Direction,
    Header,
    Kind,
    decode,
    encode,
    job_tag,
)
from transport.keys import new_key_pair
from transport.link import Link, LinkName, poller_of
from transport.loopback import Line
from transport.wire import Wire
from transport.zap import ZapHandler, bind_socket, dial_socket
from transport.zmq_wire import ZmqWire

JOB: Final = "j-aaaabbbb"
NAME: Final = LinkName(JOB, 1, 1, 0)
MAX_BYTES: Final = 4096
GROWTH_BYTES: Final = 32_000_000
LIVE_LIMIT_S: Final = 20.0
"""How long a live link may take for the next frames to arrive."""
_NUMBERS: Final = (0, 1, 2, 15, 16, 17, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31,
                   2**32 - 1, 2**63, 2**64 - 1)  # fmt: skip


@dataclass
class Outcome:
    """What became of the frames."""

    frames: int = 0
    taken: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """Exceptions that nobody should see."""


def a_header(dice: random.Random, expected: int) -> Header:
    """A header that an honest neighbour could send now, or soon."""
    kind = dice.choice(list(Kind))
    header = Header(kind, job_tag(JOB), 1, sequence=expected + dice.choice((0, 0, 0, 1, 5, -1)))
    header = replace(header, sequence=max(0, header.sequence))
    if kind is Kind.DATA:
        shape = tuple(dice.randint(1, 4) for _ in range(dice.randint(1, 4)))
        dtype = dice.choice(DTYPES[1:])[0]
        return replace(header, direction=Direction.FORWARD, dtype=dtype, shape=shape)
    if kind is Kind.CONTROL:
        return replace(header, dtype="float64", shape=(dice.randint(1, 8),))
    if kind is Kind.HELLO:
        return replace(header, micro_batch=dice.choice((0, TAKES_PIECES)))
    if kind is Kind.PAUSE and dice.random() < 0.5:
        return replace(header, dtype="uint8", shape=(dice.randint(1, 100),))
    return header


def a_frame(dice: random.Random, expected: int, *, crc: bool) -> bytearray:
    """A frame, or a piece of one, that an honest neighbour could send now, or soon."""
    header = a_header(dice, expected)
    if header.kind is not Kind.PIECE:
        return encode(header, dice.randbytes(header.payload_bytes), crc=crc)
    kind = dice.choice((Kind.DATA, Kind.CONTROL))
    whole = replace(
        header,
        kind=kind,
        direction=Direction.FORWARD,
        dtype="float64",
        shape=(dice.randint(1, 40),),
    )
    frame = mutate(encode(whole, dice.randbytes(whole.payload_bytes), crc=crc), dice)
    start = dice.choice((0, 0, 0, HEADER_BYTES, dice.randrange(400)))
    part = frame[start : start + dice.choice((HEADER_BYTES, 400, 400))] or bytearray(1)
    piece = replace(header, step=start, dtype="uint8", shape=(len(part),))
    return encode(piece, part, crc=crc)


def mutate(frame: bytearray, dice: random.Random) -> bytearray:
    """The frame with one to four things wrong, or none."""
    for _ in range(dice.choice((0, 0, 0, 1, 1, 1, 2, 4))):
        at = dice.randrange(max(1, len(frame)))
        match dice.randrange(7):
            case 0 if frame:
                frame[at] ^= 1 << dice.randrange(8)
            case 1 if frame:
                frame[at] = dice.randrange(256)
            case 2:
                del frame[at:]
            case 3:
                frame += dice.randbytes(dice.randint(1, 64))
            case 4:
                size = dice.choice((1, 2, 4, 8))
                value = dice.choice(_NUMBERS) % 256**size
                start = dice.randrange(HEADER_BYTES)
                frame[start : start + size] = value.to_bytes(size, "little")
            case 5:
                frame[at:at] = frame[: dice.randrange(1 + min(len(frame), 80))]
            case _ if frame:
                frame[at : at + 8] = bytes(8)
    return frame[:MAX_BYTES]


class Fuzz:
    """One run.

    Args:
        wire: of the receiving link; it outlives the links that fail on it.
        put: hands a mutated frame to the other end.
    """

    def __init__(self, wire: Wire, put: Callable[[bytearray], object], dice: random.Random) -> None:
        self.outcome = Outcome()
        self._wire, self._put, self._dice = wire, put, dice
        self._link = Link(NAME, wire)
        self._arrived = 0

    def send(self) -> None:
        """Send the next mutated frame."""
        frame = a_frame(self._dice, self._link.expected, crc=self._wire.needs_crc)
        self._put(mutate(frame, self._dice))
        self.outcome.frames += 1

    def take(self) -> None:
        """Let the link take what came; a failed one is replaced, as a new attempt would."""
        try:
            self._link.service()
            while self._link.receive() is not None:
                self.outcome.taken += 1
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            self.outcome.wrong.append(f"{type(error).__name__}: {error}"[:300])
        failure = self._link.failure
        if failure is not None:
            reason = str(failure.facts.get("refused") or failure.message)
            self.outcome.refused[_class_of(reason)] += 1
            self._link = Link(NAME, self._wire)

    @property
    def link(self) -> Link:
        """The link that takes frames now."""
        return self._link


def _class_of(reason: str) -> str:
    """A reason without its numbers."""
    words = "".join(" " if c.isdigit() or not c.isprintable() else c for c in reason)
    return " ".join(words.split())[:60]


def decoded(count: int, dice: random.Random) -> Outcome:
    """Frames through `decode` and a link in memory, with and without a checksum."""
    line = Line()
    fuzz = Fuzz(line.ends[1], lambda frame: line.carry(line.ends[0], frame), dice)
    for number in range(count):
        fuzz.send()
        fuzz.take()
        if number % 2:  # the checksum keeps most mutations from what lies behind it
            frame = mutate(a_frame(dice, 0, crc=False), dice)
            try:
                decode(frame, crc=False)
            except SwarmError:
                pass
            except Exception as error:  # noqa: BLE001
                fuzz.outcome.wrong.append(f"decode: {type(error).__name__}: {error}"[:300])
        list(line.ends[0].events())
    return fuzz.outcome


def live(count: int, dice: random.Random) -> Outcome:
    """Frames through TCP and CURVE, from a peer that holds the right key."""
    handler = ZapHandler(zmq.Context(io_threads=1))
    handler.start()
    server, client = new_key_pair(), new_key_pair()
    handler.allow("fuzz", client.public)
    bound = bind_socket(handler, server, "fuzz", "tcp://127.0.0.1:*", MAX_BYTES)
    dealer = dial_socket(handler, client, server.public, MAX_BYTES)
    dealer.connect(bound.getsockopt_string(zmq.LAST_ENDPOINT))
    wire = _Counted(ZmqWire(bound, is_bound=True))
    fuzz = Fuzz(wire, lambda frame: dealer.send(bytes(frame)), dice)
    for start in range(0, count, 32):
        wanted = min(32, count - start)
        for _ in range(wanted):
            fuzz.send()
        deadline = time.monotonic() + LIVE_LIMIT_S
        while wire.arrived < start + wanted:
            if time.monotonic() > deadline:
                fuzz.outcome.wrong.append(f"only {wire.arrived} of {start + wanted} frames came")
                break
            poller_of([fuzz.link]).poll(100)
            fuzz.take()
        while dealer.poll(0):
            dealer.recv()
    dealer.close(linger=0)
    wire.close(0)
    handler.context.term()
    return fuzz.outcome


class _Counted:
    """A wire that counts the frames it gives."""

    needs_crc = False

    def __init__(self, wire: ZmqWire) -> None:
        self._wire = wire
        self.arrived = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wire, name)

    def events(self) -> Any:
        """Those of the wire."""
        for event in self._wire.events():
            self.arrived += not hasattr(event, "is_up")
            yield event


def main(words: list[str] | None = None) -> int:
    """Run; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    told = parser.parse_args(words)
    dice = random.Random(told.seed)
    process = psutil.Process()
    decoded(2000, random.Random(0))  # so that what is loaded on first use counts as before
    before, began = process.memory_info().rss, time.monotonic()
    outcomes = {"memory": decoded(told.frames // 2, dice), "live": live(told.frames // 2, dice)}
    grown = process.memory_info().rss - before
    wrong = [words for outcome in outcomes.values() for words in outcome.wrong]
    if grown > GROWTH_BYTES:
        wrong.append(f"memory grew by {grown} bytes")
    figures = {
        "seed": told.seed,
        "frames": sum(outcome.frames for outcome in outcomes.values()),
        "rss_before": before,
        "rss_after": before + grown,
        "seconds": round(time.monotonic() - began, 1),
        "wrong": wrong[:20],
        **{name: {"taken": o.taken, "refused": o.refused.total(),
                  "reasons": len(o.refused)} for name, o in outcomes.items()},
    }  # fmt: skip
    sys.stdout.write(json.dumps(figures) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
