"""The leader's file side in small, on a real socket: hub-shaped model files, token files, results.

Can break a download off, refuse a result for a while, or hold it back.
"""

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.oracle.stages import REVISION

TOKEN = "swn_test"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)$")
_HUB = re.compile(r"^/fellow/v1/hub/([\w.-]+/[\w.-]+)/resolve/(\w+)/([\w.-]+)$")


@dataclass
class LeaderTwin:
    """What it serves and what it saw."""

    models: dict[str, Path] = field(default_factory=dict)
    """Repository id -> folder."""
    tokens: Path = Path()
    """Folder of token files."""
    break_tokens_after: int | None = None
    """Bytes of a token answer after which the connection is cut, once."""
    refusals: list[int] = field(default_factory=list)
    """Statuses that the next PUTs get before one is taken."""
    hold_results: bool = False
    held: threading.Event = field(default_factory=threading.Event)
    results: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    url: str = ""
    _server: ThreadingHTTPServer | None = None

    def start(self) -> "LeaderTwin":
        """Listen on a free port of this machine."""
        twin = self

        class Handler(_Handler):
            leader = twin

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def stop(self) -> None:
        """Stop listening."""
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    leader: LeaderTwin
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its parent's name
        """Stay quiet."""

    def do_HEAD(self) -> None:
        self._serve(with_body=False)

    def do_GET(self) -> None:
        self._serve(with_body=True)

    def do_PUT(self) -> None:
        length = int(self.headers["Content-Length"])
        if self.leader.hold_results:
            self.leader.held.set()
            threading.Event().wait(30)
            return
        body = self.rfile.read(length)
        status = self.leader.refusals.pop(0) if self.leader.refusals else 204
        if hashlib.sha256(body).hexdigest() != self.headers["X-Content-SHA256"]:
            status = 422
        if status == 204:
            self.leader.results[self.path] = body
        self.leader.requests.append(f"PUT {self.path} {status}")
        code = {507: "storage-full", 422: "invalid-input"}.get(status)
        told = json.dumps({"code": code, "detail": "no"}).encode() if code else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    def _serve(self, *, with_body: bool) -> None:
        self.leader.requests.append(f"{self.command} {self.path} {self.headers.get('Range', '')}")
        saved = self.leader.results.get(self.path)
        if saved is not None:
            self._send(saved, with_body=with_body)
            return
        path = self._file()
        if self.headers.get("Authorization") != f"Bearer {TOKEN}" or path is None:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self._send(path.read_bytes(), with_body=with_body)

    def _file(self) -> Path | None:
        hub = _HUB.match(self.path)
        if hub:
            folder = self.leader.models.get(hub.group(1))
            path = folder / hub.group(3) if folder and hub.group(2) == REVISION else None
        else:
            path = self.leader.tokens / f"{self.path.rsplit('/', 1)[-1]}.safetensors"
        return path if path is not None and path.exists() else None

    def _send(self, data: bytes, *, with_body: bool) -> None:
        asked = _RANGE.match(self.headers.get("Range", ""))
        start = int(asked.group(1)) if asked else 0
        end = int(asked.group(2)) + 1 if asked and asked.group(2) else len(data)
        self.send_response(206 if asked else 200)
        self.send_header("X-Repo-Commit", REVISION)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("Accept-Ranges", "bytes")
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        if not with_body:
            return
        body = data[start:end]
        limit = self.leader.break_tokens_after
        if limit is not None and "/tokens/" in self.path:
            self.leader.break_tokens_after = None
            self.wfile.write(body[:limit])
            self.close_connection = True
            return
        self.wfile.write(body)
