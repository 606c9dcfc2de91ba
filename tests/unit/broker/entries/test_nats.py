"""What the format `nats` says of entries, and its entries as those of other formats and back."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.broker.consume.entry_info import OPAQUE_ENTRY, UnreadableEntryError
from router.broker.consume.membership.hashing import murmur3
from router.broker.entries import ENTRY_FORMATS, Transcoder, kafka, nats, pulsar
from router.broker.storage import Entry
from router.model import Message
from router.wire import ProtocolError
from router.wire.kafka.records import KafkaRecord
from router.wire.nats.headers import build, read
from router.wire.nats.message import NatsMessage
from router.wire.nats.router_messages import REPLICATE_TO, SCHEMA_VERSION
from router.wire.nats.stored import count, first, pack, unpack
from router.wire.pulsar import pack as pack_pulsar
from router.wire.pulsar import unpack as unpack_pulsar
from router.wire.repeated_headers import as_properties
from tests.wire.kafka.records_of import READERS, batch_of, other_records
from tests.wire.nats.test_router_messages import MESSAGES, NATS_MESSAGES

STORED = 1_700_000_000_000
NATS_LISTS = st.lists(NATS_MESSAGES, min_size=1, max_size=4)
OF_BATCHES = (SCHEMA_VERSION.encode(), REPLICATE_TO.encode())
LISTS = st.lists(MESSAGES, min_size=1, max_size=4)
TEXT_HEADERS = st.lists(
    st.tuples(st.sampled_from(["a", "B", "x-y"]), st.sampled_from(["", "1", "größe", "a,b"])),
    max_size=5,
)


def transcoded(payload: bytes, tag: int, to: int) -> bytes:
    """Return an entry as its readers of another format are sent it."""
    messages = ENTRY_FORMATS[tag].describe(payload).messages
    entry = Entry(0, 99, STORED, tag, messages, payload)
    return Transcoder(ENTRY_FORMATS).payload(1, entry, to)


@given(messages=NATS_LISTS)
def test_an_entry_holds_its_messages(messages: list[NatsMessage]) -> None:
    payload = pack([one._replace(reply="_INBOX.1") for one in messages])
    assert unpack(payload) == messages
    assert first(payload) == messages[0]
    assert count(payload) == nats.describe(payload).messages == len(messages)
    assert [one.value for one in nats.to_messages(payload)] == [one.payload for one in messages]


@given(messages=NATS_LISTS)
def test_messages_of_nats_come_back(messages: list[NatsMessage]) -> None:
    payload = pack(messages)
    assert nats.from_messages(nats.to_messages(payload), STORED) == payload


@given(messages=NATS_LISTS)
def test_messages_of_nats_come_back_through_pulsar(messages: list[NatsMessage]) -> None:
    # In a batch of Pulsar all messages have one version of the schema and the same clusters.
    batch = [one for one in messages if not any(name in one.headers for name in OF_BATCHES)]
    if batch:
        payload = pack(batch)
        back = transcoded(transcoded(payload, nats.TAG, pulsar.TAG), pulsar.TAG, nats.TAG)
        assert back == payload


@given(messages=LISTS)
def test_messages_of_pulsar_come_back_through_nats(messages: list[Message]) -> None:
    payload = pack_pulsar(messages, "p", 3, 1)
    back = transcoded(transcoded(payload, pulsar.TAG, nats.TAG), nats.TAG, pulsar.TAG)
    found = [one.message._replace(sequence=None) for one in unpack_pulsar(back, 1 << 24)]
    wanted = [one.message._replace(sequence=None) for one in unpack_pulsar(payload, 1 << 24)]
    assert found == wanted


@given(messages=NATS_LISTS)
@example([NatsMessage("s", headers=build([("a", "1"), ("a", "2"), (REPLICATE_TO, "1")]))])
def test_kafka_clients_read_messages_of_nats(messages: list[NatsMessage]) -> None:
    records: list[KafkaRecord] = other_records(
        READERS["aiokafka"], transcoded(pack(messages), nats.TAG, kafka.TAG)
    )
    assert [one.offset for one in records] == list(range(len(messages)))
    for record, message, known in zip(
        records, messages, nats.to_messages(pack(messages)), strict=True
    ):
        assert (record.value or b"") == message.payload
        assert record.key == known.key
        pairs = [
            (name.decode(), (value or b"").decode("utf-8", "replace"))
            for name, value in record.headers
            if name not in OF_BATCHES
        ]
        assert dict(pairs).get("Nats-Subject", "") == message.subject
        assert known.properties.items() <= as_properties(pairs)[0].items()


@given(pairs=TEXT_HEADERS)
def test_headers_of_kafka_are_headers_of_nats_also_where_names_repeat(
    pairs: list[tuple[str, str]],
) -> None:
    headers = [(name.encode(), value.encode()) for name, value in pairs]
    batch = bytes(batch_of([KafkaRecord(0, 0, None, b"v", headers)], 0))
    for through in (transcoded(batch, kafka.TAG, pulsar.TAG), batch):
        tag = kafka.TAG if through is batch else pulsar.TAG
        (message,) = unpack(transcoded(through, tag, nats.TAG))
        assert [one for one in read(message.headers) if one[0] != "router-event-time"] == pairs
        back = transcoded(pack([message]), nats.TAG, kafka.TAG)
        (record,) = other_records(READERS["aiokafka"], back)
        assert list(record.headers) == headers


@given(pairs=TEXT_HEADERS)
def test_headers_of_nats_are_headers_of_kafka_also_where_names_repeat(
    pairs: list[tuple[str, str]],
) -> None:
    payload = pack([NatsMessage("s", headers=build(pairs))])
    batch = transcoded(payload, nats.TAG, kafka.TAG)
    (record,) = other_records(READERS["aiokafka"], batch)
    found = [(name.decode(), (value or b"").decode()) for name, value in record.headers]
    assert [one for one in found if one != ("Nats-Subject", "s")] == pairs


@given(messages=NATS_LISTS)
def test_messages_of_nats_come_back_through_kafka_but_for_times(
    messages: list[NatsMessage],
) -> None:
    # A record has a timestamp: that of the event or, without one, when it was stored.
    plain = [one._replace(headers=b"") for one in messages]
    back = transcoded(transcoded(pack(plain), nats.TAG, kafka.TAG), kafka.TAG, nats.TAG)
    timed = build([("router-event-time", str(STORED))])
    assert unpack(back) == [one._replace(headers=timed) for one in plain]


@pytest.mark.parametrize(
    ("message", "key"),
    [
        (NatsMessage("orders.new"), b"orders.new"),
        (NatsMessage("orders.new", headers=build([("router-key", "k")])), b"k"),
        (NatsMessage("a" * 300), b"a" * 300),
        (NatsMessage(""), b""),
    ],
)
def test_the_key_or_the_subject_says_which_consumer_gets_an_entry(
    message: NatsMessage, key: bytes
) -> None:
    entry = nats.describe(pack([message, NatsMessage("other")]))
    assert entry.key_hash() == murmur3(key)
    assert (entry.deliver_at_ms, entry.chunk, entry.producer) == (0, None, ("", 0))
    assert ENTRY_FORMATS[nats.TAG].describe_special(pack([message])) is None


def test_a_key_meets_one_consumer_whatever_its_format() -> None:
    messages = [Message(b"", b"the key")]
    hashes = {
        tag: ENTRY_FORMATS[tag].describe(ENTRY_FORMATS[tag].from_messages(messages, 1)).key_hash()
        for tag in (pulsar.TAG, kafka.TAG, nats.TAG)
    }
    assert set(hashes.values()) == {murmur3(b"the key")}


def test_properties_are_those_of_each_message() -> None:
    entry = nats.describe(pack([NatsMessage("a", headers=build([("x", "1")])), NatsMessage("b")]))
    assert entry.properties() == [{"x": "1", "Nats-Subject": "a"}, {"Nats-Subject": "b"}]


@given(data=st.binary(max_size=60))
def test_any_bytes_are_an_entry_or_refused(data: bytes) -> None:
    for payload in (data, b"\x01" + data):
        try:
            messages = unpack(payload)
        except ProtocolError:
            assert nats.describe(payload) is OPAQUE_ENTRY or not _is_text(payload)
            with pytest.raises(UnreadableEntryError):
                nats.to_messages(payload)
        else:
            assert pack(messages) == payload


def _is_text(payload: bytes) -> bool:
    """Return whether all subjects of an entry are UTF-8, which a description does not look at."""
    at = 1
    while at < len(payload):
        size = int.from_bytes(payload[at : at + 2], "big")
        sizes = [int.from_bytes(payload[at + i : at + i + 4], "big") for i in (2, 6)]
        try:
            payload[at + 10 : at + 10 + size].decode()
        except UnicodeDecodeError:
            return False
        at += 10 + size + sum(sizes)
    return True


@pytest.mark.parametrize("cut", [0, 1, 5, 11, 13, 20, 23, 30, 33, 34, 38])
def test_an_entry_that_is_cut_short_is_refused(cut: int) -> None:
    payload = pack([NatsMessage("s", "", b"h", b"p" * 9), NatsMessage("t", "", b"", b"q" * 6)])
    assert len(payload) == 39
    assert nats.describe(payload[:cut]) is OPAQUE_ENTRY
    with pytest.raises(UnreadableEntryError, match="no NATS entry"):
        nats.to_messages(payload[:cut])


def test_a_subject_longer_than_can_be_stored_is_refused() -> None:
    with pytest.raises(ValueError, match="a subject of 65536 bytes"):
        pack([NatsMessage("x" * 65_536)])
