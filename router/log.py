"""Log lines: JSON or text, on standard error and in a bounded file, and never a secret in them.

Everything goes through the standard library's handlers in the end, so that lines of asyncio and of
other libraries come in the same form as ours.
"""

from __future__ import annotations

import logging
import os
import re
from io import FileIO, TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

FILE_BYTES: Final = 8 << 20
FILES_KEPT: Final = 2

_SECRET_KEYS: Final = re.compile(
    r"authorization|password|passwd|secret|token|cookie|auth_data", re.I
)
_SECRET_TEXT: Final = re.compile(r"\b(basic|bearer)\s+[A-Za-z0-9+/=._~-]{6,}", re.I)


def configure(level: str, form: str, *, file: Path | None = None, stderr: bool = True) -> None:
    """Send log lines of this process to standard error, and to the file if there is one.

    `level` and `form` are the settings `log.level` and `log.format`. Without `stderr` they go to
    the file only, which is private and bounded. Callable again: the last call is in force.
    """
    handlers: list[logging.Handler] = [logging.StreamHandler()] if stderr else []
    if file is not None:
        handlers.append(_PrivateFile(file, maxBytes=FILE_BYTES, backupCount=FILES_KEPT))
    before: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        without_secrets,
    ]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=before,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _renderer(form)],
    )
    for handler in handlers:
        handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=handlers, force=True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *before,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def without_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Blank fields that are named like secrets, and credentials of HTTP headers in any text."""
    for key, value in event.items():
        if _SECRET_KEYS.search(key):
            event[key] = "***"
        elif isinstance(value, str):
            event[key] = _SECRET_TEXT.sub(r"\1 ***", value)
    return event


class _PrivateFile(RotatingFileHandler):
    """A log file that only this user reads, after it was rotated too."""

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self.baseFilename, flags, 0o600)
        return TextIOWrapper(FileIO(descriptor, "a"), encoding="utf-8", write_through=True)


def _renderer(form: str) -> Processor:
    if form == "json":
        return structlog.processors.JSONRenderer(sort_keys=True)
    return structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"])
