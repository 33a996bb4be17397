"""For tests of the leader: a tiny model, a clock moved by hand, and fellows in plain code.

The fellows speak to the leader object as daemons do over HTTP: heartbeats, reports, uploads.
"""

import contextlib
import hashlib
import itertools
import json
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from control.clock import HandClock
from control.jobs.results import StageKey
from control.leader import Leader
from control.operations.call import Call
from control.settings import Settings
from control.store.files import StoredFile
from transport.api.catalog import OPERATIONS
from transport.api.operation import Answer
from transport.cards import CardReport, Heartbeat, MachineReport, StageStatus
from transport.orders import DesiredState, StageAssignment
from transport.reports import (
    AdapterSaved,
    Evaluated,
    JoinAsk,
    LogLine,
    MemoryMeasured,
    Numbered,
    Report,
    ReportBatch,
    ReportsTaken,
    StageBound,
    StageDone,
    StageLoaded,
    StepDone,
)

POOL = "ada/lab"
ADMIN = Call(who="t-adminaaa", scope="admin")
GB = 10**9
TEXT = "In the beginning was the word, and the word was with the swarm.\n"
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def seeded_bytes(seed: int = 0) -> Callable[[int], bytes]:
    """Random bytes that are the same in every run."""
    numbers = itertools.count()

    def take(count: int) -> bytes:
        return hashlib.shake_256(f"{seed}:{next(numbers)}".encode()).digest(count)

    return take


def write_tokenizer(folder: Path, template: str | None = CHATML) -> None:
    """A byte-level tokenizer of about 300 words with ChatML's special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 20, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    told: dict[str, Any] = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    if template is not None:
        told["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(told))


def write_model(folder: Path, layers: int = 4) -> Path:
    """A llama of 16 hidden units whose weights are zeros."""
    write_tokenizer(folder)
    config = {
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {
        "self_attn.q_proj": (16, 16),
        "self_attn.k_proj": (16, 16),
        "self_attn.v_proj": (16, 16),
        "self_attn.o_proj": (16, 16),
        "mlp.gate_proj": (32, 16),
        "mlp.up_proj": (32, 16),
        "mlp.down_proj": (16, 32),
        "input_layernorm": (16,),
        "post_attention_layernorm": (16,),
    }
    tensors = {
        f"model.layers.{layer}.{name}.weight": np.zeros(shape, dtype=np.float32)
        for layer in range(layers)
        for name, shape in shapes.items()
    }
    tensors["model.embed_tokens.weight"] = np.zeros((512, 16), dtype=np.float32)
    tensors["model.norm.weight"] = np.zeros((16,), dtype=np.float32)
    save_file(tensors, str(folder / "model.safetensors"))
    return folder


async def one_chunk(data: bytes) -> AsyncIterator[bytes]:
    """An upload that comes in one piece."""
    yield data


@dataclass
class Pool:
    """A leader, its clock, and what it was told."""

    leader: Leader
    clock: HandClock
    settings: Settings
    fellows: list["Fellow"] = field(default_factory=list)

    async def ask(self, operation: str, /, call: Call = ADMIN, **arguments: Any) -> Any:
        """Call one operation."""
        answer: Answer = await self.leader.run(OPERATIONS[operation], call, arguments)
        return answer

    async def send(self, operation: str, data: bytes, /, **arguments: Any) -> Any:
        """Call one operation with a streamed upload."""
        call = Call(ADMIN.who, ADMIN.scope, upload=one_chunk(data))
        return await self.leader.run(OPERATIONS[operation], call, arguments)

    async def add_fellow(self, free_gb: float = 4) -> "Fellow":
        """Invite, join and beat once."""
        invite = await self.ask("invites_create", pool=POOL)
        number = len(self.fellows) + 1
        credential = f"swn_{number:040d}"
        joined = await self.leader.join(
            JoinAsk(
                protocol=1,
                invite=invite.secret,
                credential_sha256=hashlib.sha256(credential.encode()).hexdigest(),
                hostname=f"host{number}",
                version="0.1.0",
            )
        )
        fellow = Fellow(self, joined.fellow_id, credential, round(free_gb * GB))
        self.fellows.append(fellow)
        fellow.beat()
        return fellow

    async def add_model(self, folder: Path, name: str = "tiny") -> None:
        """Put a model folder into the store."""
        for path in sorted(folder.iterdir()):
            await self.send("models_add", path.read_bytes(), name=name, file=path.name)
        await self.ask("models_add", name=name, finish=True)

    async def add_text(self, bucket: str = "text", repeat: int = 200) -> None:
        """A bucket of plain text."""
        await self.ask("buckets_create", pool=POOL, bucket=bucket)
        await self.ask("buckets_add", pool=POOL, bucket=bucket, name="a.txt", content=TEXT * repeat)

    async def reopen(self) -> None:
        """Stop the leader and start it again on the same folder."""
        await self.leader.close()
        self.leader = await Leader.open(self.settings, self.clock, seeded_bytes(7))


@contextlib.asynccontextmanager
async def open_pool(folder: Path, **settings: Any) -> AsyncIterator[Pool]:
    """A leader with one pool and nothing in it."""
    told = Settings(data=folder / "leader", **settings)
    clock = HandClock()
    pool = Pool(await Leader.open(told, clock, seeded_bytes()), clock, told)
    try:
        await pool.ask("pools_create", pool=POOL)
        yield pool
    finally:
        await pool.leader.close()


@dataclass
class Fellow:
    """A machine with one CPU card, in plain code."""

    pool: Pool
    fellow_id: str
    credential: str
    free_bytes: int
    sequence: int = 0
    phases: list[StageStatus] = field(default_factory=list)

    def beat(self, **changes: Any) -> DesiredState:
        """Send a heartbeat."""
        card = CardReport(
            index=0,
            kind="cpu",
            name="CPU",
            uuid=f"cpu-{self.fellow_id}",
            total_bytes=max(self.free_bytes, 1),
            free_bytes=self.free_bytes,
            threads=1,
            number_formats=["float32"],
        )
        machine = MachineReport(
            hostname=f"host-{self.fellow_id}",
            system="Linux",
            cores=2,
            memory_bytes=8 * GB,
            memory_free_bytes=4 * GB,
            disk_free_bytes=100 * GB,
            version="0.1.0",
            features=["stage", "lora", "full", "resume", "reference"],
            listen_address="127.0.0.1",
        )
        told: dict[str, Any] = {
            "protocol": 1,
            "fellow_id": self.fellow_id,
            "machine": machine,
            "cards": [card],
            "stages": self.phases,
            **changes,
        }
        return self.pool.leader.heartbeat(self.fellow_id, Heartbeat(**told))

    def assignment(self) -> StageAssignment:
        """The one stage it should run."""
        (told,) = self.pool.leader.office.registry.desired(self.fellow_id).stages
        return told

    async def report(self, *reports: Report) -> ReportsTaken:
        """Send reports, each with the next number."""
        numbered = []
        for report in reports:
            self.sequence += 1
            numbered.append(Numbered(sequence=self.sequence, report=report))
        batch = ReportBatch(protocol=1, fellow_id=self.fellow_id, reports=numbered)
        return await self.pool.leader.take_reports(self.fellow_id, batch)

    def of(self, **values: Any) -> dict[str, Any]:
        """What every report of its stage names, and more."""
        order = self.assignment().order
        told = {"job_id": order.job_id, "attempt": order.attempt, "stage": order.stage, "at": 1.0}
        return {**told, **values}

    async def bind(self) -> None:
        """Say that the socket is bound."""
        stage = self.assignment().order.stage
        key = f"{stage}" * 40
        endpoints = [f"tcp://127.0.0.1:{5000 + stage}"]
        await self.report(StageBound(**self.of(public_key=key, endpoints=endpoints)))

    async def load(self) -> None:
        """Say that the model is loaded."""
        loaded = StageLoaded(
            **self.of(
                weight_bytes=1000,
                priced_bytes=2000,
                load_s=0.5,
                downloaded_bytes=10,
                adapters_digest="a" * 64,
            )
        )
        await self.report(loaded)

    def step(self, number: int, loss: float, **values: Any) -> StepDone:
        """A step's report."""
        told = {
            "step": number,
            "loss": loss,
            "grad_norm": 1.0,
            "learning_rate": 1e-4,
            "supervised_tokens": 100,
            "step_s": 0.5,
            "compute_s": 0.4,
            "wait_s": 0.1,
            "skipped": False,
            **values,
        }
        return StepDone(**self.of(**told))

    def line(self, text: str, level: str = "info") -> LogLine:
        """A log line's report."""
        return LogLine(**self.of(level=level, text=text))

    async def evaluate(self, moment: str, step: int, loss: float) -> None:
        """A held-out evaluation's report."""
        told = self.of(moment=moment, step=step, loss=loss, accuracy=0.5, tokens=10, sequences=1)
        await self.report(Evaluated(**told))

    async def save(self) -> None:
        """Upload this stage's adapter and say so."""
        order = self.assignment().order
        data = adapter_bytes(order.first_layer, order.last_layer)
        path = self.pool.leader.incoming / f"{self.fellow_id}.upload"
        path.write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        key = StageKey(self.fellow_id, order.job_id, order.attempt, order.stage)
        await self.pool.leader.admit_adapter(key)
        await self.pool.leader.take_adapter(key, StoredFile(path, len(data), digest))
        peak = MemoryMeasured(
            **self.of(card_index=0, peak_bytes=500, planned_bytes=510, how="counted")
        )
        saved = AdapterSaved(**self.of(digest=digest, size_bytes=len(data)))
        await self.report(peak, saved)

    async def finish(self) -> None:
        """Save and say that the stage is done."""
        await self.save()
        await self.report(StageDone(**self.of(sent_bytes=10, received_bytes=20)))


def adapter_bytes(first: int, last: int) -> bytes:
    """A safetensors file with one pair of LoRA tensors for each layer, made by hand."""
    names = [
        f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{part}.weight"
        for layer in range(first, last + 1)
        for part in "AB"
    ]
    header: dict[str, Any] = {}
    for place, name in enumerate(names):
        offsets = [place * 16, place * 16 + 16]
        header[name] = {"dtype": "F32", "shape": [2, 2], "data_offsets": offsets}
    raw = json.dumps(header).encode()
    data = b"".join(struct.pack("<4f", *([float(i)] * 4)) for i in range(len(names)))
    return struct.pack("<Q", len(raw)) + raw + data


def job_config(**train: Any) -> dict[str, Any]:
    """A small job on the tiny model and the text bucket."""
    return {
        "model": {"id": "local:tiny"},
        "data": {"bucket": "text"},
        "train": {"steps": 3, "seq_len": 32, "batch_size": 4, **train},
    }
