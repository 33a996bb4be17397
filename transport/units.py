"""Bytes and seconds as text for people. GB is 10^9 bytes on every face."""

GB = 1_000_000_000
MB = 1_000_000
KB = 1_000


def human_bytes(count: int | None) -> str:
    """Bytes as short text, "–" when nobody measured them: 6_060_000_000 -> "6.06 GB"."""
    if count is None:
        return "–"
    for size, name in ((GB, "GB"), (MB, "MB"), (KB, "kB")):
        if abs(count) >= size:
            return (
                f"{count / size:.3g} {name}"
                if abs(count) < 100 * size
                else f"{count / size:.0f} {name}"
            )
    return f"{count} B"


def human_count(count: int | None) -> str:
    """A number of parameters as short text, "–" when unknown: 134_515_008 -> "135 M"."""
    if count is None:
        return "–"
    for size, name in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= 0.9995 * size:  # or three digits would say 1e+03
            return f"{count / size:.3g} {name}"
    return str(count)


def count_of(count: int, one: str, many: str = "") -> str:
    """A number of things, with its noun: (1, "card") -> "1 card", (1200, "batch", "batches") ->
    "1,200 batches".
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def human_seconds(seconds: float | None) -> str:
    """Seconds as short text, "–" when unknown: 0.25 -> "250 ms", 95 -> "1 min 35 s"."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
