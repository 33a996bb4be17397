"""Names of things: their patterns, and how new ones are made.

Random bytes are passed in, so that a simulated leader mints the same ids from the same seed.
"""

from collections.abc import Callable
from typing import Annotated

from pydantic import StringConstraints

RandomBytes = Callable[[int], bytes]

_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"  # no l, o, 0, 1: ids are read aloud and typed

PoolName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,38}/[a-z0-9][a-z0-9-]{0,38}$")
]
FellowId = Annotated[str, StringConstraints(pattern=r"^f-[a-z2-9]{8}$")]
CardId = Annotated[str, StringConstraints(pattern=r"^f-[a-z2-9]{8}:[0-9]{1,2}$")]
JobId = Annotated[str, StringConstraints(pattern=r"^j-[a-z2-9]{8}$")]
InviteId = Annotated[str, StringConstraints(pattern=r"^i-[a-z2-9]{8}$")]
TokenId = Annotated[str, StringConstraints(pattern=r"^t-[a-z2-9]{8}$")]
PlanId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
BucketName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
# A folder in the leader's model store, or a hub id, each with an optional revision.
ModelId = Annotated[
    str,
    StringConstraints(
        pattern=r"^(local:[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
        r"|[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95})"
        r"(@[A-Za-z0-9][A-Za-z0-9._-]{0,63})?$"
    ),
]
DatasetId = Annotated[
    str,
    StringConstraints(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
        r"(@[A-Za-z0-9][A-Za-z0-9._/-]{0,63})?$"
    ),
]
RequestId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:-]{1,64}$")]


def mint(prefix: str, random_bytes: RandomBytes) -> str:
    """A new id such as "j-8fq2m4xc": 8 symbols, 40 random bits. The caller checks it is free."""
    return f"{prefix}-" + "".join(_ALPHABET[byte % 32] for byte in random_bytes(8))


def card_id(fellow_id: str, index: int) -> str:
    """The name of a fellow's card: "f-8fq2m4xc:0"."""
    return f"{fellow_id}:{index}"
