"""`python -m stage_runtime.reference_process`: a verification's probe, trained in one process.

A child of the fellow daemon: reads one ReferenceStart on stdin, prints one JSON line when it has
trained or failed, and ends when stdin ends.
"""

import time
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from stage_runtime.batches import open_sequences
from stage_runtime.card_memory import CardMeter, cannot_fit, device_of
from stage_runtime.checkpoint_share import StageSpan
from stage_runtime.download import fetch_stage
from stage_runtime.leader_files import LeaderAccess, fetch_token_file
from stage_runtime.one_order import carry_out
from stage_runtime.reference import plain_model, train_alone
from transport.orders import ReferenceStart


def run_reference(start: ReferenceStart) -> dict[str, Any]:
    """Fetch the model and the data, train; returns what a ReferenceTrained tells.

    Raises:
        SwarmError: what a file, the disk, the hub or the leader refuses.
        torch.OutOfMemoryError: the card's budget is passed.
    """
    order, cache = start.order, Path(start.cache_folder)
    leader = LeaderAccess(start.leader_url, start.leader_token, start.leader_pin)
    tokens, _ = fetch_token_file(
        leader, cache, order.tokens.digest, order.tokens.size_bytes, lambda: None
    )
    span = StageSpan(order.card.first_layer, order.card.last_layer, True, True)
    checkpoint, _ = fetch_stage(order.model, span, leader, cache, lambda: None)
    settings, device = order.settings, device_of(order.card)
    vocab, masks = checkpoint.facts.vocab, settings.document_mask
    sequences = open_sequences(tokens, order.tokens, settings.seq_len, vocab, masks=masks)
    meter, began = CardMeter([order.card], [device]), time.monotonic()
    with meter.counting():
        model = plain_model(checkpoint.folder, settings, device)
        trained = train_alone(model, sequences, settings)
    return {
        "losses": trained.losses,
        "held_out": trained.held_out,
        "seconds": time.monotonic() - began,
        "peak_bytes": meter.peaks()[0].peak_bytes,
    }


def _reference(start: ReferenceStart) -> dict[str, Any]:
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(start.order.threads)
    try:
        return run_reference(start)
    except torch.OutOfMemoryError as error:
        raise cannot_fit(error) from None


if __name__ == "__main__":
    carry_out(ReferenceStart, _reference)
