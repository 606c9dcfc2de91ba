"""Archives of streams: those of real servers, and what is written is read again, in any pieces."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Final

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.wire import ProtocolError
from router.wire.nats.archive import reader as reading
from router.wire.nats.archive import s2
from router.wire.nats.archive.entries import (
    MAX_JSON_BYTES,
    write_consumer,
    write_end,
    write_messages,
    write_start,
)
from router.wire.nats.archive.parts import (
    ArchivedBounds,
    ArchivedConsumer,
    ArchivedDeletion,
    ArchivedMessage,
    ConsumerPosition,
    Part,
)
from tests.wire.mutating import SEED

ARCHIVES: Final = Path(__file__).parents[2] / "nats" / "archives"
"""Written by `nats stream backup` on nats-server 2.14 and 2.15."""
NAMES: Final = sorted(path.name for path in ARCHIVES.iterdir())
MAX_MESSAGE: Final = 1 << 20
LATE_NS: Final = 1_795_645_000_000_000_000

numbers = st.integers(0, (1 << 63) - 1)
positions = st.builds(
    ConsumerPosition,
    st.tuples(numbers, numbers),
    st.tuples(numbers, numbers),
    st.dictionaries(numbers, st.tuples(numbers, numbers), max_size=3),
    st.dictionaries(numbers, numbers, max_size=3),
)
messages = st.builds(
    ArchivedMessage,
    st.integers(1, (1 << 63) - 1),
    st.text(max_size=20),
    st.binary(max_size=40),
    st.binary(max_size=200),
    st.integers(0, (1 << 62) - 1),
)


def read(data: bytes, step: int = 1 << 20) -> list[Part]:
    """Return all parts of an archive that comes in pieces; raise ProtocolError."""
    reader, found = reading.ArchiveReader(MAX_MESSAGE), []
    for at in range(0, len(data), step):
        reader.feed(data[at : at + step])
        while (parts := reader.take()) is not None:
            found += parts
    reader.finish()
    return found


def archived(name: str) -> bytes:
    return (ARCHIVES / name).read_bytes()


def live(parts: list[Part]) -> dict[int, ArchivedMessage]:
    """Return the messages that are not deleted."""
    found = {part.sequence: part for part in parts if isinstance(part, ArchivedMessage)}
    for part in parts:
        if isinstance(part, ArchivedDeletion):
            found.pop(part.sequence, None)
    return found


@pytest.mark.parametrize("version", ["2.14", "2.15"])
def test_a_stream_of_a_real_server(version: str) -> None:
    parts = read(archived(f"ORDERS-{version}.s2"))
    found = live(parts)
    assert sorted(found) == [1, 3, 4, 5, 6, 8, 9]
    assert found[1].subject == "orders.new"
    assert found[3].headers == b"NATS/1.0\r\nA: 3\r\nA: again\r\n\r\n"
    assert found[3].payload == b"order 3"
    choices, words = random.Random(1), [b"alpha", b"beta", b"gamma", b"delta ", b'"key": ']
    assert found[4].payload == b"".join(choices.choice(words) for _ in range(1200))
    assert found[5].payload == b"abcdefg" * 20000
    assert all(one.time_ns > LATE_NS for one in found.values())
    [consumer] = [part for part in parts if isinstance(part, ArchivedConsumer)]
    assert isinstance(consumer.config, dict)
    assert (consumer.name, consumer.config["durable_name"]) == ("packer", "packer")
    position = consumer.position
    assert (position.delivered, position.floor) == ((6, 5), (0, 0))
    assert {one: number for one, (number, _) in position.pending.items()} == {1: 1, 3: 3, 4: 4}


@pytest.mark.parametrize("version", ["2.14", "2.15"])
def test_a_bucket_of_a_real_server(version: str) -> None:
    found = live(read(archived(f"KV_CONFIG-{version}.s2")))
    # nats-server 2.14 leaves what its limits deleted in its blocks.
    assert sorted(found.keys() - {1, 3}) == [2, 4, 5, 6, 7, 8, 9]
    assert found[9].headers == b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"


def test_an_empty_stream_says_where_it_goes_on() -> None:
    assert read(archived("EMPTY-2.14.s2")) == [ArchivedDeletion(3)]
    assert read(archived("EMPTY-2.15.s2")) == [ArchivedBounds(4, 3)]


def test_real_archives_need_the_copies_that_only_s2_has() -> None:
    """Otherwise the decoder of Snappy alone would do."""
    data, plain = archived("ORDERS-2.15.s2"), b"S2sTwO"
    assert data[4:10] == plain
    size = int.from_bytes(data[11:14], "little")
    with pytest.raises(Exception, match="snappy"):
        cramjam.snappy.decompress_raw(data[18 : 14 + size])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_is_written_is_read_in_any_pieces(data: st.DataObject) -> None:
    consumers = data.draw(st.dictionaries(st.text(max_size=8), positions, max_size=3))
    stored = data.draw(st.lists(messages, max_size=8))
    first, last = data.draw(numbers), data.draw(numbers)
    state = {"first_seq": first, "last_seq": last, "consumer_count": len(consumers), "more": [1]}
    pieces = [
        write_start(state, LATE_NS),
        *(write_consumer(name, {"a": name}, one, LATE_NS) for name, one in consumers.items()),
        write_messages(stored),
        write_end(),
    ]
    split = data.draw(st.integers(0, len(pieces)))
    archive = s2.compress(b"".join(pieces[:split])) + s2.compress(b"".join(pieces[split:]))
    expected = [
        ArchivedBounds(first, last),
        *(ArchivedConsumer(name, {"a": name}, one) for name, one in consumers.items()),
        *stored,
    ]
    assert read(archive, data.draw(st.integers(1, len(archive)))) == expected


@pytest.mark.parametrize("name", NAMES)
def test_an_archive_that_is_cut_short_is_refused(name: str) -> None:
    data = archived(name)
    ends = {*range(0, len(data), max(1, len(data) // 50)), len(data) - 1}
    whole = 0
    for end in ends:
        with suppress(ProtocolError):
            read(data[:end])
            whole += 1
    # A tar has padding behind its end, and S2 frames that may be left out.
    assert whole <= (1 if "2.14" in name else 0)


@pytest.mark.parametrize("name", NAMES)
def test_an_archive_with_other_bytes_is_refused_or_the_same(name: str) -> None:
    data, choices = archived(name), random.Random(SEED)
    expected = read(data)
    for _ in range(80):
        broken = bytearray(data)
        broken[choices.randrange(len(data))] ^= 1 << choices.randrange(8)
        with suppress(ProtocolError):
            assert read(bytes(broken)) == expected


@pytest.mark.parametrize("name", NAMES)
def test_whatever_is_compressed_is_read_or_refused(name: str) -> None:
    """The checksums of blocks are right, and what they hold is not."""
    decoder, choices = s2.S2Reader(), random.Random(SEED)
    decoder.feed(archived(name))
    plain = b"".join(iter(lambda: decoder.block() or b"", b""))
    for _ in range(100):
        broken = bytearray(plain[: choices.choice([200, 2_000, len(plain)])])
        for _ in range(choices.randrange(4)):
            broken[choices.randrange(len(broken))] = choices.randrange(256)
        with suppress(ProtocolError):
            read(s2.compress(bytes(broken)))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_a_block_of_any_bytes_is_decoded_or_refused(data: bytes) -> None:
    with suppress(ProtocolError):
        assert len(s2._unpacked(data)) <= s2.MAX_BLOCK_BYTES


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "cut short"),
        (b"GET / HTTP/1.1\r\n\r\n", "not compressed"),
        (s2.compress(b"garbage" * 200), "head of a file"),
        (s2.compress(bytes(1024)), "no stream"),
        (s2.compress(b"NATSARC1" + bytes(5)), "state"),
        (s2.compress(write_start({"consumer_count": 1}, 0) + write_end()), "fewer consumers"),
        (s2.compress(write_start({}, 0) + write_end() + bytes(100_000)), "more follows"),
    ],
)
def test_what_is_no_archive_is_refused_with_a_reason(data: bytes, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        read(data)


@pytest.mark.no_cover
def test_a_few_bytes_never_become_much_memory() -> None:
    """A block is at most 4 MiB, however little it takes when it is compressed."""
    large = ArchivedMessage(1, "a", b"", bytes(MAX_MESSAGE + 1), 0)
    with pytest.raises(ProtocolError, match="more than"):
        read(s2.compress(write_start({}, 0) + write_messages([large])))
    said = b"\x80\x80\x80\x80\x0f"  # a block of 4 GiB
    frame = b"\0" + (4 + len(said)).to_bytes(3, "little") + bytes(4) + said
    with pytest.raises(ProtocolError, match="a block of the archive has"):
        read(b"\xff\x06\0\0sNaPpY" + frame)
    with pytest.raises(ProtocolError, match="a block of the archive has"):
        read(b"\xff\x06\0\0sNaPpY\0\xff\xff\xff")
    many = write_messages([ArchivedMessage(1, "", b"", b"", 0)] * 500_000)
    reader = reading.ArchiveReader(MAX_MESSAGE)
    reader.feed(s2.compress(write_start({}, 0) + many))
    sizes = set()
    while (parts := reader.take()) is not None:
        sizes.add(len(parts))
    assert max(sizes) <= reading.MAX_PARTS
    assert MAX_JSON_BYTES < 1 << 25
