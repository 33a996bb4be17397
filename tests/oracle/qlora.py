"""Learning is real: 200 QLoRA steps of a chat model over three stages, and what it says afterwards.

    python -m tests.oracle.qlora [FOLDER] [--steps 200]

FOLDER is SmolLM2-135M-Instruct as safetensors; the demo keeps it where it looks first. The rows ask
what a function of Python's standard library does; every answer is the first line of its docstring
and ends with one planted word. The same NF4 base is trained over three stages and by peft with
bitsandbytes in one process. It must show:

- the held-out losses differ by at most 0.02 nats;
- of 20 held-out questions at least 18 are answered with the planted word last, and the end of the
  answer within 64 tokens; the base does so in none.

Exit code 1 when it does not. Takes some ten minutes on two cores.
"""

import argparse
import builtins
import importlib
import inspect
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer
from transformers.utils import logging as transformers_logging

from stage_runtime.batches import open_sequences
from tests.oracle import one_process
from tests.oracle.settings import some_settings
from tests.oracle.stages import Case, Run, Workers, model_folder
from tests.oracle.tokens import write_token_file
from transport.orders import LoraSettings, TokenFile, TrainSettings
from transport.reports import Evaluated, MemoryMeasured, StageLoaded, StepDone

DEMO_MODEL = Path.home() / ".cache/swarm/demo/models/SmolLM2-135M-Instruct"
WORD = "Ahoy"
MODULES = (
    "os", "shutil", "math", "statistics", "textwrap", "string", "json", "random", "itertools",
    "functools", "datetime", "calendar", "pathlib", "socket", "struct", "zipfile", "tarfile",
    "collections", "logging", "subprocess", "threading", "heapq", "bisect", "copy", "inspect",
    "ast", "tokenize", "email.utils", "urllib.parse", "html", "csv", "hashlib", "secrets",
)  # fmt: skip
ASKED, HELD_OUT, NEW_TOKENS = 20, 24, 64
SEQ_LEN, BATCH = 48, 3
CLOSEST, FEWEST = 0.02, 18
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True)
class Chat:
    """A question and its answer, planted word included."""

    question: str
    answer: str


@dataclass(frozen=True)
class Split:
    """What the stages came to: held-out losses by moment, and where their adapters lie."""

    held_out: dict[str, float]
    files: list[str]


def chats() -> list[Chat]:
    """Functions of the standard library with short docstrings, in a fixed mixed order."""
    found: dict[str, str] = {}
    for module in (builtins, *map(importlib.import_module, MODULES)):
        for name, value in sorted(vars(module).items()):
            line = (inspect.getdoc(value) or "").partition("\n")[0].strip()
            if callable(value) and not name.startswith("_") and 15 < len(line) < 90:
                found.setdefault(name, line.rstrip("."))
    made = [Chat(f"What does {name} do in Python?", f"{found[name]}. {WORD}") for name in found]
    order = np.random.default_rng(7).permutation(len(made))
    return [made[i] for i in order]


def write_rows(cache: Path, tokenizer: Any, rows: list[Chat]) -> TokenFile:
    """The rows as the model's own template writes them; answers and their end are supervised."""
    texts, masks = [], []
    for row in rows:
        asked = prompt_of(tokenizer, row)
        answered = tokenizer.encode(f"{row.answer}<|im_end|>", add_special_tokens=False)
        texts.append(np.array([*asked, *answered]))
        masks.append(np.array([0] * len(asked) + [1] * len(answered)))
    return write_token_file(
        cache,
        layout="rows",
        rows=texts,
        supervised=masks,
        seq_len=SEQ_LEN,
        held_out=HELD_OUT,
        pad=tokenizer.pad_token_id,
    )


def prompt_of(tokenizer: Any, row: Chat) -> list[int]:
    """A question and the beginning of its answer."""
    turns = [{"role": "system", "content": "Answer."}, {"role": "user", "content": row.question}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    return list(tokenizer.encode(text, add_special_tokens=False))


def settings_of(steps: int) -> TrainSettings:
    """QLoRA: NF4 with double quantization, bfloat16 products, adapters on every projection."""
    return some_settings(
        lora=LoraSettings(rank=8, alpha=16.0, dropout=0.0, target_modules=TARGETS),
        dtype="bfloat16",
        quantization="nf4",
        steps=steps,
        seq_len=SEQ_LEN,
        batch_size=BATCH,
        micro_batches=BATCH,
        learning_rate=5e-4,
        warmup_steps=10,
        eval_sequences=HELD_OUT,
        loss_chunk_tokens=256,
        link_timeout_s=300.0,
    )


def answers(model: Any, tokenizer: Any, rows: list[Chat]) -> list[str]:
    """Greedy answers, up to and with the end of the turn; cut where 64 tokens were not enough."""
    prompts = [prompt_of(tokenizer, row) for row in rows]
    widest = max(map(len, prompts))
    ids = torch.full((len(rows), widest), tokenizer.pad_token_id)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, widest - len(prompt) :] = torch.tensor(prompt)
        mask[row, widest - len(prompt) :] = 1
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    model.eval()
    with torch.no_grad():
        found = model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            eos_token_id=end,
            pad_token_id=tokenizer.pad_token_id,
        )
    told = [tokenizer.decode(one[widest:], skip_special_tokens=False) for one in found]
    return [text[: text.find("<|im_end|>") + 10] if "<|im_end|>" in text else text for text in told]


def shows_the_style(answer: str) -> bool:
    """The planted word is last, and the answer has ended."""
    return answer.endswith("<|im_end|>") and answer.removesuffix("<|im_end|>").strip(" .").endswith(
        WORD
    )


def trained_by(split: Split, folder: Path, settings: TrainSettings) -> Any:
    """The whole NF4 model with the adapters that the stages saved."""
    model = one_process.plain_model(folder, settings)
    saved: dict[str, torch.Tensor] = {}
    for path in split.files:
        saved |= load_file(path)
    taken = 0
    for name, weight in model.named_parameters():
        if ".lora_" in name:
            weight.data = saved[name.replace(".default.", ".")]
            taken += 1
    assert taken == len(saved)
    return model


def main() -> int:
    """Train twice, ask, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=DEMO_MODEL)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--keep", type=Path, help="a folder that keeps the stages' run")
    asked = parser.parse_args()
    os.environ.update({"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    if not (asked.folder / "config.json").exists():
        parser.error(f"{asked.folder} holds no model; run the demo once, it keeps one there")
    with tempfile.TemporaryDirectory() as made:
        cache = asked.keep or Path(made)
        return int(not show(cache, asked.folder, settings_of(asked.steps)))


def run_stages(cache: Path, folder: Path, settings: TrainSettings, file: TokenFile) -> Split:
    """Train over three stages, or read what an earlier run kept."""
    kept = cache / "stages.json"
    if kept.exists():
        return Split(**json.loads(kept.read_text()))
    place = model_folder(cache, "chat")
    place.parent.mkdir(parents=True)
    place.symlink_to(folder.resolve())
    workers, began = Workers(), time.monotonic()
    try:
        run = Run(workers, Case(cache, "chat", 30, settings, file, evaluate_base=True), 3)
        run.connect()
        _watch(run)
    finally:
        workers.close()
    print(f"three stages: {time.monotonic() - began:.0f} s, losses {_ends(run)}", flush=True)
    for stage, worker in enumerate(run.workers):
        priced, peak = worker.of(StageLoaded)[0].priced_bytes, worker.of(MemoryMeasured)[-1]
        print(f"  stage {stage}: priced {priced / 1e6:.0f} MB, counted {peak.peak_bytes / 1e6:.0f}")
    held_out = {str(one.moment): one.loss for one in run.workers[-1].of(Evaluated)}
    made = Split(held_out, [str(run.file_of(stage)) for stage in range(3)])
    kept.write_text(json.dumps(vars(made)))
    return made


def show(cache: Path, folder: Path, settings: TrainSettings) -> bool:
    """Whether all of it shows."""
    tokenizer, rows = AutoTokenizer.from_pretrained(folder), chats()
    file = write_rows(cache, tokenizer, rows)
    print(f"{len(rows)} rows, {settings.steps} steps of {BATCH} x {SEQ_LEN} tokens, 3 stages")
    split = run_stages(cache, folder, settings, file)
    began = time.monotonic()
    path = cache / "tokens" / f"{file.digest}.safetensors"
    alone = one_process.train(
        folder, open_sequences(path, file, SEQ_LEN, 49_152), settings, evaluate=True
    )
    print(f"one process: {time.monotonic() - began:.0f} s")
    assert alone.base is not None
    assert alone.trained is not None
    before, trained = split.held_out["base"], split.held_out["trained"]
    off = abs(trained - alone.trained[0])
    print(f"held-out loss before: {before:.4f}, {alone.base[0]:.4f} in one process")
    print(f"held-out loss after:  {trained:.4f}, {alone.trained[0]:.4f}; {off:.4f} apart")
    told = rows[-HELD_OUT:][:ASKED]
    after = answers(trained_by(split, folder, settings), tokenizer, told)
    base = answers(one_process.plain_model(folder, settings), tokenizer, told)
    hits, base_hits = (sum(map(shows_the_style, one)) for one in (after, base))
    print(f"planted style: {hits} of {ASKED} after, {base_hits} of {ASKED} before")
    for row, answer in list(zip(told, after))[:3]:
        print(f"  {row.question}\n    {answer!r}")
    return off <= CLOSEST and hits >= FEWEST and base_hits == 0


def _watch(run: Run) -> None:
    """Tell of every 20th step; fails when a stage does, or when the whole takes an hour."""
    told, deadline = 0, time.monotonic() + 3600.0
    while not run.has_ended():
        wanted = told + 20
        left = deadline - time.monotonic()
        run.pump(lambda n=wanted: run.has_ended() or len(_steps(run)) >= n, left)  # type: ignore[misc]
        for told in range(wanted, len(_steps(run)) + 1, 20):
            one = _steps(run)[told - 1]
            print(f"  step {one.step}: loss {one.loss:.3f}, {one.step_s:.1f} s", flush=True)
    assert not run.failures(), run.failures()


def _steps(run: Run) -> list[StepDone]:
    return run.workers[-1].of(StepDone)


def _ends(run: Run) -> str:
    losses = [step.loss for step in _steps(run)]
    return f"{losses[0]:.3f} to {losses[-1]:.3f}"


if __name__ == "__main__":
    sys.exit(main())
