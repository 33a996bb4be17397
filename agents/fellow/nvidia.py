"""What NVIDIA's driver says of its cards: memory, who holds it, which formats they compute in.

Asks the driver's own library, never torch; loaded only when somebody offers such cards. Identifies
cards by UUID, because the driver's order is not torch's.
"""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil

from agents.log_lines import clean
from transport.cards import Holder, NumberFormat

log = logging.getLogger("swarm.fellow")


@dataclass(frozen=True)
class NvidiaCard:
    """One graphics card as the driver sees it now. Sizes in bytes."""

    number: int
    uuid: str
    name: str
    total_bytes: int
    free_bytes: int | None
    number_formats: tuple[NumberFormat, ...]
    holders: tuple[Holder, ...]


def formats_of(major: int, minor: int) -> tuple[NumberFormat, ...]:
    """Number formats of a compute capability: bfloat16 from 8.0, float16 worth having from 5.3."""
    formats: list[NumberFormat] = ["float32"]
    if (major, minor) >= (8, 0):
        formats.append("bfloat16")
    if (major, minor) >= (5, 3):
        formats += ["float16", "int8", "nf4"]
    return tuple(formats)


class DriverWatch:
    """The driver's library, kept open between readings; opened at the first one."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: dict[str, Any] = {}

    def read(self) -> dict[str, tuple[float | None, float | None]]:
        """UUID -> (bytes in use by anyone, share of the last moment that it computed)."""
        try:
            if self._nvml is None:
                self._open()
            return {uuid: self._reading(handle) for uuid, handle in self._handles.items()}
        except Exception as error:  # noqa: BLE001 - its error types exist only once it is loaded
            log.debug("the driver was not read", extra={"why": str(error)})
            self.close()
            return {}

    def close(self) -> None:
        """Let go of it. Idempotent."""
        nvml, self._nvml, self._handles = self._nvml, None, {}
        if nvml is not None:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlShutdown()

    def _open(self) -> None:
        import pynvml  # noqa: PLC0415 - only where a card may be; the base install lacks it

        pynvml.nvmlInit()
        self._nvml = pynvml
        for number in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(number)
            self._handles[_text(pynvml.nvmlDeviceGetUUID(handle), 64)] = handle

    def _reading(self, handle: Any) -> tuple[float | None, float | None]:
        memory = _ask(self._nvml, self._nvml.nvmlDeviceGetMemoryInfo, handle)
        rates = _ask(self._nvml, self._nvml.nvmlDeviceGetUtilizationRates, handle)
        return (
            None if memory is None else float(memory.used),
            None if rates is None else rates.gpu / 100,
        )


def read_cards(own_pids: frozenset[int]) -> list[NvidiaCard]:
    """All cards of this machine; empty when there is no driver or nobody installed its library."""
    with _library() as nvml:
        if nvml is None:
            return []
        return [_read(nvml, number, own_pids) for number in range(nvml.nvmlDeviceGetCount())]


@contextlib.contextmanager
def _library() -> Iterator[Any]:
    """The driver's library, opened; None when it cannot be."""
    nvml: Any = None
    try:
        import pynvml  # noqa: PLC0415 - only where a card may be; the base install lacks it

        pynvml.nvmlInit()
        nvml = pynvml
    except Exception as error:  # noqa: BLE001 - its own error types exist only once it is loaded
        log.debug("no NVIDIA driver", extra={"why": str(error)})
    try:
        yield nvml
    finally:
        if nvml is not None:
            nvml.nvmlShutdown()


def _read(nvml: Any, number: int, own_pids: frozenset[int]) -> NvidiaCard:
    handle = nvml.nvmlDeviceGetHandleByIndex(number)
    memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    major, minor = _ask(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle) or (0, 0)
    return NvidiaCard(
        number,
        _text(nvml.nvmlDeviceGetUUID(handle), 64),
        _text(nvml.nvmlDeviceGetName(handle), 200),
        0 if memory is None else int(memory.total),
        None if memory is None else int(memory.free),
        formats_of(major, minor),
        tuple(_holders(nvml, handle, own_pids)),
    )


def _holders(nvml: Any, handle: Any, own_pids: frozenset[int]) -> Iterator[Holder]:
    processes = [
        *(_ask(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle) or []),
        *(_ask(nvml, nvml.nvmlDeviceGetGraphicsRunningProcesses, handle) or []),
    ]
    held = {p.pid: p.usedGpuMemory for p in processes if p.usedGpuMemory is not None}
    for pid, held_bytes in sorted(held.items(), key=lambda item: -item[1])[:32]:
        if pid not in own_pids:
            yield Holder(name=_process_name(pid), held_bytes=int(held_bytes))


def _process_name(pid: int) -> str:
    try:
        return clean(psutil.Process(pid).name(), 200) or f"process {pid}"
    except psutil.Error:
        return f"process {pid}"


def _ask(nvml: Any, question: Any, handle: Any) -> Any:
    """One answer of the driver; None when this card does not give it."""
    try:
        return question(handle)
    except nvml.NVMLError:
        return None


def _text(value: str | bytes, limit: int) -> str:
    return clean(value.decode(errors="replace") if isinstance(value, bytes) else value, limit)
