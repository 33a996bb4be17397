"""What this machine is and what its cards have free, as a heartbeat tells it.

Reads the system by psutil and the driver's library; never imports torch. Knows which cards the
owner offers; does not know what the leader wants.
"""

import hashlib
import importlib.metadata
import os
import platform
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from agents.fellow import nvidia
from agents.fellow.cpu_card import CpuCard, CudaCards, Offer, default_budget, parse_card
from agents.fellow.proof import Proofs
from agents.log_lines import clean
from transport.cards import CardReport, MachineReport, NumberFormat, Speed
from transport.errors import SwarmError

# What this version's stages can do; a planner offers a fellow only what it names.
FEATURES = (
    "stage", "lora", "full", "recompute", "chunked-loss", "evaluate", "measure", "direct",
    "measure-links", "fixed_int8", "fixed_int4", "rotation", "learned", "boundary", "resume",
    "reference", "document-mask",
)  # fmt: skip
_DECIDING = ("torch", "transformers", "peft", "bitsandbytes")
_CPU_FORMATS: list[NumberFormat] = ["float32", "bfloat16"]


@dataclass(frozen=True)
class Places:
    """Where this fellow keeps files, and where its stages listen."""

    cache_folder: Path
    """Model files in the hub's layout, and token files."""
    listen_address: str


class Inventory:
    """Reads the machine anew at every heartbeat; what cannot change is read once."""

    def __init__(self, offers: list[Offer], fellow_id: str, name: str, places: Places) -> None:
        self._offers = offers
        self._fellow_id = fellow_id
        self._places = places
        self._name = name
        self._system = clean(f"{platform.system()} {platform.release()}", 200)
        self._versions = {name: found for name in _DECIDING if (found := version_of(name))}
        self._cpu_name = _cpu_name()
        self.proofs = Proofs()
        self.speeds: dict[int, list[Speed]] = {}
        """Measured speeds by card index."""

    @property
    def can_train(self) -> bool:
        """Whether the packages that a stage needs are installed."""
        return {"torch", "transformers", "peft"} <= self._versions.keys()

    def machine(self) -> MachineReport:
        """The machine around the cards. May block on a slow disk."""
        memory, disk = psutil.virtual_memory(), _disk(self._places.cache_folder)
        return MachineReport(
            hostname=self._name,
            system=self._system,
            cores=cores(),
            memory_bytes=memory.total,
            memory_free_bytes=memory.available,
            disk_free_bytes=disk.free if disk else None,
            disk_total_bytes=disk.total if disk else None,
            version=swarm_version(),
            features=list(FEATURES) if self.can_train else [],
            versions=self._versions,
            listen_address=self._places.listen_address,
            cached_models=_cached_models(self._places.cache_folder),
            boot=_boot(),
        )

    def cards(self, held_bytes: Callable[[int], int], own_pids: frozenset[int]) -> list[CardReport]:
        """Every offered card.

        Args:
            held_bytes: what this fellow's own workers hold on a card, by its index.
            own_pids: their processes, which are not told as holders of a card's memory.
        """
        available = psutil.virtual_memory().available
        driver = nvidia.read_cards(own_pids) if self._offers_cuda() else []
        reports: list[CardReport] = []
        for offer in self._offers:
            if isinstance(offer, CpuCard):
                index = len(reports)
                free = min(offer.budget_bytes - held_bytes(index), available)
                reports.append(self._cpu_card(offer, index, max(0, free)))
            else:
                chosen = [c for c in driver if offer.only in (None, c.number)]
                reports += [self._cuda_card(c, len(reports) + i) for i, c in enumerate(chosen)]
        return reports

    def _offers_cuda(self) -> bool:
        return any(isinstance(offer, CudaCards) for offer in self._offers)

    def _cpu_card(self, offer: CpuCard, index: int, free_bytes: int) -> CardReport:
        return CardReport(
            index=index,
            kind="cpu",
            name=f"{offer.plays} (virtual)" if offer.plays else self._cpu_name,
            uuid=f"cpu-{self._fellow_id}-{index}",
            total_bytes=offer.budget_bytes,
            free_bytes=free_bytes,
            threads=offer.threads,
            number_formats=self.proofs.formats("cpu", _CPU_FORMATS),
            speeds=self.speeds.get(index, []),
        )

    def _cuda_card(self, card: nvidia.NvidiaCard, index: int) -> CardReport:
        return CardReport(
            index=index,
            kind="cuda",
            name=card.name,
            uuid=card.uuid,
            total_bytes=card.total_bytes,
            free_bytes=card.free_bytes,
            number_formats=self.proofs.formats(card.uuid, card.number_formats),
            holders=list(card.holders),
            speeds=self.speeds.get(index, []),
        )


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_offers(specs: tuple[str, ...]) -> list[Offer]:
    """The cards that `--card` names.

    Without any: all graphics cards, or else half of the memory as one CPU card.

    Raises:
        SwarmError: invalid-input for words that are no card, or a graphics card that is not there.
    """
    memory = psutil.virtual_memory().total
    offers = [parse_card(spec, cores=cores(), memory_bytes=memory) for spec in specs]
    found = {card.number for card in nvidia.read_cards(frozenset())} if _needs(offers) else set()
    for offer in offers:
        if isinstance(offer, CudaCards) and not (
            found if offer.only is None else {offer.only} & found
        ):
            raise SwarmError(
                "invalid-input",
                f"there is no card {offer.spec()!r} on this machine; its driver shows {len(found)}",
                hint="offer the processor instead, like --card cpu:4GB:2",
            )
    if offers:
        return offers
    return [CudaCards()] if found else [CpuCard(default_budget(memory), cores())]


def _needs(offers: list[Offer]) -> bool:
    return not offers or any(isinstance(offer, CudaCards) for offer in offers)


def default_cache_folder() -> Path:
    """Where model files are kept: the hub's own home, so that nothing is fetched twice."""
    told = os.environ.get("SWARM_CACHE") or os.environ.get("HF_HOME")
    return Path(told).expanduser() if told else Path.home() / ".cache" / "huggingface"


def address_towards(leader: str) -> str:
    """This machine's own address on the way to its leader; nothing is sent."""
    parts = urlsplit(leader)
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def version_of(package: str) -> str:
    """A package's installed version; "" when it is not there. Nothing is imported."""
    try:
        return clean(importlib.metadata.version(package), 64)
    except importlib.metadata.PackageNotFoundError:
        return ""


def swarm_version() -> str:
    """This Swarm's version."""
    return version_of("swarm-pool") or "0"


@dataclass(frozen=True)
class _Disk:
    total: int
    free: int


def _disk(folder: Path) -> _Disk | None:
    """The disk where a folder is or would be made; None when it cannot be told."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        usage = shutil.disk_usage(folder)
        return _Disk(usage.total, usage.free)
    except OSError:
        return None


def _cached_models(cache_folder: Path) -> list[str]:
    """Hub ids that have files in the cache, at most 256."""
    names: list[str] = []
    for hub in (cache_folder / "hub", cache_folder):
        try:
            found = sorted(path.name for path in hub.glob("models--*--*"))
        except OSError:
            continue
        names += [name.removeprefix("models--").replace("--", "/", 1)[:200] for name in found]
    return names[:256]


def _cpu_name() -> str:
    """The processor's name as the system tells it."""
    try:
        for line in (
            Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        ):
            if line.startswith("model name"):
                return clean(line.partition(":")[2].strip(), 200)
    except OSError:
        pass
    return clean(platform.processor(), 200) or "processor"


def _boot(file: Path = Path("/proc/sys/kernel/random/boot_id")) -> str | None:
    """A name of this start of the machine, the same in all its containers; None where no system
    tells one.
    """
    try:
        return hashlib.sha256(file.read_bytes().strip()).hexdigest()[:16]
    except OSError:
        return None
