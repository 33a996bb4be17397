"""The fellows' door for exports: trained tensors out, a whole checkpoint in, piece by piece."""

import re
from collections.abc import Mapping

from pydantic import Field
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from control.jobs.exports import Piece
from mcp_server.access import Reception
from mcp_server.office import Office
from mcp_server.rest import limited
from transport.errors import SwarmError
from transport.ids import Digest
from transport.schema import Model, parse

MAX_PIECE = 16 * 1024 * 1024
MAX_WORDS = 2 * 1024 * 1024
_RANGE = re.compile(r"^bytes ([0-9]{1,15})-([0-9]{1,15})/([0-9]{1,15})$")


class _Sent(Model):
    sha256: Digest
    size_bytes: int = Field(ge=1)


class _Done(Model):
    """What the fellow says when all is there."""

    files: dict[str, _Sent] = Field(max_length=2000)
    base_license: str | None = Field(pattern=r"^[a-z0-9][a-z0-9.+-]{0,39}$")


class ExportFiles:
    """Answers the process that makes an export."""

    def __init__(self, office: Office, reception: Reception) -> None:
        self.office = office
        self.reception = reception

    async def trained(self, request: Request) -> Response:
        """The job's trained tensors, whole or by range."""
        fellow_id = await self.reception.fellow(request)
        stored = await self.office.export_trained(fellow_id, request.path_params["export_id"])
        return FileResponse(stored.path, headers={"etag": f'"{stored.sha256}"'})

    async def take(self, request: Request) -> Response:
        """A piece of a file; one that does not begin where the file ends is told where that is."""
        fellow_id = await self.reception.fellow(request)
        found = _RANGE.match(request.headers.get("content-range", ""))
        sha256 = request.headers.get("x-content-sha256", "")
        if found is None or not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise SwarmError(
                "invalid-input",
                "the headers Content-Range and X-Content-SHA256 are missing or malformed",
                hint="say which bytes of which file these are",
            )
        start, last, size = (int(number) for number in found.groups())
        if not start <= last < size or last - start >= MAX_PIECE:
            raise SwarmError(
                "invalid-input",
                f"a piece has 1 to {MAX_PIECE} bytes and lies within its file",
                hint="send smaller pieces",
            )
        piece = Piece(request.path_params["file"], sha256, start, last + 1, size)
        export_id = request.path_params["export_id"]
        chunks = limited(request.stream(), MAX_PIECE)
        await self.office.take_export_piece(fellow_id, export_id, piece, chunks)
        return Response(status_code=204)

    async def done(self, request: Request) -> Response:
        """All files are there."""
        fellow_id = await self.reception.fellow(request)
        raw = b"".join([chunk async for chunk in limited(request.stream(), MAX_WORDS)])
        told = parse(_Done, raw)
        files: Mapping[str, tuple[int, str]] = {
            name: (one.size_bytes, one.sha256) for name, one in told.files.items()
        }
        export_id = request.path_params["export_id"]
        await self.office.finish_export(fellow_id, export_id, files, told.base_license)
        return Response(status_code=204)
