"""`swarm demo`: the whole of Swarm on this machine, in about four minutes.

Starts the story of agents.demo and makes sure that nothing of it is left behind.
"""

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import click
from platformdirs import user_cache_path

from agents.cli.render_plan import plan_text
from agents.cli.session import current, shared_options
from agents.demo.show import Show
from agents.demo.story import BETTER_NATS, MIN_STEPS, Ending, Story, default_folder

FOLDER = "swarm"


@click.command(short_help="A leader and three fellows on this machine, training.")
@click.option("--keep", is_flag=True, help="Leave leader and fellows running at the end.")
@click.option(
    "--steps",
    type=click.IntRange(MIN_STEPS, 10_000),
    help="Train so many steps instead of about two minutes.",
)
@click.option("--folder", type=Path, help="Where the demo's files go; a new folder in the cache.")
def demo(keep: bool, steps: int | None, folder: Path | None) -> int:
    """Fine-tune a small pretrained model over three fellows that are processes of this machine.

    Real leader, real fellows with CPU cards of different sizes, real sockets, real text. Shows the
    plan, the loss as it falls, planned against measured memory, the held-out loss before and
    after, and a sample of each. Nothing outside this machine is asked. Ctrl-C ends everything.
    """
    session = current()
    began = time.monotonic()
    cache = user_cache_path(FOLDER) / "demo"
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=False)
    home = folder or default_folder(cache)
    console = session.console(sys.stderr if session.is_json else None)
    story = Story(home.resolve(), cache / "models", Show(console, plan_text), may_leave=keep)
    # Also where a shell started it in the background with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)
    kept: str | None = None
    try:
        ending = story.run(steps)
        kept = story.client.url if keep else None
    finally:
        if kept is None:
            # A second Ctrl-C must not leave half of them running.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            story.close()
    story.show.end(time.monotonic() - began, kept and story.how_to_stop())
    if session.is_json:
        session.print_json(_told(ending, home, kept))
    return 0


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _told(ending: Ending, home: Path, kept: str | None) -> dict[str, Any]:
    """The demo's findings for a program."""
    return {
        "job": json.loads(ending.job.model_dump_json()),
        "base_loss": ending.base_loss,
        "trained_loss": ending.trained_loss,
        "fell_enough": ending.fall >= BETTER_NATS,
        "folder": str(home),
        "leader": kept,
    }


demo.params += list(shared_options())
