"""What a publish must fulfil to be stored: limits of the stream, and what its headers expect.

The order is that of nats-server, since the first refusal is the one that a client sees.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from router.broker.nats.streams.log.deadlines import MARK, TTL, message_ttl
from router.broker.nats.streams.log.messages import NS_PER_MS
from router.broker.nats.streams.log.subject_index import SubjectState, stored_size
from router.broker.nats.streams.stream import Stream
from router.wire.nats import headers
from router.wire.nats.jetstream.config import StreamConfig
from router.wire.nats.jetstream.errors import ErrorCode, JetStreamError, error
from router.wire.nats.jetstream.policies import Discard
from router.wire.nats.message import NatsMessage

MAX_HEADERS_BYTES: Final = 64 << 10
ROLLUP_SUBJECT: Final = "sub"
ROLLUP_ALL: Final = "all"

_MARK: Final = b"Nats-"
_MAX_DIGITS: Final = 20
_REFUSED_HEADERS: Final = (
    ("Nats-Incr", ErrorCode.MESSAGE_INCR_DISABLED),
    ("Nats-Batch-Id", ErrorCode.ATOMIC_PUBLISH_DISABLED),
    ("Nats-Schedule", ErrorCode.MESSAGE_SCHEDULES_DISABLED),
)


class DuplicateMessage(Exception):  # noqa: N818 - an answer, not a fault
    """A message with this id is stored already, under a sequence."""

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        super().__init__(f"it is message {sequence}")


class UnresolvedSubject(Exception):  # noqa: N818 - a reason to wait, not a fault
    """The last sequence of a subject has to be read from the log first."""

    def __init__(self, subject: str, state: SubjectState) -> None:
        self.subject = subject
        self.state = state
        super().__init__(subject)


class Conditions(NamedTuple):
    """What the headers of a message mean for storing it."""

    message_id: str = ""
    rollup: str = ""
    ttl_seconds: int = 0
    headers: bytes = b""
    """The block to store in place of the message's own, if it is another one."""


NO_CONDITIONS: Final = Conditions()


def check_message(stream: Stream, message: NatsMessage, next_sequence: int) -> Conditions:
    """Check a message that would be stored under a sequence.

    Raises JetStreamError, DuplicateMessage, UnresolvedSubject.
    """
    subject, _, block, payload = message
    config, found = stream.config, NO_CONDITIONS
    if config.sealed or stream.ledger.terminated:
        raise error(ErrorCode.STREAM_SEALED)
    if block and _MARK in block:
        found = _check_headers(stream, subject, block, next_sequence)
    if 0 <= config.max_msg_size < len(block) + len(payload):
        raise error(ErrorCode.STREAM_MESSAGE_EXCEEDS_MAXIMUM)
    if len(block) > MAX_HEADERS_BYTES:
        raise error(ErrorCode.STREAM_HEADER_EXCEEDS_MAXIMUM)
    index = stream.log.index
    if index is not None:
        if not index.has_room(subject):
            raise _store_failed("the streams have as many subjects as nats.max_subjects allows")
        if config.discard is Discard.NEW:
            _check_room(stream, message)
    return found


def _check_headers(stream: Stream, subject: str, block: bytes, next_sequence: int) -> Conditions:
    first = headers.first
    for name, code in _REFUSED_HEADERS:
        if first(block, name) is not None:
            raise error(code)
    ttl_seconds = _time_to_live(stream, block) if MARK in block else 0
    expected = first(block, "Nats-Expected-Stream")
    if expected and expected != stream.name:
        raise error(ErrorCode.STREAM_NOT_MATCH)
    message_id = first(block, headers.MSG_ID) or ""
    if message_id:
        since_ms = stream.context.now_ms() - stream.config.duplicate_window // NS_PER_MS
        if sequence := stream.ids.find(message_id, since_ms):
            raise DuplicateMessage(sequence)
    _check_last_of_subject(stream, subject, block, next_sequence)
    expected = first(block, "Nats-Expected-Last-Sequence")
    if expected is not None and _number(expected) != next_sequence - 1:
        raise error(ErrorCode.STREAM_WRONG_LAST_SEQUENCE, seq=next_sequence - 1)
    expected = first(block, "Nats-Expected-Last-Msg-Id")
    if expected and expected != stream.ids.last:
        raise error(ErrorCode.STREAM_WRONG_LAST_MSG_ID, id=stream.ids.last)
    rollup = _rollup(stream, block)
    if ttl_seconds is None:
        raise error(ErrorCode.MESSAGE_TTL_INVALID)
    if 0 < ttl_seconds < (shortest := _shortest_ttl(stream.config)):
        block = headers.with_value(block, TTL, str(shortest))
        return Conditions(message_id, rollup, shortest, block)
    return Conditions(message_id, rollup, ttl_seconds)


def _time_to_live(stream: Stream, block: bytes) -> int | None:
    """Return the seconds that a message may live, 0: for ever; None: the header says neither."""
    try:
        ttl_seconds = message_ttl(block)
    except ValueError:
        return None
    if ttl_seconds and not stream.config.allow_msg_ttl:
        raise error(ErrorCode.MESSAGE_TTL_DISABLED)
    indexer = stream.log.indexer
    if ttl_seconds <= 0 or indexer is None:
        return 0
    if not indexer.deadlines.accept_more(stream.context.now_ms()):
        raise _store_failed("the stream has as many messages with a time to live as it may have")
    return ttl_seconds


def _shortest_ttl(config: StreamConfig) -> int:
    """Return the seconds that a message lives at least.

    A delete marker that is before it on its subject goes first, so that it gets one of its own.
    """
    return 0 if config.max_msgs_per_subject == 1 else config.marker_seconds


def _check_last_of_subject(stream: Stream, subject: str, block: bytes, next_sequence: int) -> None:
    text = headers.first(block, "Nats-Expected-Last-Subject-Sequence")
    pattern = headers.first(block, "Nats-Expected-Last-Subject-Sequence-Subject")
    if text is None:
        if pattern:
            raise error(ErrorCode.STREAM_EXPECTED_LAST_SEQ_PER_SUBJECT_INVALID)
        return
    last = _last_sequence(stream, pattern or subject, next_sequence)
    if _number(text) != last:
        raise error(ErrorCode.STREAM_WRONG_LAST_SEQUENCE, seq=last)


def _last_sequence(stream: Stream, pattern: str, next_sequence: int) -> int:
    """Return the last sequence of a subject or of all that match, all before the next included."""
    index = stream.log.index
    if index is None:
        bounds = stream.log.bounds((pattern,))
        last = stream.visible.last_to(next_sequence - 2) + 1
        return last if bounds is not None and last >= bounds[0] else 0
    if index.overflowed:
        raise error(ErrorCode.STREAM_EXPECTED_LAST_SEQ_PER_SUBJECT_NOT_READY)
    last = 0
    for subject, state in index.matching((pattern,)):
        if not state.last_exact:
            raise UnresolvedSubject(subject, state)
        last = max(last, state.last)
    return last


def _rollup(stream: Stream, block: bytes) -> str:
    rollup = (headers.first(block, "Nats-Rollup") or "").lower()
    if rollup:
        config = stream.config
        if not config.allow_rollup_hdrs or config.deny_purge:
            raise error(ErrorCode.STREAM_ROLLUP_FAILED, err="rollup not permitted")
        if rollup not in {ROLLUP_SUBJECT, ROLLUP_ALL}:
            raise error(ErrorCode.STREAM_ROLLUP_FAILED, err=f'rollup value invalid: "{rollup}"')
    return rollup


def _check_room(stream: Stream, message: NatsMessage) -> None:
    """Raise JetStreamError 10077 if a stream that discards new messages is full."""
    config, index = stream.config, stream.log.index
    assert index is not None
    size = stored_size(message.subject, message.headers, message.payload)
    state = index.subjects.get(message.subject)
    limit = config.max_msgs_per_subject
    if state is not None and 0 < limit <= state.count:
        if config.discard_new_per_subject:
            raise _store_failed("maximum messages per subject exceeded")
        # It takes the place of the oldest one of its subject.
        size -= state.places[0][1] if state.places else 0
    elif 0 < config.max_msgs <= index.messages:
        raise _store_failed("maximum messages exceeded")
    if 0 < config.max_bytes < index.bytes + size:
        raise _store_failed("maximum bytes exceeded")


def _store_failed(sentence: str) -> JetStreamError:
    return error(ErrorCode.STREAM_STORE_FAILED, err=sentence)


def _number(text: str) -> int:
    """Return an unsigned number, -1: it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else -1
