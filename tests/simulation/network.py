"""A network between machines and their leader that delays, loses, repeats and cuts, by a seed."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from tests.simulation.virtual_time import passed

T = TypeVar("T")
GIVE_UP_S = 10.0
BEAT_GIVE_UP_S = 5.0
"""A request whose answer does not come is given up after so long, as the fellow's own are."""


class Away(Exception):
    """No answer came. Whether the leader heard the question is not known."""


@dataclass
class Weather:
    """How bad the way between one machine and the leader is."""

    delay_s: float = 0.01
    lost: float = 0.0
    """Share of requests that never arrive, and of answers that never come back."""
    repeated: float = 0.0
    """Share of requests that arrive twice."""
    cut: set[str] = field(default_factory=set)
    """"out": nothing reaches the leader. "in": no answer comes back."""


class Way:
    """One machine's way to the leader."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.weather = Weather()

    async def ask(self, question: Callable[[], Awaitable[T]], give_up_s: float = GIVE_UP_S) -> T:
        """Carry one request and its answer.

        Raises:
            Away: the request or its answer was lost.
        """
        weather = self.weather
        await passed(weather.delay_s * (0.5 + self.dice.random()))
        if "out" in weather.cut or self.dice.random() < weather.lost:
            await passed(give_up_s)
            raise Away
        if self.dice.random() < weather.repeated:
            again = asyncio.ensure_future(question())
            again.add_done_callback(lambda done: done.cancelled() or done.exception())
        answer = await question()
        if "in" in weather.cut or self.dice.random() < weather.lost:
            await passed(give_up_s)
            raise Away
        await passed(weather.delay_s * (0.5 + self.dice.random()))
        return answer
