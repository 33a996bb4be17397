"""Answers as text for people. The text may change; `--json` is what programs read.

Knows the answers' models; does not ask anything. Text of other machines is shown without control
characters.
"""

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from agents.cli.link_words import (
    boundary_text,
    load_lines,
    measured_text,
    speed_lines,
    traffic_text,
)
from agents.cli.loss_words import if_lost_text
from agents.cli.render_data import preview_text
from agents.cli.render_plan import chosen_lines, layers_text, plan_text, serve_plan_text
from agents.cli.step_time import step_time_text
from agents.cli.tables import DASH, Labelled, table
from agents.cli.verify import verification_lines, verify_text
from agents.log_lines import clean
from transport.api.buckets import (
    BucketPreview,
    BucketsListed,
    ModelExported,
    ModelRow,
    ModelsListed,
)
from transport.api.fellows import FellowsListed, FellowView
from transport.api.jobs import Evaluation, JobsListed, JobsLogged, JobsRecorded, JobView
from transport.api.operation import Answer
from transport.api.plans import PlanView
from transport.api.pools import ClusterView, InviteView, PoolsListed, TokensListed, TokenView
from transport.api.saved_states import JobsSaved
from transport.api.serving import ServePlanView
from transport.api.verify import VerifyView
from transport.units import human_bytes, human_count, human_seconds


def show(console: Console, answer: Answer) -> None:
    """Print an answer."""
    for kind, render in _RENDERERS.items():
        if isinstance(answer, kind):
            console.print(render(answer))
            return
    console.print(Text(answer.summary))


def ago(at: float | None) -> str:
    """How long ago something was: "now", "12 min ago", or its date."""
    if at is None:
        return DASH
    seconds = time.time() - at
    if seconds < 3:
        return "now"
    if seconds < 60:
        return f"{seconds:.0f} s ago"
    hours, minutes = divmod(int(seconds // 60), 60)
    if hours < 24:
        return f"{f'{hours} h ' if hours else ''}{minutes} min ago"
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M")


def number(value: float | None, digits: int = 3) -> str:
    """A figure, or the dash of what nobody measured."""
    return DASH if value is None else f"{value:.{digits}f}"


def job_text(job: JobView) -> RenderableType:
    """One job with its stages and what the leader chose."""
    head = Text.assemble(
        ("Job ", "bold"),
        (job.job_id, "bold"),
        f"   {job.model_id}   ",
        (job.state, _STATE_STYLES.get(job.state, "")),
        f" ({clean(job.reason, 300)})" if job.reason else "",
    )
    step = f"{job.step} of {job.steps}, loss {number(job.loss)}"
    smooth = f", smoothed {number(job.smoothed_loss)}" if job.smoothed_loss is not None else ""
    pace = f", {human_seconds(job.step_s)} a step" if job.step_s is not None else ""
    parts: list[RenderableType] = [head, Labelled("Step", step + smooth + pace)]
    if job.plan_id:
        parts.append(Labelled("Plan", f"{job.plan_id}, attempt {job.attempt}"))
    if job.saved_step is not None:
        parts.append(Labelled("Saved", f"step {job.saved_step}, {ago(job.saved_at)}"))
    if job.saving_paused:
        parts.append(Labelled("Saved", clean(job.saving_paused, 300)))
    if job.stages:
        parts.append(_job_stages(job))
    parts += [] if job.step_time is None else [step_time_text(job.step_time)]
    parts += [Labelled("Link", boundary_text(one)) for one in job.boundaries if one.path]
    parts += [Labelled("If lost", if_lost_text(job, one)) for one in job.if_lost]
    parts += [Labelled("Held out", _evaluation(one)) for one in job.evaluations]
    parts += [] if job.verification is None else verification_lines(job.verification)
    parts += chosen_lines(job.chosen)
    parts += [Labelled("Count", f"{name}: {count}") for name, count in job.counts.items() if count]
    if job.untrusted_error:
        parts.append(Text(f"Error    {clean(job.untrusted_error, 2000)}", style="red"))
    if job.adapter_ready:
        parts.append(Labelled("Adapter", f"swarm models export {job.job_id} --to FOLDER"))
    return Group(*parts)


def _job_stages(job: JobView) -> Table:
    rows = [
        (
            f"  {stage.stage}",
            stage.hostname,
            layers_text(stage.first_layer, stage.last_layer),
            stage.phase or DASH,
            DASH if stage.step is None else stage.step,
            human_bytes(stage.planned_bytes),
            human_bytes(stage.peak_bytes),
        )
        for stage in job.stages
    ]
    headings = ("  stage", "fellow", "layers", "phase", "step>", "planned>", "measured peak>")
    return table(headings, rows)


def _evaluation(one: Evaluation) -> str:
    names = {"base": "base model", "trained": "trained", "bypassed": "trained, no bottleneck"}
    when = names.get(one.moment, f"step {one.step}")
    right = f"{one.accuracy:.1%} of next tokens right, {one.sequences} sequences"
    return f"{when}: loss {one.loss:.4f}, perplexity {number(one.perplexity, 2)}, {right}"


def _saved(answer: JobsSaved) -> RenderableType:
    rows = [
        (one.step, ago(one.saved_at), one.attempt, len(one.files), human_bytes(one.size_bytes))
        for one in answer.steps
    ]
    headings = ("  step>", "saved", "attempt>", "files>", "size>")
    return Group(Text(answer.summary), table(headings, rows)) if rows else Text(answer.summary)


def _jobs(answer: JobsListed) -> RenderableType:
    rows = [
        (
            job.job_id,
            job.model_id,
            job.state,
            f"{job.step}/{job.steps}",
            number(job.loss),
            job.fellows,
            ago(job.started_at or job.created_at),
            job.reason,
        )
        for job in answer.jobs
    ]
    headings = ("JOB", "MODEL", "STATE", "STEP>", "LOSS>", "FELLOWS>", "STARTED", "REASON")
    more = [Text(f"{answer.omitted} more: --cursor {answer.cursor}")] if answer.omitted else []
    return Group(table(headings, rows) if rows else Text(answer.summary), *more)


def _fellows(answer: FellowsListed) -> RenderableType:
    rows = [
        (
            one.fellow_id,
            one.untrusted_hostname,
            one.version or DASH,
            one.status,
            one.health,
            ", ".join(one.card_names) or DASH,
            f"{human_bytes(one.card_used_bytes)} of {human_bytes(one.card_total_bytes)}",
            ago(one.last_seen_at),
        )
        for one in answer.fellows
    ]
    headings = ("ID", "HOST", "VERSION", "STATUS", "HEALTH", "CARDS", "MEMORY USED>", "LAST SEEN")
    causes = [
        Text(f"{one.fellow_id}: {clean('; '.join(one.causes), 300)}")
        for one in answer.fellows
        if one.causes
    ]
    return Group(table(headings, rows) if rows else Text(answer.summary), *causes)


def _fellow(answer: FellowView) -> RenderableType:
    one = answer.fellow
    rows = [
        (
            f"  {card.index}",
            card.name,
            f"{human_bytes(card.free_bytes)} of {human_bytes(card.total_bytes)}",
            ", ".join(card.number_formats),
            ", ".join(f"{s.number_format} {s.tflops:.3g}" for s in card.speeds) or "not measured",
            ", ".join(f"{h.name} {human_bytes(h.held_bytes)}" for h in card.holders) or DASH,
        )
        for card in answer.cards
    ]
    headings = ("  card", "name", "free>", "formats", "measured TFLOPS", "held by")
    host = clean(one.untrusted_hostname, 60)
    memory = f"{human_bytes(answer.memory_free_bytes)} of {human_bytes(answer.memory_bytes)} free"
    stages = [
        Labelled("Runs", f"job {s.job_id} stage {s.stage}, {s.phase}, step {s.step or 0}")
        for s in answer.stages
    ]
    return Group(
        Text(f"Fellow {one.fellow_id}   {host}   {one.status}   health {one.health}", "bold"),
        Labelled("System", f"{clean(answer.system or DASH, 100)}, {answer.cores or DASH} cores"),
        Labelled("Memory", f"{memory}; disk {human_bytes(answer.disk_free_bytes)} free"),
        Labelled("Packages", ", ".join(f"{k} {v}" for k, v in answer.versions.items()) or DASH),
        Labelled("Traffic", traffic_text(answer.traffic)),
        table(headings, rows),
        *(Labelled("Used", line) for card in answer.cards for line in load_lines(card)),
        *(Labelled("Speed", line) for card in answer.cards for line in speed_lines(card)),
        *(Labelled("Link", measured_text(link)) for link in answer.links),
        *stages,
    )


def _cluster(answer: ClusterView) -> RenderableType:
    rows = [
        (job.job_id, job.model_id, job.state, f"{job.step}/{job.steps}", number(job.loss))
        for job in answer.jobs
    ]
    used, total = human_bytes(answer.card_used_bytes), human_bytes(answer.card_total_bytes)
    fellows = f"{answer.ready} ready, {answer.training} training, {answer.offline} offline"
    jobs = [table(("JOB", "MODEL", "STATE", "STEP>", "LOSS>"), rows)] if rows else []
    return Group(
        Text(answer.words, "bold"),
        Labelled("Fellows", f"{answer.fellows}: {fellows}"),
        Labelled("Cards", f"{answer.cards}, {used} of {total} used"),
        Labelled("Step", f"{human_seconds(answer.step_s)}, mean loss {number(answer.mean_loss)}"),
        *jobs,
    )


def _pools(answer: PoolsListed) -> RenderableType:
    rows = [(p.pool, f"{p.online}/{p.fellows}", p.jobs, ago(p.created_at)) for p in answer.pools]
    return table(("POOL", "ONLINE>", "JOBS>", "MADE"), rows) if rows else Text(answer.summary)


def _buckets(answer: BucketsListed) -> RenderableType:
    rows = [
        (b.pool, b.bucket, b.files, b.rows, human_bytes(b.size_bytes), ago(b.created_at))
        for b in answer.buckets
    ]
    headings = ("POOL", "BUCKET", "FILES>", "ROWS>", "SIZE>", "MADE")
    return table(headings, rows) if rows else Text(answer.summary)


def _base(model: ModelRow) -> str | None:
    """An adapter's base at its exact revision."""
    if model.base_model_id is None or model.base_revision is None:
        return model.base_model_id
    return f"{model.base_model_id.partition('@')[0]}@{model.base_revision[:12]}"


def _models(answer: ModelsListed) -> RenderableType:
    rows = [
        (
            m.model_id,
            m.kind,
            m.family or _base(m) or DASH,
            m.layers or DASH,
            human_count(m.parameters),
            human_bytes(m.size_bytes),
            ago(m.created_at),
        )
        for m in answer.models
    ]
    headings = ("MODEL", "KIND", "FAMILY/BASE", "LAYERS>", "PARAMETERS>", "SIZE>", "MADE")
    return table(headings, rows) if rows else Text(answer.summary)


def _tokens(answer: TokensListed) -> RenderableType:
    rows = [
        (t.token_id, t.name, t.scope, ", ".join(t.pools) or "all", t.prefix, t.state,
         ago(t.last_used_at))
        for t in answer.tokens
    ]  # fmt: skip
    return table(("ID", "NAME", "SCOPE", "POOLS", "BEGINS", "STATE", "LAST USED"), rows)


def _logs(answer: JobsLogged) -> RenderableType:
    return Group(*(log_line(line) for line in answer.lines)) if answer.lines else Text("no lines")


def log_line(line: Any) -> Text:
    """One log line: time, stage, level, text."""
    at = datetime.fromtimestamp(line.at).astimezone().strftime("%H:%M:%S")
    style = {"error": "red", "warning": "yellow"}.get(line.level, "")
    text = clean(line.untrusted_text, 2000)
    return Text(f"{at}  {line.stage}  {line.level:7}  {text}", style=style)


def _records(answer: JobsRecorded) -> RenderableType:
    rows = [
        (
            s.step,
            s.stage,
            number(s.loss, 4),
            number(s.smoothed_loss, 4),
            number(s.grad_norm),
            f"{s.learning_rate:.2e}",
            human_seconds(s.step_s),
            human_seconds(s.wait_s),
        )
        for s in answer.steps
    ]
    headings = ("STEP>", "STAGE>", "LOSS>", "SMOOTHED>", "NORM>", "RATE>", "TIME>", "WAITED>")
    return table(headings, rows) if rows else Text(answer.summary)


def _invite(answer: InviteView) -> RenderableType:
    return Group(
        Text(f"Invite {answer.invite_id} into {answer.pool}: one machine, one hour", "bold"),
        Text("On the new machine, as SWARM_INVITE:"),
        Text(f"  {answer.secret}"),
        Text("then:"),
        Text(f"  {answer.command}"),
    )


def _token(answer: TokenView) -> RenderableType:
    pools = ", ".join(answer.pools) or "all pools"
    return Group(
        Text(f"Access token {answer.token_id} ({answer.scope}, {pools}), shown this once:", "bold"),
        Text(f"  {answer.secret}"),
    )


def _exported(answer: ModelExported) -> RenderableType:
    rows = [(file.name, human_bytes(file.size_bytes), file.sha256[:16]) for file in answer.files]
    return Group(Text(answer.summary), table(("FILE", "SIZE>", "SHA-256"), rows))


_STATE_STYLES = {
    "completed": "green",
    "running": "green",
    "failed": "red",
    "cancelled": "yellow",
    "pending": "yellow",
}
_RENDERERS: dict[type[Answer], Callable[[Any], RenderableType]] = {
    PlanView: plan_text,
    ServePlanView: serve_plan_text,
    JobView: job_text,
    VerifyView: verify_text,
    JobsListed: _jobs,
    JobsLogged: _logs,
    JobsRecorded: _records,
    JobsSaved: _saved,
    FellowsListed: _fellows,
    FellowView: _fellow,
    ClusterView: _cluster,
    PoolsListed: _pools,
    BucketsListed: _buckets,
    BucketPreview: preview_text,
    ModelsListed: _models,
    TokensListed: _tokens,
    InviteView: _invite,
    TokenView: _token,
    ModelExported: _exported,
}
