"""A model hub in one process: the few addresses that its client asks, over real HTTP.

`python -m tests.unit.control.hub_twin FOLDER MODEL_ID` serves FOLDER as tiny/model, resolves
MODEL_ID through it with the leader's own code, and prints what came out as JSON.
"""

import asyncio
import hashlib
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "c" * 40


class HubHandler(BaseHTTPRequestHandler):
    """Answers for tiny/model, tiny/gated and tiny/pickled; anything else is not there."""

    folder: Path

    def do_HEAD(self) -> None:
        """A file's head, as the client asks before it fetches."""
        self.do_GET(body=False)

    def do_GET(self, *, body: bool = True) -> None:
        """One address."""
        parts = self.path.split("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self._info("/".join(parts[2:4]))
        elif parts[2:3] == ["resolve"] and parts[:2] == ["tiny", "model"]:
            self._file(self.folder / parts[-1], body=body)
        else:
            self._refuse(404, "RepoNotFound")

    def _info(self, name: str) -> None:
        if name == "tiny/gated":
            self._refuse(403, "GatedRepo")
        elif name not in ("tiny/model", "tiny/pickled"):
            self._refuse(401, "RepoNotFound")
        else:
            names = sorted(path.name for path in self.folder.iterdir())
            names = ["pytorch_model.bin"] if name == "tiny/pickled" else names
            told = {"id": name, "sha": COMMIT, "siblings": [{"rfilename": n} for n in names]}
            self._send(200, json.dumps(told).encode(), {"content-type": "application/json"})

    def _file(self, path: Path, *, body: bool) -> None:
        if not path.is_file():
            self._refuse(404, "EntryNotFound")
            return
        data = path.read_bytes()
        etag = hashlib.sha256(data).hexdigest()
        headers = {"etag": f'"{etag}"', "x-repo-commit": COMMIT}
        asked = self.headers.get("range")
        if asked:
            first, last = (int(n) for n in asked.removeprefix("bytes=").split("-"))
            data = data[first : last + 1]
        self._send(206 if asked else 200, data, headers, body=body)

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"x-error-code": code, "x-error-message": code})

    def _send(
        self, status: int, data: bytes, headers: dict[str, str], *, body: bool = True
    ) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body and self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""


def main(folder: Path, model_id: str) -> dict[str, Any]:
    """Serve, resolve once, tell."""
    HubHandler.folder = folder
    server = ThreadingHTTPServer(("127.0.0.1", 0), HubHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"
    os.environ.pop("HF_HUB_OFFLINE", None)
    # Only now: the client reads its environment when it is imported.
    from control.clock import SystemClock
    from control.datasets.hub import Hub
    from transport.errors import SwarmError

    name, _, revision = model_id.partition("@")
    try:
        found = asyncio.run(Hub(SystemClock()).resolve(name, revision or None))
    except SwarmError as error:
        return {"code": error.code, "message": error.message}
    finally:
        server.shutdown()
    sizes = {file: len(tensors) for file, tensors in (found.tensors or {}).items()}
    files = sorted(path.name for path in found.folder.iterdir())
    return {"source": found.source.model_dump(), "tensors": sizes, "files": files}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2])))
