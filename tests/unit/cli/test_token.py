"""`router token`: keys that are nobody else's, and tokens that are good where they should be."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import jwt
import pytest
from click.testing import CliRunner, Result

from router.access.tokens import Tokens, read_key, secret_key
from router.cli import main
from router.settings import load


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main, ["token", *arguments], input=text)


def now() -> float:
    return time.time_ns() / 1e9


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "token.key"
    assert run("key", "--secret-file", str(file)).exit_code == 0
    return file


def test_two_commands_lead_to_a_token_that_is_good(secret: Path) -> None:
    made = run("create", "--role", "anna", "--secret-file", str(secret))
    assert made.exit_code == 0, made.output
    settings = load(None, {}, {"auth.token_secret_file": str(secret)})
    identity = Tokens(settings, now, time.monotonic).identity(made.output.strip())
    assert identity.principal.name == "anna"
    assert identity.expires is not None
    assert identity.expires == pytest.approx(now() + 30 * 86_400, abs=60)


def test_pair_signs_tokens_that_its_public_key_checks(tmp_path: Path) -> None:
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    pair = ("--private-key", str(private), "--public-key", str(public))
    assert run("key", *pair).exit_code == 0
    made = run("create", "--role", "anna", "--ttl", "never", *pair[:2])
    claims = jwt.decode(made.output.strip(), public.read_bytes(), ["ES256"])
    assert claims["sub"] == "anna"
    assert "exp" not in claims


def test_keys_can_be_read_by_their_owner_only(tmp_path: Path, secret: Path) -> None:
    private = tmp_path / "private.pem"
    run("key", "--private-key", str(private), "--public-key", str(tmp_path / "public.pem"))
    for file in (secret, private):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_keys_that_are_there_stay_as_they_are(secret: Path) -> None:
    before = secret.read_bytes()
    result = run("key", "--secret-file", str(secret))
    assert result.exit_code == 1
    assert "is there already" in result.output
    assert secret.read_bytes() == before
    assert before != bytes(len(before))


@pytest.mark.parametrize(
    ("ttl", "seconds"), [("90", 90), ("15m", 900), ("12h", 43_200), ("1d", 86_400)]
)
def test_token_lasts_as_long_as_it_is_told(secret: Path, ttl: str, seconds: int) -> None:
    made = run("create", "--role", "anna", "--ttl", ttl, "--secret-file", str(secret))
    claims = jwt.decode(made.output.strip(), read_key(secret, secret_key).value, ["HS256"])
    assert claims["exp"] - claims["iat"] == seconds


def test_name_goes_into_the_claim_that_settings_say(
    secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUTER_AUTH_TOKEN_CLAIM", "email")
    monkeypatch.setenv("ROUTER_AUTH_TOKEN_SECRET_FILE", str(secret))
    made = run("create", "--role", "a@x.org")
    claims = jwt.decode(made.output.strip(), secret.read_bytes(), ["HS256"])
    assert claims["email"] == "a@x.org"


@pytest.mark.parametrize("ttl", ["0", "0.5", "soon", "-1", ""])
def test_token_that_would_never_be_good_is_not_made(secret: Path, ttl: str) -> None:
    result = run("create", "--role", "anna", "--ttl", ttl, "--secret-file", str(secret))
    assert result.exit_code == 1
    assert "--ttl" in result.output


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("create", "--role", "anna"), 78),
        (("create", "--role", ""), 1),
        (("create", "--role", "anna", "--secret-file", "missing"), 78),
        (("create", "--role", "anna", "--private-key", "missing"), 78),
        (("key",), 78),
        (("key", "--private-key", "private.pem"), 1),
        (("key", "--secret-file", "missing/key"), 78),
    ],
)
def test_what_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], status: int
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert (result.exit_code, result.output.startswith("Error: ")) == (status, True)


def test_show_prints_what_a_token_says(secret: Path) -> None:
    made = run("create", "--role", "anna", "--ttl", "never", "--secret-file", str(secret)).output
    shown = run("show", text=made)
    assert '"alg":"HS256"' in shown.output
    assert '"sub":"anna"' in shown.output
    for junk in ("", "a.b", "a.b.c", "é.é.é"):
        assert run("show", text=junk).exit_code == 1
