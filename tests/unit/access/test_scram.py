"""SCRAM: the examples of the RFCs, and what is no proof."""

from __future__ import annotations

import hashlib
import hmac
import time
from base64 import b64decode, b64encode
from pathlib import Path

import pytest

from router.access.passwords import Users
from router.access.scram import (
    HASHES,
    ScramExchange,
    ScramVerifier,
    parse_verifiers,
    write_verifiers,
)
from router.cli.user import hashed
from router.errors import SettingError, UnauthenticatedError

# RFC 7677, section 3.
NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SERVER_FIRST = f"r=rOprNGfwEbeRWgbNEkqO{NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
FINAL = (
    f"c=biws,r=rOprNGfwEbeRWgbNEkqO{NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
).encode()
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def rfc_verifier() -> ScramVerifier:
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", SALT, 4_096)
    client = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    return ScramVerifier("SCRAM-SHA-256", 4_096, SALT, client, server)


def exchange() -> ScramExchange:
    return ScramExchange(lambda _user: rfc_verifier(), NONCE)


def test_the_example_of_the_rfc_is_proved() -> None:
    made = exchange()
    assert made.first(FIRST) == SERVER_FIRST
    assert made.final(FINAL) == SERVER_FINAL
    assert made.proved
    assert made.user == "user"


@pytest.mark.parametrize("mechanism", HASHES)
def test_a_made_verifier_proves_its_password_alone(mechanism: str) -> None:
    verifier = ScramVerifier.make(mechanism, "secret")
    assert parse_verifiers(verifier.write()) == {mechanism: verifier}
    for password, proved in (("secret", True), ("other", False)):
        made = ScramExchange(lambda _user: verifier)
        answer = made.first(b"n,,n=a=2Cb=3Dc,r=x,tokenauth=true").decode()
        assert made.user == "a,b=c"
        nonce = answer.split(",")[0]
        before = f"c=biws,{nonce}"
        message = f"n=a=2Cb=3Dc,r=x,tokenauth=true,{answer},{before}".encode()
        name = HASHES[mechanism]
        salted = hashlib.pbkdf2_hmac(name, password.encode(), verifier.salt, verifier.iterations)
        key = hmac.digest(salted, b"Client Key", name)
        signature = hmac.digest(hashlib.new(name, key).digest(), message, name)
        proof = b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))
        made.final(before.encode() + b",p=" + proof)
        assert made.proved is proved


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"n,,",
        b"n,,n=user",
        b"n,,r=x",
        b"n,,n=,r=x",
        b"p=tls-unique,,n=user,r=x",
        b"n,a=other,n=user,r=x",
        b"n,,m=x,n=user,r=x",
        b"n,,n=user,n=user,r=x",
        b"\xff",
        b"n,,n=user,r=" + b"x" * 5_000,
    ],
)
def test_what_is_no_first_message_is_refused(sent: bytes) -> None:
    with pytest.raises(UnauthenticatedError):
        exchange().first(sent)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        FINAL.replace(b"biws", b"eSws"),
        FINAL.replace(b"r=r", b"r=q"),
        FINAL.replace(b"p=d", b"p=!"),
        b"p=x",
    ],
)
def test_what_is_no_last_message_is_refused(sent: bytes) -> None:
    made = exchange()
    made.first(FIRST)
    with pytest.raises(UnauthenticatedError):
        made.final(sent)
    assert not made.proved


def test_a_last_message_needs_a_first_one() -> None:
    with pytest.raises(UnauthenticatedError):
        exchange().final(FINAL)


def test_a_wrong_or_short_proof_proves_nothing() -> None:
    for proof in (b64encode(bytes(32)), b64encode(bytes(3)), b""):
        made = exchange()
        made.first(FIRST)
        made.final(FINAL.partition(b",p=")[0] + b",p=" + proof)
        assert not made.proved


def test_a_user_without_a_verifier_is_not_told_apart() -> None:
    decoy = ScramVerifier.decoy("SCRAM-SHA-256", b"s", "user")
    assert decoy == ScramVerifier.decoy("SCRAM-SHA-256", b"s", "user")
    assert decoy.salt != ScramVerifier.decoy("SCRAM-SHA-256", b"s", "other").salt
    made = ScramExchange(lambda _user: decoy, NONCE)
    assert made.first(FIRST).endswith(b",i=16384")
    made.final(FINAL)
    assert not made.proved


def test_verifiers_are_written_for_every_mechanism() -> None:
    assert set(parse_verifiers(write_verifiers("secret"))) == set(HASHES)
    assert parse_verifiers("") == {}


@pytest.mark.parametrize(
    "text", ["x", "SCRAM-MD5,4096,AA==,AA==,AA==", "SCRAM-SHA-256,10,AA==,AA==,AA==", "a,b,c,d,e"]
)
def test_what_is_no_verifier_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"verifier|invalid|Incorrect"):
        parse_verifiers(text)


def test_verifiers_stand_behind_the_hash(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text(f"anna:{hashed('secret')}:{write_verifiers('secret')}\nother:{hashed('x')}\n")
    users = Users(file, time.monotonic)
    assert users.verify("anna", "secret")
    assert not users.verify("anna", "other")
    assert (users.record("anna") or "").startswith("$argon2id$")
    assert ":" not in (users.record("anna") or "")
    assert users.verifier("anna", "SCRAM-SHA-512").stored_key
    assert not users.verifier("other", "SCRAM-SHA-512").stored_key
    file.write_text(f"anna:{hashed('secret')}:no verifier\n")
    with pytest.raises(SettingError, match="line 1"):
        Users(file, time.monotonic)
