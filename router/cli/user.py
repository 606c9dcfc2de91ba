"""`router user`: the htpasswd file of those who may use the router."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Final

import click

from router.access.scram import write_verifiers
from router.cli import output, private_file
from router.cli.options import PASSWORD, as_json, config, examples, required, setting, settings_for
from router.errors import BadRequestError

# argon2id as OWASP has it: 19 MiB, two passes, one lane.
MEMORY_KIB: Final = 19_456
PASSES: Final = 2
_NAME: Final = re.compile(r"[^\s:#\x00-\x1f\x7f][^:\x00-\x1f\x7f]{0,254}")

file_option = setting(
    "--file", "auth__users", "F", "The users file.  [default: the setting auth.users]"
)


@click.group(
    epilog=examples(
        "router user add anna --file users              asks for it, or $ROUTER_PASSWORD",
        "echo secret | router user add anna --password-stdin --file users",
        "router user list --file users",
        "router user remove anna --file users",
        "ROUTER_AUTH_USERS=users router serve --host 0.0.0.0",
    )
)
def command() -> None:
    """Add, remove and list the users in an htpasswd file.

    The router notices a changed file by itself; it needs no restart.
    """


@command.command(epilog=examples("router user add anna --file users"))
@click.argument("name")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@click.option("--scram", is_flag=True, help="Let Kafka clients of the user authenticate by SCRAM.")
@as_json
@file_option
@config
def add(
    name: str,
    password_stdin: bool,
    scram: bool,
    as_json: bool,
    config: Path | None,
    **flags: str | None,
) -> None:
    """Add a user, or change the password of one."""
    if not _NAME.fullmatch(name):
        raise BadRequestError(f"user name {name!r}: no colon, no control characters, not empty")
    path = _users_file(config, flags)
    users = read(path)
    if password_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
    else:
        password = os.environ.get(PASSWORD) or click.prompt(
            "Password", hide_input=True, confirmation_prompt=True
        )
    if not password:
        raise BadRequestError("the password is empty")
    known = name in users
    users[name] = hashed(password) + (f":{write_verifiers(password)}" if scram else "")
    write(path, users)
    output.report(as_json, "Changed" if known else "Added", "user", name, f"in {path}")


@command.command(epilog=examples("router user remove anna --file users"))
@click.argument("name")
@as_json
@file_option
@config
def remove(name: str, as_json: bool, config: Path | None, **flags: str | None) -> None:
    """Remove a user; fails when there is none of that name."""
    path = _users_file(config, flags)
    users = read(path)
    if users.pop(name, None) is None:
        raise BadRequestError(f"{path} has no user {name}")
    write(path, users)
    output.report(as_json, "Removed", "user", name, f"from {path}")


@command.command("list", epilog=examples("router user list --file users"))
@as_json
@file_option
@config
def list_users(as_json: bool, config: Path | None, **flags: str | None) -> None:
    """Print the names of all users."""
    names = sorted(read(_users_file(config, flags)))
    output.respond(as_json, names, *names)


def hashed(password: str) -> str:
    """Return the argon2id hash of a password, with a new salt."""
    from passlib.hash import argon2  # noqa: PLC0415 - no other command needs it

    kind = argon2.using(type="ID", memory_cost=MEMORY_KIB, time_cost=PASSES, parallelism=1)
    return str(kind.hash(password))


def read(path: Path) -> dict[str, str]:
    """Return the hashes by name, in the order of the file; an absent file has none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    pairs = (line.partition(":") for line in lines if ":" in line and not line.startswith("#"))
    return {name: rest for name, _, rest in pairs}


def write(path: Path, users: dict[str, str]) -> None:
    """Replace the users file."""
    private_file.replace(path, "".join(f"{name}:{rest}\n" for name, rest in users.items()))


def _users_file(config: Path | None, flags: dict[str, str | None]) -> Path:
    return Path(required(settings_for(config, **flags), "auth.users", "--file", "users file"))
