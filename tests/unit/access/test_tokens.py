"""Whose a token is: by its key, by the clock, and by nothing else."""

from __future__ import annotations

import base64
import hmac
import json
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.access.tokens import (
    MAX_NAME_CHARACTERS,
    TokenKey,
    Tokens,
    private_key,
    public_key,
    read_key,
    secret_key,
    signed,
)
from router.errors import SettingError, UnauthenticatedError
from router.settings import load
from tests.processes import ManualClock

SECRET = b"\x00a secret of bytes, no text: \xff\n!"
NOW = 1_700_000_000.0
roles = st.text(st.characters(codec="utf-8"), min_size=1, max_size=MAX_NAME_CHARACTERS)


@cache
def pair(kind: str) -> tuple[bytes, bytes]:
    """A private and a public key, in PEM form; made once, for RSA takes its time."""
    key = rsa.generate_private_key(65_537, 2_048) if kind == "RS256" else _curve(kind)
    return (
        key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()),
        key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo),
    )


def _curve(kind: str) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1() if kind == "ES384" else ec.SECP256R1())


class Checked:
    """Tokens by a secret, a public key or both; its clocks stand still."""

    def __init__(self, folder: Path, *, public: bytes | None = None, claim: str = "sub") -> None:
        self.secret = folder / "secret"
        self.secret.write_bytes(SECRET)
        given = {"auth.token_secret_file": str(self.secret), "auth.token_claim": claim}
        if public is not None:
            (folder / "public").write_bytes(public)
            given["auth.token_public_key"] = str(folder / "public")
        self.clock, self.ticks = ManualClock(NOW), ManualClock()
        self.tokens = Tokens(load(None, {}, given), self.clock, self.ticks)

    def name(self, token: str) -> str:
        return self.tokens.identity(token).principal.name

    def refuses(self, token: str) -> bool:
        with pytest.raises(UnauthenticatedError):
            self.tokens.identity(token)
        return True


@pytest.fixture
def checked(tmp_path: Path) -> Checked:
    return Checked(tmp_path)


def by_hand(claims: Mapping[str, Any], secret: bytes = SECRET, **header: str) -> str:
    """A token as RFC 7515 has it, made without the library."""

    def encoded(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    parts = [json.dumps(part).encode() for part in ({"alg": "HS256"} | header, claims)]
    text = b".".join(map(encoded, parts))
    return (text + b"." + encoded(hmac.digest(secret, text, "sha256"))).decode()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(role=roles, left=st.none() | st.integers(1, 10**9))
def test_token_names_its_role_until_its_time_is_over(
    checked: Checked, role: str, left: int | None
) -> None:
    claims = {"sub": role} | ({} if left is None else {"exp": int(NOW) + left})
    for token in (by_hand(claims), signed(secret_key(SECRET), claims)):
        identity = checked.tokens.identity(token)
        assert identity.principal.name == role
        assert identity.expires == claims.get("exp")
        if left is not None:
            checked.clock.now = NOW + left
            assert checked.refuses(token)
            checked.clock.now = NOW


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_token_is_refused_when_a_character_of_it_changes(
    checked: Checked, data: st.DataObject
) -> None:
    token = by_hand({"sub": "anna"})
    # The last character has bits that say nothing.
    place = data.draw(st.integers(0, len(token) - 2))
    other = data.draw(st.characters(codec="ascii").filter(lambda c: c != token[place]))
    assert checked.refuses(token[:place] + other + token[place + 1 :])


@given(text=st.text(max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_texts_that_are_no_tokens_are_refused(checked: Checked, text: str) -> None:
    assert checked.refuses(text)
    assert checked.refuses(f"{text}.{text}.{text}")


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_token_is_checked_by_the_key_of_its_algorithm_alone(tmp_path: Path, algorithm: str) -> None:
    private, public = pair(algorithm)
    checked = Checked(tmp_path, public=public)
    claims = {"sub": "anna"}
    assert checked.name(signed(private_key(private), claims)) == "anna"
    assert checked.name(by_hand(claims)) == "anna"
    # The public key is no secret, whatever a token says of it.
    assert checked.refuses(by_hand(claims, public))
    assert checked.refuses(by_hand(claims, SECRET, alg=algorithm))
    assert checked.refuses(jwt.encode(claims, "", algorithm="none"))
    for other in {"RS256", "ES256"} - {algorithm}:
        assert checked.refuses(signed(private_key(pair(other)[0]), claims))
    assert checked.refuses(jwt.encode(claims, SECRET * 2, algorithm="HS512"))


@pytest.mark.parametrize("kind", ["RS256", "ES256"])
def test_keys_are_read_in_both_forms(kind: str) -> None:
    private, public = pair(kind)
    loaded = form.load_pem_private_key(private, None)
    der = loaded.private_bytes(form.Encoding.DER, form.PrivateFormat.PKCS8, form.NoEncryption())
    bare = loaded.public_key().public_bytes(
        form.Encoding.DER, form.PublicFormat.SubjectPublicKeyInfo
    )
    for data, read in ((der, private_key), (private, private_key), (bare, public_key)):
        assert read(data).algorithm == kind
    claims = {"sub": "x"}
    verified = jwt.decode(signed(private_key(der), claims), public_key(public).value, [kind])
    assert verified == claims


def small() -> bytes:
    key = rsa.generate_private_key(65_537, 1_024).public_key()
    return key.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize(
    ("make", "read"),
    [
        (lambda: b"", secret_key),
        (lambda: b"x" * 31, secret_key),
        (lambda: pair("ES256")[1], secret_key),
        (lambda: b"", public_key),
        (lambda: b"x" * 99, public_key),
        (lambda: pair("ES256")[0], public_key),
        (lambda: pair("ES384")[1], public_key),
        (small, public_key),
        (lambda: pair("ES384")[0], private_key),
        (lambda: pair("ES256")[1], private_key),
        (lambda: b"-----BEGIN nothing", private_key),
    ],
)
def test_keys_that_are_none_are_refused_with_a_sentence(
    tmp_path: Path, make: Callable[[], bytes], read: Callable[[bytes], TokenKey]
) -> None:
    file = tmp_path / "key"
    with pytest.raises(SettingError, match="No such file"):
        read_key(file, read)
    file.write_bytes(make())
    with pytest.raises(SettingError, match=str(file)):
        read_key(file, read)


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"sub": ""},
        {"sub": 7},
        {"sub": ["anna"]},
        {"sub": "x" * (MAX_NAME_CHARACTERS + 1)},
        {"sub": "anna", "exp": "tomorrow"},
        {"sub": "anna", "exp": True},
        {"sub": "anna", "exp": float("nan")},
        {"sub": "anna", "exp": float("inf")},
        {"sub": "anna", "exp": 10**400},
        {"sub": "anna", "exp": NOW},
        {"sub": "anna", "nbf": NOW + 1},
        {"sub": "anna", "nbf": []},
        {"sub": "x" * 20_000},
    ],
    ids=lambda claims: str(claims)[:40],
)
def test_claims_that_name_nobody_now_are_refused(checked: Checked, claims: dict[str, Any]) -> None:
    assert checked.refuses(by_hand(claims))


def test_claims_that_mean_nothing_here_change_nothing(checked: Checked) -> None:
    claims = {"sub": "anna", "aud": "others", "iss": "x", "iat": NOW + 99, "jti": 7, "nbf": NOW}
    assert checked.name(by_hand(claims)) == "anna"


def test_name_stands_in_the_claim_that_settings_say(tmp_path: Path) -> None:
    checked = Checked(tmp_path, claim="email")
    assert checked.name(by_hand({"sub": "anna", "email": "a@x.org"})) == "a@x.org"
    assert checked.refuses(by_hand({"sub": "anna"}))


def test_new_secret_counts_within_a_second_and_a_broken_one_does_not(checked: Checked) -> None:
    other = SECRET[::-1]
    fresh, stale = by_hand({"sub": "anna"}, other), by_hand({"sub": "anna"})
    for data, good, bad in ((b"short", stale, fresh), (other, fresh, stale)):
        checked.secret.write_bytes(data)
        os.utime(checked.secret, (checked.ticks.now, checked.ticks.now))
        checked.ticks.advance(1)
        assert checked.name(good) == "anna"
        assert checked.refuses(bad)


def test_time_is_that_of_the_clock_handed_in(tmp_path: Path) -> None:
    # Times are compared with the clock that was handed in, whatever the library would do.
    checked = Checked(tmp_path)
    checked.clock.now = 1_000.0
    assert checked.name(by_hand({"sub": "anna", "exp": checked.clock.now + 1})) == "anna"
