"""The leader's model store in the model hub's URL shape, so that fellows have one download code.

Only checkpoints of this leader ("local/NAME"); it passes nothing on to any hub.
"""

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from mcp_server.access import Reception
from mcp_server.office import Office, ShownModel
from transport.errors import not_found

OWNER = "local/"


class HubFiles:
    """Answers what a hub client asks before and while it downloads."""

    def __init__(self, office: Office, reception: Reception) -> None:
        self.office = office
        self.reception = reception

    async def file(self, request: Request) -> Response:
        """One file of a model: HEAD tells commit, digest and size, GET sends it, by range too."""
        model = await self._model(request)
        if model is None:
            return _missing("RepoNotFound", "model", request.path_params["repo"])
        if request.path_params["revision"] != model.revision:
            return _missing("RevisionNotFound", "revision", request.path_params["revision"])
        stored = model.files.get(request.path_params["file"])
        if stored is None:
            answer = _missing("EntryNotFound", "file", request.path_params["file"])
            answer.headers["x-repo-commit"] = model.revision
            return answer
        headers = {
            "x-repo-commit": model.revision,
            "etag": f'"{stored.sha256}"',
            "x-linked-etag": f'"{stored.sha256}"',
            "x-linked-size": str(stored.size_bytes),
        }
        return FileResponse(stored.path, headers=headers, media_type="application/octet-stream")

    async def info(self, request: Request) -> Response:
        """What a model holds at a revision."""
        repo, model = request.path_params["repo"], await self._model(request)
        if model is None:
            return _missing("RepoNotFound", "model", repo)
        if request.path_params["revision"] != model.revision:
            return _missing("RevisionNotFound", "revision", request.path_params["revision"])
        siblings = [
            {"rfilename": name, "size": stored.size_bytes} for name, stored in model.files.items()
        ]
        return JSONResponse(
            {"_id": repo, "id": repo, "modelId": repo, "sha": model.revision, "private": True}
            | {"tags": [], "downloads": 0, "likes": 0, "siblings": siblings}
        )

    async def tree(self, request: Request) -> Response:
        """The files of a model at a revision, as the hub's client walks them."""
        repo, model = request.path_params["repo"], await self._model(request)
        if model is None:
            return _missing("RepoNotFound", "model", repo)
        if request.path_params["revision"] != model.revision:
            return _missing("RevisionNotFound", "revision", request.path_params["revision"])
        entries = [
            {"type": "file", "path": name, "size": stored.size_bytes, "oid": stored.sha256}
            for name, stored in model.files.items()
        ]
        return JSONResponse(entries)

    async def _model(self, request: Request) -> ShownModel | None:
        fellow_id = await self.reception.fellow(request)
        repo = str(request.path_params["repo"])
        if not repo.startswith(OWNER):
            return None
        return await self.office.model(fellow_id, repo.removeprefix(OWNER))


def _missing(code: str, what: str, name: str) -> Response:
    """A refusal that the hub's client understands (X-Error-Code), and a problem document for us."""
    error = not_found(what, name, hint="the leader serves its own model store only")
    return JSONResponse(
        error.problem(),
        error.status,
        {"x-error-code": code, "x-error-message": "not in the leader's model store"},
        media_type="application/problem+json",
    )
