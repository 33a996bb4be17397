"""What real stages hold at their peak, counted as they run, is what was priced before."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.oracle.checkpoints import BOS, EOS, PAD, VOCAB, write_byte_tokenizer
from tests.oracle.settings import some_settings
from tests.oracle.stages import Case, Workers, model_folder, run_to_end
from tests.oracle.tokens import packed_text
from transport.orders import CompressionSettings, LoraSettings
from transport.reports import MemoryMeasured, StageLoaded

SMOL = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 6,
    "max_position_embeddings": 2048,
    "vocab_size": VOCAB,
    "tie_word_embeddings": True,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}
"""SmolLM2-135M's blocks; fewer of them, and a vocabulary of bytes."""
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ALL = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder with the model in it."""
    cache = tmp_path_factory.mktemp("memory")
    folder = model_folder(cache, "smol")
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**SMOL), dtype=torch.float32)
    model.save_pretrained(folder)
    write_byte_tokenizer(folder)
    return cache


@pytest.mark.parametrize(
    ("targets", "dtype", "recompute", "micro_batches", "quantization"),
    [
        (ATTENTION, "float32", False, 4, "none"),
        (ALL, "bfloat16", False, 4, "none"),
        (ALL, "float32", True, 2, "none"),
        (ATTENTION, "bfloat16", True, 4, "none"),
        (ALL, "bfloat16", True, 4, "nf4"),
        (ATTENTION, "bfloat16", False, 4, "int8"),
    ],
)
def test_the_peak_of_every_stage_is_what_was_priced_within_3_percent(
    workers: Workers,
    cache: Path,
    targets: list[str],
    dtype: str,
    recompute: bool,
    micro_batches: int,
    quantization: str,
) -> None:
    settings = some_settings(
        lora=LoraSettings(rank=8, alpha=16.0, dropout=0.0, target_modules=targets),
        dtype=dtype,
        recompute=recompute,
        micro_batches=micro_batches,
        quantization=quantization,
        steps=2,
        seq_len=256,
        eval_sequences=0,
    )
    tokens = packed_text(cache, seq_len=256, sequences=8)
    case = Case(cache, "smol", 6, settings, tokens, evaluate_base=False)

    run = run_to_end(workers, case, 3)

    for worker in run.workers:
        (loaded,), peak = worker.of(StageLoaded), worker.of(MemoryMeasured)[-1]
        assert peak.how == "counted"
        assert loaded.priced_bytes == pytest.approx(peak.peak_bytes, rel=0.03)


def test_a_table_trained_in_two_places_is_held_as_it_was_priced(
    workers: Workers, cache: Path
) -> None:
    # The table weighs more than a stage's layers. The last stage's copy has no moments.
    folder = model_folder(cache, "wide")
    wide = AutoConfig.for_model(**SMOL | {"vocab_size": 8192, "num_hidden_layers": 3})
    AutoModelForCausalLM.from_config(wide, dtype=torch.float32).save_pretrained(folder)
    write_byte_tokenizer(folder)
    settings = some_settings(
        method="full", lora=None, micro_batches=4, steps=2, seq_len=64, eval_sequences=0
    )
    tokens = packed_text(cache, seq_len=64, sequences=8)

    run = run_to_end(workers, Case(cache, "wide", 3, settings, tokens, evaluate_base=False), 3)

    off = []
    for worker in run.workers:
        (loaded,), peak = worker.of(StageLoaded), worker.of(MemoryMeasured)[-1]
        off.append(loaded.priced_bytes / peak.peak_bytes - 1)
    assert off == pytest.approx([0, 0, 0], abs=0.03)


@pytest.mark.parametrize(
    ("compression", "method", "sequences"),
    [
        # A rotation's statistics take as much as 16,384 tokens give.
        pytest.param(
            CompressionSettings(kind="rotation", bits=4), "lora", 67, marks=pytest.mark.slow
        ),
        (CompressionSettings(kind="learned", bits=8, dim=288), "lora", 8),
        (CompressionSettings(kind="learned", bits=8, dim=288), "boundary", 8),
    ],
    ids=["rotation", "learned", "learned alone"],
)
def test_what_stands_between_stages_is_in_the_price(
    workers: Workers, cache: Path, compression: CompressionSettings, method: str, sequences: int
) -> None:
    lora = LoraSettings(rank=8, alpha=16.0, dropout=0.0, target_modules=ATTENTION)
    settings = some_settings(
        method=method,
        lora=lora if method == "lora" else None,
        dtype="bfloat16",
        recompute=True,
        micro_batches=4,
        steps=2,
        seq_len=256,
        eval_sequences=0,
        compression=compression,
    )
    tokens = packed_text(cache, seq_len=256, sequences=sequences)
    run = run_to_end(workers, Case(cache, "smol", 6, settings, tokens, evaluate_base=False), 3)

    for worker in run.workers:
        (loaded,), peak = worker.of(StageLoaded), worker.of(MemoryMeasured)[-1]
        assert loaded.priced_bytes == pytest.approx(peak.peak_bytes, rel=0.03)
