"""One connection before a server that answers by a script: what it sends, and what it refuses."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from router.backends.kafka import connection as connection_module
from router.backends.kafka.apis import FETCH, METADATA, OFFSET_FETCH, PRODUCE, ClientApi
from router.backends.kafka.connection import KafkaConnection
from router.backends.kafka.failures import (
    KafkaConnectionLostError,
    KafkaCredentialsError,
    LateError,
)
from router.backends.kafka.options import KafkaConnectionOptions
from router.wire.kafka.error_codes import RETRIABLE, ErrorCode
from tests.wire.kafka.messages import MESSAGES

WAIT = 10.0
SOON = 0.05
KEYS = {
    "Fetch": 1,
    "Metadata": 3,
    "OffsetFetch": 9,
    "Produce": 0,
    "SaslHandshake": 17,
    "ApiVersions": 18,
    "SaslAuthenticate": 36,
}

EMPTY = b"\0" + MESSAGES.message("MetadataResponse")().write(9)

Answers = Callable[[int, int, int], bytes | None]
"""Returns the frame for a request, by API key, version and correlation id; None: no answer."""


class Server:
    """Answers ApiVersions with what it is given, and the rest by a function."""

    def __init__(self, versions: dict[str, tuple[int, int]], answers: Answers) -> None:
        self.requests: list[tuple[int, int, bytes]] = []
        self._versions = versions
        self._answers = answers
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with suppress(OSError):
            accepted, _ = self._listening.accept()
            with accepted:
                accepted.settimeout(WAIT)
                while head := accepted.recv(4, socket.MSG_WAITALL):
                    frame = accepted.recv(int.from_bytes(head), socket.MSG_WAITALL)
                    key, version = int.from_bytes(frame[:2]), int.from_bytes(frame[2:4])
                    self.requests.append((key, version, frame))
                    answer = self._answer(key, version, int.from_bytes(frame[4:8]))
                    if answer is not None:
                        accepted.sendall(answer)

    def _answer(self, key: int, version: int, correlation_id: int) -> bytes | None:
        if key != KEYS["ApiVersions"]:
            return self._answers(key, version, correlation_id)
        keys = [(KEYS[name], *span) for name, span in self._versions.items()]
        cls = MESSAGES.message("ApiVersionsResponse")
        of = cls.STRUCTS["ApiVersion"]
        made = [of(api_key=k, min_version=low, max_version=high) for k, low, high in keys]  # type: ignore[call-arg]
        return framed(correlation_id, cls(api_keys=made).write(version))  # type: ignore[call-arg]

    def close(self) -> None:
        self._listening.close()
        self._thread.join(WAIT)


def framed(correlation_id: int, body: bytes) -> bytes:
    return (len(body) + 4).to_bytes(4) + correlation_id.to_bytes(4) + body


@pytest.fixture
def opened() -> Iterator[Callable[..., tuple[Server, KafkaConnection]]]:
    made: list[tuple[Server, KafkaConnection]] = []

    def make(answers: Answers, **versions: tuple[int, int]) -> tuple[Server, KafkaConnection]:
        server = Server(versions, answers)
        access = KafkaConnectionOptions((("127.0.0.1", server.port),), client_id="unit")
        deadline = time.monotonic() + WAIT
        made.append((server, KafkaConnection.open("127.0.0.1", server.port, access, deadline)))
        return made[-1]

    yield make
    for server, connection in made:
        connection.close()
        server.close()


Make = Callable[..., tuple[Server, KafkaConnection]]


def test_the_highest_version_of_both_sides_is_spoken(opened: Make) -> None:
    def answer(key: int, version: int, correlation_id: int) -> bytes:
        cls = MESSAGES.message("MetadataResponse")
        tags = b"\0" if version in cls.definition().flexible else b""
        return framed(correlation_id, tags + cls(controller_id=7).write(version))  # type: ignore[call-arg]

    for high, spoken in ((5, 5), (9, 9), (99, METADATA.versions[1])):
        server, connection = opened(answer, Metadata=(0, high))
        found = connection.ask(METADATA(topics=[{"name": "t"}]), time.monotonic() + WAIT)
        assert found.controller_id == 7
        key, version, frame = server.requests[-1]
        assert (key, version) == (KEYS["Metadata"], spoken)
        assert b"\0\4unit" in frame


@pytest.mark.parametrize(
    ("api", "versions"),
    [(OFFSET_FETCH, (0, 7)), (OFFSET_FETCH, (9, 10)), (FETCH, (0, 3)), (PRODUCE, None)],
)
def test_a_broker_without_a_version_of_ours_is_named(
    opened: Make, api: ClientApi, versions: tuple[int, int] | None
) -> None:
    spans = {api.name: versions} if versions else {}
    server, connection = opened(lambda *_: None, **spans)
    with pytest.raises(KafkaConnectionLostError, match=f"too old or too new.*{api.name}") as failed:
        connection.ask(api(), time.monotonic() + WAIT)
    assert not failed.value.sent
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (b"\0\0\0\2\0\0", "a frame of 2 bytes"),
        (b"\x7f\xff\xff\xff", "a frame of 2147483647 bytes"),
        (b"\x15\x03\x03\0\2\2P", "expects TLS: set kafka.tls"),
        (framed(99, EMPTY), "another request"),
        (framed(2, b"\0\xff\xff\xff\xff\xff\xff"), "MetadataResponse"),
        (framed(2, b""), "ResponseHeader"),
    ],
    ids=["short", "long", "tls", "other", "damaged", "empty"],
)
def test_what_is_no_answer_ends_the_connection(opened: Make, frame: bytes, sentence: str) -> None:
    _, connection = opened(lambda *_: frame, Metadata=(9, 9))
    with pytest.raises(KafkaConnectionLostError, match=sentence) as failed:
        connection.ask(METADATA(topics=[]), time.monotonic() + WAIT)
    assert failed.value.sent


def test_an_answer_that_does_not_come_is_late(opened: Make) -> None:
    _, connection = opened(lambda *_: None, Metadata=(9, 9))
    with pytest.raises(LateError) as late:
        connection.ask(METADATA(topics=[]), time.monotonic() + SOON)
    assert late.value.sent
    with pytest.raises(LateError) as late:
        connection.ask(METADATA(topics=[]), time.monotonic() - 1)
    assert not late.value.sent


def test_a_message_that_the_version_cannot_carry_is_not_sent(opened: Make) -> None:
    server, connection = opened(lambda *_: None, Produce=(3, 3))
    long = PRODUCE(transactional_id="x" * 40_000, acks=-1, timeout_ms=1)
    with pytest.raises(KafkaConnectionLostError, match="TransactionalId") as failed:
        connection.ask(long, time.monotonic() + WAIT)
    assert not failed.value.sent
    assert len(server.requests) == 1


def test_an_aborted_connection_is_not_used_again(opened: Make) -> None:
    _, connection = opened(lambda *_: None, Metadata=(9, 9))
    assert connection.usable()
    connection.abort()
    assert not connection.usable()


def test_a_connection_that_the_broker_closed_meanwhile_is_not_used(
    opened: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "_STALE", 0.0)
    server, connection = opened(lambda *_: b"", Metadata=(9, 9))
    assert connection.usable()
    connection._socket.shutdown(socket.SHUT_WR)  # the server's reading ends, and it closes
    server._thread.join(WAIT)
    assert not connection.usable()


@pytest.mark.parametrize(
    ("sentence", "kind"),
    [
        ("The name or the password is wrong.", KafkaCredentialsError),
        (None, KafkaCredentialsError),
        ("too-many-requests: There are too many passwords.", KafkaConnectionLostError),
    ],
)
def test_credentials_that_are_not_checked_for_the_moment_may_be_shown_again(
    sentence: str | None, kind: type[Exception]
) -> None:
    def answer(key: int, version: int, correlation_id: int) -> bytes:
        name = next(name for name, number in KEYS.items() if number == key)
        response = MESSAGES.message(f"{name}Response")()
        tags = b"\0" if version in response.definition().flexible else b""
        if key == KEYS["SaslAuthenticate"]:
            response.error_code = ErrorCode.SASL_AUTHENTICATION_FAILED  # type: ignore[attr-defined]
            response.error_message = sentence  # type: ignore[attr-defined]
        return framed(correlation_id, tags + response.write(version))

    server = Server({"SaslHandshake": (0, 1), "SaslAuthenticate": (0, 2)}, answer)
    host = "127.0.0.1", server.port
    access = KafkaConnectionOptions((host,), mechanism="PLAIN", username="a", password="b")
    try:
        with pytest.raises(KafkaConnectionLostError) as refused:
            KafkaConnection.open(*host, access, time.monotonic() + WAIT)
    finally:
        server.close()
    assert type(refused.value) is kind
    assert (sentence or "SASL_AUTHENTICATION_FAILED") in str(refused.value)


def test_codes_are_named_and_judged_as_kafka_python_does() -> None:
    from kafka import errors  # noqa: PLC0415 - the oracle of this test alone

    for code in ErrorCode:
        assert errors.for_code(code).retriable == (code in RETRIABLE), code
