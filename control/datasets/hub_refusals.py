"""What the hub's client raises, as our own refusals: for models and for data sets alike."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from transport.errors import SwarmError, not_found

What = Literal["model", "data set"]


class Unreachable(Exception):
    """The hub gives nothing now; what an earlier visit left may do."""

    def __init__(self, why: str, status: int | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.status = status


@contextmanager
def hub_refusals(what: What, shown: str) -> Iterator[None]:
    """Ask the hub inside.

    Raises:
        SwarmError: not-found, forbidden, rate-limited, invalid-input for a name that is none.
        Unreachable: it answers with an error of its own, or not at all.
    """
    # Imported here: it costs a third of a second that a leader with local models never needs.
    import httpx2  # noqa: PLC0415
    from huggingface_hub import errors  # noqa: PLC0415

    try:
        yield
    except errors.GatedRepoError:
        raise SwarmError(
            "forbidden",
            f"{shown} is gated: its owner must admit you",
            hint="accept its terms on the hub, then set HF_TOKEN at the leader"
            + (" and the fellows" if what == "model" else ""),
        ) from None
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        hint = "check its name; for a private one set HF_TOKEN at the leader"
        raise not_found(what, shown, hint=hint) from None
    except errors.HFValidationError:
        write = "write org/name or local:NAME" if what == "model" else "write org/name"
        raise SwarmError("invalid-input", f"{shown!r} is no {what} id", hint=write) from None
    except errors.RemoteEntryNotFoundError:
        raise
    except (errors.HfHubHTTPError, httpx2.HTTPError, OSError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        refuse_status(what, shown, status)
        why = f"answers {status}" if status else f"cannot be reached ({type(error).__name__})"
        raise Unreachable(why, status) from error


def refuse_status(what: What, shown: str, status: int | None) -> None:
    """Refusals of the hub that no cache may hide."""
    if status in (401, 403):
        raise SwarmError(
            "forbidden",
            f"the model hub refuses {shown} to this leader ({status})",
            hint="set an HF_TOKEN that may read it at the leader"
            + (" and the fellows" if what == "model" else ""),
        )
    if status == 429:
        raise SwarmError(
            "rate-limited",
            f"the model hub was asked too often and refuses {shown} for now (429)",
            hint="wait a few minutes, or set HF_TOKEN at the leader",
        )
