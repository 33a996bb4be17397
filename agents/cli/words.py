"""The first words of `swarm`, each with a line of help, so that `swarm --help` loads nothing else.

Whatever the declarations name must stand here too: a test compares them.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Own:
    """A command that is more than one operation: where its code is, and its line of help."""

    module: str
    attribute: str
    says: str


# First words of declared operations.
GROUPS: dict[str, str] = {
    "status": "The pool in one look: fellows, cards, memory, what trains.",
    "jobs": "Training jobs: list, show, wait, logs, cancel.",
    "fellows": "The machines of a pool: list, show, remove.",
    "buckets": "Training data of a pool: create, add, list.",
    "models": "Models in the leader's store, and trained adapters.",
    "pools": "Pools: create, list.",
    "tokens": "Access tokens: create, list, revoke.",
    "invite": "Invite one machine into a pool.",
    "verify": "Compare a job's split run with one process.",
    "measure": "Measure how fast a machine's cards are.",
}

_CLI = "agents.cli"

COMMANDS: dict[str, Own] = {
    "train": Own(f"{_CLI}.train", "train", "Plan a training job from a file, and start it."),
    "plan": Own(f"{_CLI}.train", "plan", "Show where a job would run. Starts nothing."),
    "model-load": Own(
        f"{_CLI}.model_load", "model_load", "Show where a model would be served (--plan)."
    ),
    "join": Own(f"{_CLI}.join", "join", "Join this machine to a pool, and run it."),
    "fellow": Own(f"{_CLI}.join", "fellow", "Run this machine, which has joined before."),
    "leader": Own(f"{_CLI}.leader", "leader", "Run a leader; back its data up."),
    "relay": Own(f"{_CLI}.relay", "relay", "Join stages that cannot dial each other."),
    "demo": Own(f"{_CLI}.demo", "demo", "A leader and three fellows on this machine, training."),
    "rehearse": Own(
        f"{_CLI}.rehearse", "rehearse", "Let a pool on this machine go through troubles."
    ),
    "mcp": Own(f"{_CLI}.mcp", "mcp", "Serve the leader's tools to an agent over stdio."),
    "signin": Own(f"{_CLI}.signin", "signin", "A one-time link that opens the console."),
    "config": Own(f"{_CLI}.config", "config", "Settings, and where each comes from."),
    "schema": Own(f"{_CLI}.documents", "schema", "The published schema of job files."),
    "agent-docs": Own(f"{_CLI}.documents", "agent_docs", "Short texts for LLM agents."),
    "doctor": Own(f"{_CLI}.doctor", "doctor", "Check this machine and the way to the leader."),
    "completion": Own(f"{_CLI}.documents", "completion", "A completion script for your shell."),
    "version": Own(f"{_CLI}.documents", "version", "The versions of Swarm here and at the leader."),
}

# Commands below a declared first word that do more than one call.
INSIDE: dict[tuple[str, str], Own] = {
    ("jobs", "wait"): Own(f"{_CLI}.jobs", "wait", "Wait until a job ends."),
    ("jobs", "logs"): Own(f"{_CLI}.jobs", "logs", "Read a job's log lines."),
    ("jobs", "snapshots"): Own(
        f"{_CLI}.saved_states", "jobs_snapshots", "Saved steps of a job; --to fetches the newest."
    ),
    ("buckets", "add"): Own(f"{_CLI}.files", "buckets_add", "Add a file to a bucket."),
    ("models", "add"): Own(f"{_CLI}.files", "models_add", "Add a checkpoint folder."),
    ("models", "export"): Own(f"{_CLI}.files", "models_export", "Fetch a trained adapter."),
}
