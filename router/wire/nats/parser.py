"""Reads what NATS clients send: bytes, cut anywhere, into operations.

Theory of operation. Nearly all that arrives is PUB and HPUB, so the loop of `_read` takes a line
apart with `bytes.split`, which is quicker than a pattern and than any loop over bytes. `split` also
cuts at a vertical tab, a form feed and a single carriage return, and ignores spaces before the
verb; NATS cuts at spaces and tabs alone. A read that holds one of the first two is cut the exact
way; a single carriage return is taken for a space.

Acknowledgements of JetStream come by thousands, each with a subject of its own. Those that say
`+ACK` to one consumer, one behind the other, become one operation (`AckBatch`).

What a read leaves over is kept as the pieces that came, and joined once: when the line or the
payload that it belongs to is whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import orjson

from router.wire import ProtocolError
from router.wire.nats.message import NatsMessage
from router.wire.nats.subjects import is_valid

MAX_CONTROL_LINE_BYTES: Final = 4096
"""Of what follows the verb of a line, as the server has it by default."""
MAX_PAYLOAD_BYTES: Final = 1 << 20
"""Of headers and payload together, as the server has it by default."""
MAX_SIZE_DIGITS: Final = 9
MAX_PIECES: Final = 1_000
"""Of what a read left over, before they are joined: a piece takes more memory than its byte."""

UNKNOWN_OPERATION: Final = "Unknown Protocol Operation"
MAX_PAYLOAD_VIOLATION: Final = "Maximum Payload Violation"
MAX_CONTROL_LINE_EXCEEDED: Final = "maximum control line exceeded"
INVALID_SUBJECT: Final = "Invalid Subject"
INVALID_PUBLISH_SUBJECT: Final = "Invalid Publish Subject"

_MAX_VERB_BYTES: Final = 16
_HEADED: Final = {b"PUB": 0, b"HPUB": 1}
"""How many sizes stand before that of all."""
_NO_OPERATION: Final = (b"INFO", b"+OK", b"-ERR")
"""What servers send; a client may, and it means nothing."""
_SPACES: Final = bytes.maketrans(b"\t\r", b"  ")
_ACK: Final = b"+ACK"
_ACK_LINE: Final = b"PUB $JS.ACK."
_MAX_ACK_LINE: Final = 2_048
"""What the pattern below takes at most of a line."""
_NAME: Final = rb"[!-)+-\-/-=?-~]{1,255}"
"""A token of printable ASCII without wildcards."""
_NUMBER: Final = rb"\d{1,19}"
_ACKNOWLEDGEMENT: Final = re.compile(
    rb"PUB \$JS\.ACK\.(%b\.%b)\.%b\.(%b)\.(%b)\.%b\.%b "
    rb"(?:([!-~]{1,1024}) )?(?:0\r\n|4\r\n\+ACK)\r\n"
    % (_NAME, _NAME, _NUMBER, _NUMBER, _NUMBER, _NUMBER, _NUMBER)
)
_new: Final[Any] = tuple.__new__


class NatsProtocolError(ProtocolError):
    """What the client is sent as `-ERR`; after a `fatal` one the connection closes."""

    def __init__(self, text: str, fatal: bool = True) -> None:
        super().__init__(text)
        self.text = text
        self.fatal = fatal


class Connect(NamedTuple):
    """CONNECT with the object that the client sent."""

    options: dict[str, Any]


class Ping(NamedTuple):
    """PING, which is answered with PONG."""


class Pong(NamedTuple):
    """PONG, the answer to our PING."""


class Subscribe(NamedTuple):
    """SUB; `sid` is what the client calls the subscription, `queue` its group or empty."""

    subject: str
    queue: str
    sid: bytes


class Unsubscribe(NamedTuple):
    """UNSUB, at once or after `max` messages since SUB; 0: at once."""

    sid: bytes
    max: int


class Publish(NamedTuple):
    """PUB or HPUB. The subject is whatever stood there: `subjects.is_literal` says if it is one."""

    message: NatsMessage


class AckedDelivery(NamedTuple):
    """The delivery that an acknowledgement names, and where it is confirmed; "": nowhere."""

    sequence: int
    consumer_sequence: int
    reply: str


class AckBatch(NamedTuple):
    """PUBs below `$JS.ACK.<stream>.<consumer>.` that say `+ACK` or nothing, at least one.

    `data` is as it came.
    """

    stream: str
    consumer: str
    deliveries: list[AckedDelivery]
    data: bytes

    @property
    def payload_bytes(self) -> int:
        """Return how many bytes the payloads have together."""
        return len(_ACK) * self.data.count(b"\r\n%b\r\n" % _ACK)

    def messages(self) -> Iterator[NatsMessage]:
        """Yield the acknowledgements as the messages that they are."""
        lines = self.data.decode("ascii").split("\r\n")
        for line, payload in zip(lines[::2], lines[1::2], strict=False):
            _, subject, *reply, _ = line.split(" ")
            yield NatsMessage(subject, "".join(reply), payload=payload.encode("ascii"))


Operation = Connect | Ping | Pong | Subscribe | Unsubscribe | Publish | AckBatch | NatsProtocolError

_PING: Final = Ping()
_PONG: Final = Pong()


class ClientParser:
    """Turns bytes from a client into operations; see router.broker.transport.session.FrameDecoder.

    `expected_bytes` is the size of what has begun to arrive, as far as it is known. A violation of
    the protocol is a NatsProtocolError in its place among the operations; after a fatal one nothing
    more is read.
    """

    def __init__(
        self,
        max_control_line: int = MAX_CONTROL_LINE_BYTES,
        max_payload: int = MAX_PAYLOAD_BYTES,
    ) -> None:
        self.expected_bytes = 1
        self.max_payload = max_payload
        self._max_line: Final = max_control_line + _MAX_VERB_BYTES
        # No limit is lower than what an acknowledgement may be.
        self._takes_acks: Final = max_payload >= len(_ACK) and self._max_line >= _MAX_ACK_LINE
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._failed = False

    def receive(self, data: bytes) -> list[Operation]:
        """Return the operations that these bytes complete, and what is wrong with them."""
        found: list[Operation] = []
        if self._failed:
            return found
        if self._held:
            self._held.append(data)
            self._held_bytes += len(data)
            if self._held_bytes < self.expected_bytes:
                if len(self._held) >= MAX_PIECES:
                    self._held = [b"".join(self._held)]
                return found
            data = b"".join(self._held)
            self._held = []
            self._held_bytes = 0
        try:
            start = self._read(data, found)
        except NatsProtocolError as error:
            self._failed = True
            self.expected_bytes = 1
            found.append(error)
            return found
        if start < len(data):
            self._held.append(data[start:])
            self._held_bytes = len(data) - start
        return found

    def _read(self, data: bytes, found: list[Operation]) -> int:
        """Append the operations of the data; return where what is not whole begins.

        Raises NatsProtocolError.
        """
        start, end = 0, len(data)
        find = data.find
        split = _split if b"\f" in data or b"\v" in data else bytes.split
        while start < end:
            if data.startswith(_ACK_LINE, start) and self._takes_acks:
                acknowledged = _acknowledgements(data, start)
                if acknowledged is not None:
                    found.append(acknowledged)
                    start += len(acknowledged.data)
                    continue
            stop = find(b"\n", start)
            if (end if stop < 0 else stop) - start > self._max_line:
                raise NatsProtocolError(MAX_CONTROL_LINE_EXCEEDED)
            if stop < 0:
                self.expected_bytes = end - start + 1
                return start
            words = split(data[start:stop])
            headed = _HEADED.get(words[0].upper()) if words else None
            if headed is None:
                self._line(data[start:stop], words, found)
                start = stop + 1
                continue
            head, size = self._sizes(words, headed)
            body = stop + 1
            last = body + size
            if last + 2 > end:
                self.expected_bytes = last + 2 - start
                return start
            if data[last : last + 2] != b"\r\n":
                raise NatsProtocolError(UNKNOWN_OPERATION)
            found.append(
                _publish(words, headed, data[body : body + head], data[body + head : last])
            )
            start = last + 2
        self.expected_bytes = 1
        return start

    def _sizes(self, words: list[bytes], headed: int) -> tuple[int, int]:
        """Return the bytes of the headers, and of headers and payload; raise NatsProtocolError."""
        if not 3 <= len(words) - headed <= 4:
            raise NatsProtocolError(UNKNOWN_OPERATION)
        text = words[-1]
        if not text.isdigit() or len(text) > MAX_SIZE_DIGITS:
            raise NatsProtocolError(UNKNOWN_OPERATION)
        size = int(text)
        if headed:
            text = words[-2]
            if not text.isdigit() or len(text) > MAX_SIZE_DIGITS or (head := int(text)) > size:
                raise NatsProtocolError(UNKNOWN_OPERATION)
        else:
            head = 0
        if size > self.max_payload:
            raise NatsProtocolError(MAX_PAYLOAD_VIOLATION)
        return head, size

    def _line(self, line: bytes, words: list[bytes], found: list[Operation]) -> None:
        """Append the operation of a line that no payload follows; raise NatsProtocolError."""
        verb = words[0].upper() if words else b""
        if verb == b"SUB":
            found.append(_subscribe(words))
        elif verb == b"UNSUB":
            found.append(_unsubscribe(words))
        elif verb.startswith(b"PING"):
            found.append(_PING)
        elif verb.startswith(b"PONG"):
            found.append(_PONG)
        elif verb.startswith(b"CONNECT"):
            found.append(_connect(line))
        elif not verb.startswith(_NO_OPERATION):
            raise NatsProtocolError(UNKNOWN_OPERATION)


def _split(line: bytes) -> list[bytes]:
    """Return the words of a line, between spaces and tabs."""
    return [word for word in line.translate(_SPACES).split(b" ") if word]


def _publish(
    words: list[bytes], headed: int, headers: bytes, payload: bytes
) -> Publish | NatsProtocolError:
    try:
        subject = str(words[1], "utf-8")
        reply = str(words[2], "utf-8") if len(words) - headed > 3 else ""
    except UnicodeDecodeError:
        return NatsProtocolError(INVALID_PUBLISH_SUBJECT, fatal=False)
    return _new(  # type: ignore[no-any-return]
        Publish, (_new(NatsMessage, (subject, reply, headers, payload)),)
    )


def _acknowledgements(data: bytes, start: int) -> AckBatch | None:
    """Return the acknowledgements of one consumer that begin here; None: there are none."""
    deliveries: list[AckedDelivery] = []
    place, names = start, b""
    for match in _ACKNOWLEDGEMENT.finditer(data, start):
        of, sequence, consumer_sequence, reply = match.groups()
        if match.start() != place or (names and of != names):
            break
        names, place = of, match.end()
        confirmed = str(reply, "ascii") if reply else ""
        deliveries.append(_new(AckedDelivery, (int(sequence), int(consumer_sequence), confirmed)))
    if not deliveries:
        return None
    stream, consumer = str(names, "ascii").split(".")
    return _new(  # type: ignore[no-any-return]
        AckBatch, (stream, consumer, deliveries, data[start:place])
    )


def _subscribe(words: list[bytes]) -> Subscribe | NatsProtocolError:
    if not 3 <= len(words) <= 4:
        raise NatsProtocolError(UNKNOWN_OPERATION)
    try:
        subject = words[1].decode()
        queue = words[2].decode() if len(words) > 3 else ""
    except UnicodeDecodeError:
        subject = queue = ""
    if not is_valid(subject):
        return NatsProtocolError(INVALID_SUBJECT, fatal=False)
    return Subscribe(subject, queue, words[-1])


def _unsubscribe(words: list[bytes]) -> Unsubscribe:
    if not 2 <= len(words) <= 3:
        raise NatsProtocolError(UNKNOWN_OPERATION)
    count = words[2] if len(words) > 2 else b"0"
    return Unsubscribe(words[1], int(count) if count.isdigit() and len(count) <= 9 else 0)


def _connect(line: bytes) -> Connect:
    try:
        options = orjson.loads(line.strip()[len(b"CONNECT") :])
    except orjson.JSONDecodeError:
        options = None
    if not isinstance(options, dict):
        raise NatsProtocolError(UNKNOWN_OPERATION)
    return Connect(options)
