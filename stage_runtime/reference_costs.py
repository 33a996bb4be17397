"""What training a probe in one process, the plain way, takes of a card: an estimate from above.

Torch-free. The stage's own prices, and what plain transformers and peft hold beyond them.
"""

from stage_runtime.costs import Prices
from stage_runtime.model_facts import ModelFacts
from stage_runtime.places import CardPlace, Device
from transport.orders import CompressionSettings, TrainSettings

PEFT_SHARE = 0.6
"""peft's own layers keep up to 1.59 times what ours keep (docs/families.md)."""
LOGITS_HELD = 3
"""A sequence's logits, their gradient, and a sum on the way, all float32 at most."""


def reference_bytes(facts: ModelFacts, settings: TrainSettings, device: Device) -> int:
    """Bytes that a card must have free for the whole model and one sequence at a time."""
    alone = settings.model_copy(
        update={
            "micro_batches": settings.batch_size,
            "recompute": False,
            "early_recompute": 0,
            "snapshot_every_steps": 0,
            "compression": CompressionSettings(),
        }
    )
    price = Prices(facts, alone).of(CardPlace(0, 1, 0, facts.num_layers - 1), device)
    logits = LOGITS_HELD * 4 * settings.seq_len * facts.vocab
    return price.total + int(PEFT_SHARE * price.activations) + logits
