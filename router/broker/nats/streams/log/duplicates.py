"""The message ids of a stream within its duplicate window, oldest first."""

from __future__ import annotations

from typing import Final, NamedTuple

from router.broker.nats.streams.log.messages import NS_PER_MS, StoredMessage
from router.broker.nats.streams.log.stream_log import StreamLog
from router.broker.storage import DamagedError
from router.wire.nats import headers

MAX_IDS: Final = 500_000
"""Of one stream: of more messages within the window the oldest are forgotten."""
_KEY: Final = b"Nats-Msg-Id"


class _Seen(NamedTuple):
    sequence: int
    time_ms: int


class MessageIds:
    """Ids and where their messages are; `last` is the id of the last message, "": it has none."""

    def __init__(self) -> None:
        self.last = ""
        self._seen: dict[str, _Seen] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def find(self, message_id: str, since_ms: int) -> int:
        """Return the sequence of the message with an id, stored after a time; 0: there is none."""
        seen = self._seen.get(message_id)
        return seen.sequence if seen is not None and seen.time_ms > since_ms else 0

    def add(self, message_id: str, sequence: int, time_ms: int, since_ms: int) -> None:
        """Remember an id, and forget those of messages that were stored up to a time."""
        self._seen.pop(message_id, None)
        self._seen[message_id] = _Seen(sequence, time_ms)
        for _ in range(2):  # two for each that comes, so that the old ones go
            oldest = next(iter(self._seen), None)
            if oldest is None:
                break
            if self._seen[oldest].time_ms > since_ms and len(self._seen) <= MAX_IDS:
                break
            del self._seen[oldest]


async def restore_ids(ids: MessageIds, log: StreamLog, window_ns: int, now_ms: int) -> None:
    """Read the ids of the messages of the window, and that of the last message. Raises OSError.

    Those behind an open transaction, which no reader may have yet, are among them.
    """
    window_ms = window_ns // NS_PER_MS
    ledger, since_ms = log.ledger, now_ms - window_ms

    def note(message: StoredMessage) -> None:
        if _KEY in message.headers and (found := headers.first(message.headers, headers.MSG_ID)):
            ids.add(found, message.sequence, message.time_ns // NS_PER_MS, since_ms)

    last = await log.read(log.visible.last_to(log.last_sequence - 1) + 1)
    if window_ms > 0:
        try:
            entry = await ledger.find_time(max(0, since_ms))
        except DamagedError as damage:
            entry = damage.first
        first = await ledger.number_before(entry)
        async for messages in log.scan(first + 1, log.last_sequence):
            for message in messages:
                note(message)
    if log.indexer is not None:
        async for last in log.indexer.take_withheld():
            note(last)
    if last is not None:
        ids.last = headers.first(last.headers, headers.MSG_ID) or ""
