"""Downloads of the messages that a topic's page is about."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Final

import orjson
import structlog
from flask import Response, request

from router.errors import BackendTimeoutError, RouterError
from router.model import Stored, TopicName, TopicStats
from router.services.consume import PollMailbox
from router.services.read import TopicReader
from router.services.scan import Scan, ScanBounds
from router.web import bodies, streams
from router.web.access import Right
from router.web.console import shown
from router.web.console.context import PageViews
from router.web.console.masking import HIDE_NOTHING
from router.web.console.message_tab import ends_of, find_messages, masked_line
from router.web.console.pages import FAILS, HEADERS, NO_STORE, SIGN_IN
from router.web.console.selection import SELECTION, Selection, read_selection, texts, with_positions
from router.web.dmaap.stream import STREAM_FAILS, STREAMED
from router.web.openapi.description import EVENTS, ReplyDescription, choice, operation
from router.web.requests import Query

MAX_EXPORTED: Final = 1_000
"""Messages of an export that names no place to begin: the last ones."""
BOUNDS: Final = ScanBounds(100_000, 64 * 1024 * 1024, 60.0)
"""What an export reads that names one."""
PIECE_BYTES: Final = 64 * 1024
KINDS: Final = {"ndjson": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
COLUMNS: Final = ("time", "partition", "position", "key", "value", "headers")
# What spreadsheets take for a formula, unless it is a number.
_FORMULA: Final = re.compile(r"[=+\-@\t\r]")
_NUMBER: Final = re.compile(r"[+-]?[0-9.]+")
_QUOTED: Final = re.compile(r'[",\r\n]')

_log = structlog.get_logger(__name__)


class ExportViews(PageViews):
    """The view of downloads."""

    @operation(
        "GET /console/topics/<topic>/export",
        choice("as", KINDS, "Of which type the file is."),
        *SELECTION,
        answers={
            200: ReplyDescription(
                "The file.", {kind.partition(";")[0]: str for kind in KINDS.values()}
            ),
            **SIGN_IN,
        },
        fails=(*FAILS, "read-failed"),
    )
    def export(self, topic: str) -> Response:
        """Answer the messages of a range that match the filters, as a file."""
        _, name = self._context.authorized(topic, Right.SUBSCRIBE)
        query = Query(request.environ)
        kind = query.choice("as", tuple(KINDS), "ndjson")
        stats = self._services.topics.described(name)
        partitions = self._services.reading.partitions(name)
        now = self._services.histories.now_ms()
        position = partial(self._services.offsets.position, name)
        given = with_positions(texts(query), partitions, position)
        chosen = read_selection(given, partitions, now)
        write = _ndjson if kind == "ndjson" else _csv
        body = _DownloadBody(self._services.reading, write, *self._messages(name, stats, chosen))
        answer = Response(body, content_type=KINDS[kind], headers=HEADERS | NO_STORE)
        # A topic's name holds nothing that would end the quotes.
        answer.headers["Content-Disposition"] = f'attachment; filename="{name.local}.{kind}"'
        return answer

    def _messages(
        self, name: TopicName, stats: TopicStats, chosen: Selection
    ) -> tuple[Iterable[Stored], Callable[[], None]]:
        """Return the messages, and what ends reading them."""
        if chosen.starts is None:
            return find_messages(
                self._services.reading, name, stats, (chosen, HIDE_NOTHING), MAX_EXPORTED
            ).messages, _nothing
        ends = ends_of(self._services.reading, stats, chosen)
        scan = Scan(self._services.reading, name, chosen.starts, ends, BOUNDS)
        return filter(chosen.chosen.matches, _all_of(scan)), scan.close


class _DownloadBody:
    """The body of a download; it is read on as the client takes it."""

    def __init__(
        self,
        reading: TopicReader,
        write: Callable[[Stored], bytes],
        messages: Iterable[Stored],
        close: Callable[[], None],
    ) -> None:
        self._reading = reading
        self._close = close
        self._mailbox = PollMailbox()
        self._counted = False
        try:
            reading.begin(self._mailbox)
            self._counted = True
            pieces = _pieces(write, messages)
            # What fails at once is answered as a failure.
            self._pieces: Iterator[bytes] = chain([next(pieces, b"")], pieces)
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._pieces
        except RouterError as error:
            # The answer has begun: a file that is cut must not look whole.
            _log.warning("export-broke-off", code=error.code, reason=str(error))
            raise ConnectionResetError("the export broke off") from error

    def close(self) -> None:
        """End; called by the server however it ended."""
        self._close()
        if self._counted:
            self._reading.ended(self._mailbox)


def _all_of(scan: Scan) -> Iterator[Stored]:
    """Give the messages of a scan; raise BackendTimeoutError if the store left some out."""
    yield from scan
    if not (scan.whole or scan.is_full):
        raise BackendTimeoutError("The store was too slow: the file holds not all messages.")


def _nothing() -> None:
    pass


def _pieces(write: Callable[[Stored], bytes], messages: Iterable[Stored]) -> Generator[bytes]:
    parts, size = [_row(COLUMNS) if write is _csv else b""], 0
    for stored in messages:
        parts.append(write(stored))
        size += len(parts[-1])
        if size >= PIECE_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    yield b"".join(parts)


def _ndjson(stored: Stored) -> bytes:
    return orjson.dumps(bodies.line(stored), option=orjson.OPT_APPEND_NEWLINE)


def _csv(stored: Stored) -> bytes:
    message, position = stored.message, stored.position
    return _row(
        (
            shown.at(stored.publish_time),
            max(0, position.partition),
            shown.place(position),
            _cell(message.key),
            _cell(None if message.null else message.value),
            orjson.dumps(dict(message.properties)).decode(),
        )
    )


def _row(cells: Iterable[object]) -> bytes:
    return f"{','.join(map(_quoted, cells))}\r\n".encode()


def _quoted(cell: object) -> str:
    """Return a cell as PostgreSQL writes CSV: None is nothing at all, an empty text has quotes.

    The csv module writes both alike.
    """
    if cell is None:
        return ""
    text = str(cell)
    return '"{}"'.format(text.replace('"', '""')) if not text or _QUOTED.search(text) else text


def _cell(value: bytes | None) -> str | None:
    """Return bytes as a text that no spreadsheet takes for a formula; None: there are none."""
    if value is None:
        return None
    text, _ = shown.text(value)
    formula = _FORMULA.match(text) and not _NUMBER.fullmatch(text)
    return f"'{text}" if formula else text


class StreamViews(PageViews):
    """The view of live tails."""

    @operation(
        "GET /console/topics/<topic>/stream",
        *STREAMED,
        answers={
            200: ReplyDescription("Messages as server-sent events.", {streams.MIMETYPE: EVENTS}),
            **SIGN_IN,
        },
        fails=STREAM_FAILS,
    )
    def stream(self, topic: str) -> Response:
        """Answer the messages of a topic as they come."""
        principal, name = self._context.authorized(topic, Right.BROWSE)
        mask = self._context.mask(principal, name)
        if not mask.hides:
            return self._services.streams.serve(principal, name)
        return self._services.streams.follow(
            name, lambda stored: orjson.dumps(masked_line(mask.shown(stored)))
        )
