"""Where the command line's settings come from: flag over variable over config.toml over default.

Knows the leader's address, the pool and the access token, and of each where it was found. The
token is read, never shown and never written.
"""

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from agents.addresses import is_loopback, leader_url
from transport.errors import SwarmError

DEFAULT_LEADER = "http://127.0.0.1:7420"
TABLE = "client"  # of config.toml; the leader's own settings are in another table
_KEYS = ("leader", "pool", "token_file", "timeout")
_OWN_ADDRESS = "leader.address"
_OWNER_TOKEN = "owner.token"  # noqa: S105 - a file's name


@dataclass(frozen=True)
class Setting:
    """One value and where it was found: "flag", "SWARM_NAME", a path, or "default"."""

    value: str | None
    origin: str


@dataclass(frozen=True)
class Profile:
    """Everything a command needs to know before it can ask a leader."""

    leader: Setting
    pool: Setting
    token: Setting
    timeout_s: Setting

    @property
    def url(self) -> str:
        """The leader's checked address."""
        return leader_url(self.leader.value or DEFAULT_LEADER)


def config_path(environ: Mapping[str, str]) -> Path:
    """Where config.toml is: SWARM_CONFIG, or the user's configuration folder."""
    told = environ.get("SWARM_CONFIG")
    return Path(told) if told else platformdirs.user_config_path("swarm") / "config.toml"


def data_folder(environ: Mapping[str, str]) -> Path:
    """Where a leader on this machine keeps its data."""
    told = environ.get("SWARM_DATA")
    return Path(told) if told else platformdirs.user_data_path("swarm") / "leader"


def read(flags: Mapping[str, str | None], environ: Mapping[str, str] | None = None) -> Profile:
    """Look every setting up.

    Args:
        flags: leader, pool, token_file, timeout, as given on the command line; None = not given.

    Raises:
        SwarmError: invalid-input for a config.toml that cannot be read, or an unknown key in it.
    """
    env = os.environ if environ is None else environ
    path = config_path(env)
    stored = _read_file(path)

    def find(name: str, default: str | None) -> Setting:
        variable = f"SWARM_{name.upper()}"
        if flags.get(name) is not None:
            return Setting(flags[name], "flag")
        if env.get(variable):
            return Setting(env[variable], variable)
        if name in stored:
            return Setting(stored[name], str(path))
        return Setting(default, "default")

    leader = _own_leader(find("leader", DEFAULT_LEADER), env)
    token = _token(flags.get("token_file"), env, stored, leader)
    return Profile(leader, find("pool", None), token, find("timeout", "30"))


def _own_leader(found: Setting, env: Mapping[str, str]) -> Setting:
    """Where nothing is told: the address that this machine's own leader has noted, if it has."""
    path = data_folder(env) / _OWN_ADDRESS
    if found.origin != "default" or not path.is_file():
        return found
    return Setting(path.read_text(encoding="utf-8").strip(), str(path))


def _token(
    flag: str | None, env: Mapping[str, str], stored: Mapping[str, str], leader: Setting
) -> Setting:
    if flag is not None:
        return Setting(_read_token(Path(flag)), f"flag, {flag}")
    if env.get("SWARM_TOKEN"):
        return Setting(env["SWARM_TOKEN"].strip(), "SWARM_TOKEN")
    for told, origin in ((env.get("SWARM_TOKEN_FILE"), "SWARM_TOKEN_FILE"),):
        if told:
            return Setting(_read_token(Path(told)), f"{origin}, {told}")
    if "token_file" in stored:
        return Setting(_read_token(Path(stored["token_file"]).expanduser()), stored["token_file"])
    own = data_folder(env) / _OWNER_TOKEN
    # Only towards this machine: the owner's token is never offered to a leader elsewhere.
    if is_loopback(leader.value or DEFAULT_LEADER) and own.is_file():
        return Setting(_read_token(own), str(own))
    return Setting(None, "default")


def _read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SwarmError(
            "invalid-input",
            f"the token file {path} cannot be read ({type(error).__name__})",
            hint="name a file that holds one access token, readable by you",
        ) from None
    if not token or any(c.isspace() for c in token) or len(token) > 256:
        raise SwarmError(
            "invalid-input",
            f"the token file {path} does not hold one access token",
            hint="make one with `swarm tokens create NAME`",
        )
    return token


def _read_file(path: Path) -> dict[str, str]:
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SwarmError(
            "invalid-input", f"{path} cannot be read: {error}", hint="correct or remove the file"
        ) from None
    table = told.get(TABLE, {})
    for key in table if isinstance(table, dict) else {}:
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, n=1)
            raise SwarmError(
                "invalid-input",
                f"{path}: [{TABLE}] has no setting {key!r}",
                hint=f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_KEYS)}",
            )
    return {key: str(value) for key, value in table.items()}
