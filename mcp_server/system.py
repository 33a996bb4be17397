"""What those who run the leader ask it: is it alive, ready, which version, its figures."""

import asyncio
from importlib.metadata import version

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from mcp_server.access import Reception
from mcp_server.calls import Calls
from mcp_server.office import Question
from mcp_server.problems import answered
from transport.api.pools import CLUSTER_STATUS, ClusterView
from transport.cards import PROTOCOL


class System:
    """Health, version and metrics."""

    def __init__(self, calls: Calls, reception: Reception, closing: asyncio.Event) -> None:
        self.calls = calls
        self.reception = reception
        self.closing = closing

    def routes(self) -> list[Route]:
        """The first three are open to everyone and tell nothing of the pool."""
        return [
            Route("/healthz", answered(self.healthz)),
            Route("/readyz", answered(self.readyz)),
            Route("/version", answered(self.version)),
            Route("/metrics", answered(self.metrics)),
        ]

    async def healthz(self, request: Request) -> Response:
        """The event loop answers."""
        return PlainTextResponse("ok\n")

    async def readyz(self, request: Request) -> Response:
        """It takes work: it has opened its store and does not shut down."""
        if self.closing.is_set():
            return PlainTextResponse("closing\n", 503)
        return PlainTextResponse("ready\n")

    async def version(self, request: Request) -> Response:
        """Version and protocol number."""
        return JSONResponse({"version": version("swarm-pool"), "protocol": PROTOCOL})

    async def metrics(self, request: Request) -> Response:
        """Prometheus text of what the caller's token may see."""
        caller = await self.reception.caller(request)
        view = await self.calls.perform(Question(CLUSTER_STATUS, caller, {}))
        assert isinstance(view, ClusterView)
        return Response(exposition(view), media_type="text/plain; version=0.0.4; charset=utf-8")


def exposition(view: ClusterView) -> bytes:
    """A cluster's figures as Prometheus text. What nobody measured is left out, never 0."""
    # Imported here: the leader starts without it, and most leaders are never scraped.
    from prometheus_client import CollectorRegistry, Gauge, generate_latest  # noqa: PLC0415

    registry = CollectorRegistry()
    fellows = Gauge("swarm_fellows", "Machines by state.", ["state"], registry=registry)
    for state in ("ready", "training", "offline"):
        fellows.labels(state).set(getattr(view, state))
    cards = Gauge("swarm_cards", "Cards of online machines.", registry=registry)
    cards.set(view.cards)
    jobs = Gauge("swarm_jobs_active", "Jobs that have not ended.", registry=registry)
    jobs.set(len(view.jobs))
    memory = Gauge("swarm_card_bytes", "Memory of online cards.", ["kind"], registry=registry)
    for kind in ("used", "total"):
        count = getattr(view, f"card_{kind}_bytes")
        if count is not None:
            memory.labels(kind).set(count)
    return generate_latest(registry)
