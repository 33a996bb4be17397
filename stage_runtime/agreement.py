"""What all stages must agree on around the first step, or none goes on.

Before it: that they train the same thing (the job's settings, model revision and adapters). After
its backward: that every trained tensor has a gradient. Each verdict comes from one exchange, so
every stage reaches the same one; the stage that found the fault names it, the others echo.
"""

import hashlib
import re
from collections.abc import Collection, Mapping

from torch import nn

from stage_runtime.stage_group import StageGroup
from transport.errors import SwarmError
from transport.orders import StageOrder

_NUMBER = re.compile(r"\.\d+\.")
_WORD_BITS = 20
_WORDS = 3


def fingerprint(order: StageOrder, trained: Collection[str]) -> str:
    """SHA-256 of what every stage of a job must have in common.

    The order's model and settings, and the adapters' names with their layers left out: a stage
    that put them on other projections has another one. Other names do not count: the ends of a
    full fine-tune, and of learned boundaries, train what the stages between do not.
    """
    names = {_NUMBER.sub(".", name) for name in trained if ".lora_" in name}
    told = [order.model.repository, order.model.revision, order.settings.model_dump_json()]
    return hashlib.sha256("\n".join([*told, *sorted(names)]).encode()).hexdigest()


def refuse_nothing_to_train(order: StageOrder, trained: Mapping[str, nn.Parameter]) -> None:
    """Refuse a stage without a trainable parameter.

    Raises:
        SwarmError: invalid-input; names the layers and what was looked for.
    """
    if not trained:
        wanted = ", ".join(order.settings.lora.target_modules) if order.settings.lora else "any"
        raise SwarmError(
            "invalid-input",
            f"nothing would train in layers {order.first_layer}-{order.last_layer}: they have no "
            f"projection named {wanted}",
            hint="name other target_modules, or leave them out",
        )


def agree(group: StageGroup, order: StageOrder, own: str) -> None:
    """Compare fingerprints over all stages, through sums that every stage sees alike.

    Raises:
        SwarmError: plan-changed, on every stage; the fingerprints are not all the same.
    """
    words = [_word(own, i) for i in range(_WORDS)]
    totals = group.exchange([float(v) for word in words for v in (word, word * word)])
    count = order.num_stages
    # Numbers are all alike exactly when n * (sum of squares) is the square of their sum. Both are
    # whole numbers far below 2 ** 53, so float64 holds them exactly.
    alike = all(count * int(totals[2 * i + 1]) == int(totals[2 * i]) ** 2 for i in range(_WORDS))
    if not alike:
        raise SwarmError(
            "plan-changed",
            f"the stages do not train the same adapters (here {own[:12]}): their settings, model "
            "revision or adapter names differ",
            hint="update every fellow to the same version, and start the job again",
            facts={"fingerprint": own},
        )


def _word(fingerprint_hex: str, index: int) -> int:
    digits = _WORD_BITS // 4
    return int(fingerprint_hex[index * digits : (index + 1) * digits], 16)


def refuse_without_gradient(group: StageGroup, trained: Mapping[str, nn.Parameter]) -> None:
    """Stop when a trained tensor got no gradient in the first backward, on any stage.

    Raises:
        SwarmError: stage-failed; by name on the stage that has it, as an echo on the others.
    """
    missing = sorted(name for name, weight in trained.items() if weight.grad is None)
    (total,) = group.exchange([float(len(missing))])
    if not total:
        return
    what = f"{missing[0]} got no gradient" if missing else "a tensor of another stage got none"
    more = f", nor did {len(missing) - 1} more" if len(missing) > 1 else ""
    raise SwarmError(
        "stage-failed",
        f"{what} in the first step{more}: it would never train",
        hint="report the model's family and the settings",
        facts={"missing": missing[:20], "echo": not missing},
    )
