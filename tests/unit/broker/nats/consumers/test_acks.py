"""Subjects and payloads of acknowledgements."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.broker.nats.protocol.acks import AckKind, AckSubject, read_ack, read_subject


@pytest.mark.parametrize(
    "subject",
    [
        "$JS.ACK.S.C.2.17.5.1700000000000000000.0",
        "$JS.ACK.hub.account.S.C.2.17.5.1700000000000000000.0",
        "$JS.ACK._.account.S.C.2.17.5.1700000000000000000.0.random.more",
    ],
)
def test_subject_names_a_delivery(subject: str) -> None:
    assert read_subject(subject) == AckSubject("S", "C", 2, 17, 5)


@pytest.mark.parametrize(
    "subject", ["$JS.ACK.S.C", "$JS.ACK.S.C.x.1.1.1.1", "$JS.ACK.S.C.1.1.1.1.1.1"]
)
def test_other_subjects_name_nothing(subject: str) -> None:
    assert read_subject(subject) is None


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (b"", AckKind("+ACK")),
        (b"+ACK", AckKind("+ACK")),
        (b"+OK", AckKind("+ACK")),
        (b"+WPI", AckKind("+WPI")),
        (b"-NAK", AckKind("-NAK")),
        (b'-NAK {"delay": 5000000000}', AckKind("-NAK", b'{"delay": 5000000000}', 5_000_000_000)),
        (b"-NAK 1m1.5s", AckKind("-NAK", b"1m1.5s", 61_500_000_000)),
        (b"-NAK soon", AckKind("-NAK", b"soon")),
        (b"-NAK {", AckKind("-NAK", b"{")),
        (b'-NAK {"delay": []}', AckKind("-NAK", b'{"delay": []}')),
        (b"-NAK 9" + b"9" * 400 + b"h", AckKind("-NAK", b"9" + b"9" * 400 + b"h")),
        (
            b'-NAK {"delay":1' + b"0" * 400 + b"}",
            AckKind("-NAK", b'{"delay":1' + b"0" * 400 + b"}"),
        ),
        (b"+TERM no use", AckKind("+TERM", b"no use")),
        (b'+NXT {"batch":2}', AckKind("+NXT", b'{"batch":2}')),
        (b"hello", AckKind("")),
        (b"-NAK " + b'{"a":' * 50_000, AckKind("-NAK", b'{"a":' * 50_000)),
    ],
)
def test_payload_says_what_is_acknowledged(payload: bytes, kind: AckKind) -> None:
    assert read_ack(payload) == kind


@given(payload=st.binary(max_size=40) | st.binary(max_size=40).map(b"-NAK ".__add__))
def test_any_payload_is_read(payload: bytes) -> None:
    assert isinstance(read_ack(payload), AckKind)
