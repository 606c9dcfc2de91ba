"""Delete markers: messages that take the place of the last ones of subjects whose time is over.

Theory of operation (ADR-43). A marker is appended as what a client publishes, with a sequence of
its own, and consumers see by it that the subject has no value any more. The message that it
replaces is deleted when the marker is on disk: a kill leaves the one or the other, or both, and the
next look at the deadlines goes on from there. A subject has one marker at a time, about, so that
nats.max_subjects bounds their deadlines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from router.broker.nats.streams.log.deadlines import MARKER_REASON, TTL
from router.broker.nats.streams.log.duplicates import MessageIds
from router.broker.nats.streams.log.stream_log import IndexedMessage, StreamLog
from router.broker.nats.streams.log.subject_index import stored_size
from router.broker.storage import NATS_FORMAT
from router.wire.nats import headers
from router.wire.nats.jetstream.times import format_duration
from router.wire.nats.message import NatsMessage
from router.wire.nats.stored import pack

MAX_ENTRY_MARKERS: Final = 100
"""Of one entry; a subject has at most 4 KiB."""

StoredObserver = Callable[[Iterable[tuple[int, str]], int], None]
"""Called with sequences and subjects of markers that are on disk, and the entry that has them."""


class DeleteMarkers:
    """The markers of one stream that are on their way to the disk; `now_ms` counts from 1970."""

    def __init__(
        self,
        log: StreamLog,
        ids: MessageIds,
        now_ms: Callable[[], int],
        on_stored: StoredObserver,
    ) -> None:
        self._log = log
        self._ids = ids
        self._now_ms = now_ms
        self._on_stored = on_stored
        # Sequences of messages that are still to be deleted for their markers.
        self.replacing: set[int] = set()
        self._subjects: Counter[str] = Counter()
        self._replaced: list[IndexedMessage] = []

    def is_last(self, subject: str, removed: int) -> bool:
        """Return whether one message of a subject is left when so many are removed."""
        index = self._log.index
        state = index.subjects.get(subject) if index is not None else None
        return state is not None and state.count - self._subjects[subject] - removed == 1

    def is_replacing(self, sequence: int) -> bool:
        """Return whether a message is to be deleted for its marker."""
        return sequence in self.replacing

    def replace(self, messages: Sequence[IndexedMessage], ttl_seconds: int) -> None:
        """Append a marker for each of some messages; `delete_replaced` follows."""
        for start in range(0, len(messages), MAX_ENTRY_MARKERS):
            self._append(messages[start : start + MAX_ENTRY_MARKERS], ttl_seconds)

    def delete_replaced(self) -> None:
        """Delete the messages whose markers are on disk; the index has all that is there."""
        replaced, self._replaced = self._replaced, []
        if not replaced:
            return
        self.replacing -= {one.sequence for one in replaced}
        self._subjects -= Counter(one.subject for one in replaced)
        assert self._log.indexer is not None
        is_deleted = self._log.indexer.is_deleted
        self._log.delete_indexed([one for one in replaced if not is_deleted(one.sequence)])

    def _append(self, messages: Sequence[IndexedMessage], ttl_seconds: int) -> None:
        log, now_ms, block = self._log, self._now_ms(), _marker_headers(ttl_seconds)
        ledger, indexer = log.ledger, log.indexer
        assert indexer is not None
        first = ledger.next_index + 1
        payload = pack([NatsMessage(one.subject, headers=block) for one in messages])
        stored = partial(self._stored, messages, first)
        entry_id = ledger.append(payload, NATS_FORMAT, len(messages), now_ms, stored)
        for sequence, one in enumerate(messages, first):
            place = sequence, one.subject, stored_size(one.subject, block, b"")
            indexer.add(place[1], sequence, place[2])
            indexer.deadlines.add(now_ms, ttl_seconds, place, is_marker=True)
        indexer.appended(entry_id)
        self._ids.last = ""
        self.replacing.update(one.sequence for one in messages)
        self._subjects.update(one.subject for one in messages)

    def _stored(self, messages: Sequence[IndexedMessage], first: int, entry_id: int) -> None:
        self._replaced += messages
        places = ((sequence, one.subject) for sequence, one in enumerate(messages, first))
        self._on_stored(places, entry_id)


def _marker_headers(ttl_seconds: int) -> bytes:
    """Return the headers of a marker, as nats-server writes them."""
    return headers.build(
        [
            (MARKER_REASON, "MaxAge"),
            (TTL, format_duration(ttl_seconds)),
            ("Nats-Rollup", "sub"),
        ]
    )
