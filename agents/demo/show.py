"""What the demo prints: acts, the plan, live progress, planned against measured, before and after.

Colour and the moving line only on a terminal without NO_COLOR; elsewhere one plain line each.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from agents.client import Client
from agents.log_lines import clean
from transport.api.fellows import FellowView
from transport.api.jobs import JobView
from transport.api.plans import PlanView
from transport.units import human_bytes

Tell = Callable[[JobView], None]
PLAIN_EVERY = 5
"""Without a terminal, one line for so many steps."""


class Show:
    """The demo's output. `plan_text` turns a plan into the text that `swarm plan` prints."""

    def __init__(self, console: Console, plan_text: Callable[[PlanView], object]) -> None:
        self.console = console
        self._plan_text = plan_text
        self._act = 0

    def act(self, title: str) -> None:
        """A new part of the demo begins."""
        self._act += 1
        self.console.print()
        self.console.print(Text(f"{self._act}. {title}", style="bold"))

    def say(self, text: str) -> None:
        """One line of fact."""
        self.console.print(Text(f"   {text}"))

    def speeds(self, views: list[FellowView], slowest: dict[str, float]) -> None:
        """What each card measured, and which format the demo takes."""
        for view in views:
            for card in view.cards:
                told = ", ".join(f"{s.number_format} {s.tflops:.3f}" for s in card.speeds)
                who = clean(view.fellow.untrusted_hostname, 60)
                name = f"{card.name}, {human_bytes(card.total_bytes)}"
                self.say(f"{who}'s {name}: {told} TFLOPS (measured)")
        fastest = max(slowest, key=lambda number_format: slowest[number_format])
        self.say(f"the slowest card is faster in {fastest}: the demo computes in it")

    def plan(self, plan: PlanView) -> None:
        """The whole plan, as every user sees it."""
        self.console.print(self._plan_text(plan))

    def console_address(self, client: Client) -> None:
        """A link that signs a browser in, once."""
        self.say(f"watch it in a browser (the link works once): {client.sign_in_link()}")

    @contextmanager
    def progress(self, steps: int) -> Iterator[Tell]:
        """Give a function that shows a job as it moves on."""
        if self.console.is_terminal:
            yield from self._moving(steps)
        else:
            yield self._lines(steps)

    def _moving(self, steps: int) -> Iterator[Tell]:
        columns = (
            TextColumn("   {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console, transient=False) as bar:
            task = bar.add_task("starting", total=steps)

            def tell(job: JobView) -> None:
                bar.update(task, completed=job.step, description=in_words(job))

            yield tell

    def _lines(self, steps: int) -> Tell:
        said = {""}
        last = [0]

        def tell(job: JobView) -> None:
            first = job.state not in said
            due = job.step >= last[0] + PLAIN_EVERY or (job.step == steps and last[0] != steps)
            if first or due:
                said.add(job.state)
                last[0] = max(last[0], job.step)
                self.say(f"step {job.step} of {steps}: {in_words(job)}")

        return tell

    def memory(self, job: JobView) -> None:
        """Planned against measured tensor bytes of every stage."""
        table = Table(box=None, pad_edge=False, padding=(0, 3))
        for heading in ("   stage", "layers", "planned", "measured", "difference"):
            table.add_column(heading, justify="left" if heading.endswith("stage") else "right")
        for stage in job.stages:
            planned, peak = stage.planned_bytes, stage.peak_bytes
            off = "–" if not peak else f"{(planned - peak) / peak:+.1%}"
            layers = f"{stage.first_layer}-{stage.last_layer}"
            row = (f"   {stage.stage}", layers, human_bytes(planned), human_bytes(peak), off)
            table.add_row(*row)
        self.say("tensor bytes at the peak:")
        self.console.print(table)

    def losses(self, base: float, trained: float, enough: float) -> None:
        """Held-out loss before and after, and whether it fell by enough."""
        self.say(f"held-out loss: base model {base:.3f}, trained {trained:.3f}")
        fall = base - trained
        verdict = "fell" if fall >= enough else "did NOT fall enough:"
        self.say(f"it {verdict} by {fall:.2f} nats (at least {enough} were promised)")

    def samples(self, prompt: str, base: str, trained: str) -> None:
        """The same prompt, continued before and after training."""
        for name, text in (("base", base), ("trained", trained)):
            self.say(f"{name:8}{prompt}{' '.join(('|' + text).split())[1:]}")

    def end(self, seconds: float, kept: str | None) -> None:
        """The last line."""
        self.console.print()
        self.say(f"done in {seconds:.0f} s" + (f"; still running: {kept}" if kept else ""))


def in_words(job: JobView) -> str:
    """A job's state and latest figures."""
    if job.loss is None:
        return job.state
    pace = f", {job.step_s:.1f} s a step" if job.step_s else ""
    return f"{job.state}, loss {job.loss:.3f}{pace}"
