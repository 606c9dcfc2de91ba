"""What NATS clients send, read: any cut gives the same operations, and what no client may send."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router.wire.nats.message import NatsMessage
from router.wire.nats.parser import (
    AckBatch,
    AckedDelivery,
    ClientParser,
    Connect,
    NatsProtocolError,
    Operation,
    Ping,
    Pong,
    Publish,
    Subscribe,
    Unsubscribe,
)
from tests.wire.nats.reference import read_stream, seen

MAX_LINE = 80
MAX_PAYLOAD = 60

SPACES = st.sampled_from([" ", "  ", "\t", " \t "])
LINE_ENDS = st.sampled_from(["\r\n", "\n", " \r\n"])
SUBJECTS = st.sampled_from(["a", "a.b", "größe.x", "_INBOX.q.1", "$JS.ACK.s.c.1", ">", "a..b", "*"])


@st.composite
def lines(draw: st.DrawFn, *words: str) -> bytes:
    verb = draw(st.sampled_from([words[0], words[0].lower(), words[0].title()]))
    text = verb
    for word in words[1:]:
        text += draw(SPACES) + word
    return (text + draw(LINE_ENDS)).encode()


@st.composite
def publishes(draw: st.DrawFn) -> bytes:
    payload = draw(st.binary(max_size=30) | st.sampled_from([b"\r\n", b"PING\r\n", b"\f", b"\v\n"]))
    reply = draw(st.sampled_from([[], ["_INBOX.1"]]))
    if draw(st.booleans()):
        return draw(lines("PUB", draw(SUBJECTS), *reply, str(len(payload)))) + payload + b"\r\n"
    headers = b"NATS/1.0\r\nA: b\r\n\r\n"
    sizes = str(len(headers)), str(len(headers) + len(payload))
    return draw(lines("HPUB", draw(SUBJECTS), *reply, *sizes)) + headers + payload + b"\r\n"


SOUND = st.one_of(
    publishes(),
    lines("PING"),
    lines("PONG"),
    lines("+OK"),
    lines("CONNECT", json.dumps({"verbose": False, "name": "ü", "n": [1, {}]})),
    st.builds(lambda s: s, SUBJECTS).flatmap(lambda subject: lines("SUB", subject, "7")),
    SUBJECTS.flatmap(lambda subject: lines("SUB", subject, "q", "7")),
    st.sampled_from(["", "3", "0", "x"]).flatmap(lambda count: lines("UNSUB", "7", count)),
)
UNSOUND = st.sampled_from(
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\r\n",
        b"PUB a\r\n",
        b"PUB a b c 1\r\nx\r\n",
        b"PUB a -1\r\n",
        b"PUB a 1_0\r\n",
        b"PUB a \xd9\xa1\r\nx\r\n",
        b"PUB a 1\r\nxx\r\n",
        b"PUB a 1\r\nx\n",
        b"PUB a 61\r\n",
        b"PUB a 9999999999\r\n",
        b"PUB \xff 1\r\nx\r\n",
        b"PUB a\fb 1\r\nx\r\n",
        b"PUB a\rb 1\r\nx\r\n",
        b"HPUB a 5 4\r\nxxxx\r\n",
        b"HPUB a 4\r\nxxxx\r\n",
        b"SUB a\r\n",
        b"SUB \xff 1\r\n",
        b"SUB a..b q 1\r\n",
        b"SUB a\vb 1\r\n",
        b"UNSUB\r\n",
        b"UNSUB 1 2 3\r\n",
        b"CONNECT {\r\n",
        b"CONNECT []\r\n",
        b"CONNECT\r\n",
        b"SUB " + b"x" * MAX_LINE,
        b"\x16\x03\x01\x02\x00\x01",
    ]
) | st.binary(max_size=20)


def parse(pieces: Sequence[bytes], **limits: int) -> list[Operation]:
    parser = ClientParser(**limits)
    return [one for piece in pieces for one in parser.receive(piece)]


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """Return the data in pieces that end at these places, each taken by the size of the data."""
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@given(
    pieces=st.lists(SOUND | UNSOUND, max_size=8),
    places=st.lists(st.integers(0, 10_000), max_size=8),
)
@example(pieces=[b"PUB a\rb 1\r\nx\r\n", b"PUB \f 1\r\nx\r\n"], places=[15])
def test_any_cut_gives_what_the_whole_stream_says(pieces: list[bytes], places: list[int]) -> None:
    data = b"".join(pieces)
    found = parse(cut(data, places), max_control_line=MAX_LINE - 16, max_payload=MAX_PAYLOAD)
    assert seen(found) == read_stream(data, MAX_LINE, MAX_PAYLOAD)


@given(pieces=st.lists(SOUND, max_size=6))
def test_one_byte_at_a_time_gives_what_the_whole_stream_says(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    single = [data[at : at + 1] for at in range(len(data))]
    assert seen(parse(single)) == seen(parse([data])) == read_stream(data, 4112, 1 << 20)


ACK_SUBJECTS = st.sampled_from(
    [
        "$JS.ACK.S.c.1.2.3.1700000000000000000.4",
        "$JS.ACK.S.d.1.2.3.1700000000000000000.4",
        "$JS.ACK.S.c.2.20.30.1700000000000000000.0",
        "$JS.ACK.S.c.1.2.3.1700000000000000000",
        "$JS.ACK.S.c.1.2.x.1700000000000000000.4",
        "$JS.ACK._.account.S.c.1.2.3.1700000000000000000.4.more",
        "$JS.ACK.S.*.1.2.3.1700000000000000000.4",
        "$JS.ACK.ü.c.1.2.3.1700000000000000000.4",
    ]
)
ACK_PAYLOADS = st.sampled_from([b"", b"+ACK", b"+OK", b"-NAK", b"+ACK\r\n+ACK"])


@st.composite
def acknowledgements(draw: st.DrawFn) -> bytes:
    payload, reply = draw(ACK_PAYLOADS), draw(st.sampled_from(["", "", "_INBOX.1 "]))
    line = f"PUB {draw(ACK_SUBJECTS)} {reply}{len(payload)}\r\n"
    return line.encode() + payload + draw(st.sampled_from([b"\r\n"] * 9 + [b"x\r\n"]))


def expanded(operations: Sequence[Operation]) -> list[Operation]:
    """Return operations with acknowledgements as the messages that they are."""
    found: list[Operation] = []
    for one in operations:
        if isinstance(one, AckBatch):
            messages = list(one.messages())
            assert len(messages) == len(one.deliveries) > 0
            assert one.payload_bytes == sum(len(message.payload) for message in messages)
            for message, delivery in zip(messages, one.deliveries, strict=True):
                tokens = message.subject.split(".")
                assert tokens[2:4] == [one.stream, one.consumer]
                assert [int(tokens[5]), int(tokens[6])] == [*delivery[:2]]
                assert message.reply == delivery.reply
            found += map(Publish, messages)
        else:
            found.append(one)
    return found


@given(
    pieces=st.lists(acknowledgements() | SOUND, max_size=10),
    places=st.lists(st.integers(0, 10_000), max_size=8),
)
def test_acknowledgements_are_the_messages_that_came(
    pieces: list[bytes], places: list[int]
) -> None:
    data = b"".join(pieces)
    found = expanded(parse(cut(data, places)))
    assert seen(found) == read_stream(data, 4112, 1 << 20)


def test_acknowledgements_of_one_consumer_are_one_operation() -> None:
    line = b"PUB $JS.ACK.S.%b.1.%d.%d.1700000000000000000.0 %b\r\n"
    data = b"".join(line % (b"c", n, n, b"4\r\n+ACK") for n in range(1, 4))
    data += line % (b"d", 4, 9, b"in 0\r\n")
    [of_c, of_d] = parse([data])
    assert isinstance(of_c, AckBatch)
    assert [one.sequence for one in of_c.deliveries] == [1, 2, 3]
    assert isinstance(of_d, AckBatch)
    assert (of_d.consumer, of_d.deliveries) == ("d", [AckedDelivery(4, 9, "in")])


@pytest.mark.parametrize(
    ("data", "operation"),
    [
        (b"PUB a 2\r\nhi\r\n", Publish(NatsMessage("a", "", b"", b"hi"))),
        (b"pub  a\tr  2 \nhi\r\n", Publish(NatsMessage("a", "r", b"", b"hi"))),
        (b"PUB a 0\r\n\r\n", Publish(NatsMessage("a"))),
        (b"HPUB a r 2 3\r\nabc\r\n", Publish(NatsMessage("a", "r", b"ab", b"c"))),
        (b"Hpub a 0 1\r\nc\r\n", Publish(NatsMessage("a", "", b"", b"c"))),
        (b"SUB a.*.>  4\r\n", Subscribe("a.*.>", "", b"4")),
        (b"sub a q 4\n", Subscribe("a", "q", b"4")),
        (b"UNSUB 4 \r\n", Unsubscribe(b"4", 0)),
        (b"UNSUB 4 10\r\n", Unsubscribe(b"4", 10)),
        (b"PING\r\n", Ping()),
        (b"ping x\n", Ping()),
        (b"PONG\r\n", Pong()),
        (b'CONNECT {"verbose":true}\r\n', Connect({"verbose": True})),
        (b"connect\t{}\n", Connect({})),
        (b"CONNECT{}\r\n", Connect({})),
    ],
)
def test_an_operation_is_read(data: bytes, operation: Operation) -> None:
    assert parse([data]) == [operation]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"GET /jetstream HTTP/1.1\r\n", "Unknown Protocol Operation"),
        (b"PUB a 3\r\nhi\r\nPI", "Unknown Protocol Operation"),
        (b"PUB a 1\r\nhi\r\n", "Unknown Protocol Operation"),
        (b"PUB a +1\r\n", "Unknown Protocol Operation"),
        (b"HPUB a 5 4\r\nabcd\r\n", "Unknown Protocol Operation"),
        (b"PUB " + b"a" * 4109, "maximum control line exceeded"),
        (b"PUB a 1048577\r\n", "Maximum Payload Violation"),
        (b"HPUB a 1 1048577\r\n", "Maximum Payload Violation"),
        (b"PUB " + b"a" * 5000, "maximum control line exceeded"),
        (b"PUB " + b"a" * 5000 + b" 0\r\n\r\n", "maximum control line exceeded"),
        (b"\x00", ""),
    ],
)
def test_a_violation_ends_the_connection(data: bytes, text: str) -> None:
    parser = ClientParser()
    (before, *found) = parser.receive(b"PING\r\n" + data)
    assert before == Ping()
    if not text:
        assert not found
        return
    (error,) = found
    assert isinstance(error, NatsProtocolError)
    assert (error.text, error.fatal) == (text, True)
    assert parser.receive(b"PING\r\n") == []


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"SUB a..b 1\r\n", "Invalid Subject"),
        (b"SUB >.a 1\r\n", "Invalid Subject"),
        (b"SUB \xff\xfe 1\r\n", "Invalid Subject"),
        (b"PUB \xff 1\r\nx\r\n", "Invalid Publish Subject"),
    ],
)
def test_a_wrong_subject_ends_only_its_operation(data: bytes, text: str) -> None:
    error, after = parse([data + b"PING\r\n"])
    assert isinstance(error, NatsProtocolError)
    assert (error.text, error.fatal) == (text, False)
    assert after == Ping()


def test_what_is_as_large_as_allowed_is_read() -> None:
    subject = "a" * 4105
    line = f"PUB {subject} 3\r".encode()
    assert len(line) == 4096 + 16
    for pieces in ([line + b"\nabc\r\n"], [line, b"\nabc\r\n"]):
        assert parse(pieces) == [Publish(NatsMessage(subject, "", b"", b"abc"))]
    whole = b"x" * (1 << 20)
    (found,) = parse([b"PUB a 1048576\r\n", whole, b"\r\n"])
    assert found == Publish(NatsMessage("a", "", b"", whole))


def test_wanted_is_the_size_of_what_has_begun() -> None:
    parser = ClientParser()
    data = b"PUB a 100000\r\n" + bytes(100_000) + b"\r\n"
    assert parser.receive(data[:50]) == []
    assert parser.expected_bytes == len(data)
    assert len(parser.receive(data[50:] + b"PI")) == 1
    assert parser.expected_bytes == 3
    assert parser.receive(b"NG\r\n") == [Ping()]
    assert parser.expected_bytes == 1


@given(options=st.dictionaries(st.text(max_size=5), st.booleans() | st.text(max_size=5)))
@settings(max_examples=30)
def test_connect_has_what_the_client_says(options: dict[str, Any]) -> None:
    data = b"CONNECT " + json.dumps(options).encode() + b" \r\n"
    assert parse([data]) == [Connect(options)]


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(
    "one",
    [
        b"PUB orders.new 16\r\n" + bytes(16) + b"\r\n",
        b"HPUB orders.new _INBOX.1 24 40\r\nNATS/1.0\r\nNats-Ab: 1\r\n\r\n" + bytes(16) + b"\r\n",
    ],
)
def test_reading_takes_a_few_times_what_cutting_does(one: bytes) -> None:
    """Compared with a bare loop in the same process, as the speed of machines differs."""
    count = 65_536 // len(one)
    data = one * count
    parser = ClientParser()
    assert len(parser.receive(data)) == count
    # In turns, so that what else the machine does meets both.
    both = [(timed(lambda: bare(data)), timed(lambda: parser.receive(data))) for _ in range(15)]
    assert min(took for _, took in both) < 5 * min(floor for floor, _ in both)


def bare(data: bytes) -> list[tuple[bytes, bytes]]:
    found, start, end = [], 0, len(data)
    while start < end:
        stop = data.find(b"\n", start)
        words = data[start:stop].split()
        last = stop + 1 + int(words[-1])
        found.append((words[1], data[stop + 1 : last]))
        start = last + 2
    return found


def timed(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start
