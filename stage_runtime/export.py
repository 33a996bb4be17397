"""`python -m stage_runtime.export`: a job's tensors and its base model become one checkpoint.

A child of the fellow daemon: reads one ExportStart on stdin, prints one JSON line when it is done
or has failed, and ends when stdin ends. One weight file at a time is fetched, merged, brought to
the leader and dropped, so disk and memory stay bounded by the largest file and a few blocks.
"""

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch

from stage_runtime.bring import Whole, bring
from stage_runtime.checkpoint import INDEX, SINGLE, weight_files
from stage_runtime.download import MODELS_FOLDER, Downloader, allow_leader
from stage_runtime.leader_files import LeaderAccess, fetch_file, refuse_full_disk
from stage_runtime.merge import Adapters, Written, merge_file
from stage_runtime.model_facts import facts_from_config
from stage_runtime.one_order import carry_out
from transport.orders import ExportStart

BESIDE = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
)
"""What a checkpoint has beside weights and config.json, where the base has it."""
_LICENSE = re.compile(
    r"^license:\s*[\"']?([A-Za-z0-9][A-Za-z0-9.+-]{0,39})[\"']?\s*$", re.MULTILINE
)
MAX_CARD_BYTES = 1_000_000


class Export:
    """One order, from its first download to the leader's word that all is there."""

    def __init__(self, start: ExportStart) -> None:
        self.order = start.order
        self.leader = LeaderAccess(start.leader_url, start.leader_token, start.leader_pin)
        self.cache, self.work = Path(start.cache_folder), Path(start.work_folder)
        self.base = Downloader(
            self.order.model, self.leader, self.cache / MODELS_FOLDER, lambda: None
        )
        self.sent: dict[str, dict[str, Any]] = {}

    def run(self) -> None:
        """Make every file and bring it.

        Raises:
            SwarmError: what a file, the disk, the hub or the leader refuses.
        """
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        if self.order.model.from_leader:
            allow_leader(self.leader)
        trained = self._trained()
        config = json.loads(self.base.fetch("config.json").read_bytes())
        if self.order.kind == "weights":
            self._send_weights(trained, config)
        else:
            self._send_merged(trained)
        self._send_config(config)
        for name in BESIDE:
            if self.base.has(name):
                self._send_copy(name)
        self._finish()

    def _trained(self) -> Path:
        order = self.order
        path = self.work / "trained.safetensors"
        url = f"/fellow/v1/exports/{order.export_id}/trained"
        known = (order.trained_sha256, order.trained_bytes)
        fetch_file(self.leader, url, path, known, lambda: None)
        return path

    def _send_merged(self, trained: Path) -> None:
        order = self.order
        adapters = Adapters(trained, order.scale, transposed=order.transposed)
        has_index = self.base.has(INDEX)
        files = list(weight_files(self.base.fetch(INDEX).parent)) if has_index else [SINGLE]
        missing = self.base.missing_bytes(files)
        refuse_full_disk(self.cache, missing, "the base model")
        total = 0
        for name in sorted(files):
            source = self.base.fetch(name)
            refuse_full_disk(self.work, 2 * source.stat().st_size, "a merged weight file")
            written = merge_file(source, self.work / name, adapters, order.dtype)
            total += written.tensor_bytes
            self._send(written)
            written.path.unlink()
        adapters.refuse_unused()
        if has_index:
            index = json.loads(self.base.fetch(INDEX).read_bytes())
            index["metadata"] = {**index.get("metadata", {}), "total_size": total}
            self._send_json(INDEX, index)

    def _send_weights(self, trained: Path, config: dict[str, Any]) -> None:
        """A full fine-tune has every weight itself; a tied head is the embedding once more."""
        facts = facts_from_config(config)
        drop = {f"{facts.family.head}.weight"} if facts.tied else set()
        written = merge_file(trained, self.work / SINGLE, None, self.order.dtype, frozenset(drop))
        self._send(written)
        written.path.unlink()

    def _send_config(self, config: dict[str, Any]) -> None:
        dtype = self.order.dtype or ("float32" if self.order.kind == "weights" else None)
        if dtype is not None:
            config["torch_dtype" if "torch_dtype" in config else "dtype"] = dtype
        config.pop("quantization_config", None)
        self._send_json("config.json", config)

    def _send_copy(self, name: str) -> None:
        source = self.base.fetch(name)
        with source.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        self._send(Written(source, digest, source.stat().st_size, 0), name)

    def _send_json(self, name: str, value: dict[str, Any]) -> None:
        path = self.work / name
        data = (json.dumps(value, indent=2) + "\n").encode()
        path.write_bytes(data)
        self._send(Written(path, hashlib.sha256(data).hexdigest(), len(data), 0))

    def _send(self, written: Written, name: str | None = None) -> None:
        name = name or written.path.name
        if not written.size_bytes:
            return
        url = f"/fellow/v1/exports/{self.order.export_id}/files/{name}"
        whole = Whole(written.path, written.sha256, written.size_bytes)
        bring(self.leader, url, whole, lambda: None)
        self.sent[name] = {"sha256": written.sha256, "size_bytes": written.size_bytes}

    def _finish(self) -> None:
        url = f"/fellow/v1/exports/{self.order.export_id}/done"
        told = {"files": self.sent, "base_license": self._license()}
        with self.leader.client() as client:
            answer = client.post(url, json=told)
        if not answer.is_success:
            raise LeaderAccess.refusal(answer)

    def _license(self) -> str | None:
        """What the base's own card says its licence is; None when it does not."""
        if not self.base.has("README.md"):
            return None
        with self.base.fetch("README.md").open("rb") as opened:
            text = opened.read(MAX_CARD_BYTES).decode(errors="replace")
        head = text.split("\n---", 1)[0] if text.startswith("---") else ""
        found = _LICENSE.search(head)
        return found.group(1).lower() if found else None


def _export(start: ExportStart) -> dict[str, Any]:
    torch.set_num_threads(1)
    Export(start).run()
    return {"done": True}


if __name__ == "__main__":
    carry_out(ExportStart, _export)
