"""What a model writes with and without an adapter: `python -m stage_runtime.sample MODEL PROMPT
[--adapter FOLDER]`.

Plain transformers and peft on one machine, with nothing of Swarm between them: the proof that an
exported adapter is an ordinary one. Greedy, so that the same files give the same text.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer


def continuations(
    model_folder: Path, adapter: Path | None, prompt: str, new_tokens: int, threads: int
) -> dict[str, str | None]:
    """The greedy continuation of `prompt` by the base model, and by the model with the adapter on
    it.

    Returns: {"base": text, "trained": text, or None without an adapter}.
    Errors: OSError or ValueError when a folder is no checkpoint or no adapter.
    """
    torch.set_num_threads(threads)
    tokenizer: Any = AutoTokenizer.from_pretrained(str(model_folder))
    model: Any = AutoModelForCausalLM.from_pretrained(str(model_folder), dtype=torch.float32)
    encoded = tokenizer(prompt, return_tensors="pt")

    def write(writer: Any) -> str:
        with torch.no_grad():
            ids = writer.generate(
                **encoded, max_new_tokens=new_tokens, do_sample=False, pad_token_id=0
            )
        return str(
            tokenizer.decode(ids[0, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
        )

    base = write(model)
    if adapter is None:
        return {"base": base, "trained": None}
    return {"base": base, "trained": write(PeftModel.from_pretrained(model, str(adapter)))}


def main() -> int:
    """Read the arguments, print one JSON line."""
    parser = argparse.ArgumentParser(prog="python -m stage_runtime.sample", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("prompt")
    parser.add_argument("--adapter", type=Path)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    told = parser.parse_args()
    try:
        answer = continuations(told.model, told.adapter, told.prompt, told.tokens, told.threads)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
