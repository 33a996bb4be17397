"""Two stages in processes of their own, a line between them, and what the first one tells."""

import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any

from tests.bench.slow_line import Line, slow_line
from transport.orders import Links, Neighbour

FELLOWS = ("f-aaaaaaaa", "f-bbbbbbbb")


def told_over(
    line: Line | None,
    body: Callable[..., None],
    arguments: Sequence[tuple[Any, ...]],
    arms: Sequence[str],
) -> dict[str, list[tuple[float, ...]]]:
    """What the first stage tells of each arm's steps, in order.

    Args:
        line: None for loopback itself.
        body: of a process; gets a stage's arguments and a channel. It sends (key, endpoints),
            receives its Links, and the first one sends (arm, figure, ...) a step, at the end None.
    """
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in arguments]
    children = [
        context.Process(target=body, args=(*given, pipe[1]))
        for given, pipe in zip(arguments, pipes, strict=True)
    ]
    for child in children:
        child.start()
    try:
        first, second = (pipe[0] for pipe in pipes)
        keys, endpoints = zip(first.recv(), second.recv(), strict=True)
        with slow_line(line, int(endpoints[1][0].rpartition(":")[2])) as port:
            near, far = (
                Neighbour(stage=at, fellow_id=FELLOWS[at], public_key=keys[at], endpoints=ends)
                for at, ends in enumerate(([], [f"tcp://127.0.0.1:{port}"]))
            )
            first.send(Links(previous=None, next=far))
            second.send(Links(previous=near, next=None))
            return _gathered(first, arms)
    finally:
        for child in children:
            child.kill()
            child.join()


def _gathered(channel: Any, arms: Sequence[str]) -> dict[str, list[tuple[float, ...]]]:
    told: dict[str, list[tuple[float, ...]]] = {arm: [] for arm in arms}
    while (entry := channel.recv()) is not None:
        told[entry[0]].append(entry[1:])
    return told
