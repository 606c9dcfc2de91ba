"""Official Kafka clients at a broker with users, permissions and TLS."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaTimeoutError, TopicAuthorizationFailedError

from router.access.scram import write_verifiers
from router.cli.user import hashed
from tests.broker.guarded import cli
from tests.ports import free_port
from tests.processes import BrokerProcess
from tests.servers.certificates import Authority

SECONDS = 20
PERMISSIONS = """\
anna    orders.*  publish, subscribe
reader  orders.*  subscribe
device  orders.*  publish
scram   orders.*  publish
"""


@dataclass
class GuardedKafka:
    """A broker that asks its Kafka clients who they are."""

    plain: str
    secure: str
    authority: Authority
    secret: Path

    def login(self, name: str = "anna", password: str = "secret") -> dict[str, Any]:
        """What a client of kafka-python is told."""
        return {
            "bootstrap_servers": self.plain,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": name,
            "sasl_plain_password": password,
        }


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedKafka]:
    folder = tmp_path_factory.mktemp("guarded")
    authority = Authority(folder / "tls")
    pair = authority.issue("server")
    plain, secure = (f"127.0.0.1:{free_port()}" for _ in range(2))
    users, permissions, secret = folder / "users", folder / "permissions", folder / "token.key"
    lines = [f"{name}:{hashed('secret')}" for name in ("anna", "reader")]
    lines.append(f"scram:{hashed('secret')}:{write_verifiers('secret')}")
    users.write_text("\n".join(lines))
    permissions.write_text(PERMISSIONS)
    cli("token", "key", "--secret-file", str(secret))
    process = BrokerProcess(
        folder / "data",
        free_port(),
        broker_kafka=plain,
        broker_kafka_tls=secure,
        broker_kafka_advertised=f"kafka+ssl://localhost:{secure.rpartition(':')[2]}",
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
    yield GuardedKafka(plain, secure, authority, secret)
    process.stop()


def sent(producer: KafkaProducer, topic: str, value: bytes = b"v") -> Any:
    try:
        return producer.send(topic, value).get(SECONDS)
    finally:
        producer.close()


def test_a_user_sends_and_receives(guarded: GuardedKafka) -> None:
    topic = f"orders.{uuid4().hex}"
    assert sent(KafkaProducer(**guarded.login()), topic).offset == 0
    consumer = KafkaConsumer(
        auto_offset_reset="earliest", consumer_timeout_ms=SECONDS * 1_000, **guarded.login("reader")
    )
    consumer.assign([TopicPartition(topic, 0)])
    assert next(consumer).value == b"v"
    consumer.close()


def test_a_user_has_the_rights_of_the_file(guarded: GuardedKafka) -> None:
    topic = f"orders.{uuid4().hex}"
    sent(KafkaProducer(**guarded.login()), topic)
    with pytest.raises(TopicAuthorizationFailedError):
        sent(KafkaProducer(**guarded.login("reader")), topic)
    with pytest.raises((KafkaTimeoutError, TopicAuthorizationFailedError)):
        sent(KafkaProducer(max_block_ms=2_000, **guarded.login()), f"other.{uuid4().hex}")


@pytest.mark.parametrize("name", ["anna", "nobody"])
def test_a_wrong_password_is_refused(guarded: GuardedKafka, name: str) -> None:
    assert _refused(guarded, name, "wrong", "PLAIN")


def _refused(guarded: GuardedKafka, name: str, password: str, mechanism: str) -> bool:
    """Wait until a client is told that its authentication failed."""
    failures: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": guarded.plain,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": name,
            "sasl.password": password,
            "error_cb": failures.append,
        }
    )
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        producer.poll(0.1)
        if KafkaError._AUTHENTICATION in {failure.code() for failure in failures}:
            return True
    return False


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("library", ["kafka-python", "librdkafka"])
def test_a_user_with_verifiers_may_use_each_mechanism(
    guarded: GuardedKafka, library: str, mechanism: str
) -> None:
    topic = f"orders.{uuid4().hex}"
    if library == "kafka-python":
        login = guarded.login("scram") | {"sasl_mechanism": mechanism}
        assert sent(KafkaProducer(**login), topic).offset == 0
        return
    settings = {
        "bootstrap.servers": guarded.plain,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "scram",
        "sasl.password": "secret",
        "message.timeout.ms": SECONDS * 1_000,
    }
    failures: list[Any] = []
    producer = Producer(settings)
    producer.produce(topic, b"v", on_delivery=lambda error, _message: failures.append(error))
    assert producer.flush(SECONDS) == 0
    assert failures == [None]


@pytest.mark.parametrize("name", ["scram", "anna", "nobody"])
def test_a_wrong_or_missing_proof_is_refused(guarded: GuardedKafka, name: str) -> None:
    password = "secret" if name == "anna" else "wrong"
    assert _refused(guarded, name, password, "SCRAM-SHA-256")


def test_a_client_without_a_name_is_refused(guarded: GuardedKafka) -> None:
    admin = AdminClient({"bootstrap.servers": guarded.plain, "socket.timeout.ms": 2_000})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=2)


def test_a_token_is_a_password(guarded: GuardedKafka) -> None:
    role, ttl = ("--role", "device"), ("--ttl", "1h")
    token = cli("token", "create", *role, *ttl, "--secret-file", str(guarded.secret))
    topic = f"orders.{uuid4().hex}"
    login = guarded.login("device", f"token:{token}")
    assert sent(KafkaProducer(**login), topic).offset == 0


@pytest.mark.parametrize("how", ["password", "certificate"])
def test_clients_are_served_over_tls(guarded: GuardedKafka, how: str) -> None:
    settings: dict[str, Any] = {
        "bootstrap.servers": guarded.secure.replace("127.0.0.1", "localhost"),
        "ssl.ca.location": str(guarded.authority.ca),
        "message.timeout.ms": SECONDS * 1_000,
    }
    if how == "password":
        settings |= {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "anna",
            "sasl.password": "secret",
        }
    else:
        pair = guarded.authority.issue("anna")
        settings |= {
            "security.protocol": "SSL",
            "ssl.certificate.location": str(pair.cert),
            "ssl.key.location": str(pair.key),
        }
    failures: list[Any] = []
    producer = Producer(settings)
    producer.produce(
        f"orders.{uuid4().hex}", b"v", on_delivery=lambda error, _message: failures.append(error)
    )
    assert producer.flush(SECONDS) == 0
    assert failures == [None]
