"""A learned bottleneck in a job's result: a file of its own, and what its README says of it.

Text and names only; the bytes are copied by `adapters`.
"""

from collections.abc import Sequence

from transport.api.jobs import Evaluation
from transport.orders import StageOrder

FILE = "boundary.safetensors"
PREFIX = "boundary."


def is_boundary(tensor: str) -> bool:
    """Whether a tensor of a stage's file belongs to a boundary, not to the model or its adapter."""
    return tensor.startswith(PREFIX)


def readme_part(order: StageOrder, layers: Sequence[int], told: Sequence[Evaluation]) -> str:
    """What the projections are, how they are used, and what the model loses without them.

    layers: those behind a boundary.
    """
    if not layers:
        return ""
    dim = order.settings.compression.dim
    where = ", ".join(map(str, layers))
    return (
        f"\n## Its boundaries\n\nTrained over {order.num_stages} stages with a learned bottleneck "
        f"of {dim} values between them, before layer {where}. `{FILE}` holds it: for each of these "
        "layers L, hidden states h become `boundary.L.encoder.weight @ h + boundary.L.encoder.bias`"
        ", cross as 8-bit codes with a scale for each token (the largest value), and are rebuilt "
        "as `boundary.L.decoder.weight @ z + boundary.L.decoder.bias`. Plain libraries do not load "
        f"it: with them the model runs without.\n\n{_losses(told)}\n"
    )


def _losses(told: Sequence[Evaluation]) -> str:
    by_moment = {one.moment: one for one in told}
    with_it, without = by_moment.get("trained"), by_moment.get("bypassed")
    if with_it is None or without is None:
        return "The held-out loss with and without it was not measured (no held-out sequences)."
    return (
        f"Held-out loss with it {with_it.loss:.4f} (accuracy {with_it.accuracy:.1%}), without it "
        f"{without.loss:.4f} ({without.accuracy:.1%}), over {with_it.tokens} tokens."
    )
