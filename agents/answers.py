"""What comes back from a leader, as the one error of every face.

Shared by the blocking client of the command line and the daemon's own: both read the same problem
documents.
"""

import json

import httpx2

from transport.errors import SwarmError


def unreachable(url: str, error: Exception) -> SwarmError:
    """The error of a leader that gave no answer."""
    if isinstance(error, httpx2.ConnectTimeout | httpx2.ConnectError):
        what = f"no leader answers at {url}"
    elif isinstance(error, httpx2.TimeoutException):
        what = f"the leader at {url} did not answer in time"
    else:
        what = f"the connection to the leader at {url} broke"
    return SwarmError(
        "unreachable",
        what,
        hint="start one with `swarm leader`, or name the right one with --leader or SWARM_LEADER",
        facts={"leader": url, "reason": type(error).__name__},
    )


def problem(status: int, body: bytes) -> SwarmError:
    """The error that an answer of 400 and above tells; one that is no problem document too."""
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        told = None
    if isinstance(told, dict) and "code" in told:
        return SwarmError.from_problem(told)
    codes = {401: "unauthenticated", 403: "forbidden", 404: "not-found", 413: "too-large"}
    codes |= {429: "rate-limited", 502: "unavailable", 503: "unavailable", 504: "unavailable"}
    return SwarmError(
        codes.get(status, "internal"),
        f"the leader answered {status} without saying why",
        hint="check that the address is a Swarm leader's, and look into the leader's log",
        facts={"status": status},
    )
