"""SASL over a transport in memory: who is served before it is known, and what is refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from router.access.scram import write_verifiers
from router.broker.kafka.failures import ErrorCode
from router.broker.node.counters import NodeCounters
from router.broker.node.registry import FileRegistry
from router.broker.transport.authentication import ListenerAuthorizer
from router.broker.transport.context import TransportContext
from router.broker.transport.topic_rights import TopicRightsRegistry
from router.cli.user import hashed
from router.model import TopicName
from router.settings import load
from tests.unit.broker.kafka.serving import KafkaClient, KafkaServer, serving
from tests.unit.broker.kafka.test_fetch import fetched, listed
from tests.unit.broker.kafka.test_produce import batch, produced

PERMISSIONS = """
anna    t     publish
reader  t     subscribe
anna    own*  manage
root    *     manage
"""
Test = Callable[[KafkaServer], Awaitable[None]]


def with_users(folder: Path, test: Test) -> None:
    """Run a test against a listener with the users anna, reader and root.

    Their password is `secret`; root administers, and can authenticate by SCRAM.
    """
    lines = [f"{name}:{hashed('secret')}\n" for name in ("anna", "reader")]
    lines.append(f"root:{hashed('secret')}:{write_verifiers('secret')}\n")
    (folder / "users").write_text("".join(lines))
    (folder / "permissions").write_text(PERMISSIONS)
    settings = load(
        None,
        {
            "ROUTER_AUTH_USERS": str(folder / "users"),
            "ROUTER_AUTH_PERMISSIONS": str(folder / "permissions"),
            "ROUTER_BROKER_KAFKA_REBALANCE_DELAY": "0s",
        },
    )

    async def run() -> None:
        (folder / "rights").mkdir()
        registry = await FileRegistry.open(folder / "rights")
        rights = TopicRightsRegistry(registry)
        counters = NodeCounters(time.monotonic)
        authorizer = ListenerAuthorizer(settings, rights, counters, lambda: 1_000.0, time.monotonic)
        transport = TransportContext(authorizer=authorizer)
        try:
            async with serving(folder, settings=settings, transport=transport) as server:
                for name in ("t", "hidden"):
                    await server.topics.create(TopicName.parse(name))
                await test(server)
        finally:
            authorizer.close()
            await registry.close()

    asyncio.run(run())


async def login(client: KafkaClient, name: str = "anna", sent: bytes | None = None) -> Any:
    handshake = await client.ask("SaslHandshake", 1, mechanism="PLAIN")
    assert (handshake.error_code, handshake.mechanisms) == (
        0,
        ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
    )
    sent = b"\0%s\0secret" % name.encode() if sent is None else sent
    return await client.ask("SaslAuthenticate", 2, auth_bytes=sent)


def test_a_user_is_served_with_its_rights(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        client, other = server.client(), server.client()
        assert (await client.ask("ApiVersions", 0)).api_keys
        assert (await login(client)).error_code == 0
        assert (await login(other, "reader")).error_code == 0
        assert [t.name for t in (await client.ask("Metadata", 4, topics=None)).topics] == ["t"]
        forbidden = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert (await produced(client, batch())).error_code == 0
        assert (await produced(client, batch(), topic="hidden")).error_code == forbidden
        assert (await produced(other, batch())).error_code == forbidden
        assert (await fetched(other, 0)).error_code == 0
        assert (await fetched(client, 0)).error_code == forbidden
        assert (await listed(client, -1)).error_code == 0
        assert (await listed(client, -1, topic="hidden")).error_code == forbidden

    with_users(tmp_path, test)


@pytest.mark.parametrize(
    "sent",
    [
        b"\0anna\0wrong",
        b"\0none\0secret",
        b"reader\0anna\0secret",
        b"\0an:na\0secret",
        b"anna",
        b"",
        b"\0\0",
        b"\0anna\0token:x.y.z",
        b"\0" * 9,
    ],
)
def test_what_is_no_user_is_refused_with_the_reason(tmp_path: Path, sent: bytes) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        answer = await login(client, sent=sent)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message
        assert client.connection.closed

    with_users(tmp_path, test)


def test_nothing_else_is_served_to_a_client_that_is_not_known(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        client.send("Metadata", 4, topics=None)
        assert client.connection.closed
        assert client.take() == []

    with_users(tmp_path, test)


def test_an_answered_step_is_not_answered_again(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        mechanism = "SCRAM-SHA-256"
        assert (await client.ask("SaslHandshake", 1, mechanism=mechanism)).error_code == 0
        first = await client.ask("SaslAuthenticate", 2, auth_bytes=b"n,,n=anna,r=abc")
        assert first.error_code == 0
        client.send("Metadata", 4, topics=None)
        assert client.connection.closed
        assert client.take() == []

    with_users(tmp_path, test)


def test_the_steps_come_in_their_order(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        early = await client.ask("SaslAuthenticate", 2, auth_bytes=b"\0anna\0secret")
        assert early.error_code == ErrorCode.ILLEGAL_SASL_STATE
        unknown = await client.ask("SaslHandshake", 1, mechanism="GSSAPI")
        assert unknown.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert (await login(client)).error_code == 0
        again = await client.ask("SaslHandshake", 1, mechanism="PLAIN")
        assert again.error_code == ErrorCode.ILLEGAL_SASL_STATE

    with_users(tmp_path, test)


def test_a_listener_without_users_asks_for_none(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as server:
            answer = await server.client().ask("SaslHandshake", 1, mechanism="PLAIN")
            assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE

    asyncio.run(run())
