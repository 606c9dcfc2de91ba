"""Whatever bytes come, the readers of the wire read what the slow ones do, or refuse it."""

from __future__ import annotations

import random
import time
from contextlib import suppress

import pytest

from router.broker.consume.entry_info import UnreadableEntryError
from router.broker.entries import ENTRY_FORMATS, Transcoder
from router.broker.storage import KAFKA_FORMAT, NATS_FORMAT, PULSAR_FORMAT, Entry
from router.wire.nats.headers import build, first, read, status_code
from router.wire.nats.message import NatsMessage
from router.wire.nats.parser import ClientParser
from router.wire.nats.router_messages import ALL_HEADERS, KEY, OTHER_PROPERTIES
from router.wire.nats.stored import pack, unpack
from router.wire.nats.subjects import is_literal
from tests.wire.mutating import SECONDS, SEED
from tests.wire.nats.reference import read_stream, seen

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60 + SECONDS)]

BLOCK = build([("Nats-Msg-Id", "1"), ("A", "b c"), (KEY, "k")])
OPERATIONS = [
    b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"name":"a b"}\r\n',
    b"PING\r\n",
    b"pong\n",
    b"SUB orders.* 1\r\n",
    b"SUB  orders.>\tqueue  22 \r\n",
    b"UNSUB 1 5\r\n",
    b"PUB orders.new 5\r\nhello\r\n",
    b"PUB orders.new _INBOX.x.1 2\r\n\r\n\r\n",
    b"HPUB orders.new _INBOX.x.1 %d %d\r\n%bdata\r\n" % (len(BLOCK), len(BLOCK) + 4, BLOCK),
    b"HPUB a 0 0\r\n\r\n",
    b"+OK\r\n",
]
PIECES = [b" ", b"\t", b"\r", b"\n", b"\r\n", b"\f", b"\v", b"\0", b"\xff", b"-1", b"99999999999"]
VERBS = [b"PUB ", b"HPUB ", b"SUB ", b"UNSUB ", b"CONNECT ", b"INFO {}", b"GET / HTTP/1.1\r\n"]
ENTRIES = [
    pack([NatsMessage("a")]),
    pack([NatsMessage("a.b", "", BLOCK, b"1"), NatsMessage("größe", "", b"", b"2" * 300)]),
    pack(
        [NatsMessage("s", "", build([(OTHER_PROPERTIES, "eyJhIjoiXG4ifQ=="), (ALL_HEADERS, "AA")]))]
    ),
    pack([NatsMessage("s", "", b"NATS/1.0 503\r\nA: 1\r\nA: 2\r\n\r\n")] * 3),
]
MAX_LINE = 200
MAX_PAYLOAD = 500


def damaged(chance: random.Random, data: bytes) -> bytes:
    """Return bytes with some damage."""
    found = bytearray(data)
    for _ in range(chance.randint(0, 3)):
        where = chance.randrange(len(found) + 1)
        kind = chance.randrange(5)
        if kind == 0 and found:
            found[where % len(found)] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del found[where : where + chance.randint(1, 6)]
        elif kind == 2:
            found[where:where] = chance.choice(PIECES + VERBS)
        elif kind == 3:
            found[where : where + 1] = chance.randbytes(chance.randint(1, 4))
        else:
            found[where:] += b"x" * chance.choice([1, 100, 1000])
    return bytes(found)


def test_damaged_operations_are_read_as_the_reference_reads_them() -> None:
    chance = random.Random(SEED)
    tried = read_whole = 0
    end = time.monotonic() + SECONDS / 5
    while time.monotonic() < end:
        whole = b"".join(chance.choices(OPERATIONS, k=chance.randint(1, 12)))
        data = damaged(chance, whole)
        parser = ClientParser(MAX_LINE - 16, MAX_PAYLOAD)
        try:
            found = []
            start = 0
            while start < len(data):
                size = chance.choice([1, 7, 60, 1 << 16])
                found += parser.receive(data[start : start + size])
                start += size
            assert seen(found) == read_stream(data, MAX_LINE, MAX_PAYLOAD)
        except Exception as error:
            raise AssertionError(f"seed {SEED}, try {tried}: {data!r}") from error
        tried += 1
        read_whole += len(found) > 1
    assert read_whole > tried / 4


def test_damaged_entries_are_read_by_all_dialects_or_by_none() -> None:
    chance, transcoder = random.Random(SEED), Transcoder(ENTRY_FORMATS, 0)
    tried = sound = 0
    nats = ENTRY_FORMATS[NATS_FORMAT]
    end = time.monotonic() + SECONDS / 5
    while time.monotonic() < end:
        data = damaged(chance, chance.choice(ENTRIES))
        try:
            info = nats.describe(data)
            entry = Entry(tried, 0, 1_700_000_000_000, NATS_FORMAT, info.messages, data)
            try:
                messages = nats.to_messages(data)
            except UnreadableEntryError:
                pass
            else:
                sound += 1
                if all(not one.subject or is_literal(one.subject) for one in unpack(data)):
                    assert nats.from_messages(messages, 0) == data
                info.key_hash()
                assert len(info.properties()) == info.messages
            for tag in (PULSAR_FORMAT, KAFKA_FORMAT):
                with suppress(UnreadableEntryError):
                    transcoder.payload(1, entry, tag)
        except Exception as error:
            raise AssertionError(f"seed {SEED}, try {tried}: {data!r}") from error
        tried += 1
    assert sound > tried / 10


def test_damaged_headers_are_read() -> None:
    chance = random.Random(SEED)
    end = time.monotonic() + SECONDS / 20
    while time.monotonic() < end:
        block = damaged(chance, BLOCK)
        pairs = read(block)
        status_code(block)
        for name in ("A", "Nats-Msg-Id", KEY):
            value = first(block, name)
            assert value is None or (name, value) in pairs or not block.startswith(b"NATS"), block
