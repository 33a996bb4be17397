"""What the leader is told once: flag over SWARM_ variable over config.toml over default.

Knows where each value came from, for `swarm config show --origin`. Reads nothing later.
"""

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import platformdirs
from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from transport.errors import SwarmError
from transport.pinning import with_pin
from transport.units import GB, MB

TABLE = "leader"  # of config.toml; other tables belong to other programs of the house


class Settings(BaseSettings):
    """The leader's settings. Every field is also SWARM_NAME in the environment."""

    model_config = SettingsConfigDict(
        env_prefix="SWARM_", extra="forbid", frozen=True, use_attribute_docstrings=True
    )

    host: str = "127.0.0.1"
    """Address the leader listens on. Anything but loopback needs public_url."""
    port: Annotated[int, Field(ge=0, le=65535)] = 7420
    data: Path = Field(default_factory=lambda: Path(platformdirs.user_data_dir("swarm")) / "leader")
    """Folder for the database, models, buckets and results."""
    public_url: str | None = None
    """How fellows and people reach the leader, when that is not its own address."""
    tls_cert: Path | None = None
    """A certificate for public_url that somebody else made (PEM); the leader makes its own unless
    told.
    """
    tls_key: Path | None = None
    """The key of tls_cert (PEM, without a password)."""
    leader_pin: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """SHA-256 of the public key that join commands pin; that of the leader's own certificate unless
    told. For a TLS proxy with a certificate that no authority has signed.
    """
    allowed_hosts: list[str] = []
    """Host names that requests may carry beside those of host and public_url."""
    relay: str = "own"
    """Where stages meet that cannot dial each other: "own" (this leader starts one), "none", or
    HOST:PORT of a `swarm relay`.
    """
    relay_host: str | None = None
    """Address that the leader's own relay listens on; the leader's unless told."""
    relay_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Of the leader's own relay; the port after the leader's unless told."""
    relay_key_file: Path | None = None
    """The key shared with a `swarm relay` elsewhere."""
    heartbeat_s: Annotated[float, Field(gt=0, le=60)] = 5.0
    offline_after_s: Annotated[float, Field(gt=0, le=600)] = 13.0
    plan_hours: Annotated[float, Field(gt=0, le=24 * 30)] = 24.0
    """How long a plan can be submitted by its plan_id."""
    invite_minutes: Annotated[float, Field(gt=0, le=24 * 60)] = 60.0
    max_upload_bytes: Annotated[int, Field(ge=1)] = 2 * GB
    """Of one data file."""
    max_dataset_bytes: Annotated[int, Field(ge=1)] = 10 * GB
    """Of one split of a hub data set."""
    max_model_file_bytes: Annotated[int, Field(ge=1)] = 100 * GB
    max_adapter_bytes: Annotated[int, Field(ge=1)] = 40 * GB
    """Of one stage's trained tensors."""
    storage_limit_bytes: Annotated[int, Field(ge=1)] = 20 * GB
    """What the pools of one owner may keep here: saved states of jobs and buckets."""
    auto_replace: bool = True
    """A job that loses a fellow goes on by itself from its last saved step."""
    tokenize_memory_bytes: Annotated[int, Field(ge=256 * MB)] = 6 * GB
    """Address space of the child process that renders templates and tokenizes."""
    tokenize_seconds: Annotated[float, Field(gt=0)] = 900.0
    submit_wait_s: Annotated[float, Field(ge=0)] = 20.0
    """How long a submission waits for its data to be tokenized; later it waits as pending."""
    serve_context_tokens: Annotated[int, Field(ge=16, le=1_048_576)] = 8192
    """Context of a served model when none is asked for."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("data")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("public_url")
    @classmethod
    def _http(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        return value.rstrip("/") if value else value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what load() gives it: the order of the sources is decided there, with origins."""
        return (init_settings,)

    @property
    def address(self) -> str:
        """The URL with the pin of its key, as join commands tell it."""
        return with_pin(self.url, self.leader_pin)

    @property
    def url(self) -> str:
        """Where the leader is reached: public_url, else its own address."""
        return self.public_url or f"http://{self.host}:{self.port}"


@dataclass(frozen=True)
class Origin:
    """One setting, its value, and where the value came from."""

    name: str
    value: Any
    origin: str
    """ "flag", "SWARM_NAME", the path of config.toml, or "default"."""


@dataclass(frozen=True)
class Loaded:
    """The settings and the origin of each."""

    settings: Settings
    origins: tuple[Origin, ...]


def config_path(environ: Mapping[str, str] | None = None) -> Path:
    """Where config.toml is looked for: SWARM_CONFIG, else the user's configuration folder."""
    told = (os.environ if environ is None else environ).get("SWARM_CONFIG")
    return Path(told) if told else Path(platformdirs.user_config_dir("swarm")) / "config.toml"


def load(
    flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> Loaded:
    """Read the settings from all sources.

    Args:
        flags: values given on the command line; None values are as if not given.
        environ: the environment; os.environ when None.

    Raises:
        SwarmError: invalid-input, naming the setting, its origin and what is wrong.
    """
    environ = os.environ if environ is None else environ
    path = config_path(environ)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for source, origin in (
        (_from_file(path), lambda _: str(path)),
        (_from_environment(environ), _variable),
        ({k: v for k, v in (flags or {}).items() if v is not None}, lambda _: "flag"),
    ):
        for name, value in source.items():
            values[name], origins[name] = value, origin(name)
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise _refusal(error, origins) from None
    rows = (
        Origin(name, getattr(settings, name), origins.get(name, "default"))
        for name in Settings.model_fields
    )
    return Loaded(settings, tuple(rows))


def _variable(name: str) -> str:
    return f"SWARM_{name.upper()}"


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    found = {
        name: environ[_variable(name)]
        for name in Settings.model_fields
        if environ.get(_variable(name))
    }
    if "allowed_hosts" in found:
        hosts = found["allowed_hosts"].split(",")
        return {**found, "allowed_hosts": [host.strip() for host in hosts if host.strip()]}
    return dict(found)


def _from_file(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text("utf-8")).get(TABLE, {})
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SwarmError(
            "invalid-input", f"{path} cannot be read: {error}", hint="correct or remove the file"
        ) from None
    unknown = sorted(set(table) - set(Settings.model_fields))
    if unknown:
        nearest = difflib.get_close_matches(unknown[0], list(Settings.model_fields), n=1)
        raise SwarmError(
            "invalid-input",
            f"{path}: [{TABLE}] has no setting {unknown[0]!r}",
            hint=f"did you mean {nearest[0]!r}?" if nearest else "leave it out",
        )
    return dict(table)


def _refusal(error: ValidationError, origins: Mapping[str, str]) -> SwarmError:
    first = error.errors(include_url=False, include_input=False)[0]
    name = str(first["loc"][0]) if first["loc"] else "settings"
    where = origins.get(name, "flag")
    return SwarmError(
        "invalid-input",
        f"setting {name} ({where}): {first['msg'].removeprefix('Value error, ')}",
        hint="see `swarm config show --origin`",
        facts={"setting": name, "origin": where},
    )
