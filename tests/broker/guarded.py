"""A broker that asks its clients who they are, and what they may show it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from click.testing import CliRunner

from router.cli import main
from router.cli.user import hashed
from tests.broker.raw import RawClient
from tests.ports import free_port
from tests.processes import BrokerProcess
from tests.servers.certificates import Authority

PERMISSIONS = """\
anna     orders.*  publish, subscribe
reader   orders.*  subscribe
writer   orders.*  publish
device   orders.*  publish
ops      *         manage
"""


@dataclass
class Guarded:
    """A broker that asks its clients who they are, and what they may show it."""

    folder: Path
    plain: int = field(default_factory=free_port)
    tls: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        self.authority = Authority(self.folder / "tls")
        self.pair = self.authority.issue("server")
        self.secret, self.permissions = self.folder / "token.key", self.folder / "permissions"
        self.private, public = self.folder / "private.pem", self.folder / "public.pem"
        users = self.folder / "users"
        users.write_text(f"anna:{hashed('secret')}\n")
        self.permissions.write_text(PERMISSIONS)
        cli("token", "key", "--secret-file", str(self.secret))
        cli("token", "key", "--private-key", str(self.private), "--public-key", str(public))
        self.raws: list[RawClient] = []
        self.process = BrokerProcess(
            self.folder / "data",
            self.plain,
            broker_pulsar_tls=f"127.0.0.1:{self.tls}",
            broker_cert=str(self.pair.cert),
            broker_key=str(self.pair.key),
            broker_client_ca=str(self.authority.ca),
            auth_users=str(users),
            auth_attempts_per_minute="12",
            # All tests guess from one address.
            auth_failures_per_minute="0",
            auth_token_secret_file=str(self.secret),
            auth_token_public_key=str(public),
            auth_permissions=str(self.permissions),
        )

    def __enter__(self) -> Self:
        self.process.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.stop()

    def url(self, *, secure: bool) -> str:
        return f"pulsar+ssl://localhost:{self.tls}" if secure else self.process.url

    def token(self, role: str, ttl: str = "1h", *, private: bool = False) -> str:
        key = ("--private-key", self.private) if private else ("--secret-file", self.secret)
        return cli("token", "create", "--role", role, "--ttl", ttl, key[0], str(key[1]))

    def stranger(self) -> RawClient:
        """A raw client that has said nothing, closed after the test."""
        self.raws.append(RawClient(self.process.url))
        return self.raws[-1]

    def raw(self, **fields: Any) -> RawClient:
        """A raw client that has sent CONNECT, closed after the test."""
        client = self.stranger()
        client.send("CONNECT", client_version="raw", protocol_version=20, **fields)
        return client


def cli(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result.output.strip()
