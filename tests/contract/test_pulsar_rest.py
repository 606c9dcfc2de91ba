"""PIP 64's calls over every backend that can do all of them, and over Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from flask import Flask

from router.app import create_app
from router.model import TopicName
from tests.contract.conftest import APACHE, WAIT, Opened, open_any
from tests.unit.web.pulsar_rest.events import parse, take
from tests.unit.web.pulsar_rest.rest import Rest, told

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]}],
}


class Site:
    """Two workers over one backend, and new topics."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self.apps: list[Flask] = [
            create_app(opened.settings, opened.backend, opened.node) for _ in range(2)
        ]

    def rest(self, partitions: int = 0) -> Rest:
        return self.at(self.opened.new_topic(partitions))

    def at(self, topic: TopicName) -> Rest:
        return Rest(self.apps[0].test_client(), topic.local)

    def close(self) -> None:
        for app in self.apps:
            app.extensions["router.close"]()


@pytest.fixture(scope="module", params=["memory", "embedded", APACHE])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    with ExitStack() as stack:
        found = Site(open_any(request, tmp_path_factory.mktemp("data"), stack))
        stack.callback(found.close)
        yield found


def eventually(ask: Callable[[], list[Any]]) -> list[Any]:
    """Ask until there is an answer: partitions go from hand to hand in a moment."""
    end = time.monotonic() + WAIT
    while not (found := ask()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def test_what_is_produced_is_read_with_all_its_parts(site: Site) -> None:
    rest = site.rest()
    message = {
        "key": "k",
        "value": "v",
        "properties": {"a": "b"},
        "eventTime": 1_700_000_000_000,
        "sequenceId": 7,
        "replicationClusters": ["standalone", "elsewhere"],
        "disableReplication": True,
    }
    answer = rest.produce(message, {"value": "w"}).get_json()
    assert answer["schema_version"] is None
    assert [found["error_code"] for found in answer["messageIds"]] == [None, None]
    first, second = rest.read()
    assert {name: first[name] for name in message} == message
    assert [first["messageId"], second["messageId"]] == [
        found["messageId"] for found in answer["messageIds"]
    ]
    assert second["value"] == "w"


@pytest.mark.parametrize("kind", ["JSON", "AVRO"])
def test_values_travel_by_schema_and_by_its_version(site: Site, kind: str) -> None:
    rest = site.rest()
    first = rest.produce(
        {"value": {"id": 1, "note": None}}, schema_type=kind, value_schema=AVRO
    ).get_json()
    version = first["schema_version"]
    assert isinstance(version, int)
    again = rest.produce({"value": {"id": 2, "note": None}}, schema_version=version).get_json()
    assert again["schema_version"] == version
    assert [value["id"] for value in rest.values()] == [1, 2]
    asked = rest.client.get(f"{rest.at}/partitions/0/messages?timeout=0&include_schema")
    [schema] = asked.get_json()["schemas"]
    assert (schema["type"], schema["version"]) == (kind, version)


def test_pairs_travel_by_their_schemas(site: Site) -> None:
    rest = site.rest()
    pair = {"key_schema": {"type": "STRING"}, "value_schema": {"type": "INT32"}}
    answer = rest.produce({"key": "k", "value": 5}, schema_type="KEY_VALUE", **pair)
    assert answer.status_code == 200, answer.text
    [message] = rest.read()
    assert (message["key"], message["value"]) == ("k", 5)


def test_keys_find_one_partition_and_others_take_turns(site: Site) -> None:
    rest = site.rest(4)
    keyed = rest.produce(*({"key": "k", "value": str(i)} for i in range(8))).get_json()
    [home] = {found["partition"] for found in keyed["messageIds"]}
    free = rest.produce(*({"value": str(i)} for i in range(8))).get_json()
    assert {found["partition"] for found in free["messageIds"]} == {0, 1, 2, 3}
    assert rest.values(partition=home)[:8] == [str(i) for i in range(8)]


def test_reading_goes_on_where_it_is_told(site: Site) -> None:
    rest = site.rest()
    found = rest.texts("a", "b", "c") + rest.texts("d")
    for at, identity in enumerate(found):
        assert rest.values(f"start={identity}") == ["a", "b", "c", "d"][at:]
        assert rest.values(f"after={identity}") == ["a", "b", "c", "d"][at + 1 :]
    assert rest.values("start=latest") == []
    assert rest.values("start=earliest&max_messages=2") == ["a", "b"]


def test_consumer_is_given_each_message_once_and_by_any_worker(site: Site) -> None:
    rest, other = site.rest(), site.apps[1].test_client()
    for value in "abc":  # one by one: Apache Pulsar's backlog counts what was stored as one as one
        rest.texts(value)
    consumer = rest.consumer()
    assert consumer.values("max_messages=1") == ["a"]
    assert consumer.values("max_messages=1", other) == ["b"]
    assert consumer.values() == ["c"]
    assert consumer.values() == []
    assert rest.cursor()["backlog"] == 3


def test_acknowledged_one_by_one_and_all_before(site: Site) -> None:
    rest = site.rest()
    rest.consumer()
    found = [identity for value in "abcd" for identity in rest.texts(value)]
    assert rest.acknowledge(found[1]).status_code == 204
    assert rest.cursor()["backlog"] == 3
    assert rest.acknowledge(found[2], kind="cumulative").status_code == 204
    assert rest.cursor()["backlog"] == 1
    assert rest.cursor()["partitions"][0]["markDelete"] == found[2]


def test_id_of_another_topic_is_not_acknowledged_with_success(site: Site) -> None:
    rest, other = site.rest(), site.rest()
    rest.consumer()
    rest.texts("a")
    *_, foreign = other.texts("x", "y") + other.texts("z")
    for kind in ("individual", "cumulative"):
        assert told(rest.acknowledge(foreign, kind=kind)) == (422, 42205)
    assert rest.cursor()["backlog"] == 1


def test_value_without_a_schema_is_written_by_that_of_the_topic(site: Site) -> None:
    rest = site.rest()
    rest.produce({"value": {"id": 1, "note": None}}, schema_type="JSON", value_schema=AVRO)
    for value in ("text", {"id": "one"}):
        assert told(rest.produce({"value": value})) == (422, 42205)
    answer = rest.produce({"value": {"id": 2, "note": "n"}}).get_json()
    assert answer["schema_version"] == 0
    assert [value["id"] for value in rest.values()] == [1, 2]


def test_unacknowledged_are_given_again_when_their_consumer_is_deleted(site: Site) -> None:
    rest = site.rest()
    rest.texts("a", "b", "c")
    first = rest.consumer()
    found = [message["messageId"] for message in first.fetch()]
    assert rest.acknowledge(found[1]).status_code == 204
    assert first.delete().status_code == 204
    assert told(first.delete()) == (404, 40403)
    second = rest.consumer()
    assert eventually(second.values) == ["a", "c"]


def test_workers_learn_of_each_other_what_becomes_of_a_consumer(site: Site) -> None:
    rest, other = site.rest(), site.apps[1].test_client()
    consumer = rest.consumer(id="c")
    for _ in range(2):
        assert consumer.fetch(client=other) == consumer.fetch() == []
    body = {"id": "c", "schema_type": "INT32"}
    assert rest.post("/subscription/s", body).get_json()["schema_version"] is not None
    rest.produce({"value": 7})
    assert consumer.values(client=other) == [7]
    assert consumer.delete().status_code == 204
    assert told(consumer.ask(client=other)) == (404, 40403)


def test_stream_gives_what_is_stored_and_what_comes(site: Site) -> None:
    rest = site.rest(2)
    rest.produce(*({"value": str(i)} for i in range(4)))
    answer = rest.client.get(f"{rest.at}/messages?stream", buffered=False)
    assert answer.mimetype == "text/event-stream"
    pieces = iter(answer.response)
    assert b"retry:" in next(pieces)
    assert next(pieces).count(b"data: ") in range(1, 5)
    answer.close()


@pytest.mark.parametrize("site", ["embedded"], indirect=True)
def test_stream_of_one_partition_goes_on_when_its_topic_grew(site: Site) -> None:
    rest = site.rest(1)
    rest.texts("a")
    path = f"{rest.at}/messages?stream"
    _, last = parse(take(rest.client.get(path), 1))
    grown = rest.client.post(
        f"/admin/v2/persistent/public/default/{rest.topic}/partitions", data="2"
    )
    assert grown.status_code == 204, grown.text
    rest.produce({"value": "b", "partition": 1})
    rest.texts("c", below="/partitions/0")
    events, _ = parse(take(rest.client.get(path, headers={"Last-Event-ID": last}), 2))
    assert {event.data["value"] for event in events} == {"b", "c"}  # type: ignore[index] # JSON


def test_delayed_message_is_given_when_it_is_due(site: Site) -> None:
    rest = site.rest()
    consumer = rest.consumer()
    rest.produce({"value": "late", "deliverAfterMs": 1500}, {"value": "now"})
    assert consumer.values() == ["now"]
    assert consumer.values("timeout=10000") == ["late"]


@pytest.mark.java
@pytest.mark.timeout(120)
def test_kafka_keeps_what_it_can_and_says_what_it_cannot(on_kafka: Opened) -> None:
    site = Site(on_kafka)
    try:
        rest = site.rest(2)
        version = rest.produce(
            {"key": "k", "value": {"id": 1, "note": None}}, schema_type="AVRO", value_schema=AVRO
        ).get_json()["schema_version"]
        answer = rest.produce(
            {"key": "k", "value": {"id": 2, "note": None}},
            {"key": "k", "value": {"id": 3, "note": None}},
            schema_version=version,
        )
        ids = [found["messageId"] for found in answer.get_json()["messageIds"]]
        home = answer.get_json()["messageIds"][0]["partition"]
        read = rest.read(partition=home)
        assert [message["value"]["id"] for message in read] == [1, 2, 3]
        assert [message["messageId"] for message in read[1:]] == ids
        consumer = rest.consumer()
        found = consumer.fetch("timeout=10000")
        assert [message["value"]["id"] for message in found] == [1, 2, 3]
        assert rest.acknowledge(found[1]["messageId"]).status_code == 204
        assert rest.cursor()["backlog"] == 2
        late = rest.produce({"value": "x", "deliverAfterMs": 1000})
        assert told(late) == (422, 42205)
    finally:
        site.close()
