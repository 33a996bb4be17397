"""The console's files, and the headers that keep every page of this leader to itself."""

import re
from pathlib import Path

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import mcp_server

# Beside the rooms, in a wheel and in an editable install alike.
FOLDER = Path(mcp_server.__file__).resolve().parents[1] / "static_console"
PAGES = re.compile(r"training/?|pools/[a-z0-9-]+/[a-z0-9-]+/training/?")
"""Addresses of the one page, which reads from them what to show."""
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class OwnHeaders:
    """Puts the headers above on every answer of the leader, whichever door gives it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, with_headers)


class Console(StaticFiles):
    """Serves the console. Browsers ask again each time (ETag), so an update is seen at once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(directory=folder, html=True, check_dir=False)
        self.folder = folder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self.folder.is_dir():
            raise HTTPException(404)
        await super().__call__(scope, receive, send)

    async def get_response(self, path: str, scope: Scope) -> Response:
        """One file, or the page for an address inside the console."""
        file = "index.html" if PAGES.fullmatch(path.replace("\\", "/")) else path
        response = await super().get_response(file, scope)
        response.headers["cache-control"] = "no-cache"
        return response
