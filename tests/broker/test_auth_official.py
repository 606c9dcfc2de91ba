"""Who is served: official Pulsar clients with tokens, passwords and certificates, and strangers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pulsar
import pytest

from router.access import tokens
from router.errors import ForbiddenError, UnauthenticatedError
from router.wire.node import node_pb2 as npb
from router.wire.pulsar import command, encode
from router.wire.pulsar import pulsar_pb2 as pb
from tests.broker.guarded import PERMISSIONS, Guarded
from tests.broker.raw import RawClient, node_frame
from tests.processes import outdated_tls, wait_until

SOON = 5_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with Guarded(tmp_path_factory.mktemp("guarded")) as guarded:
        yield guarded


@pytest.fixture(autouse=True)
def _closed(broker: Guarded) -> Iterator[None]:
    yield
    while broker.raws:
        broker.raws.pop().close()


@pytest.fixture
def connect(broker: Guarded) -> Iterator[Callable[..., pulsar.Client]]:
    """Connects official clients, which are closed after the test."""
    made: list[pulsar.Client] = []

    def client(
        authentication: pulsar.Authentication | None, *, secure: bool = False, patience: int = 10
    ) -> pulsar.Client:
        made.append(
            pulsar.Client(
                broker.url(secure=secure),
                authentication=authentication,
                tls_trust_certs_file_path=str(broker.authority.ca),
                tls_validate_hostname=True,
                operation_timeout_seconds=patience,
                logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            )
        )
        return made[-1]

    yield client
    for client_made in made:
        client_made.close()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/orders.{uuid4().hex}"


def carries(client: pulsar.Client, topic: str) -> bool:
    """Whether a message gets through."""
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"v")
    return bool(consumer.receive(SOON).data() == b"v")


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("private", [False, True], ids=["hs256", "es256"])
def test_token_opens_what_its_role_may_use(
    broker: Guarded, connect: Callable[..., pulsar.Client], topic: str, secure: bool, private: bool
) -> None:
    token = pulsar.AuthenticationToken(broker.token("anna", private=private))
    assert carries(connect(token, secure=secure), topic)


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_password_opens_what_its_user_may_use(
    connect: Callable[..., pulsar.Client], topic: str, secure: bool
) -> None:
    assert carries(connect(pulsar.AuthenticationBasic("anna", "secret"), secure=secure), topic)


def test_certificate_names_its_client_when_an_authority_vouches_for_it(
    broker: Guarded, connect: Callable[..., pulsar.Client], topic: str
) -> None:
    pair = broker.authority.issue("device")
    client = connect(pulsar.AuthenticationTLS(str(pair.cert), str(pair.key)), secure=True)
    client.create_producer(topic).send(b"v")
    with pytest.raises(pulsar.AuthorizationError):
        client.subscribe(topic, "s")


def test_official_client_is_not_served_when_it_shows_nothing_good(
    broker: Guarded, connect: Callable[..., pulsar.Client], topic: str
) -> None:
    stranger = tokens.signed(tokens.TokenKey("HS256", b"another secret" * 3), {"sub": "anna"})
    expired = tokens.signed(
        tokens.TokenKey("HS256", broker.secret.read_bytes()), {"sub": "a", "exp": 1}
    )
    for shown in (
        None,
        pulsar.AuthenticationToken(stranger),
        pulsar.AuthenticationToken(expired),
        pulsar.AuthenticationBasic("anna", "guess"),
    ):
        with pytest.raises((pulsar.Timeout, pulsar.AuthenticationError)):
            connect(shown, patience=1).create_producer(topic)


@pytest.mark.parametrize("role", ["reader", "writer"])
def test_role_is_refused_what_it_has_no_right_to(
    broker: Guarded, connect: Callable[..., pulsar.Client], topic: str, role: str
) -> None:
    client = connect(pulsar.AuthenticationToken(broker.token(role)))
    uses: dict[str, Callable[[], object]] = {
        "reader": lambda: client.subscribe(topic, "s"),
        "writer": lambda: client.create_producer(topic),
    }
    uses.pop(role)()
    # The other way round it is refused, whichever comes first.
    client = connect(pulsar.AuthenticationToken(broker.token(role)))
    with pytest.raises(pulsar.AuthorizationError):
        (client.create_producer(topic) if role == "reader" else client.subscribe(topic, "s"))


def test_topics_of_others_cannot_be_looked_up(
    broker: Guarded, connect: Callable[..., pulsar.Client]
) -> None:
    client = connect(pulsar.AuthenticationToken(broker.token("anna")))
    with pytest.raises(pulsar.AuthorizationError):
        client.get_topic_partitions("invoices")


def test_connection_lives_on_when_its_client_renews_the_token(
    broker: Guarded, connect: Callable[..., pulsar.Client], topic: str
) -> None:
    asked: list[str] = []

    def supplier() -> str:
        asked.append(broker.token("anna", "4s"))
        return asked[-1]

    client = connect(pulsar.AuthenticationToken(supplier))
    consumer, producer = client.subscribe(topic, "s"), client.create_producer(topic)
    before = len(asked)
    wait_until(lambda: len(asked) > before + 1)
    producer.send(b"v")
    message = consumer.receive(SOON)
    assert (message.data(), message.redelivery_count()) == (b"v", 0)


def token_of(broker: Guarded, role: str = "anna", ttl: str = "1h") -> dict[str, Any]:
    return {"auth_method_name": "token", "auth_data": broker.token(role, ttl).encode()}


@pytest.mark.parametrize(
    "shown",
    [
        {},
        {"auth_method_name": "token", "auth_data": b""},
        {"auth_method_name": "token", "auth_data": b"a.b.c"},
        {"auth_method_name": "token", "auth_data": b"\xff\x00" * 40_000},
        {"auth_method_name": "basic", "auth_data": b"anna:guess"},
        {"auth_method_name": "basic", "auth_data": b"anna"},
        {"auth_method_name": "basic", "auth_data": b"\xff:secret"},
        {"auth_method_name": "sasl", "auth_data": b"anna:secret"},
        {"auth_method_name": "tls"},
    ],
    ids=lambda shown: repr(shown)[:80],
)
def test_credentials_that_are_none_are_answered_as_pulsar_does(
    broker: Guarded, shown: dict[str, Any]
) -> None:
    client = broker.raw(**shown)
    failed = client.expect("ERROR")
    assert (failed.request_id, failed.error) == (2**64 - 1, pb.AuthenticationError)
    assert failed.message.startswith(UnauthenticatedError.code)
    assert client.closed()


def test_proxies_cannot_speak_for_others(broker: Guarded) -> None:
    client = broker.raw(**token_of(broker), original_principal="ops")
    assert client.expect("ERROR").error == pb.AuthenticationError


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\0" * 64,
        b"\xff" * 64,
        b"\x16\x03\x01\x02\x00\x01",
    ],
    ids=["http", "zeros", "ones", "tls"],
)
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_garbage_ends_its_connection_and_nothing_else(
    broker: Guarded, garbage: bytes, secure: bool
) -> None:
    port = broker.tls if secure else broker.plain
    with socket.create_connection(("127.0.0.1", port), 5) as client:
        client.sendall(garbage)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_WR)
            while client.recv(1 << 16):
                pass
    greeted = broker.raw(**token_of(broker))
    greeted.expect("CONNECTED")


def test_tls_before_1_2_is_refused(broker: Guarded) -> None:
    with (
        socket.create_connection(("127.0.0.1", broker.tls), 5) as client,
        pytest.raises((ssl.SSLError, ConnectionResetError)),
    ):
        outdated_tls().wrap_socket(client)
    greeted = broker.raw(**token_of(broker))
    greeted.expect("CONNECTED")


def test_nothing_is_served_before_the_client_is_known(broker: Guarded, topic: str) -> None:
    client = broker.stranger()
    client.send("PRODUCER", topic=topic, producer_id=0, request_id=1)
    assert client.closed()
    # The check of a password takes its time, and the client has to wait for it.
    client = broker.raw(auth_method_name="basic", auth_data=b"anna:wrong password")
    client.send("PRODUCER", topic=topic, producer_id=0, request_id=1)
    frame = client.read()
    assert frame is None or frame.command.type == pb.BaseCommand.ERROR


def test_handshakes_that_do_not_come_keep_nobody_out(
    broker: Guarded, connect: Callable[..., pulsar.Client], topic: str
) -> None:
    with contextlib.ExitStack() as kept:
        for _ in range(250):
            kept.enter_context(socket.create_connection(("127.0.0.1", broker.tls), 5))
        client = connect(pulsar.AuthenticationToken(broker.token("anna")), secure=True)
        assert carries(client, topic)


def test_strangers_that_say_nothing_keep_nobody_out(
    broker: Guarded, connect: Callable[..., pulsar.Client], topic: str
) -> None:
    with contextlib.ExitStack() as kept:
        silent = [
            kept.enter_context(socket.create_connection(("127.0.0.1", broker.plain), 5))
            for _ in range(510)
        ]
        assert carries(connect(pulsar.AuthenticationToken(broker.token("anna"))), topic)
        silent[0].settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            assert silent[0].recv(1) == b""


def test_new_certificate_serves_without_a_restart(broker: Guarded) -> None:
    trusting = ssl.create_default_context(cafile=str(broker.authority.ca))

    def serial() -> object:
        with (
            socket.create_connection(("127.0.0.1", broker.tls), 5) as plain,
            trusting.wrap_socket(plain, server_hostname="localhost") as client,
        ):
            certificate = client.getpeercert()
            assert certificate is not None
            return certificate["serialNumber"]

    before = serial()
    fresh = broker.authority.issue("fresh")
    fresh.key.replace(broker.pair.key)
    fresh.cert.replace(broker.pair.cert)
    wait_until(lambda: serial() != before)


def test_lookups_without_tls_name_no_address_for_tls(broker: Guarded, topic: str) -> None:
    client = broker.raw(**token_of(broker))
    client.expect("CONNECTED")
    answer = client.ask("LOOKUP", "LOOKUP_RESPONSE", topic=topic)
    assert answer.brokerServiceUrl == broker.process.url
    assert not answer.brokerServiceUrlTls


def test_refusals_are_answered_in_each_commands_own_way(broker: Guarded) -> None:
    client = broker.raw(**token_of(broker))
    client.expect("CONNECTED")
    hidden = {"topic": "persistent://public/default/invoices"}
    number = pb.AuthorizationError
    parts = client.ask("PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE", **hidden)
    failed = pb.CommandPartitionedTopicMetadataResponse.Failed
    assert (parts.response, parts.error) == (failed, number)
    assert parts.message.startswith(ForbiddenError.code)
    found = client.ask("LOOKUP", "LOOKUP_RESPONSE", **hidden)
    assert (found.response, found.error) == (pb.CommandLookupTopicResponse.Failed, number)
    assert client.ask("GET_SCHEMA", "GET_SCHEMA_RESPONSE", **hidden).error_code == number
    assert client.ask("PRODUCER", "ERROR", producer_id=0, **hidden).error == number
    asked = {"subscription": "s", "subType": pb.CommandSubscribe.Shared, "consumer_id": 0}
    assert client.ask("SUBSCRIBE", "ERROR", **asked, **hidden).error == number


def test_client_that_left_at_once_is_not_trusted_with_what_it_sent(broker: Guarded) -> None:
    topic = f"persistent://public/default/orders.{uuid4().hex}"
    asked = [
        encode(command(pb.BaseCommand.CONNECT, client_version="raw", protocol_version=20)),
        node_frame("ADMIN", request_id=1, create_topic=npb.CreateTopic(topic=topic)),
    ]
    # The reset reaches the broker before it accepts, so that the address is not to be had.
    os.kill(broker.process.pid, signal.SIGSTOP)
    try:
        with socket.create_connection(("127.0.0.1", broker.plain), 5) as client:
            client.sendall(b"".join(asked))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    finally:
        os.kill(broker.process.pid, signal.SIGCONT)
    ops = broker.raw(**token_of(broker, "ops"))
    ops.expect("CONNECTED")
    listing = ops.ask("ADMIN", "ADMIN_RESPONSE", list_topics=npb.ListTopics())
    assert topic not in {info.topic for info in listing.topics}


def test_initial_subscription_needs_the_right_to_subscribe(broker: Guarded, topic: str) -> None:
    client = broker.raw(**token_of(broker, "writer"))
    client.expect("CONNECTED")
    asked = {"producer_id": 0, "initial_subscription_name": "s"}
    assert client.ask("PRODUCER", "ERROR", topic=topic, **asked).error == pb.AuthorizationError
    client.producer(topic)


def test_producers_of_requests_are_for_administrators_alone(broker: Guarded, topic: str) -> None:
    client = broker.raw(**token_of(broker, "writer"))
    client.expect("CONNECTED")
    asked = {"producer_name": "idempotency:0f", "topic": topic}
    assert client.ask("PRODUCER", "ERROR", producer_id=0, **asked).error == pb.NotAllowedError
    client.producer(topic)


def test_transactions_are_their_owners_and_add_what_these_may_use(
    broker: Guarded, topic: str
) -> None:
    writer, reader = (broker.raw(**token_of(broker, role)) for role in ("writer", "reader"))
    for client in (writer, reader):
        client.expect("CONNECTED")
    coordinator = "persistent://pulsar/system/transaction_coordinator_assign"
    answer = "PARTITIONED_METADATA_RESPONSE"
    assert writer.ask("PARTITIONED_METADATA", answer, topic=coordinator).partitions == 1
    found = writer.ask("LOOKUP", "LOOKUP_RESPONSE", topic=f"{coordinator}-partition-0")
    assert found.response == pb.CommandLookupTopicResponse.Connect
    writer.producer(topic)
    begun = writer.ask("NEW_TXN", "NEW_TXN_RESPONSE", txn_ttl_seconds=60_000)
    ids = {"txnid_most_bits": begun.txnid_most_bits, "txnid_least_bits": begun.txnid_least_bits}
    answer = "ADD_PARTITION_TO_TXN_RESPONSE"
    for name, error in ((topic, None), ("persistent://public/default/x", pb.AuthorizationError)):
        added = writer.ask("ADD_PARTITION_TO_TXN", answer, partitions=[name], **ids)
        assert (added.error if added.HasField("error") else None) == error
    named = [pb.Subscription(topic=topic, subscription="s")]
    answer = "ADD_SUBSCRIPTION_TO_TXN_RESPONSE"
    added = writer.ask("ADD_SUBSCRIPTION_TO_TXN", answer, subscription=named, **ids)
    assert added.error == pb.AuthorizationError
    ended = reader.ask("END_TXN", "END_TXN_RESPONSE", txn_action=pb.COMMIT, **ids)
    assert ended.error == pb.TransactionNotFound
    ended = writer.ask("END_TXN", "END_TXN_RESPONSE", txn_action=pb.ABORT, **ids)
    assert not ended.HasField("error")


def test_partition_is_open_to_whom_its_topic_is(broker: Guarded) -> None:
    name = f"orders.{uuid4().hex}"
    broker.permissions.write_text(f"{PERMISSIONS}exact {name} publish\n")
    topic = f"persistent://public/default/{name}-partition-0"

    def open_to_exact() -> bool:
        client = broker.raw(**token_of(broker, "exact"))
        client.expect("CONNECTED")
        client.send("LOOKUP", topic=topic, request_id=1)
        answer = client.expect("LOOKUP_RESPONSE")
        return bool(answer.response == pb.CommandLookupTopicResponse.Connect)

    # A changed file counts for whatever is opened a second later.
    wait_until(open_to_exact)


def test_listing_has_what_may_be_seen(broker: Guarded, topic: str) -> None:
    names = {}
    for role in ("anna", "ops", "nobody"):
        client = broker.raw(**token_of(broker, role))
        client.expect("CONNECTED")
        if role == "anna":
            client.producer(topic)
        listing = client.ask(
            "GET_TOPICS_OF_NAMESPACE",
            "GET_TOPICS_OF_NAMESPACE_RESPONSE",
            namespace="public/default",
        )
        names[role] = set(listing.topics)
    assert topic in names["anna"] <= names["ops"]
    assert names["nobody"] == set()


def test_namespace_is_watched_by_whom_may_see_all_of_it(broker: Guarded) -> None:
    asked = {"watcher_id": 0, "namespace": "public/default", "topics_pattern": ".*"}
    for role, kind in (("ops", "WATCH_TOPIC_LIST_SUCCESS"), ("anna", "ERROR")):
        client = broker.raw(**token_of(broker, role))
        client.expect("CONNECTED")
        answer = client.ask("WATCH_TOPIC_LIST", kind, **asked)
        assert role == "ops" or answer.error == pb.AuthorizationError


@pytest.mark.parametrize(("role", "code"), [("ops", ""), ("anna", "not-allowed")])
def test_administration_is_for_administrators(broker: Guarded, role: str, code: str) -> None:
    client = broker.raw(**token_of(broker, role))
    client.expect("CONNECTED")
    answer = client.ask("ADMIN", "ADMIN_RESPONSE", list_namespaces=npb.ListNames())
    assert answer.code == code
    claimed = "persistent://public/default/orders.c"
    client.send("CLAIM", claim_id=1, topic=claimed, subscription="s", consumer="c", partitions=1)
    assert client.expect("CLAIM_UPDATE").code == code


def challenged(broker: Guarded, **features: bool) -> RawClient:
    client = broker.raw(**token_of(broker, ttl="4s"), feature_flags=pb.FeatureFlags(**features))
    client.expect("CONNECTED")
    return client


def test_client_is_asked_for_a_new_token_when_its_own_ends(broker: Guarded, topic: str) -> None:
    client = challenged(broker, supports_auth_refresh=True)
    challenge = client.expect("AUTH_CHALLENGE")
    assert challenge.challenge.auth_method_name == "token"
    assert challenge.challenge.auth_data == b"PulsarAuthRefresh"
    assert challenge.protocol_version == 20
    client.producer(topic)  # served on meanwhile
    fresh = pb.AuthData(auth_method_name="token", auth_data=broker.token("anna", "4s").encode())
    client.send("AUTH_RESPONSE", client_version="raw", response=fresh)
    client.expect("AUTH_CHALLENGE")


@pytest.mark.parametrize("role", ["ops", "anna"])
def test_new_token_is_refused_when_it_is_anothers_or_stale(broker: Guarded, role: str) -> None:
    client = challenged(broker, supports_auth_refresh=True)
    client.expect("AUTH_CHALLENGE")
    claims = {"sub": role, **({"exp": 1} if role == "anna" else {})}
    token = tokens.signed(tokens.TokenKey("HS256", broker.secret.read_bytes()), claims)
    fresh = pb.AuthData(auth_method_name="token", auth_data=token.encode())
    client.send("AUTH_RESPONSE", client_version="raw", response=fresh)
    assert client.expect("ERROR").error == pb.AuthenticationError
    assert client.closed()


def test_connection_ends_with_its_token_when_the_client_cannot_renew_it(broker: Guarded) -> None:
    client = challenged(broker)
    assert client.expect("ERROR").error == pb.AuthenticationError
    assert client.closed()


def test_unasked_token_changes_nothing(broker: Guarded, topic: str) -> None:
    client = broker.raw(**token_of(broker, "reader"))
    client.expect("CONNECTED")
    other = pb.AuthData(auth_method_name="token", auth_data=broker.token("anna").encode())
    client.send("AUTH_RESPONSE", client_version="raw", response=other)
    assert (
        client.ask("PRODUCER", "ERROR", topic=topic, producer_id=0).error == pb.AuthorizationError
    )


def test_passwords_are_rationed_as_over_http(broker: Guarded) -> None:
    kinds = set()
    for guess in range(20):
        client = broker.raw(auth_method_name="basic", auth_data=b"guessed:%d" % guess)
        kinds.add(client.expect("ERROR").error)
        client.close()
    assert kinds == {pb.AuthenticationError, pb.TooManyRequests}


def test_log_names_no_credentials(broker: Guarded) -> None:
    log = broker.process.folder / "broker.log"
    expected = {"event": "client-refused", "protocol": "pulsar", "user": "anna"}.items()

    def lines() -> int:
        return sum(expected <= json.loads(line).items() for line in log.read_text().splitlines())

    def logged() -> bool:
        # A second has room for 20 refusals, which another test may have used up.
        with contextlib.closing(
            broker.raw(auth_method_name="basic", auth_data=b"anna:very secret")
        ) as client:
            client.expect("ERROR")
        return lines() > before

    before = lines()
    wait_until(logged)
    assert "very secret" not in log.read_text()


def test_handshake_that_fails_is_logged_with_the_protocol(broker: Guarded) -> None:
    log = broker.process.folder / "broker.log"
    before = log.read_text().count('"handshake-failed"')
    with socket.create_connection(("127.0.0.1", broker.tls), 10) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        wait_until(lambda: log.read_text().count('"handshake-failed"') > before)
    lines = map(json.loads, log.read_text().splitlines())
    failed = [line for line in lines if line["event"] == "handshake-failed"]
    assert failed[-1]["protocol"] == "pulsar"
