"""The latest event time of an entry is that of the messages that `unpack` finds in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.model import Message
from router.wire.pulsar import ProtocolError, join_payload, latest_event_time, pack, unpack
from router.wire.pulsar.pulsar_pb2 import EncryptionKeys, SingleMessageMetadata
from tests.wire.test_pulsar_batches import KINDS, LIMIT, SOME, batch, counting, metadata

STORED = 1_700_000_000_000
TIMES = st.none() | st.integers(0, (1 << 64) - 1) | st.integers(STORED - 50, STORED + 50)


def expected(payload: bytes) -> int:
    times = [one.message.event_time or 0 for one in unpack(payload, LIMIT)]
    return max([time if 0 < time < 1 << 63 else STORED for time in times], default=0)


@pytest.mark.no_cover
@given(messages=SOME, kind=KINDS, times=st.lists(TIMES, min_size=20))
def test_it_is_the_latest_of_all_messages(
    messages: list[Message], kind: int, times: list[int | None]
) -> None:
    messages = [
        message._replace(event_time=time) for message, time in zip(messages, times, strict=False)
    ]
    for producer in ("somebody", "router-1"):
        payload = bytes(pack(messages, producer, 1, 2, kind))  # type: ignore[arg-type]
        assert latest_event_time(payload, STORED, LIMIT) == expected(payload)


@given(body=st.binary(max_size=60), count=st.integers(0, 5))
def test_of_any_bytes_it_is_a_number_or_refused(body: bytes, count: int) -> None:
    payload = join_payload(counting(count), body)
    try:
        assert 0 <= latest_event_time(payload, STORED, LIMIT) < 1 << 63
    except ProtocolError:
        with pytest.raises(ProtocolError):
            unpack(payload, LIMIT)


def test_a_message_that_compaction_took_out_has_none() -> None:
    out = SingleMessageMetadata(payload_size=0, compacted_out=True, event_time=STORED + 9)
    kept = SingleMessageMetadata(payload_size=1, event_time=STORED - 9)
    payload = join_payload(counting(2), batch((out, b""), (kept, b"v")))
    assert latest_event_time(payload, STORED, LIMIT) == STORED - 9


def test_an_entry_that_only_its_consumer_can_read_has_the_time_of_storing() -> None:
    keys = [EncryptionKeys(key="k", value=b"v")]
    for more in ({"encryption_keys": keys}, {"num_chunks_from_msg": 2}):
        sealed = metadata(event_time=5, **more)
        assert latest_event_time(join_payload(sealed, b"x"), STORED, LIMIT) == STORED
