"""A model hub of our own on loopback: repositories by name, whole, gated, broken or hostile."""

import hashlib
import json
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "c0ffee" * 6 + "c0ff"


@dataclass
class Repository:
    """What is asked of one repository."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    refusal: tuple[int, str] | None = None
    """(status, X-Error-Code) instead of any answer."""


def whole(folder: Path, changes: Mapping[str, bytes | None] | None = None) -> Repository:
    """A repository with the files of a folder, some of them changed (None = left out)."""
    files: dict[str, bytes | None] = {path.name: path.read_bytes() for path in folder.iterdir()}
    files |= changes or {}
    return Repository({name: content for name, content in files.items() if content is not None})


def with_config(folder: Path, **changes: Any) -> Repository:
    """A repository whose config.json says something else."""
    config = json.loads((folder / "config.json").read_text())
    return whole(folder, {"config.json": json.dumps({**config, **changes}).encode()})


def header_of(told: Mapping[str, Any], length: int | None = None) -> bytes:
    """The beginning of a safetensors file."""
    raw = json.dumps(told).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw


@contextmanager
def open_hub(repositories: Mapping[str, Repository]) -> Iterator[str]:
    """Serve them; yields the address for HF_ENDPOINT."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(repositories))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def _handler(repositories: Mapping[str, Repository]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers what a hub client asks: info, HEAD and ranges of files."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer()

        def do_HEAD(self) -> None:
            self._answer()

        def _answer(self) -> None:
            path = self.path.partition("?")[0].strip("/").removeprefix("api/models/")
            path = path.removeprefix("api/")
            is_data = path.startswith("datasets/")  # as "datasets/org/name" among the repositories
            name = "/".join(path.split("/")[: 3 if is_data else 2])
            repository = repositories.get(name)
            if repository is None:
                return self._say(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            if repository.refusal is not None:
                status, code = repository.refusal
                return self._say(status, b"{}", {"X-Error-Code": code} if code else {})
            rest = path.removeprefix(name).strip("/")
            if rest.startswith("resolve/"):
                return self._file(repository, rest.split("/", 2)[2])
            if rest.startswith("revision/") and rest.split("/")[1] not in ("main", COMMIT):
                return self._say(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return self._say(200, json.dumps(_info(name, repository)).encode(), {})

        def _file(self, repository: Repository, name: str) -> None:
            content = repository.files.get(name)
            if content is None:
                return self._say(404, b"", {"X-Error-Code": "EntryNotFound"})
            etag = hashlib.sha256(content).hexdigest()
            headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            asked = self.headers.get("range")
            if asked is None:
                return self._say(200, content, headers)
            status, part, said = _part(content, asked)
            return self._say(status, part, {**headers, "Content-Range": said})

        def _say(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Say nothing."""

    return Handler


def _part(content: bytes, asked: str) -> tuple[int, bytes, str]:
    """(status, bytes, Content-Range) for a Range header."""
    start, _, end = asked.removeprefix("bytes=").partition("-")
    part = content[int(start) : int(end) + 1 if end else None]
    if not part:
        return 416, b"", f"bytes */{len(content)}"
    return 206, part, f"bytes {start}-{int(start) + len(part) - 1}/{len(content)}"


def _info(name: str, repository: Repository) -> dict[str, Any]:
    siblings = [
        {"rfilename": file, "size": len(content)}
        for file, content in sorted(repository.files.items())
    ]
    name = name.removeprefix("datasets/")
    return {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings, "tags": []}
