"""SASL as a client: what RFC 7677 has as its example, and servers that answer wrongly."""

from __future__ import annotations

from base64 import b64encode

import pytest

from router.backends.kafka.sasl import MAX_ITERATIONS, exchange, scram

NONCE = "rOprNGfwEbeRWgbNEkqO"
BOTH = f"{NONCE}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = "W22ZaJ0SNY7soEsUEjb6gQ=="
FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_plain_sends_both_at_once() -> None:
    steps = exchange("PLAIN", "user", "pencil")
    assert next(steps) == b"\0user\0pencil"
    with pytest.raises(StopIteration):
        steps.send(b"")


def test_scram_is_that_of_the_rfc() -> None:
    steps = scram("sha256", "user", "pencil", NONCE)
    assert next(steps) == f"n,,n=user,r={NONCE}".encode()
    proof = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert steps.send(f"r={BOTH},s={SALT},i=4096".encode()) == f"c=biws,r={BOTH},p={proof}".encode()
    with pytest.raises(StopIteration):
        steps.send(FINAL)


def test_a_name_is_quoted_and_nonces_differ() -> None:
    first, second = (next(exchange("SCRAM-SHA-512", "a,b=c", "p")) for _ in range(2))
    assert first.startswith(b"n,,n=a=2Cb=3Dc,r=")
    assert first != second


@pytest.mark.parametrize(
    "server_first",
    [
        f"r=another,s={SALT},i=4096",
        f"r={BOTH},s={SALT},i={MAX_ITERATIONS + 1}",
        f"r={BOTH},s={SALT},i=0",
        f"r={BOTH},s={SALT},i=many",
        f"r={BOTH},s=1,i=1",
        "e=unknown-user",
    ],
)
def test_a_wrong_first_answer_is_refused(server_first: str) -> None:
    steps = scram("sha256", "user", "pencil", NONCE)
    next(steps)
    with pytest.raises(ValueError, match=r".+"):
        steps.send(server_first.encode())


@pytest.mark.parametrize("final", [b"e=invalid-proof", b"", b"v=" + b64encode(bytes(32))])
def test_a_server_that_does_not_know_the_password_is_refused(final: bytes) -> None:
    steps = scram("sha256", "user", "pencil", NONCE)
    next(steps)
    steps.send(f"r={BOTH},s={SALT},i=4096".encode())
    with pytest.raises(ValueError, match="the server"):
        steps.send(final)
