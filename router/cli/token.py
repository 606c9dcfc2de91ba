"""`router token`: keys that tokens are signed with, and the tokens themselves."""

from __future__ import annotations

import base64
import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import orjson

from router.cli import output, private_file
from router.cli.options import as_json, config, examples, required, setting, settings_for
from router.errors import BadRequestError, SettingError
from router.settings.parsing import duration

if TYPE_CHECKING:
    from router.access.tokens import TokenKey

SECRET_BYTES: Final = 32
FOR_EVER: Final = "never"

secret_file = setting(
    "--secret-file",
    "auth__token_secret_file",
    "F",
    "The secret.  [default: the setting auth.token_secret_file]",
)
FILE: Final = click.Path(path_type=Path, dir_okay=False)
private_key_file = click.option(
    "--private-key",
    type=FILE,
    metavar="F",
    help="A private key instead: RSA, or on the curve P-256.",
)


@click.group(
    epilog=examples(
        "router token key --secret-file token.key        a new secret, for your eyes only",
        "router token create --role anna --secret-file token.key",
        "ROUTER_AUTH_TOKEN_SECRET_FILE=token.key router serve --pulsar 127.0.0.1:6650",
    )
)
def command() -> None:
    """Make keys and tokens, by which clients say who they are.

    HTTP takes a token as `Authorization: Bearer TOKEN`, the Pulsar listener by the method `token`.
    """


@command.command(
    "key",
    epilog=examples(
        "router token key --secret-file token.key",
        "router token key --private-key private.pem --public-key public.pem",
    ),
)
@secret_file
@private_key_file
@click.option(
    "--public-key",
    type=FILE,
    metavar="F",
    help="Where the public key goes, for auth.token_public_key.",
)
@as_json
@config
def make_key(
    private_key: Path | None,
    public_key: Path | None,
    as_json: bool,
    config: Path | None,
    **flags: str | None,
) -> None:
    """Make a secret, or a pair of keys on the curve P-256; never over one that is there.

    Whoever has the secret or the private key can make tokens; a router that only has the public
    key cannot.
    """
    if (private_key is None) != (public_key is None):
        raise BadRequestError("a pair needs both --private-key and --public-key")
    if private_key is None or public_key is None:
        path = _secret_file(config, flags)
        _write(path, secrets.token_bytes(SECRET_BYTES), 0o600)
        made = f"Made the secret {path}; name it in auth.token_secret_file"
        output.respond(as_json, {"secret": str(path)}, made)
        return
    private, public = _pair()
    _write(private_key, private, 0o600)
    _write(public_key, public, 0o644)
    output.respond(
        as_json,
        {"private_key": str(private_key), "public_key": str(public_key)},
        f"Made {private_key} and {public_key}; name the latter in auth.token_public_key",
    )


@command.command(
    epilog=examples(
        "router token create --role anna --ttl 12h --secret-file token.key",
        "router token create --role billing --ttl never --private-key private.pem",
    )
)
@click.option("--role", required=True, metavar="R", help="Whose token it is: the user's name.")
@click.option(
    "--ttl",
    default="30d",
    metavar="S",
    help="How long it is good: 90, 15m, 12h, 30d or never.  [default: 30d]",
)
@secret_file
@private_key_file
@as_json
@config
def create(role: str, ttl: str, as_json: bool, config: Path | None, **given: Any) -> None:
    """Print a token for a role."""
    from router.access import tokens  # noqa: PLC0415 - no other command needs it

    if not 1 <= len(role) <= tokens.MAX_NAME_CHARACTERS:
        raise BadRequestError(f"a role has 1 to {tokens.MAX_NAME_CHARACTERS} characters")
    private_key = given.pop("private_key")
    claim = settings_for(config, **given).text("auth.token_claim")
    now = int(time.time())  # noqa: TID251 - what the token is stamped with
    claims: dict[str, Any] = {claim: role, "iat": now}
    if (seconds := _seconds(ttl)) is not None:
        claims["exp"] = now + seconds
    token = tokens.signed(_key(private_key, config, given), claims)
    output.respond(as_json, {"token": token, "claims": claims}, token)


@command.command(
    epilog=examples(
        "router token show < token",
        "router token create --role anna --secret-file token.key | router token show",
    )
)
@as_json
def show(as_json: bool) -> None:
    """Print what the token on standard input says; whether it is genuine is not looked at."""
    text = sys.stdin.readline().strip()
    try:
        first, second, _ = text.split(".")
        header, claims = _part_of_token(first), _part_of_token(second)
    except ValueError as error:
        raise BadRequestError("this is no token") from error
    lines = (orjson.dumps(part).decode() for part in (header, claims))
    output.respond(as_json, {"header": header, "claims": claims}, *lines)


def _part_of_token(part: str) -> Any:
    padded = part + "=" * (-len(part) % 4)
    return orjson.loads(base64.b64decode(padded, altchars=b"-_", validate=True))


def _seconds(ttl: str) -> int | None:
    if ttl == FOR_EVER:
        return None
    try:
        seconds = int(duration(ttl))
    except ValueError as error:
        raise BadRequestError(f"--ttl {ttl!r}: {error}, or {FOR_EVER}") from error
    if seconds < 1:
        raise BadRequestError(f"--ttl {ttl!r}: such a token would never be good")
    return seconds


def _key(private_key: Path | None, config: Path | None, flags: dict[str, str | None]) -> TokenKey:
    from router.access import tokens  # noqa: PLC0415 - as above

    if private_key is not None:
        return tokens.read_key(private_key, tokens.private_key)
    return tokens.read_key(_secret_file(config, flags), tokens.secret_key)


def _secret_file(config: Path | None, flags: dict[str, str | None]) -> Path:
    settings = settings_for(config, **flags)
    return Path(required(settings, "auth.token_secret_file", "--secret-file", "secret"))


def _pair() -> tuple[bytes, bytes]:
    from cryptography.hazmat.primitives import serialization as form  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - as above

    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    public = key.public_key().public_bytes(
        form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo
    )
    return private, public


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a new file, durably; raise BadRequestError where there is one."""
    try:
        private_file.create(path, data, mode)
    except FileExistsError as error:
        raise BadRequestError(
            f"{path} is there already: tokens signed with it would no longer be good"
        ) from error
    except OSError as error:
        raise SettingError(f"{path}: {error.strerror}") from error
