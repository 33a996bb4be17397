"""Job files: read as YAML or JSON, changed by `--set`, checked before anything is sent.

Knows the file; does not know where a job runs.
"""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from transport.api.job_config import JobConfig
from transport.errors import SwarmError
from transport.schema import parse

_MAX_BYTES = 1_000_000
_HINT = "see `swarm schema job` for every setting"


@dataclass(frozen=True)
class _Kind:
    """What a file is called, and what helps who has none."""

    name: str
    absent: str
    wrong: str


_JOB = _Kind("job file", "name one with --config FILE", _HINT)
_INVENTORY = _Kind(
    "inventory file",
    "name one with --inventory FILE",
    "see docs/inventory-file.md: version, fellows with their cards, links, models, tokens",
)


@dataclass(frozen=True)
class JobFile:
    """What a job file says, not yet checked."""

    values: dict[str, Any]
    folder: Path
    """What its own relative paths start from."""
    plan_id: str | None = None

    def config(self) -> JobConfig:
        """The checked configuration.

        Raises:
            SwarmError: invalid-input, naming each wrong setting and the nearest right one.
        """
        return parse(JobConfig, self.values)


def read_job_file(name: str) -> JobFile:
    """Read a job file; "-" is stdin.

    Raises:
        SwarmError: not-found or invalid-input.
    """
    values = _values(name, _JOB)
    values.pop("$schema", None)
    plan_id = values.pop("plan_id", None)
    folder = Path.cwd() if name == "-" else Path(name).expanduser().parent
    return JobFile(values, folder, None if plan_id is None else str(plan_id))


def read_inventory_file(name: str) -> dict[str, Any]:
    """Read a file of cards that one thinks of; "-" is stdin. The leader checks what it says.

    Raises:
        SwarmError: not-found or invalid-input.
    """
    return _values(name, _INVENTORY)


def _values(name: str, kind: _Kind) -> dict[str, Any]:
    path = Path(name).expanduser()
    try:
        raw = sys.stdin.buffer.read(_MAX_BYTES + 1) if name == "-" else _read(path)
    except FileNotFoundError:
        raise SwarmError(
            "not-found", f"there is no {kind.name} {name!r}", hint=kind.absent
        ) from None
    except OSError as error:
        raise SwarmError(
            "invalid-input",
            f"{name[:200]!r} cannot be read: {error.strerror}",
            hint=f"name a {kind.name}, YAML or JSON",
        ) from None
    return _parse(raw, name, kind)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MAX_BYTES + 1)


def _parse(raw: bytes, name: str, kind: _Kind = _JOB) -> dict[str, Any]:
    if len(raw) > _MAX_BYTES:
        raise SwarmError(
            "too-large",
            f"{name!r} is larger than 1 MB: it is no {kind.name}",
            hint="put the data into files of its own and name them in data.files",
        )
    try:
        text = raw.decode("utf-8-sig")
        told = json.loads(text) if text.lstrip().startswith("{") else _load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SwarmError(
            "invalid-input",
            f"{name!r} is neither JSON nor YAML: {_where(error)}",
            hint="correct the file at that place",
        ) from None
    if not isinstance(told, dict):
        raise SwarmError(
            "invalid-input", f"{name!r} is no {kind.name}: it holds no settings", hint=kind.wrong
        )
    return {str(key): value for key, value in told.items()}


class _Plain(yaml.SafeLoader):
    """YAML as people mean it in a job file: 1e-4 is a number, a key stands once, no anchors."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse aliases: a few lines of them unfold into gigabytes."""
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("anchors and aliases are not read")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Refuse a key that stands twice."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = next((key for i, key in enumerate(keys) if key in keys[:i]), None)
        if twice is not None:
            line = node.start_mark.line + 1
            raise yaml.YAMLError(f"{twice!r} stands twice in the block that begins in line {line}")
        return super().construct_mapping(node, deep)


# YAML 1.1 reads 1e-4 as text, because it has no dot.
_Plain.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def _load(text: str) -> Any:
    return yaml.load(text, _Plain)  # noqa: S506 - a SafeLoader with fewer ways


def _where(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        problem = getattr(error, "problem", None) or "cannot be read"
        return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
    return " ".join(str(error).split())[:200] or type(error).__name__


def change(values: dict[str, Any], changes: tuple[str, ...]) -> dict[str, Any]:
    """The settings with each "key.inner=value" put in; values are read as YAML.

    Raises:
        SwarmError: invalid-input for a change that names no setting.
    """
    changed: dict[str, Any] = json.loads(json.dumps(values, default=str))
    for told in changes:
        key, sign, text = told.partition("=")
        if not sign or not key.strip():
            raise SwarmError(
                "invalid-input",
                f"--set {told[:80]!r} is not KEY=VALUE",
                hint="like train.steps=100",
            )
        _put(changed, key.strip().split("."), _parse_value(text, told), told)
    return changed


def _parse_value(text: str, told: str) -> Any:
    try:
        return _load(text)
    except yaml.YAMLError:
        raise SwarmError(
            "invalid-input",
            f"--set {told[:80]!r} has no readable value",
            hint="quote it for the shell, like --set 'name=\"my run\"'",
        ) from None


def _put(values: dict[str, Any], path: list[str], value: Any, told: str) -> None:
    *folders, last = path
    place: Any = values
    for name in folders:
        place = place.setdefault(name, {})
        if not isinstance(place, dict):
            raise SwarmError(
                "invalid-input",
                f"--set {told[:80]!r}: {name!r} holds a value, not settings",
                hint=_HINT,
            )
    place[last] = value
