"""`python -m stage_runtime.reference_process`: a verification's probe, trained in one process.

A child of the fellow daemon: reads one ReferenceStart on stdin, prints one JSON line when it has
trained or failed, and ends when stdin ends.
"""

import json
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.utils.tqdm import disable_progress_bars
from transformers.utils import logging as transformers_logging

from stage_runtime.batches import open_sequences
from stage_runtime.card_memory import CardMeter, cannot_fit, device_of
from stage_runtime.checkpoint_share import StageSpan
from stage_runtime.download import fetch_stage
from stage_runtime.leader_files import LeaderAccess, fetch_token_file
from stage_runtime.reference import plain_model, train_alone
from transport.errors import SwarmError
from transport.orders import ReferenceStart
from transport.schema import parse

log = logging.getLogger("stage_runtime")

EXIT_FAILED, EXIT_ORPHANED = 3, 5


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


def _end_with_the_daemon() -> None:
    while sys.stdin.readline():
        pass
    os._exit(EXIT_ORPHANED)


def main() -> None:
    """Carry out the order on stdin."""
    words = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # stray prints of libraries are no words of ours
    disable_progress_bars()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    try:
        start = parse(ReferenceStart, sys.stdin.readline())
        threading.Thread(target=_end_with_the_daemon, daemon=True).start()
        torch.set_num_threads(start.order.threads)
        told = run_reference(start)
    except SwarmError as error:
        told = _refused(error)
    except torch.OutOfMemoryError as error:
        told = _refused(cannot_fit(error))
    except Exception as error:
        log.error("unexpected", exc_info=error)
        told = {"code": "internal", "message": f"{type(error).__name__}: {error}", "hint": ""}
    words.write(json.dumps(told) + "\n")
    words.flush()
    os._exit(0 if "losses" in told else EXIT_FAILED)


def _refused(error: SwarmError) -> dict[str, Any]:
    return {"code": error.code, "message": error.message, "hint": error.hint}


if __name__ == "__main__":
    main()
