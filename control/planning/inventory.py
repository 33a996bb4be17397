"""Makes the planner's inputs of an inventory file: fellows, links, and models without a hub.

Pure. Cards are known ones by name, or told in numbers. Nothing can be started from such a plan.
"""

import base64
import difflib
import hashlib
from collections.abc import Mapping
from typing import Any

from control.planning.known_models import BY_NAME as MODELS_BY_NAME
from control.planning.known_models import CONFIGS
from control.planning.pace import Link, Links, Uplink
from control.planning.search import PlannedModel
from control.planning.terms import Terms
from control.planning.usable import FellowNow
from stage_runtime.checkpoint_share import Tensors
from stage_runtime.model_facts import ModelFacts, facts_from_config
from transport.api.inventory import InventoryCard, InventoryFellow, InventoryFile
from transport.api.plans import DataShape
from transport.cards import PROTOCOL, CardReport, Heartbeat, MachineReport, NumberFormat, Speed
from transport.errors import SwarmError
from transport.ids import card_id
from transport.known_cards import BY_NAME, KNOWN, KnownCard
from transport.orders import ModelSource
from transport.units import GB

FREE_SHARE = 0.95
VERSION = "0.1.0"
FEATURES = (
    "stage", "lora", "full", "recompute", "chunked-loss", "evaluate",
    "int8", "nf4", "fixed_int8", "fixed_int4", "rotation", "learned", "boundary",
    "document-mask",
)  # fmt: skip
STORED_FORMATS: tuple[NumberFormat, ...] = ("int8", "nf4")
STORED_BYTES = {"float32": 4}
WHAT_IF = "what-if"


def fellow_id_of(name: str) -> str:
    """The id of a fellow that only a file knows: the same name, the same id."""
    digest = hashlib.sha256(name.encode()).digest()
    return "f-" + base64.b32encode(digest).decode().lower()[:8]


def fellows_in(file: InventoryFile) -> list[FellowNow]:
    """The fellows of a file, all ready.

    Raises:
        SwarmError: invalid-input; a card that is not known and not told in numbers.
    """
    return [_fellow(one) for one in file.fellows]


def terms_in(file: InventoryFile) -> Terms:
    """The links of a file, and which cards' speeds are datasheet figures."""
    return Terms(links=_links(file), what_if=True, datasheet=frozenset(_datasheet(file)))


def model_in(file: InventoryFile, model_id: str) -> PlannedModel | None:
    """A model of the file or of the known ones; None when neither has it.

    Raises:
        SwarmError: invalid-input; its configuration cannot be trained here.
    """
    name = model_id.partition("@")[0]
    config = file.models.get(model_id) or file.models.get(name)
    if config is None:
        known = MODELS_BY_NAME.get(name.casefold())
        config = CONFIGS[known] if known else None
    if config is None:
        return None
    facts = facts_from_config(config)
    source = ModelSource(model_id=model_id, repository=name, revision=WHAT_IF, from_leader=False)
    return PlannedModel(source, facts, files_of(facts, config))


def data_in(file: InventoryFile, seq_len: int) -> DataShape | None:
    """What the file's tokens give at this sequence length."""
    if file.tokens is None:
        return None
    return DataShape(
        bucket="inventory",
        tokens=file.tokens,
        sequences=file.tokens // seq_len,
        held_out_sequences=None,
        batches=None,
        passes=None,
        supervised_share=None,
    )


def _fellow(one: InventoryFellow) -> FellowNow:
    fellow_id = fellow_id_of(one.name)
    disk = None if one.disk_free_gb is None else int(one.disk_free_gb * GB)
    machine = MachineReport(
        hostname=one.name,
        system=WHAT_IF,
        cores=8,
        memory_bytes=0,
        memory_free_bytes=0,
        disk_free_bytes=disk,
        version=one.version or VERSION,
        features=_features(one),
        listen_address="",
        cached_models=[f"{name}@{WHAT_IF}" for name in one.cached_models],
    )
    cards = [_proved(_card(i, told, one.name), machine) for i, told in enumerate(_each(one))]
    beat = Heartbeat(protocol=PROTOCOL, fellow_id=fellow_id, machine=machine, cards=cards)
    return FellowNow(fellow_id, one.name, "ready", beat)


def _features(one: InventoryFellow) -> list[str]:
    """Of a file's fellow: what every version can, and what the file adds."""
    return list(FEATURES) if one.features is None else sorted({*FEATURES[:6], *one.features})


def _proved(card: CardReport, machine: MachineReport) -> CardReport:
    """A card that keeps weights in the formats that its fellow's version can, whatever else."""
    stored = [name for name in STORED_FORMATS if name in machine.features]
    computed = [name for name in card.number_formats if name not in STORED_FORMATS]
    return card.model_copy(update={"number_formats": [*computed, *stored]})


def _each(one: InventoryFellow) -> list[InventoryCard]:
    told = [InventoryCard(card=card) if isinstance(card, str) else card for card in one.cards]
    return [card for card in told for _ in range(card.count)]


def _card(index: int, told: InventoryCard, fellow: str) -> CardReport:
    known = _known(told, fellow)
    memory = told.memory_gb
    if memory is None:
        memory = known.memory_gb if known else None
    if memory is None:
        raise _unknown(told, fellow, "its memory_gb")
    formats = told.formats if told.formats is not None else list(known.formats if known else [])
    if not formats:
        raise _unknown(told, fellow, "its formats")
    free = told.free_gb if told.free_gb is not None else FREE_SHARE * memory
    if free > memory:
        raise SwarmError(
            "invalid-input",
            f"{fellow}: free_gb {free:g} is more than the card's {memory:g} GB",
            hint="tell what is free for Swarm, or leave free_gb out",
        )
    kind = told.kind or (known.kind if known else "cuda")
    return CardReport(
        index=index,
        kind=kind,
        name=known.name if known else told.card or kind,
        uuid=f"{fellow}-{index}",
        total_bytes=int(memory * GB),
        free_bytes=min(int(free * GB), int(memory * GB)),
        threads=4 if kind == "cpu" else None,
        number_formats=formats,
        speeds=[
            Speed(number_format=name, tflops=figure, measured_at=0.0)
            for name, figure in _speeds(told, known).items()
        ],
    )


def _speeds(told: InventoryCard, known: KnownCard | None) -> dict[Any, float]:
    if told.tflops is not None:
        return dict(told.tflops)
    if known is None:
        return {}
    speeds = {"float32": known.fp32_tflops, "float16": known.fp16_tflops}
    if "bfloat16" in known.formats:
        speeds["bfloat16"] = known.fp16_tflops
    return speeds


def _known(told: InventoryCard, fellow: str) -> KnownCard | None:
    if told.card is None:
        return None
    found = BY_NAME.get(told.card.casefold())
    if found is None and told.memory_gb is None:
        raise _unknown(told, fellow, "its memory_gb, formats and tflops")
    return found


def _unknown(told: InventoryCard, fellow: str, lacks: str) -> SwarmError:
    name = told.card or "a card without a name"
    near = difflib.get_close_matches(name.casefold(), list(BY_NAME), n=1, cutoff=0.4)
    meant = f"did you mean {BY_NAME[near[0]].name!r}? " if near else ""
    return SwarmError(
        "invalid-input",
        f"{fellow}: {name[:60]!r} is not a known card",
        hint=f"{meant}Tell {lacks}, or take one of: {', '.join(card.name for card in KNOWN)}",
    )


def _datasheet(file: InventoryFile) -> list[str]:
    return [
        card_id(fellow_id_of(one.name), index)
        for one in file.fellows
        for index, told in enumerate(_each(one))
        if told.tflops is None
    ]


def _links(file: InventoryFile) -> Links | None:
    pairs = {
        (fellow_id_of(one.sender), fellow_id_of(one.taker)): Link(one.bytes_per_s, one.latency_s)
        for one in file.links
    }
    own = {
        fellow_id_of(one.name): Uplink(one.up_bytes_per_s, one.down_bytes_per_s, one.latency_s)
        for one in file.fellows
        if one.up_bytes_per_s is not None and one.down_bytes_per_s is not None
    }
    return Links(pairs, own) if pairs or own else None


def files_of(facts: ModelFacts, config: Mapping[str, Any]) -> dict[str, Tensors]:
    """Checkpoint files as repositories cut them: here one a layer, one for each table."""
    size = STORED_BYTES.get(facts.stored_dtype or str(config.get("torch_dtype")), 2)
    family = facts.family
    files: dict[str, Tensors] = {
        f"layer-{i}": {f"{family.layers}.{i}.weight": size * params}
        for i, params in enumerate(facts.layer_params)
    }
    files["embeddings"] = {f"{family.embeddings[0]}.weight": size * facts.embedding_params}
    files["norm"] = {f"{family.final_norm}.weight": size * facts.final_norm_params}
    if not facts.tied:
        files["head"] = {f"{family.head}.weight": size * facts.head_params}
    return files
