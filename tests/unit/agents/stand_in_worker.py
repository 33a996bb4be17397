"""A worker without torch that speaks the channel's lines; the order's plan_id is its behaviour."""

import json
import os
import signal
import sys
from typing import Any, BinaryIO

AT = 1.0


def say(out: BinaryIO, order: dict[str, Any], kind: str, **more: Any) -> None:
    """Write one report."""
    named = {name: order[name] for name in ("job_id", "attempt", "stage")}
    out.write(json.dumps({"kind": kind, "at": AT, **named, **more}).encode() + b"\n")
    out.flush()


def step(out: BinaryIO, order: dict[str, Any], number: int) -> None:
    """Report one step."""
    say(out, order, "step", step=number, loss=2.0, grad_norm=1.0, learning_rate=1e-3,
        supervised_tokens=10, step_s=0.1, compute_s=0.1, wait_s=0.0, skipped=False)  # fmt: skip


def run(lines: BinaryIO, out: BinaryIO) -> int:
    """One stage from its first line to an exit code."""
    first = lines.readline()
    if not first:
        return 1
    start = json.loads(first)
    order, behaviour = start["order"], start["order"]["plan_id"]
    if behaviour == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        say(out, order, "bound", public_key="k" * 40, endpoints=[])
        while True:
            signal.pause()
    if behaviour == "garbage":
        out.write(b'{"kind": "no such kind"}\nnot json at all\n')
        say(out, {**order, "stage": order["stage"] + 1}, "done", sent_bytes=0, received_bytes=0)
    say(out, order, "bound", public_key="k" * 40, endpoints=[f"pid:{os.getpid()}"])
    if behaviour == "die":
        print("Traceback: the last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "exit7":
        return 7
    if behaviour == "silent":
        return 0
    if behaviour == "secret":
        print(f"token {start['leader_token']}", file=sys.stderr, flush=True)
    if behaviour == "fails":
        say(out, order, "failed", code="stage-failed", message="my own reason")
        return 3
    if behaviour == "finish":
        return finish(out, order)
    for raw in lines:
        told = json.loads(raw)
        if told["kind"] == "pause":
            say(out, order, "log", level="info", text=f"paused: {told['reason']}")
            return 4
        say(out, order, "loaded", weight_bytes=1, priced_bytes=1, load_s=0.1, downloaded_bytes=0,
            adapters_digest="")  # fmt: skip
        if behaviour == "linked":
            return finish(out, order)
    return 5  # the channel ended


def finish(out: BinaryIO, order: dict[str, Any]) -> int:
    """All steps and a proper end."""
    for number in range(1, order["settings"]["steps"] + 1):
        step(out, order, number)
    say(out, order, "done", sent_bytes=11, received_bytes=22)
    return 0


if __name__ == "__main__":
    sys.exit(run(os.fdopen(0, "rb", buffering=0), os.fdopen(os.dup(0), "wb")))
