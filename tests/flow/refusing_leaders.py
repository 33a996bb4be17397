"""Leaders to be asked for what they refuse: in this process or as one of their own, furnished."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from control.leader import Leader
from control.settings import Settings
from mcp_server.desk import doors_for
from tests.flow.open_leader import (
    GB,
    OTHER,
    POOL,
    TEXT,
    heartbeat,
    join_fellow,
    write_tiny_model,
)
from tests.flow.refusals import ERAS, ROOT, LateClock, World
from tests.unit.mcp_server.twin import listener, open_doors


@asynccontextmanager
async def open_world(folder: Path, **settings: Any) -> AsyncIterator[World]:
    """A leader in this process behind real doors, furnished, with clients of both MCP eras."""
    where, clock = listener(), LateClock()
    told = Settings(
        data=folder / "data", port=where.getsockname()[1], offline_after_s=600, **settings
    )
    leader = await Leader.open(told, clock)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(leader.close)
        doors = await doors_for(leader, told)
        leader.start()
        url, _ = await stack.enter_async_context(open_doors(doors, where))
        token = (told.data / "owner.token").read_text()
        world = World(leader, url, token, folder, clock=clock)
        await furnish(world)
        await _open_tools(world, stack)
        yield world


@asynccontextmanager
async def process_world(
    folder: Path, *before: str, seen_at: str = "", **environment: str
) -> AsyncIterator[World]:
    """The same with the leader as a process of its own, killed at the end.

    Args:
        before: words in front of the command, such as those of unshare.
        seen_at: where its data folder is seen; {pid} stands for its process id.
    """
    data = folder / "data"
    with (folder / "log.jsonl").open("ab") as log:
        child = await asyncio.create_subprocess_exec(
            *before, sys.executable, "-m", "mcp_server.main", "--port", "0", "--data", str(data),
            cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=log,
            env={
                **os.environ, "SWARM_CONFIG": str(folder / "none.toml"),
                "SWARM_OFFLINE_AFTER_S": "600", **environment,
            },
        )  # fmt: skip
    seen = Path(seen_at.format(pid=child.pid)) if seen_at else None
    try:
        assert child.stdout is not None
        line = await asyncio.wait_for(child.stdout.readline(), 30)
        assert line, (folder / "log.jsonl").read_text()
        async with AsyncExitStack() as stack:
            token = ((seen or data) / "owner.token").read_text()
            world = World(None, json.loads(line)["url"], token, folder, seen_at=seen)
            await furnish(world)
            await _open_tools(world, stack)
            yield world
        assert child.returncode is None, (folder / "log.jsonl").read_text()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def _open_tools(world: World, stack: AsyncExitStack) -> None:
    for face, era in ERAS.items():
        headers = {"authorization": f"Bearer {world.token}"}
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=60))
        transport = streamable_http_client(f"{world.url}/mcp", http_client=http)
        client = Client(transport, mode=era)
        world.tools[face] = await stack.enter_async_context(client)


async def join_ready(world: World, pool: str, card_bytes: int = 4 * GB) -> tuple[str, str]:
    """A machine that could train joins a pool: its fellow_id and its credential."""
    fellow_id, credential = await join_fellow(world, pool)
    beat = heartbeat(fellow_id)
    beat["machine"]["features"] = ["stage", "lora", "full"]
    beat["cards"][0] |= {"total_bytes": card_bytes, "free_bytes": card_bytes}
    async with world.http(credential) as client:
        answer = await client.post("/fellow/v1/heartbeat", json=beat)
    assert answer.status_code == 200, answer.text
    return fellow_id, credential


async def furnish(world: World) -> None:
    """Two pools, one fellow, one model, some data, tokens of every sort."""
    write_tiny_model(world.folder / "tiny")
    await world.post("/pools", pool=POOL)
    await world.post("/pools", pool=OTHER)
    world.fellows["only"], _ = await join_ready(world, POOL)
    await world.post("/buckets", pool=POOL, bucket="words")
    await world.post("/buckets/words/files", pool=POOL, name="a.txt", content=TEXT)
    await world.add_model("tiny")
    world.reader = (await world.post("/tokens", name="reader", scope="read"))["secret"]
    world.elsewhere = (await world.post("/tokens", name="other", scope="admin", pools=[OTHER]))[
        "secret"
    ]
    gone = await world.post("/tokens", name="gone", scope="admin")
    world.revoked = gone["secret"]
    async with world.http() as client:
        ended = await client.delete(f"/api/v1/tokens/{gone['token_id']}")
    assert ended.status_code == 200, ended.text
