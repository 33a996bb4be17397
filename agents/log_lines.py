"""Log lines as JSON, one object a line, with secrets taken out.

The one redacting filter of the command line and the fellow daemon. Knows what a secret looks like;
does not know where lines end up: stderr, or a file of the caller's choice.
"""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from pathlib import Path

# Credentials and invites of ours (swn_, swi_, swt_ ...), hub tokens, and anything after "Bearer".
# No word boundary before them: the n of an escaped line break may stand there.
_SECRET = re.compile(
    r"sw[a-z]{1,3}_[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}|(?<=Bearer )[^\s\"',;]+",
    re.IGNORECASE,
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]")
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def redact(text: str) -> str:
    """The text with everything that looks like a secret replaced."""
    return _SECRET.sub("[hidden]", text)


def clean(text: str, limit: int) -> str:
    """Text from elsewhere without control and direction characters, at most `limit` long."""
    kept = _CONTROL.sub("", text.replace("\t", " ").replace("\n", " "))
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"


class JsonLines(logging.Formatter):
    """One record as one JSON object: time, level, message, and the facts given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Render one record; secrets are hidden wherever they stand in it."""
        facts = {k: v for k, v in record.__dict__.items() if k not in _STANDARD}
        at = datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds")
        line = {
            "at": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **facts,
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return redact(json.dumps(line, default=str, ensure_ascii=False))


def start_log(level: str = "info", file: Path | None = None) -> None:
    """Send every logger's lines to stderr, or to a file that only its owner can read."""
    if file is None:
        handler: logging.Handler = logging.StreamHandler(sys.stderr)
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
        handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Each request of a held order would be a line a minute: only their trouble is worth one.
    logging.getLogger("httpx2").setLevel("WARNING")
    logging.getLogger("httpcore2").setLevel("WARNING")
