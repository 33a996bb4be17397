"""A real leader behind real doors in this process: pools, fellows, data, a model, a job."""

import asyncio
import hashlib
import json
import secrets
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from control.leader import Leader
from control.settings import Settings
from mcp_server.desk import doors_for
from tests.unit.mcp_server.twin import listener, open_doors

POOL, OTHER = "ann/lab", "ann/other"
TEXT = "in the beginning was the word and the word was with all of them " * 40
JOB = {"model": {"id": "local:tiny"}, "data": {"bucket": "words"}, "train": {"steps": 3}}
GB = 10**9


def write_tiny_model(folder: Path) -> None:
    """A random two-layer llama of 32 words, as safetensors with a tokenizer."""
    folder.mkdir(parents=True)
    words = {"[UNK]": 0, "<pad>": 1, "<eos>": 2}
    words |= {word: 3 + i for i, word in enumerate(sorted(set(TEXT.split())))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 32, "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "torch_dtype": "float32",
        "eos_token_id": 2, "pad_token_id": 1, "bos_token_id": 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (32, 32)}
    for layer in ("model.layers.0.", "model.layers.1."):
        shapes |= {
            f"{layer}self_attn.q_proj.weight": (32, 32),
            f"{layer}self_attn.k_proj.weight": (16, 32),
            f"{layer}self_attn.v_proj.weight": (16, 32),
            f"{layer}self_attn.o_proj.weight": (32, 32),
            f"{layer}mlp.gate_proj.weight": (48, 32),
            f"{layer}mlp.up_proj.weight": (48, 32),
            f"{layer}mlp.down_proj.weight": (32, 48),
            f"{layer}input_layernorm.weight": (32,),
            f"{layer}post_attention_layernorm.weight": (32,),
        }
    shapes["model.norm.weight"] = (32,)
    tensors = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    save_file(tensors, str(folder / "model.safetensors"), {"format": "pt"})


def heartbeat(fellow_id: str) -> dict[str, Any]:
    """What a small machine with one CPU card says of itself."""
    machine = {
        "hostname": "box", "system": "Linux", "cores": 4, "memory_bytes": 16 * GB,
        "memory_free_bytes": 12 * GB, "disk_free_bytes": 100 * GB, "version": "0.1.0",
        "listen_address": "127.0.0.1", "versions": {"torch": "2.13.0"},
    }  # fmt: skip
    card = {
        "index": 0, "kind": "cpu", "name": "CPU", "uuid": f"cpu-{fellow_id}", "total_bytes": 4 * GB,
        "free_bytes": 4 * GB, "threads": 1, "number_formats": ["float32"],
    }  # fmt: skip
    return {"protocol": 1, "fellow_id": fellow_id, "machine": machine, "cards": [card]}


@dataclass
class OpenLeader:
    """Where it is, its owner's token, and the names of what was made."""

    leader: Leader | None
    """None when it is another process."""
    url: str
    token: str
    folder: Path
    fellows: dict[str, str] = field(default_factory=dict)
    """What each is for -> fellow_id."""
    job_id: str = ""
    token_id: str = ""

    def http(self, token: str | None = None, **headers: str) -> httpx2.AsyncClient:
        """A client with a token; the owner's unless told."""
        told = {"authorization": f"Bearer {token or self.token}"} | headers
        return httpx2.AsyncClient(base_url=self.url, headers=told, timeout=30)

    async def post(self, path: str, **body: Any) -> dict[str, Any]:
        """POST below /api/v1; the answer, which must be good."""
        async with self.http() as client:
            response = await client.post(f"/api/v1{path}", json=body)
        assert response.status_code == 200, response.text
        told = response.json()
        assert isinstance(told, dict)
        return told

    async def add_model(self, name: str) -> None:
        """Send the tiny model file by file and finish it."""
        folder = self.folder / "tiny"
        headers = {"content-type": "application/octet-stream"}
        async with self.http(**headers) as client:
            for path in sorted(folder.iterdir()):
                sent = await client.post(
                    f"/api/v1/models/{name}/files?file={path.name}", content=path.read_bytes()
                )
                assert sent.status_code == 200, sent.text
        await self.post(f"/models/{name}/files", finish=True)


async def join_fellow(world: OpenLeader, pool: str) -> tuple[str, str]:
    """A machine joins the pool and says what it has: its fellow_id and its credential."""
    invite = await world.post("/invites", pool=pool)
    credential = "swn_" + secrets.token_hex(32)
    digest = hashlib.sha256(credential.encode()).hexdigest()
    ask = {"protocol": 1, "invite": invite["secret"], "credential_sha256": digest,
           "hostname": "box", "version": "0.1.0"}  # fmt: skip
    async with world.http(credential) as client:
        joined = (await client.post("/fellow/v1/join", json=ask)).json()
        fellow_id = str(joined["fellow_id"])
        beat = await client.post("/fellow/v1/heartbeat", json=heartbeat(fellow_id))
    assert beat.status_code == 200, beat.text
    return fellow_id, credential


@asynccontextmanager
async def open_leader(folder: Path) -> AsyncIterator[OpenLeader]:
    """Start a leader with all that operations need; stop it at the end."""
    where = listener()
    settings = Settings(
        data=folder / "data", port=where.getsockname()[1], offline_after_s=600, submit_wait_s=30
    )
    leader = await Leader.open(settings)
    try:
        doors = await doors_for(leader, settings)
        leader.start()
        async with open_doors(doors, where) as (url, _):
            token = (settings.data / "owner.token").read_text()
            yield await _furnish(OpenLeader(leader, url, token, folder))
    finally:
        await asyncio.wait_for(leader.close(), 10)
        shutil.rmtree(settings.data, ignore_errors=True)


async def _furnish(world: OpenLeader) -> OpenLeader:
    write_tiny_model(world.folder / "tiny")
    await world.post("/pools", pool=POOL)
    await world.post("/pools", pool=OTHER)
    for purpose, pool in (("job", POOL), ("measure", OTHER), ("remove", OTHER)):
        world.fellows[purpose], _ = await join_fellow(world, pool)
    await world.post("/buckets", pool=POOL, bucket="words")
    await world.post("/buckets/words/files", pool=POOL, name="a.txt", content=TEXT)
    await world.add_model("tiny")
    world.token_id = (await world.post("/tokens", name="old"))["token_id"]
    world.job_id = (await world.post("/jobs", pool=POOL, config=JOB, unpinned=True))["job_id"]
    return world
