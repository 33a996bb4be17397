"""A leader that watches its own event loop: `python -m tests.bench.watched_leader FILE WORDS…`.

Runs mcp_server.main with WORDS. A timer ticks every 10 ms and notes how late each tick comes; a
thread that finds the tick overdue writes down where the loop's thread stands. On SIGUSR1 the
figures since the last SIGUSR1 go to FILE as one line of JSON.
"""

import asyncio
import json
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from control.settings import Settings
from mcp_server import main as leader

TICK_S = 0.01
OVERDUE_S = 0.1


@dataclass
class Watch:
    """How late the ticks of one event loop come."""

    file: Path
    late_s: list[float] = field(default_factory=list)
    stands: Counter[str] = field(default_factory=Counter)
    """Where the loop's thread stood when it was overdue -> how often."""
    next_tick: float = 0.0

    def start(self) -> None:
        """Tick for ever, on the running loop."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self.tell)
        here = threading.get_ident()
        threading.Thread(target=self.look, args=(here,), daemon=True, name="watch").start()
        self._due(loop)

    def _due(self, loop: asyncio.AbstractEventLoop) -> None:
        self.next_tick = time.perf_counter() + TICK_S
        loop.call_later(TICK_S, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self.late_s.append(time.perf_counter() - self.next_tick)
        self._due(loop)

    def look(self, thread: int) -> None:
        """In a thread of its own: note where an overdue loop stands, once for each delay."""
        pause, noted = threading.Event(), 0.0
        while True:
            pause.wait(OVERDUE_S / 2)
            tick = self.next_tick
            if time.perf_counter() - tick > OVERDUE_S and tick != noted:
                noted = tick
                frame = sys._current_frames().get(thread)
                told = traceback.extract_stack(frame)[-4:] if frame else []
                self.stands[
                    " > ".join(f"{one.filename}:{one.lineno} {one.name}" for one in told)
                ] += 1

    def tell(self) -> None:
        """Write the figures of this stretch and begin the next."""
        late = sorted(self.late_s) or [0.0]
        figures = {
            "ticks": len(late),
            "p99_s": late[int(len(late) * 0.99)] if len(late) > 1 else late[0],
            "max_s": late[-1],
            "stands": dict(self.stands.most_common(5)),
        }
        self.late_s, self.stands = [], Counter()
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(figures) + "\n")


def main(file: Path, words: list[str]) -> int:
    """Lead, watched."""
    watch, serve = Watch(file), leader.serve

    async def watched(settings: Settings, sockets: leader.Sockets, front: leader.Front) -> int:
        watch.start()
        return await serve(settings, sockets, front)

    leader.serve = watched
    return leader.main(words)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2:]))
