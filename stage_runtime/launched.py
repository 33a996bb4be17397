"""`torchrun -m stage_runtime.launched RUN.json`: the same stages on a cluster, without a leader.

One rank is one stage. Every rank reads the same run file: the model's folder, a token file, the
settings with backend gloo or nccl, and where the layers are cut. PyTorch's own group carries what
crosses. Reports go to a file of each rank, what was trained to another. docs/cluster.md tells how.
"""

import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from safetensors import safe_open

from stage_runtime.checkpoint import open_checkpoint
from stage_runtime.stage_group import LauncherGroup
from stage_runtime.train import load, train
from transport.errors import SwarmError
from transport.orders import CardShare, ModelSource, StageOrder, TokenFile, TrainSettings
from transport.schema import Model, parse

JOB_ID = "j-launched"
LOAD_S = 6 * 3600.0
"""How long a loaded rank waits for the slowest to load."""


class RunFile(Model):
    """What every rank is told."""

    model: str
    """Folder of the checkpoint: config.json, *.safetensors with its index."""
    tokens: str
    """A token file, as a leader writes it: tokens, supervised, row_starts."""
    layout: Annotated[str, Field(pattern="^(packed|rows)$")] = "packed"
    held_out_sequences: Annotated[int, Field(ge=0)] = 0
    pad_token_id: Annotated[int, Field(ge=0)] = 0
    settings: TrainSettings
    cuts: list[Annotated[int, Field(ge=1)]] | None = None
    """The first layer of each rank after the first; null: as even as it goes."""
    out: str
    """Folder for reports and results."""
    threads: Annotated[int, Field(ge=1)] = 1
    budget_bytes: Annotated[int, Field(ge=1)] | None = None
    """Of a rank's card; null: the machine's memory, or what is free on its GPU."""


@dataclass(frozen=True)
class Rank:
    """Where this process stands among those that the launcher started."""

    rank: int
    world: int
    local: int

    @staticmethod
    def of(environment: Mapping[str, str]) -> "Rank":
        """As torchrun, or a job script with its variables, says.

        Raises:
            SwarmError: invalid-input; names the variable that is missing.
        """
        try:
            rank, world = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        except (KeyError, ValueError) as error:
            raise SwarmError(
                "invalid-input",
                f"the launcher has not set {error.args[0]} to a number",
                hint="start it with torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT",
            ) from None
        return Rank(rank, world, int(environment.get("LOCAL_RANK", "0")))


def spans(num_layers: int, world: int, cuts: list[int] | None) -> list[tuple[int, int]]:
    """(first, last) layer of each rank.

    Raises:
        SwarmError: invalid-input when the cuts do not give every rank a layer.
    """
    if cuts is None:
        size, more = divmod(num_layers, world)
        cuts = [size * k + min(k, more) for k in range(1, world)]
    edges = [0, *cuts, num_layers]
    if len(edges) != world + 1 or any(a >= b for a, b in pairwise(edges)):
        raise SwarmError(
            "invalid-input",
            f"cuts {cuts} do not give each of {world} ranks a layer of {num_layers}",
            hint=f"name {world - 1} rising first layers, or leave cuts out",
        )
    return [(first, after - 1) for first, after in pairwise(edges)]


def token_file(run: RunFile) -> TokenFile:
    """The token file as an order tells it, read from its own header and bytes."""
    path = Path(run.tokens)
    with path.open("rb") as raw:
        digest = hashlib.file_digest(raw, "sha256").hexdigest()
    with safe_open(str(path), framework="pt") as opened:
        num_tokens = opened.get_slice("tokens").get_shape()[0]
        num_rows = opened.get_slice("row_starts").get_shape()[0] - 1
    total = num_tokens // run.settings.seq_len if run.layout == "packed" else num_rows
    if total <= run.held_out_sequences:
        raise SwarmError(
            "invalid-input",
            f"the token file has {total} sequences, {run.held_out_sequences} of them held out",
            hint="hold out fewer, or take more data",
        )
    told = {
        "digest": digest,
        "size_bytes": path.stat().st_size,
        "layout": run.layout,
        "num_tokens": num_tokens,
        "num_rows": num_rows,
        "train_sequences": total - run.held_out_sequences,
        "held_out_sequences": run.held_out_sequences,
        "pad_token_id": run.pad_token_id,
    }
    return parse(TokenFile, told)


def order_of(run: RunFile, rank: Rank, num_layers: int) -> StageOrder:
    """The order of this rank."""
    first, last = spans(num_layers, rank.world, run.cuts)[rank.rank]
    source = ModelSource(
        model_id="local:launched", repository="local/launched", revision="", from_leader=False
    )
    return StageOrder(
        job_id=JOB_ID,
        attempt=1,
        stage=rank.rank,
        num_stages=rank.world,
        first_layer=first,
        last_layer=last,
        num_layers=num_layers,
        model=source,
        settings=run.settings,
        tokens=token_file(run),
        cards=[_card(run, rank, first, last)],
        threads=run.threads,
        evaluate_base=True,
        plan_id="0" * 16,
    )


def _card(run: RunFile, rank: Rank, first: int, last: int) -> CardShare:
    uuid, budget = "cpu-0", os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if run.settings.backend == "nccl":
        torch.cuda.set_device(rank.local)
        uuid = str(torch.cuda.get_device_properties(rank.local).uuid)
        budget = torch.cuda.mem_get_info(rank.local)[0]
    return CardShare(
        index=0,
        uuid=uuid,
        first_layer=first,
        last_layer=last,
        planned_bytes=0,
        budget_bytes=run.budget_bytes or budget,
    )


def run_rank(run: RunFile, rank: Rank) -> None:
    """Load, train and save this rank's stage.

    Raises:
        SwarmError: what the run file, the checkpoint or the training is refused for.
    """
    if run.settings.backend == "swarm":
        raise SwarmError(
            "invalid-input",
            "settings.backend is swarm, whose links a leader makes",
            hint="use gloo on CPUs, nccl on GPUs",
        )
    out = Path(run.out)
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(run.threads)
    checkpoint = open_checkpoint(Path(run.model))
    order = order_of(run, rank, checkpoint.facts.num_layers)
    reads = order.is_first or order.is_last or order.settings.document_mask
    file = Path(run.tokens) if reads else None
    with (out / f"reports-{rank.rank}.jsonl").open("w", buffering=1) as lines:

        def report(kind: Any, **values: Any) -> None:
            named = {"job_id": JOB_ID, "attempt": 1, "stage": rank.rank, "at": time.time()}
            lines.write(kind(**named, **values).model_dump_json() + "\n")

        loaded = load(order, checkpoint, file, report, 0)
        group = LauncherGroup(order)
        group.exchange([0.0], timeout_s=LOAD_S)
        train(loaded, group, report, out)
        group.close()


def main() -> None:
    """Run this rank; a refusal is one line, and the launcher ends the others."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        if len(sys.argv) != 2:
            raise SwarmError("invalid-input", "name one run file", hint="see docs/cluster.md")
        run = parse(RunFile, json.loads(Path(sys.argv[1]).read_bytes()))
        run_rank(run, Rank.of(os.environ))
    except SwarmError as error:
        sys.stderr.write(f"{error.code}: {error.message}. Next: {error.hint}\n")
        sys.exit(1)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"invalid-input: the run file cannot be read: {error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
