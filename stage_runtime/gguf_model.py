"""Turn a GGUF checkpoint into an ordinary safetensors folder: `python -m stage_runtime.gguf_model
FILE FOLDER`.

The leader's model store takes safetensors only. Some models come as one GGUF file; transformers
can read it, and what is written here is a plain sharded checkpoint with its tokenizer. Knows
nothing of leader or fellows.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

SHARD_SIZE = "60MB"  # several files, so that a stage need not fetch the layers of the others


def convert(source: Path, folder: Path, dtype_name: str = "bfloat16") -> dict[str, Any]:
    """Write the model in `source` (a .gguf file) to `folder`, which must not exist yet.

    Returns: {"folder", "parameters", "size_bytes", "seconds"}.
    Errors: FileNotFoundError, FileExistsError; whatever transformers says of a file it cannot read.
    """
    if not source.is_file():
        raise FileNotFoundError(f"there is no file {source}")
    if folder.exists():
        raise FileExistsError(f"{folder} exists already")
    began = time.perf_counter()
    dtype = getattr(torch, dtype_name)
    model: Any = AutoModelForCausalLM.from_pretrained(
        str(source.parent), gguf_file=source.name, dtype=dtype
    )
    tokenizer: Any = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    # Dequantized by now; without this save_pretrained still calls them GGUF and refuses.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    # Written beside and renamed, so that an interrupted conversion never looks finished.
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    model.save_pretrained(str(partial), max_shard_size=SHARD_SIZE)
    tokenizer.save_pretrained(str(partial))
    partial.rename(folder)
    return {
        "folder": str(folder),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "size_bytes": sum(file.stat().st_size for file in folder.iterdir()),
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> int:
    """Read two paths, convert, print one JSON line."""
    parser = argparse.ArgumentParser(prog="python -m stage_runtime.gguf_model", description=__doc__)
    parser.add_argument("source", type=Path, help="the .gguf file")
    parser.add_argument("folder", type=Path, help="the folder to make")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    told = parser.parse_args()
    try:
        sys.stdout.write(json.dumps(convert(told.source, told.folder, told.dtype)) + "\n")
    except (OSError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
