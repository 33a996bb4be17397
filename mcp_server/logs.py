"""The leader's log: one JSON object a line on stderr, with secrets taken out of the finished line.

The line and not its parts is cleaned, so that a secret in a traceback, an argument or an extra
field does not get past.
"""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import TextIO

# Access tokens, invites and fellows' credentials all begin with sw, a letter and _; hub tokens with
# hf_. The others are recognised by what stands before them.
SECRET = re.compile(
    r"""(?P<kind>sw[a-z]_|hf_)[A-Za-z0-9_\-.]{8,}
    | (?P<before>(?i:bearer)\s+ | \bcode= | \b(?:__Host-swarm|swarm_session)=)
      [A-Za-z0-9_\-.~+/=]{8,}""",
    re.VERBOSE,
)
PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def redact(text: str) -> str:
    """The same text with every secret cut to what names its kind."""
    return SECRET.sub(lambda found: f"{found['kind'] or found['before']}…", text)


class JsonLines(logging.Formatter):
    """A record as one line of JSON: at, level, logger, message, the extra fields, the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The finished line, redacted."""
        told: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        told |= {k: v for k, v in record.__dict__.items() if k not in PLAIN}
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return redact(json.dumps(told, default=str, ensure_ascii=False))


def start_logging(level: str, stream: TextIO | None = None) -> None:
    """Send every logger's lines to stderr (stdout belongs to the ready line and to stdio MCP)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # They tell of every single request and session.
    for chatty in ("mcp", "httpx2", "uvicorn.error", "sse_starlette"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
