"""One end of a link as a process, without torch: tells its endpoint, is told its neighbour, sends.

    python -m tests.acceptance.link_end STAGE ADDRESS FRAMES

Lines of JSON: first out: Endpoint; first in: Links; then one line out for each change of the way
and for each tenth frame, and {"digest": …} of all that came, at the end.
"""

import hashlib
import json
import sys
import time
from dataclasses import asdict

from transport.direct import LinkOptions, PipelineLinks
from transport.frames import Direction, Header, Kind
from transport.link import Link, LinkName, poller_of
from transport.orders import Links
from transport.reach import Reached

JOB = "j-aaaabbbb"
LIMIT_S = 60.0
PAYLOAD = 50_000


def payload(stage: int, number: int) -> bytes:
    """What a stage sends as its frame of that number."""
    return hashlib.blake2b(f"{stage}/{number}".encode()).digest() * (PAYLOAD // 64)


def say(**values: object) -> None:
    """One line."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def tell(_: Link, reached: Reached) -> None:
    """A change of the way."""
    say(path=reached.kind, why=reached.why)


def main(stage: int, address: str, frames: int) -> None:
    """Send and take so many frames, each after the neighbour's last one has come."""
    options = LinkOptions(on_path=tell, relayed_grace_s=30)
    links = PipelineLinks.open(LinkName(JOB, 1, stage, stage), 2, address, options)
    say(**asdict(links.endpoint))
    links.connect(Links.model_validate_json(sys.stdin.readline()))
    link = links.next or links.previous
    assert link is not None
    digest, deadline = hashlib.sha256(), time.monotonic() + LIMIT_S
    for number in range(frames):
        header = Header(
            Kind.DATA, b"", 0, step=number, direction=Direction.FORWARD, dtype="uint8",
            shape=(len(payload(stage, number)),),
        )  # fmt: skip
        link.send(header, payload(stage, number))
        while (frame := link.receive()) is None:
            assert link.failure is None, link.failure
            assert time.monotonic() < deadline, link.trouble
            link.acknowledge()
            poller_of([link]).poll(100)
            link.service()
        digest.update(frame.payload)
        if number % 10 == 0:
            say(number=number)
    links.close(2.0)
    say(digest=digest.hexdigest())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
