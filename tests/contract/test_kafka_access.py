"""The Kafka backend before a broker that wants to know who comes, and before none at all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from router import settings as all_settings
from router.backends import Backend, Batch, Start
from router.backends import kafka as kafka_backend
from router.errors import BackendUnavailableError, CredentialsRefusedError
from router.model import (
    NOT_PARTITIONED,
    Grant,
    Message,
    Subscription,
    TopicInfo,
    TopicName,
)
from router.pipelines.sinks.publishing import persist
from tests.contract.conftest import WAIT, Bell, Trusting
from tests.ports import free_port
from tests.servers.kafka import PASSWORD, USER, Kafka

pytestmark = [pytest.mark.contract, pytest.mark.java, pytest.mark.timeout(120)]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def open_backend(url: str, stack: ExitStack, **flags: str) -> Backend:
    given = {f"kafka.{name}": value for name, value in flags.items()}
    backend = kafka_backend.open_backend(url, all_settings.load(None, {}, given), Trusting())
    stack.callback(backend.close)
    return backend


def works(backend: Backend, name: str) -> bool:
    """Whether a message goes through."""
    topic = TopicName.parse(name)
    backend.create_topic(TopicInfo(topic), WAIT)
    backend.publish(Batch(topic, NOT_PARTITIONED, [Message(b"1")]), WAIT)
    group = Subscription(topic, "g")
    backend.subscribe(group, Start.EARLIEST, WAIT)
    consumer = backend.consume(Grant(group, NOT_PARTITIONED, 1), Bell(), WAIT)
    found = consumer.receive(1, 100, WAIT)
    consumer.acknowledge(found[0].position, WAIT)
    consumer.close()
    return [stored.message.value for stored in found] == [b"1"]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize("tls", [False, True])
def test_credentials_open_the_door(
    kafka: Kafka, stack: ExitStack, mechanism: str, tls: bool
) -> None:
    address = kafka.sasl_tls if tls else kafka.sasl
    backend = open_backend(
        f"kafka://{address}/?sasl={mechanism}&tls={str(tls).lower()}",
        stack,
        username=USER,
        password=PASSWORD,
        ca=str(kafka.authority.ca),
    )
    assert works(backend, f"access-{mechanism}-{tls}")


def test_a_certificate_opens_the_door(kafka: Kafka, stack: ExitStack) -> None:
    own = kafka.authority.issue("router")
    files = {"ca": str(kafka.authority.ca), "cert": str(own.cert), "key": str(own.key)}
    assert works(open_backend(f"kafka://{kafka.tls}", stack, tls="true", **files), "access-tls")


def test_wrong_credentials_are_told(kafka: Kafka, stack: ExitStack) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        backend = open_backend(
            f"kafka://{kafka.sasl}", stack, sasl=mechanism, username=USER, password="wrong"
        )
        with pytest.raises(CredentialsRefusedError, match="credentials"):
            backend.ready(WAIT)
        began = time.monotonic()
        with pytest.raises(
            CredentialsRefusedError, match=r"Kafka refuses the router: .*credentials"
        ):
            persist(partial(backend.partitions, TopicName.parse("any"), 20.0), 120.0)
        assert time.monotonic() - began < 60


def test_a_broker_whose_authority_is_not_trusted_is_not_spoken_to(
    kafka: Kafka, stack: ExitStack
) -> None:
    with pytest.raises(BackendUnavailableError, match="certificate verify failed"):
        open_backend(f"kafka://{kafka.sasl_tls}", stack, tls="true").ready(WAIT)


def test_without_a_broker_calls_fail_soon_and_opening_does_not(
    stack: ExitStack,
) -> None:
    backend = open_backend(f"kafka://127.0.0.1:{free_port()},127.0.0.1:{free_port()}", stack)
    topic = TopicName.parse("nothing")
    began = time.monotonic()
    with pytest.raises(BackendUnavailableError):
        backend.ready(WAIT)
    with pytest.raises(BackendUnavailableError):
        backend.publish(Batch(topic, NOT_PARTITIONED, [Message(b"1")]), 0.5)
    with pytest.raises(BackendUnavailableError):
        backend.consume(Grant(Subscription(topic, "g"), NOT_PARTITIONED, 1), Bell(), 0.5)
    assert time.monotonic() - began < WAIT
