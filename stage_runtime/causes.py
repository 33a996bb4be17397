"""Why a stage stops: asked to pause, or the error inside what the engine raised."""

from transport.errors import SwarmError


class Paused(SwarmError):
    """This stage was told to stop; the worker exits with 4."""

    def __init__(self, reason: str) -> None:
        super().__init__("stage-failed", f"paused: {reason}", facts={"echo": True})


def find_cause(error: BaseException | None) -> SwarmError | None:
    """The SwarmError inside what the engine raised: it wraps errors of forward and backward."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, SwarmError):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None
