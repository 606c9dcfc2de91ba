"""Users of kcat see the same on Apache Kafka and on the router's broker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from router.cli.user import hashed
from tests.kafka.clients import CODECS
from tests.kafka.conftest import OURS, Clients
from tests.kafka.kcat import kcat, records
from tests.kafka.scenarios import T0, new_topic, numbered
from tests.ports import free_port
from tests.processes import BrokerProcess
from tests.servers.kafka import PASSWORD, USER

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module", params=["kafka", OURS])
def secured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The listener of Apache Kafka that asks for USER and PASSWORD, then the router's own."""
    if request.param == "kafka":
        yield request.getfixturevalue("kafka").sasl
        return
    folder, address = tmp_path_factory.mktemp("secured"), f"127.0.0.1:{free_port()}"
    users, permissions = folder / "users", folder / "permissions"
    users.write_text(f"{USER}:{hashed(PASSWORD)}\n")
    permissions.write_text(f"{USER} * publish, subscribe\n")
    access = {"auth_users": str(users), "auth_permissions": str(permissions)}
    process = BrokerProcess(folder / "data", free_port(), broker_kafka=address, **access)
    process.start()
    yield address
    process.stop()


def test_kcat_reads_what_it_produced_with_every_compression(clients: Clients) -> None:
    topic = new_topic(clients["confluent-kafka"])
    lines = [f"k{n}|" + f"value {n} " * 20 for n in range(50)]
    for codec in CODECS:
        options = ("-X", "linger.ms=50") if codec == "none" else ("-z", codec)
        kcat(clients.bootstrap, "-P", "-t", topic, "-p", "0", "-K", "|", *options, lines=lines)
    read = ("-C", "-t", topic, "-o", "beginning", "-e", "-J")
    found = records(kcat(clients.bootstrap, *read))
    assert [one["offset"] for one in found] == list(range(250))
    assert [f"{one['key']}|{one['payload']}" for one in found] == lines * 5


def test_kcat_keeps_headers_and_null_values(clients: Clients) -> None:
    topic = new_topic(clients["confluent-kafka"])
    produce = ("-P", "-t", topic, "-Z", "-K", "|", "-H", "a=1", "-H", "b=2")
    kcat(clients.bootstrap, *produce, lines=["key|"])
    (found,) = records(kcat(clients.bootstrap, "-C", "-t", topic, "-e", "-J"))
    assert (found["key"], found["payload"]) == ("key", None)
    assert found["headers"] == ["a", "1", "b", "2"]


def test_kcat_lists_topics_and_finds_offsets_by_time(clients: Clients) -> None:
    topic = new_topic(clients["confluent-kafka"], 3)
    clients["confluent-kafka"].produce(topic, numbered(10), partition=1)
    listed = records(kcat(clients.bootstrap, "-L", "-J", "-t", topic))[0]["topics"]
    assert [(one["topic"], len(one["partitions"])) for one in listed] == [(topic, 3)]
    found = kcat(clients.bootstrap, "-Q", "-t", f"{topic}:1:{T0 + 4}")
    assert found.split() == [topic, "[1]", "offset", "4"]


def test_kcat_follows_a_group(clients: Clients) -> None:
    topic = new_topic(clients["confluent-kafka"], 2)
    for partition in range(2):
        clients["confluent-kafka"].produce(topic, numbered(10), partition=partition)
    group = ("-G", f"g-{uuid.uuid4()}", topic)
    settings = ("-X", "auto.offset.reset=earliest", "-J", "-e")
    found = records(kcat(clients.bootstrap, *settings, *group))
    seen = sorted((one["partition"], one["payload"]) for one in found)
    assert seen == sorted((p, f"m{n}") for p in range(2) for n in range(10))
    clients["confluent-kafka"].produce(topic, numbered(1, 10), partition=1)
    (late,) = records(kcat(clients.bootstrap, *settings, *group))
    assert (late["partition"], late["payload"]) == (1, "m10")


def test_kcat_authenticates(secured: str) -> None:
    topic = f"t-{uuid.uuid4()}"
    login = [
        *("-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanism=PLAIN"),
        *("-X", f"sasl.username={USER}", "-X", f"sasl.password={PASSWORD}"),
    ]
    kcat(secured, *login, "-P", "-t", topic, lines=["value"])
    listed = records(kcat(secured, *login, "-L", "-J", "-t", topic))[0]["topics"]
    assert [(one["topic"], len(one["partitions"])) for one in listed] == [(topic, 1)]
    read = kcat(secured, *login, "-C", "-t", topic, "-o", "beginning", "-e")
    assert read.split() == ["value"]
