"""How a worker talks to the leader: the fellow's credential, the pinned key, files by ranges."""

import hashlib
import json
import os
import shutil
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx2

from transport import pinning
from transport.errors import SwarmError
from transport.units import human_bytes

TIMEOUT_S = 60.0
SPARE_DISK_BYTES = 500_000_000
"""Kept free where files are downloaded."""
MAX_TRIES = 5


@dataclass(frozen=True)
class LeaderAccess:
    """The leader as one worker may use it. `url` is "" when nothing may be fetched."""

    url: str
    token: str
    pin: str | None

    def client(self) -> httpx2.Client:
        """A client that names the fellow and trusts the leader's pinned key."""
        return httpx2.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=TIMEOUT_S,
            verify=self.trust(),
        )

    def trust(self) -> ssl.SSLContext | bool:
        """What the client checks certificates with: the system's roots, or exactly the pinned key.

        Raises:
            SwarmError: unauthenticated; the leader shows another key than the pinned one.
        """
        if self.pin is None:
            return True
        return pinning.trust(self.url, self.pin)

    @staticmethod
    def refusal(answer: httpx2.Response) -> SwarmError:
        """The error in the leader's answer."""
        try:
            problem = json.loads(answer.read())
        except ValueError:
            problem = {}
        if isinstance(problem, dict) and "code" in problem:
            return SwarmError.from_problem(problem)
        return SwarmError(
            "unavailable", f"the leader answered with status {answer.status_code}", hint="try again"
        )


def refuse_full_disk(folder: Path, needed_bytes: int, what: str) -> None:
    """Refuse a download that does not fit, before it starts.

    Raises:
        SwarmError: not-enough-disk; with both numbers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if needed_bytes and needed_bytes + SPARE_DISK_BYTES > free:
        raise SwarmError(
            "not-enough-disk",
            f"{what} needs {human_bytes(needed_bytes)} and {human_bytes(SPARE_DISK_BYTES)} to "
            f"spare, but {human_bytes(free)} are free where the cache lies",
            hint="free disk space on this fellow, or move its cache",
            facts={"needed_bytes": needed_bytes, "free_bytes": free},
        )


def fetch_token_file(
    leader: LeaderAccess, cache: Path, digest: str, size: int, check: Callable[[], None]
) -> tuple[Path, int]:
    """The token file of that digest, from the cache or the leader: (path, bytes downloaded).

    A download that broke off goes on where it stopped. What arrives is taken only when its SHA-256
    is the digest.

    Raises:
        SwarmError: not-found offline; not-enough-disk; what the leader refused with; unreachable.
    """
    folder = cache / "tokens"
    path = folder / f"{digest}.safetensors"
    if path.exists() and path.stat().st_size == size:
        return path, 0
    if not leader.url:
        raise SwarmError(
            "not-found",
            f"the token file {digest[:12]}… is not in the cache and there is no leader to ask",
            hint="put it there, or run the stage under a leader",
        )
    part = folder / f"{digest}.{os.getpid()}.part"
    _adopt_part(folder, digest, part)
    refuse_full_disk(folder, size - (part.stat().st_size if part.exists() else 0), "the token file")
    downloaded = _download(leader, f"/fellow/v1/tokens/{digest}", part, size, check)
    if (found := _sha256(part)) != digest:
        part.unlink()
        raise SwarmError(
            "unavailable",
            f"the token file arrived damaged: its SHA-256 is {found[:12]}…, not {digest[:12]}…",
            hint="start the job again; if it happens twice, check the leader's disk",
        )
    part.replace(path)
    return path, downloaded


def fetch_file(
    leader: LeaderAccess,
    url: str,
    path: Path,
    known_by: tuple[str, int],
    check: Callable[[], None],
) -> None:
    """Download one file whose SHA-256 and size are known.

    Raises:
        SwarmError: not-enough-disk; what the leader refused with; unreachable; invalid-input when
            what arrived is not that file.
    """
    digest, size = known_by
    refuse_full_disk(path.parent, size, path.name)
    part = path.with_name(f"{path.name}.part")
    _download(leader, url, part, size, check)
    if (found := _sha256(part)) != digest:
        part.unlink()
        raise SwarmError(
            "invalid-input",
            f"{path.name} arrived damaged: its SHA-256 is {found[:12]}…, not {digest[:12]}…",
            hint="resume again; if it happens twice, check the leader's disk",
        )
    part.replace(path)


def _adopt_part(folder: Path, digest: str, part: Path) -> None:
    """Go on with what an earlier worker, now gone, had fetched."""
    for old in sorted(folder.glob(f"{digest}.*.part")):
        owner = old.name.split(".")[1]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            old.replace(part)
            return


def _download(
    leader: LeaderAccess, url: str, part: Path, size: int, check: Callable[[], None]
) -> int:
    downloaded = 0
    failure: Exception | None = None
    with leader.client() as client:
        for _ in range(MAX_TRIES):
            have = part.stat().st_size if part.exists() else 0
            if have >= size:
                return downloaded
            try:
                downloaded += _range(client, url, part, have, check)
            except httpx2.TransportError as error:
                failure = error
    if part.stat().st_size >= size if part.exists() else False:
        return downloaded
    raise SwarmError(
        "unreachable",
        f"the token file broke off {MAX_TRIES} times"
        + (f": {type(failure).__name__}" if failure else ""),
        hint="check the connection between this fellow and the leader",
    )


def _range(
    client: httpx2.Client, url: str, part: Path, have: int, check: Callable[[], None]
) -> int:
    """Append what is missing; returns its bytes. A leader that ignores the range starts anew."""
    got = 0
    with client.stream("GET", url, headers={"Range": f"bytes={have}-"}) as answer:
        if not answer.is_success:
            raise LeaderAccess.refusal(answer)
        with part.open("ab" if answer.status_code == 206 else "wb") as opened:
            for chunk in answer.iter_raw():
                check()
                opened.write(chunk)
                got += len(chunk)
    return got


def _sha256(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
