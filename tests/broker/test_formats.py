"""Entries of two formats in one partition, read by Pulsar clients and by HTTP polls.

The second format is the tests' own (`tests.unit.broker.entries.tiny`). Its entries are written
through the store, before the broker starts; from then on the broker reads them from disk.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pulsar
import pytest
from click.testing import CliRunner
from flask import Flask

from router import settings as all_settings
from router.backends import Start, embedded
from router.broker.storage import PULSAR_FORMAT, Store, StoreOptions
from router.cli import main as command_line
from router.model import NOT_PARTITIONED, Grant, Message, Stored, Subscription, TopicName
from router.model.policies import Policies
from router.node.client import open_node
from router.wire.pulsar import pack
from tests.contract.conftest import Bell
from tests.ports import free_port
from tests.processes import BrokerProcess, wait_until
from tests.unit.broker.entries import tiny

SOON = 10_000
UNKNOWN = 77


class Written(NamedTuple):
    """An entry as it is written: its format, and what messages it has."""

    tag: int
    messages: Sequence[Message]


def message(value: str, key: str | None = None, **properties: str) -> Message:
    return Message(value.encode(), None if key is None else key.encode(), properties)


MIXED = (
    Written(PULSAR_FORMAT, [message("p0", "a", of="pulsar")]),
    Written(tiny.TAG, [message(f"t{n}", "b", number=str(n)) for n in range(1, 4)]),
    Written(PULSAR_FORMAT, [message("p4"), message("p5", "c")]),
    Written(tiny.TAG, [message("t6", "a")]),
    Written(tiny.TAG, [message("t7"), message("t8", "c", of="tiny")]),
    Written(PULSAR_FORMAT, [message("p9", "b")]),
)
ALL = [one for written in MIXED for one in written.messages]
VALUES = [one.value.decode() for one in ALL]
HIDDEN = (
    Written(PULSAR_FORMAT, [message("first")]),
    Written(UNKNOWN, [message("garbage-1"), message("garbage-2")]),
    Written(tiny.TAG, [message("second")]),
    Written(UNKNOWN, [message("garbage-3")]),
)
READABLE = ["first", "second"]


class TinyBroker(BrokerProcess):
    """A broker that knows the tiny format."""

    arguments = ("tests.broker.tiny_broker", "--stay")

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(folder, port)
        self._environ["PYTHONPATH"] = str(Path(__file__).parents[2])


async def write(folder: Path, topics: Mapping[str, Sequence[Written]]) -> None:
    """Store the entries, of a format that is not known as bytes that are none."""
    store = await Store.open(folder, StoreOptions(), lambda: 1_700_000_000.0)
    for name, entries in topics.items():
        full = f"persistent://public/default/{name}"
        record = await store.create_topic(full, 0, Policies(), {})
        ledger = store.ledger(record.ledger_ids[0])
        for tag, messages in entries:
            if tag == PULSAR_FORMAT:
                payload = pack(messages, "p", 0, 1)
            else:
                payload = tiny.from_messages(messages, 0)
            ledger.append(payload, tag, len(messages), 1_700_000_000_000, lambda _: None)
    await store.close()


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("formats") / "data"
    folder.mkdir(mode=0o700)
    names = ["exclusive", "shared", "backend", "keys", "polls", "seeks"]
    hidden = {"hidden": HIDDEN, "hidden-shared": HIDDEN}
    asyncio.run(write(folder, {**dict.fromkeys(names, MIXED), **hidden}))
    process = TinyBroker(folder, free_port())
    process.start()
    yield process
    process.stop()


def subscribe(
    client: pulsar.Client,
    topic: str,
    kind: pulsar.ConsumerType,
    name: str | None = None,
) -> pulsar.Consumer:
    return client.subscribe(
        topic,
        "s",
        consumer_type=kind,
        consumer_name=name,
        initial_position=pulsar.InitialPosition.Earliest,
        batch_index_ack_enabled=True,
    )


def subscribe_by_key(client: pulsar.Client, topic: str) -> list[pulsar.Consumer]:
    """Three consumers with a range of hashes each: a key goes to the same one, whenever they come.

    Ranges that the broker divides change hands with each consumer, and what follows a message of
    such a range waits until that message is acknowledged.
    """
    ranges = ((0, 20_000), (20_001, 40_000), (40_001, 65_535))
    return [
        client.subscribe(
            topic,
            "s",
            consumer_type=pulsar.ConsumerType.KeyShared,
            consumer_name=f"from-{first}",
            initial_position=pulsar.InitialPosition.Earliest,
            key_shared_policy=pulsar.ConsumerKeySharedPolicy(
                pulsar.KeySharedMode.Sticky, sticky_ranges=[(first, last)]
            ),
        )
        for first, last in ranges
    ]


def receive(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    return [consumer.receive(SOON) for _ in range(count)]


def values(messages: Sequence[pulsar.Message]) -> list[str]:
    return [one.data().decode() for one in messages]


def test_official_client_reads_both_formats_in_order(
    shared_broker: BrokerProcess, client: pulsar.Client
) -> None:
    consumer = subscribe(client, "exclusive", pulsar.ConsumerType.Exclusive)
    found = receive(consumer, len(ALL))
    assert values(found) == VALUES
    assert [one.properties() for one in found] == [dict(one.properties) for one in ALL]
    # A batch's own key is all that this client shows of keys that are not there.
    assert [one.partition_key() for one in found if one.partition_key()] == [
        one.key.decode() for one in ALL if one.key
    ]
    producer = client.create_producer("exclusive")
    producer.send(b"live")
    assert values(receive(consumer, 1)) == ["live"]
    consumer.acknowledge_cumulative(found[6])
    consumer.close()
    assert shared_broker.stop() == 0
    shared_broker.start()
    rest = receive(subscribe(client, "exclusive", pulsar.ConsumerType.Exclusive), 4)
    assert values(rest) == [*VALUES[7:], "live"]


def test_single_messages_of_an_entry_are_acknowledged(client: pulsar.Client) -> None:
    consumer = subscribe(client, "shared", pulsar.ConsumerType.Shared)
    for one in receive(consumer, len(ALL)):
        if one.data() not in {b"t2", b"p5", b"t8"}:
            consumer.acknowledge(one)
    consumer.close()
    consumer = subscribe(client, "shared", pulsar.ConsumerType.Shared)
    assert values(receive(consumer, 3)) == ["t2", "p5", "t8"]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)
    consumer.close()


def test_router_s_client_acknowledges_single_messages_of_an_entry(
    shared_broker: BrokerProcess,
) -> None:
    settings = all_settings.load(None, {}, {"data.dir": str(shared_broker.folder)})
    node = open_node(settings)
    backend = embedded.open_backend("embedded", settings, node)
    group = Subscription(TopicName.parse("backend"), "g")
    backend.subscribe(group, Start.EARLIEST, 10)

    def received() -> list[Stored]:
        consumer = backend.consume(Grant(group, NOT_PARTITIONED, 1), Bell(), 10)
        found = consumer.receive(100, 1 << 20, 10)
        consumer.close()
        return found

    found = received()
    assert [one.message._replace(sequence=None) for one in found] == ALL
    taken = [one.position for one in found if one.message.value not in {b"t1", b"t7"}]
    backend.acknowledge(group, taken, cumulative=False, timeout=10)
    assert [one.message.value for one in received()] == [b"t1", b"t7"]
    backend.close()
    node.close()


def test_a_key_goes_to_one_consumer_whatever_format_it_was_written_in(
    client: pulsar.Client,
) -> None:
    consumers = subscribe_by_key(client, "keys")
    taken: dict[str, str] = {}

    def take() -> bool:
        for consumer in consumers:
            try:
                taken[consumer.receive(50).data().decode()] = consumer.consumer_name()
            except pulsar.Timeout:
                continue
        return len(taken) == len(ALL)

    wait_until(take)
    assert sorted(taken) == sorted(VALUES)
    assert taken["p0"] == taken["t6"]  # a
    assert taken["t1"] == taken["t2"] == taken["t3"] == taken["p9"]  # b


def test_http_polls_are_answered_with_both_formats(app: Flask) -> None:
    found: list[str] = []
    for _ in range(3):
        answer = app.test_client().get("/events/polls/g/c?timeout=5000&limit=4")
        assert answer.status_code == 200
        found += answer.get_json()
    assert found == VALUES
    answer = app.test_client().get("/events/polls/g/c?timeout=0")
    assert answer.get_json() == []


def test_a_reader_begins_within_an_entry_of_another_format(client: pulsar.Client) -> None:
    reader = client.create_reader("seeks", pulsar.MessageId.earliest)
    found = [reader.read_next(SOON) for _ in ALL]
    assert not reader.has_message_available()
    reader.close()
    middle = found[VALUES.index("t2")].message_id()
    reader = client.create_reader("seeks", middle)
    rest = []
    while reader.has_message_available():
        rest.append(reader.read_next(SOON).data().decode())
    assert rest == VALUES[VALUES.index("t3") :]
    reader.close()


def test_an_entry_of_another_format_is_shown_by_administration(app: Flask) -> None:
    client = app.test_client()
    topic = "/admin/v2/persistent/public/default/{}/examinemessage?messagePosition={}"
    shown = client.get(topic.format("polls", 4) + "&initialPosition=earliest")
    assert (shown.status_code, shown.data) == (200, b"t6")
    hidden = client.get(topic.format("hidden", 1) + "&initialPosition=latest")
    assert hidden.status_code == 500
    assert "does not know the entry format 77" in hidden.text


@pytest.mark.parametrize(
    "kind",
    [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared],
)
def test_what_no_reader_understands_is_passed_over_and_reported(
    shared_broker: BrokerProcess, client: pulsar.Client, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(
        "hidden-shared",
        kind.name,
        consumer_type=kind,
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=1,
    )
    found = receive(consumer, 2)
    assert sorted(values(found)) == sorted(READABLE)
    for one in found:
        consumer.acknowledge(one)
    log = shared_broker.folder / "broker.log"
    reported = rf"unreadable-entries-skipped.*{kind.name}"
    wait_until(lambda: re.search(reported, log.read_text()) is not None)
    assert "does not know the entry format 77" in log.read_text()
    consumer.close()


def test_a_poll_is_answered_with_what_it_understands(app: Flask) -> None:
    found = app.test_client().get("/events/hidden/g/c?timeout=5000&limit=2").get_json()
    found += app.test_client().get("/events/hidden/g/c?timeout=0").get_json()
    assert found == READABLE
    metrics = app.test_client().get("/metrics").text
    damaged = re.search(r"^router_broker_damaged_entries_total (\d+)", metrics, re.MULTILINE)
    assert damaged is not None
    assert int(damaged[1]) >= 2


def test_router_check_accepts_a_folder_with_entries_of_any_format(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    asyncio.run(write(folder, {"hidden": HIDDEN}))
    found = CliRunner().invoke(
        command_line,
        ["check", "--data", str(folder)],
        env={"ROUTER_CONFIG": "", "ROUTER_SERVER_PORT": "0"},
    )
    assert found.exit_code == os.EX_OK, found.output
