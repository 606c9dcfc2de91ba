"""SASL over a transport in memory: who is served before it is known, and what is refused."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from router.access.login_limits import LoginLimits
from router.access.scram import write_verifiers
from router.access.watched import reload_all
from router.backends.kafka.sasl import exchange
from router.broker.kafka.failures import ErrorCode
from router.broker.kafka.session import MAX_REQUEST_BYTES
from router.broker.node.counters import NodeCounters
from router.broker.node.registry import FileRegistry
from router.broker.transport.authentication import ListenerAuthorizer
from router.broker.transport.context import TransportContext
from router.broker.transport.identity import MAX_UNAUTHENTICATED_BYTES
from router.broker.transport.topic_rights import TopicRightsRegistry
from router.cli.user import hashed
from router.errors import TooManyRequestsError
from router.log import MAX_REFUSAL_LINES_PER_SECOND, LineLimit
from router.model import TopicName
from router.settings import load
from router.wire.kafka.frames import SIZE
from tests.unit.broker.kafka.serving import KafkaClient, KafkaServer, serving
from tests.unit.broker.kafka.test_fetch import fetched, listed
from tests.unit.broker.kafka.test_produce import batch, produced

PERMISSIONS = """
anna    t     publish
reader  t     subscribe
anna    own*  manage
root    *     manage
"""


@asynccontextmanager
async def guarded_server(folder: Path) -> AsyncIterator[KafkaServer]:
    """Serve a folder with a listener with the users anna, reader and root.

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

    (folder / "rights").mkdir(exist_ok=True)
    registry = await FileRegistry.open(folder / "rights")
    rights = TopicRightsRegistry(registry)
    counters = NodeCounters(time.monotonic)
    authorizer = ListenerAuthorizer(settings, rights, counters, lambda: 1_000.0, time.monotonic)
    transport = TransportContext(authorizer=authorizer)
    try:
        async with serving(folder, settings=settings, transport=transport) as server:
            for name in ("t", "hidden"):
                if server.topics.find_kafka(name) is None:
                    await server.topics.create(TopicName.parse(name))
            yield server
    finally:
        authorizer.close()
        await registry.close()


async def login(client: KafkaClient, name: str = "anna", sent: bytes | None = None) -> Any:
    handshake = await client.ask("SaslHandshake", 1, mechanism="PLAIN")
    assert (handshake.error_code, handshake.mechanisms) == (
        0,
        ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
    )
    sent = b"\0%s\0secret" % name.encode() if sent is None else sent
    return await client.ask("SaslAuthenticate", 2, auth_bytes=sent)


async def test_a_right_to_publish_that_is_revoked_counts_with_the_next_request(
    tmp_path: Path,
) -> None:
    async with guarded_server(tmp_path) as server:
        client = server.client()
        await login(client)
        assert (await produced(client, batch())).error_code == 0
        for rules, code in ((" ", ErrorCode.TOPIC_AUTHORIZATION_FAILED), (PERMISSIONS, 0)):
            (tmp_path / "permissions").write_text(rules)
            reload_all()
            assert (await produced(client, batch())).error_code == code


async def test_a_user_is_served_with_its_rights(tmp_path: Path) -> None:
    async with guarded_server(tmp_path) as server:
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
async def test_what_is_no_user_is_refused_with_the_reason(tmp_path: Path, sent: bytes) -> None:
    async with guarded_server(tmp_path) as server:
        client = server.client()
        answer = await login(client, sent=sent)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message
        assert client.connection.closed


async def test_a_password_that_is_not_checked_for_the_moment_is_refused_with_a_stable_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def admit(*_: object) -> None:
        raise TooManyRequestsError("There are too many.", retry_after=1)

    async with guarded_server(tmp_path) as server:
        monkeypatch.setattr(LoginLimits, "admit", admit)
        answer = await login(server.client())
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message == "too-many-requests: There are too many."


async def test_nothing_else_is_served_to_a_client_that_is_not_known(tmp_path: Path) -> None:
    async with guarded_server(tmp_path) as server:
        client = server.client()
        client.send("Metadata", 4, topics=None)
        assert client.connection.closed
        assert client.take() == []


async def test_an_answered_step_is_not_answered_again(tmp_path: Path) -> None:
    async with guarded_server(tmp_path) as server:
        client = server.client()
        mechanism = "SCRAM-SHA-256"
        assert (await client.ask("SaslHandshake", 1, mechanism=mechanism)).error_code == 0
        first = await client.ask("SaslAuthenticate", 2, auth_bytes=b"n,,n=anna,r=abc")
        assert first.error_code == 0
        client.send("Metadata", 4, topics=None)
        assert client.connection.closed
        assert client.take() == []


async def test_the_steps_come_in_their_order(tmp_path: Path) -> None:
    async with guarded_server(tmp_path) as server:
        client = server.client()
        early = await client.ask("SaslAuthenticate", 2, auth_bytes=b"\0anna\0secret")
        assert early.error_code == ErrorCode.ILLEGAL_SASL_STATE
        unknown = await client.ask("SaslHandshake", 1, mechanism="GSSAPI")
        assert unknown.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert (await login(client)).error_code == 0
        again = await client.ask("SaslHandshake", 1, mechanism="PLAIN")
        assert again.error_code == ErrorCode.ILLEGAL_SASL_STATE


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_tokens_are_bare_after_a_handshake_of_version_0(
    tmp_path: Path, mechanism: str
) -> None:
    async with guarded_server(tmp_path) as server:
        client = await bare(server, mechanism)
        steps = exchange(mechanism, "root", "secret")
        sent: bytes | None = next(steps)
        while sent is not None:
            send_token(client, sent)
            answer = await client.receive_frame()
            try:
                sent = steps.send(answer)
            except StopIteration:
                sent = None
        topics = (await client.ask("Metadata", 4, topics=None)).topics
        assert {topic.name for topic in topics} == {"hidden", "t"}
        counters = server.context.broker.counters
        await counters.refresh()
        count = 1 if mechanism == "PLAIN" else 2
        asked = f'router_kafka_requests_total{{api="SaslAuthenticate"}} {count}.0'
        assert asked in counters.render().splitlines()


async def test_a_request_behind_a_bare_token_waits_until_the_client_is_known(
    tmp_path: Path,
) -> None:
    async with guarded_server(tmp_path) as server:
        client = await bare(server)
        token = b"\0root\0secret"
        request = client.request("Metadata", 4, topics=None)
        client.connection.data_received(SIZE.pack(len(token)) + token + request)
        assert await client.receive_frame() == b""
        assert len((await client.receive()).topics) == 2


@pytest.mark.parametrize(
    ("mechanism", "sent"),
    [
        ("PLAIN", b"\0anna\0wrong"),
        ("PLAIN", b""),
        ("PLAIN", b"\0a\0b"),
        ("PLAIN", b"\xff" * 100),
        ("SCRAM-SHA-256", b"\xff" * 100),
        ("SCRAM-SHA-256", b"n,,n=root"),
    ],
)
async def test_a_bare_token_that_is_refused_ends_the_connection_without_an_answer(
    tmp_path: Path, mechanism: str, sent: bytes
) -> None:
    async with guarded_server(tmp_path) as server:
        client = await bare(server, mechanism)
        send_token(client, sent)
        await client.connection.settled()
        assert client.connection.closed
        assert client.take() == []


async def test_a_wrong_proof_by_bare_tokens_ends_the_connection(tmp_path: Path) -> None:
    async with guarded_server(tmp_path) as server:
        client = await bare(server, "SCRAM-SHA-256")
        steps = exchange("SCRAM-SHA-256", "root", "wrong")
        send_token(client, next(steps))
        send_token(client, steps.send(await client.receive_frame()))
        assert client.connection.closed
        assert client.take() == []


@pytest.mark.parametrize(
    ("sent", "user"),
    [
        (b"\0anna\0wrong", "anna"),
        (b"\0" + b"n" * 200 + b"\0wrong", "n" * 100),
        (b"\0a\xff\n\0wrong", "a\ufffd\n"),
        (b"\0anna\0token:wrong", None),
        (b"wrong", None),
    ],
)
async def test_a_refused_login_is_logged_with_its_user(
    tmp_path: Path, sent: bytes, user: str | None
) -> None:
    async with guarded_server(tmp_path) as server:
        client = server.client()
        with capture_logs() as logs:
            await login(client, sent=sent)
        (line,) = [one for one in logs if one["event"] == "client-refused"]
        assert line["user"] == user
        assert line["protocol"] == "test"
        assert line["peer"] == client.connection.peer.name
        assert "wrong" not in str({**line, "reason": ""})


async def test_a_wrong_proof_is_logged_with_its_user(tmp_path: Path) -> None:
    async with guarded_server(tmp_path) as server:
        client = await bare(server, "SCRAM-SHA-256")
        steps = exchange("SCRAM-SHA-256", "root", "wrong")
        with capture_logs() as logs:
            send_token(client, next(steps))
            send_token(client, steps.send(await client.receive_frame()))
        assert [(one["event"], one["user"]) for one in logs] == [("client-refused", "root")]


async def test_refused_logins_write_a_bounded_number_of_lines(tmp_path: Path) -> None:
    async with guarded_server(tmp_path) as server:
        authorizer, second = (
            server.client().connection.identity.authorizer,
            iter([0.0] * 25 + [1.0]),
        )
        assert authorizer is not None
        authorizer.refusals = LineLimit(lambda: next(second))
        with capture_logs() as logs:
            for _ in range(26):
                await login(server.client(), sent=b"wrong")
        lines = [one for one in logs if one["event"] == "client-refused"]
        assert len(lines) == MAX_REFUSAL_LINES_PER_SECOND + 1
        assert lines[-1]["left_out"] == 25 - MAX_REFUSAL_LINES_PER_SECOND


@pytest.mark.parametrize("size", [MAX_REQUEST_BYTES, MAX_REQUEST_BYTES + 1, -1])
async def test_a_bare_token_has_the_bounds_of_what_comes_from_a_client_not_known(
    tmp_path: Path, size: int
) -> None:
    async with guarded_server(tmp_path) as server:
        client = await bare(server)
        client.connection.data_received(SIZE.pack(size))
        assert client.connection.closed == (size != MAX_REQUEST_BYTES)
        client.connection.data_received(bytes(MAX_UNAUTHENTICATED_BYTES))
        assert client.connection.closed
        assert client.take() == []


async def test_a_request_in_place_of_a_bare_token_is_refused(tmp_path: Path) -> None:
    async with guarded_server(tmp_path) as server:
        client = await bare(server)
        client.send("SaslAuthenticate", 2, auth_bytes=b"\0anna\0secret")
        assert client.connection.closed
        assert client.take() == []


async def test_version_0_of_the_handshake_is_advertised(tmp_path: Path) -> None:
    async with guarded_server(tmp_path) as server:
        keys = (await server.client().ask("ApiVersions", 0)).api_keys
        versions = {key.api_key: (key.min_version, key.max_version) for key in keys}
        assert versions[17] == (0, 1)


async def bare(server: KafkaServer, mechanism: str = "PLAIN") -> KafkaClient:
    """Return a client after its handshake of version 0."""
    client = server.client()
    handshake = await client.ask("SaslHandshake", 0, mechanism=mechanism)
    assert handshake.error_code == 0
    return client


def send_token(client: KafkaClient, token: bytes) -> None:
    client.connection.data_received(SIZE.pack(len(token)) + token)


async def test_a_listener_without_users_asks_for_none(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        answer = await server.client().ask("SaslHandshake", 1, mechanism="PLAIN")
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
