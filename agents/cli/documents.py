"""Commands that print a document: the job file's schema, texts for agents, versions, completion."""

import importlib.metadata
import json
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from agents.cli.session import Session, current, shared_options
from agents.cli.subcommands import Words
from transport.errors import SwarmError, not_found

_SKILLS = Path(__file__).parents[1] / "skills"


@click.command("job", short_help="The schema of job files.")
def job() -> None:
    """Print the JSON Schema of job files (YAML or JSON), version 1."""
    from transport.api.job_config import JobConfig  # noqa: PLC0415 - models cost 0.1 s to build

    document = JobConfig.model_json_schema()
    document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    document["title"] = "Swarm job file, version 1"
    # An editor's own key, which is read and left out.
    document["properties"]["$schema"] = {"type": "string"}
    current().print_json(document)


@click.command("agent-docs", short_help="Short texts for LLM agents.")
@click.argument("topic", required=False)
def agent_docs(topic: str | None) -> None:
    """Print a short text for an LLM agent; without a topic, the list of them."""
    session = current()
    known = topics()
    if topic is None:
        if session.is_json:
            session.print_json(known)
        for name, says in known.items() if not session.is_json else ():
            click.echo(f"{name:<10} {says}")
        return
    if topic not in known:
        raise not_found("topic", topic[:40], hint=f"there are {', '.join(known)}")
    text = (_SKILLS / f"{topic}.md").read_text(encoding="utf-8")
    if session.is_json:
        session.print_json({"topic": topic, "text": text})
    else:
        click.echo(text.rstrip())


def topics() -> dict[str, str]:
    """Every topic with its title."""
    files = sorted(_SKILLS.glob("*.md"))
    return {f.stem: f.read_text(encoding="utf-8").splitlines()[0].lstrip("# ") for f in files}


@click.command("version", short_help="The versions of Swarm here and at the leader.")
@click.option("--here", "only_here", is_flag=True, help="Do not ask the leader.")
def version(only_here: bool) -> None:
    """Print the version of Swarm here and, when one answers, at the leader."""
    session = current()
    here = importlib.metadata.version("swarm-pool")
    there = None if only_here else _leaders_version(session)
    if session.is_json:
        session.print_json({"version": here, "leader": there})
        return
    click.echo(f"swarm {here}")
    if not only_here:
        click.echo(f"leader {there or 'does not answer'}")


def _leaders_version(session: Session) -> str | None:
    try:
        with session.client() as client:
            told = json.loads(client.get("/version"))
        return str(told["version"])
    except (SwarmError, ValueError, KeyError, TypeError):
        return None


@click.command("completion", short_help="A completion script for your shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script: `source <(swarm completion bash)`."""
    kind = get_completion_class(shell)
    assert kind is not None
    root = click.get_current_context().find_root().command
    # The bash script's own check starts bash; the text alone needs none.
    values = kind(root, {}, "swarm", "_SWARM_COMPLETE").source_vars()
    click.echo(kind.source_template % values)


for _command in (job, agent_docs, version, completion):
    _command.params += shared_options()
schema = Words("schema", "The published schema of job files.", {"job": job.short_help or ""},
               {"job": job}.get)  # fmt: skip
