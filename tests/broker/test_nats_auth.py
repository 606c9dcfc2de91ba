"""NATS clients at a broker with users, permissions and TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
import pulsar
import pytest
from nats.aio.client import Client
from nats.errors import Error

from router.cli.user import hashed
from tests.broker.guarded import cli
from tests.broker.nats_raw import RawNats, connect
from tests.ports import free_port
from tests.processes import BrokerProcess
from tests.servers.certificates import Authority

SECONDS = 10
PERMISSIONS = """\
anna    orders.*  publish, subscribe
reader  orders.*  subscribe
device  orders.*  publish
ops     *         manage, publish, subscribe
"""
VIOLATION = "-ERR 'Authorization Violation'"


@dataclass
class GuardedNats:
    """A broker that asks its NATS clients who they are."""

    plain: str
    secure: str
    authority: Authority
    secret: Path
    pulsar: str

    def tls(self, certificate: str = "") -> ssl.SSLContext:
        """What a client does TLS with, with a certificate of this name if one is given."""
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        if certificate:
            pair = self.authority.issue(certificate)
            context.load_cert_chain(pair.cert, pair.key)
        return context

    def raw(self, name: str) -> RawNats:
        """A user's connection."""
        return RawNats(self.plain).connect(user=name, **{"pass": "secret"})


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedNats]:
    folder = tmp_path_factory.mktemp("guarded")
    authority = Authority(folder / "tls")
    pair = authority.issue("server")
    plain, secure = (f"127.0.0.1:{free_port()}" for _ in range(2))
    users, permissions, secret = folder / "users", folder / "permissions", folder / "token.key"
    users.write_text("".join(f"{name}:{hashed('secret')}\n" for name in ("anna", "reader", "ops")))
    permissions.write_text(PERMISSIONS)
    cli("token", "key", "--secret-file", str(secret))
    process = BrokerProcess(
        folder / "data",
        free_port(),
        broker_nats=plain,
        broker_nats_tls=secure,
        broker_cert=str(pair.cert),
        broker_key=str(pair.key),
        broker_client_ca=str(authority.ca),
        auth_users=str(users),
        auth_permissions=str(permissions),
        auth_token_secret_file=str(secret),
        auth_failures_per_minute="0",
        auth_attempts_per_minute="0",
    )
    process.start()
    yield GuardedNats(plain, secure, authority, secret, process.url)
    assert process.stop() == 0


def token(guarded: GuardedNats, ttl: str = "1h") -> str:
    role = ("--role", "device")
    return cli("token", "create", *role, "--ttl", ttl, "--secret-file", str(guarded.secret))


async def connected(url: str, **options: Any) -> Client:
    errors: list[Exception] = []

    async def error_cb(error: Exception) -> None:
        errors.append(error)

    return await nats.connect(
        url, allow_reconnect=False, connect_timeout=SECONDS, error_cb=error_cb, **options
    )


def test_a_user_publishes_and_receives(guarded: GuardedNats) -> None:
    async def use() -> bytes:
        client = await connected(f"nats://{guarded.plain}", user="anna", password="secret")
        found = await client.subscribe("orders.a")
        await client.publish("orders.a", b"v")
        message = await found.next_msg(SECONDS)
        await client.close()
        return message.data

    assert asyncio.run(use()) == b"v"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"user": "anna", "pass": "wrong"},
        {"user": "stranger", "pass": "secret"},
        {"user": "anna:secret", "pass": "secret"},
        {"auth_token": "no token"},
        {"jwt": "eyJ0eXAiOiJKV1QifQ.e30.", "sig": "c2ln"},
    ],
    ids=["nothing", "wrong password", "no such user", "a colon", "no token", "a JWT of NATS"],
)
def test_others_are_refused(guarded: GuardedNats, options: dict[str, str]) -> None:
    with RawNats(guarded.plain) as client:
        assert client.info["auth_required"] is True
        assert client.ask(connect(**options)) == [VIOLATION, "closed"]


@pytest.mark.parametrize("line", ["PING", "SUB orders.a 1", "PUB orders.a 0\r\n"])
def test_nothing_is_served_before_connect(guarded: GuardedNats, line: str) -> None:
    with RawNats(guarded.plain) as client:
        assert client.ask(line) == [VIOLATION, "closed"]


def test_what_follows_connect_waits_for_the_check_of_the_password(guarded: GuardedNats) -> None:
    with RawNats(guarded.plain) as client:
        lines = [
            connect(user="anna", **{"pass": "secret"}),
            "SUB orders.w 1",
            "PUB orders.w 1",
            "x",
        ]
        assert client.ask(*lines) == ["MSG orders.w 1 1", "x"]


def test_a_token_is_taken_and_ends_when_it_expires(guarded: GuardedNats) -> None:
    with RawNats(guarded.plain).connect(auth_token=token(guarded)) as client:
        assert client.ask("PUB orders.a 1", "x") == []
    with RawNats(guarded.plain).connect(user=token(guarded)) as client:
        assert client.ask("PUB orders.a 1", "x") == []
    with RawNats(guarded.plain).connect(auth_token=token(guarded, "5s")) as client:
        assert client.lines() == ["-ERR 'User Authentication Expired'", "closed"]


def test_a_user_has_the_rights_of_the_file(guarded: GuardedNats) -> None:
    with guarded.raw("reader") as reader, guarded.raw("anna") as anna:
        assert reader.ask("PUB orders.r 1", "x") == [
            "-ERR 'Permissions Violation for Publish to \"orders.r\"'"
        ]
        assert reader.ask("SUB orders.r 1", "SUB other 2", "SUB other q 3") == [
            "-ERR 'Permissions Violation for Subscription to \"other\"'",
            '-ERR \'Permissions Violation for Subscription to "other" using queue "q"\'',
        ]
        assert anna.ask("PUB orders.r 1", "x", "PUB other 1", "x", "PUB orders.* 1", "x") == [
            "-ERR 'Permissions Violation for Publish to \"other\"'",
            "-ERR 'Permissions Violation for Publish to \"orders.*\"'",
        ]
        assert reader.ask() == ["MSG orders.r 1 1", "x"]


def test_a_consumer_may_filter_by_wildcards_of_a_stream_that_its_user_reads(
    guarded: GuardedNats,
) -> None:
    async def use(reader: str) -> list[bytes]:
        options = {"password": "secret", "inbox_prefix": f"_INBOX.{reader}"}
        ops = await connected(f"nats://{guarded.plain}", user="ops", password="secret")
        client = await connected(f"nats://{guarded.plain}", user=reader, **options)
        try:
            await ops.jetstream().add_stream(name="STOCK", subjects=["stock.*"])
            await ops.jetstream().publish("stock.a", b"v")
            found = await client.jetstream().pull_subscribe("stock.*", f"of-{reader}")
            return [message.data for message in await found.fetch(1, SECONDS)]
        finally:
            await client.close()
            await ops.close()

    assert asyncio.run(use("ops")) == [b"v"]
    with pytest.raises(Error):
        asyncio.run(use("reader"))


def test_a_subscription_with_wildcards_shows_what_the_client_may_read(
    guarded: GuardedNats,
) -> None:
    with guarded.raw("anna") as anna, guarded.raw("ops") as ops:
        assert anna.ask("SUB > 1", "SUB *.s 2") == []
        ops.ask("PUB orders.s 1", "1", "PUB secret.s 1", "2", "PUB _INBOX.x.1 1", "3")
        ops.ask("PUB a/b 1", "4", "PUB $JS.API.INFO 0", "", "PUB $SYS.x 1", "5")
        assert sorted(anna.ask()) == ["1", "1", "MSG orders.s 1 1", "MSG orders.s 2 1"]


def test_what_other_dialects_publish_is_shown_to_those_who_may_read_it(
    guarded: GuardedNats,
) -> None:
    client = pulsar.Client(
        guarded.pulsar, authentication=pulsar.AuthenticationBasic("ops", "secret")
    )
    try:
        producers = [client.create_producer(topic) for topic in ("secret.f", "orders.f")]
        with guarded.raw("anna") as anna, guarded.raw("ops") as ops:
            assert anna.ask("SUB > 1", "SUB *.f 2") == []
            assert len(anna.ask("SUB secret.f 3")) == 1
            assert ops.ask("SUB *.f 1") == []
            for number, producer in enumerate(producers):
                producer.send(b"%d" % number)
            assert ops.ask() == ["MSG secret.f 1 1", "0", "MSG orders.f 1 1", "1"]
            assert sorted(anna.ask()) == ["1", "1", "MSG orders.f 1 1", "MSG orders.f 2 1"]
    finally:
        client.close()


def test_the_inboxes_of_others_are_closed(guarded: GuardedNats) -> None:
    with guarded.raw("anna") as anna, guarded.raw("reader") as reader:
        assert anna.ask("SUB _INBOX.mine.* 1", "SUB _INBOX.one 2") == []
        refused = [f"SUB {subject} 9" for subject in ("_INBOX.>", "_INBOX.*", "_INBOX.*.a")]
        assert len(anna.ask(*refused)) == len(refused)
        assert reader.ask("PUB _INBOX.mine.1 1", "x") == []
        assert anna.ask() == ["MSG _INBOX.mine.1 1 1", "x"]


@pytest.mark.parametrize("first", [False, True], ids=["INFO before TLS", "TLS first"])
@pytest.mark.parametrize("how", ["password", "certificate"])
def test_clients_are_served_over_tls(guarded: GuardedNats, how: str, first: bool) -> None:
    context = guarded.tls("anna" if how == "certificate" else "")
    options = {} if how == "certificate" else {"user": "anna", "pass": "secret"}
    with RawNats(guarded.secure, context, first) as client:
        assert client.info["tls_required"] is True
        assert client.ask(connect(**options), "SUB orders.t 1", "PUB orders.t 1", "x") == [
            *("MSG orders.t 1 1", "x")
        ]


def test_official_clients_use_tls(guarded: GuardedNats) -> None:
    async def use(**options: Any) -> int:
        client = await connected(
            f"tls://{guarded.secure}",
            tls=guarded.tls(),
            tls_hostname="localhost",
            user="anna",
            password="secret",
            **options,
        )
        await client.flush(SECONDS)
        number = client.client_id or 0
        await client.close()
        return number

    assert asyncio.run(use()) > 0
    assert asyncio.run(use(tls_handshake_first=True)) > 0


def test_a_client_that_trusts_another_authority_is_not_served(guarded: GuardedNats) -> None:
    async def use() -> None:
        await connected(f"tls://{guarded.secure}", tls=ssl.create_default_context())

    with pytest.raises((Error, OSError)):
        asyncio.run(use())


def test_words_in_clear_are_no_handshake(guarded: GuardedNats) -> None:
    with RawNats(guarded.secure) as client:
        client.send(connect(user="anna", **{"pass": "secret"}), "PING")
        assert client.line() == ""
