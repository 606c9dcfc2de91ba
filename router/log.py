"""Log lines: JSON or text, on standard error and in a bounded file, and never a secret in them.

Everything goes through the standard library's handlers in the end, so that lines of asyncio and of
other libraries come in the same form as ours. Where every line of a process is to be JSON
(`log.format=json`), its standard streams are log lines too (`capture`): what it says to its user,
what libraries print, and tracebacks. The alternative, to have each place that prints ask for the
format, holds for no library.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from io import FileIO, TextIOBase, TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import TracebackType
from typing import Final, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

FILE_BYTES: Final = 8 << 20
FILES_KEPT: Final = 2

_SECRET_KEYS: Final = re.compile(
    r"authorization|password|passwd|secret|token|cookie|auth_data", re.I
)
_SECRET_TEXT: Final = re.compile(r"\b(basic|bearer)\s+[A-Za-z0-9+/=._~-]{6,}", re.I)


MAX_REFUSAL_LINES_PER_SECOND: Final = 20
MAX_EQUAL_LINES: Final = 10
"""Equal warnings that are written within EQUAL_LINES_SECONDS."""
EQUAL_LINES_SECONDS: Final = 60.0
MAX_DIFFERENT_LINES: Final = 1_000
"""Different warnings whose repetition is counted; the ones longest ago are forgotten."""
OUTPUT: Final = "router.output"
"""Logger of what a process writes to its standard streams; no level leaves it out."""
MAX_PARTIAL_LINE_CHARACTERS: Final = 64 * 1024

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The transaction id of the request that is served now; None outside of a request."""

_WRITTEN: Final = "router_written"
_VARYING: Final = frozenset({"timestamp", "request_id", "left_out"})
_PREFIX: Final = re.compile(r"router(?:\.broker)?: ")
_process_name = "router"


def configure(
    level: str,
    form: str,
    *,
    process: str = "command",
    file: Path | None = None,
    stderr: bool = True,
) -> None:
    """Send log lines of this process to standard error, and to the file if there is one.

    `level` and `form` are the settings `log.level` and `log.format`; each line says that it comes
    from `process`. Without `stderr` lines go to the file only, which is private and bounded.
    Callable again: the last call is in force.
    """
    name_process(process)
    before: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        _add_origin,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        without_secrets,
    ]
    handlers: list[logging.Handler] = []
    if stderr:
        stream = uncaptured(sys.stderr)
        readable = form == "text" or (form == "auto" and stream.isatty())
        handlers.append(_formatted(logging.StreamHandler(stream), before, readable))
    if file is not None:
        kept = _PrivateFile(file, maxBytes=FILE_BYTES, backupCount=FILES_KEPT)
        handlers.append(_formatted(kept, before, form == "text"))
    repeated = RepetitionFilter(time.monotonic)
    for handler in handlers:
        handler.addFilter(repeated)
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


def begin(
    process: str, level: str, form: str, *, file: Path | None = None, stderr: bool = True
) -> None:
    """Configure the log of a process that serves: with `json` all that it writes is JSON.

    A standard output that is closed is replaced by one that discards everything.
    """
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - for the process
    configure(level, form, process=process, file=file, stderr=stderr)
    if form == "json":
        capture()


def write_output(text: str) -> None:
    """Write to standard output; one that takes nothing, as on a full disk, is given up."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        structlog.get_logger(__name__).warning("output-lost", reason=str(error))
        # What it holds would fail again at each flush, and at the end of the process.
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - for the process


def name_process(process: str) -> None:
    """Have lines say that they come from this process: a forked one is another than its parent."""
    global _process_name  # noqa: PLW0603 - one process has one name
    _process_name = process


def capture() -> None:
    """Make log lines of what is written to the standard streams, and of uncaught exceptions."""
    logging.captureWarnings(True)
    logging.getLogger(OUTPUT).setLevel(logging.DEBUG)
    sys.stdout = _Captured.of(sys.stdout, logging.INFO)
    sys.stderr = _Captured.of(sys.stderr, logging.WARNING)
    sys.excepthook = log_uncaught
    threading.excepthook = _log_uncaught_in_thread
    sys.unraisablehook = _log_unraisable


def uncaptured(stream: TextIO) -> TextIO:
    """Return the stream itself, where it is captured what lies behind."""
    return stream._stream if isinstance(stream, _Captured) else stream


def is_capturing() -> bool:
    """Return whether all that this process writes is log lines."""
    return isinstance(sys.stderr, _Captured)


def log_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Log an exception that nothing caught, traceback and all, as one line."""
    if issubclass(kind, KeyboardInterrupt):
        return
    logging.getLogger(OUTPUT).error("uncaught exception", exc_info=(kind, error, trace))


def _log_uncaught_in_thread(found: threading.ExceptHookArgs) -> None:
    if found.exc_value is not None and not issubclass(found.exc_type, SystemExit):
        log_uncaught(found.exc_type, found.exc_value, found.exc_traceback)


def _log_unraisable(found: sys.UnraisableHookArgs) -> None:
    if found.exc_value is not None:
        log_uncaught(found.exc_type, found.exc_value, found.exc_traceback)


class LineLimit:
    """Bounds the log lines that clients cause; `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._second = -1
        self._lines = 0
        self._left_out = 0

    def admit(self) -> dict[str, int] | None:
        """Return what a line has to say of those left out before it; None: leave it out, too."""
        second = int(self._clock())
        with self._lock:
            if second != self._second:
                self._second, self._lines = second, 0
            if self._lines >= MAX_REFUSAL_LINES_PER_SECOND:
                self._left_out += 1
                return None
            self._lines += 1
            left_out, self._left_out = self._left_out, 0
            return {"left_out": left_out} if left_out else {}


@dataclass(slots=True)
class _Repetition:
    """How often a line was written since a time, and how many were left out."""

    since: float
    lines: int = 0
    left_out: int = 0


class RepetitionFilter(logging.Filter):
    """Leaves out a warning or an error that was written MAX_EQUAL_LINES times a moment ago.

    Lines are equal if all that they say is, but their time and their request. The next one that is
    written says how many were left out before it. All handlers share one filter. `clock` is
    monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._repetitions: OrderedDict[int, _Repetition] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is written; note in it how many were left out before."""
        if record.levelno < logging.WARNING:
            return True
        if (known := record.__dict__.get(_WRITTEN)) is not None:  # by another handler
            return bool(known)
        left_out = self._admit(hash((record.name, record.levelno, _content(record))))
        record.__dict__[_WRITTEN] = left_out is not None
        if left_out and isinstance(record.msg, dict):
            record.msg = {**record.msg, "left_out": record.msg.get("left_out", 0) + left_out}
        elif left_out:
            record.msg, record.args = f"{record.getMessage()} (left out: {left_out})", ()
        return left_out is not None

    def _admit(self, line: int) -> int | None:
        """Return how many equal lines were left out before this one; None: leave it out, too."""
        now = self._clock()
        with self._lock:
            found = self._repetitions.setdefault(line, _Repetition(now))
            self._repetitions.move_to_end(line)
            if len(self._repetitions) > MAX_DIFFERENT_LINES:
                self._repetitions.popitem(last=False)
            if now - found.since >= EQUAL_LINES_SECONDS:
                found.since, found.lines = now, 0
            if found.lines >= MAX_EQUAL_LINES:
                found.left_out += 1
                return None
            found.lines += 1
            left_out, found.left_out = found.left_out, 0
            return left_out


def _content(record: logging.LogRecord) -> tuple[str, ...]:
    """Return what a line says, without what tells equal ones apart."""
    if isinstance(record.msg, dict):
        return tuple(f"{name}={record.msg[name]}" for name in record.msg if name not in _VARYING)
    failure = record.exc_info[1] if record.exc_info else None
    return (record.getMessage(), type(failure).__name__, str(failure))


class _Captured(TextIOBase):
    """A standard stream whose text becomes log lines; a text of several lines is one of them."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, stream: TextIO, level: int) -> None:
        super().__init__()
        self._stream = stream
        self._level = level
        self._partial = ""
        # What a handler prints of its own failure must not be logged again.
        self._own = threading.local()

    @classmethod
    def of(cls, stream: TextIO, level: int) -> TextIO:
        """Return the stream, captured; one that is captured already as it is."""
        return stream if isinstance(stream, cls) else cls(stream, level)  # type: ignore[return-value] # a TextIOBase is all of TextIO that is used

    def write(self, text: str, /) -> int:
        """Log the complete lines of a text; the rest waits for its end."""
        if not isinstance(text, str):
            raise TypeError("a text stream takes text")
        if getattr(self._own, "busy", False):
            return self._stream.write(text)
        whole, newline, self._partial = (self._partial + text).rpartition("\n")
        if len(self._partial) > MAX_PARTIAL_LINE_CHARACTERS:
            whole, newline, self._partial = self._partial, "\n", ""
        if newline:
            self._log(whole)
        return len(text)

    def flush(self) -> None:
        """Log what has no end yet."""
        rest, self._partial = self._partial, ""
        self._log(rest)

    def fileno(self) -> int:
        """Return the descriptor of the stream."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Return False: what is logged is read by programs."""
        return False

    def writable(self) -> bool:
        """Return True."""
        return True

    def _log(self, text: str) -> None:
        if not text.strip():
            return
        self._own.busy = True
        try:
            logging.getLogger(OUTPUT).log(self._level, "%s", _PREFIX.sub("", text, count=1))
        finally:
            self._own.busy = False


def _add_origin(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Say which process a line comes from, and to which request it belongs."""
    event["pid"] = os.getpid()
    event["process"] = _process_name
    event.setdefault("request_id", request_id.get())
    return event


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
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.baseFilename, flags, 0o600)
        return TextIOWrapper(FileIO(descriptor, "a"), encoding="utf-8", write_through=True)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - as logging has it
        """Leave out a line that a full disk does not take, without a traceback for each."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def _formatted(
    handler: logging.Handler, before: list[Processor], readable: bool
) -> logging.Handler:
    """Return the handler with its form: text for people, else JSON."""
    renderer: Processor = structlog.processors.JSONRenderer(sort_keys=True)
    if readable:
        renderer = structlog.processors.KeyValueRenderer(
            key_order=["timestamp", "level", "event"], drop_missing=True
        )
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=before,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    return handler
