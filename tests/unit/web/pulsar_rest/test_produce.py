"""Producing, in both dialects."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    NotAllowedError,
    TopicNotFoundError,
    TopicTerminatedError,
)
from router.model import Message, Schema, SchemaType, TopicInfo, TopicName
from router.model.policies import Policies
from router.schemas import pair_schema
from router.services.partitioning import partition_of
from tests.unit.web.applications import Site
from tests.unit.web.pulsar_rest.rest import Rest, told

Topics = Callable[..., tuple[Site, Rest]]
RECORD = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}


def stored(site: Site) -> list[Message]:
    return [message for batch in site.backend.published for message in batch.messages]


def information(kind: str, schema: Any = None) -> str:
    """Return schema information as Apache Pulsar writes it."""
    data = base64.b64encode(json.dumps(schema).encode()).decode() if schema else ""
    return json.dumps({"name": "", "type": kind, "schema": data, "properties": {}})


def test_pip_answers_base64_ids_and_no_version_without_schema(rest: Rest) -> None:
    answer = rest.produce({"value": "é"}).get_json()
    assert answer["schema_version"] is None
    [found] = answer["messageIds"]
    assert (found["partition"], found["error_code"], found["error"]) == (0, None, None)
    assert base64.b64decode(found["messageId"])
    assert rest.values() == ["é"]


def test_pulsar_answers_as_apache_pulsar_does(rest: Rest) -> None:
    body = {
        "producerName": "rest",
        "schemaVersion": -1,
        "messages": [
            {
                "payload": "hello",
                "key": "k1",
                "properties": {"a": "b"},
                "eventTime": 1700000000000,
                "sequenceId": 7,
                "context": None,
            },
            {"payload": 5},
        ],
    }
    answer = rest.post("?authoritative=false", body).get_json()
    assert answer["schemaVersion"] == 0
    for at, found in enumerate(answer["messagePublishResults"]):
        assert re.fullmatch(rf"[0-9]+:0:-1:{at}", found.pop("messageId"))
        assert found == {"errorCode": 0, "schemaVersion": 0}
    assert rest.values() == ["hello", "5"]
    assert {message["schemaVersion"] for message in rest.read()} == {0}


def test_pulsar_lone_message_has_the_id_that_apache_pulsar_writes(rest: Rest) -> None:
    answer = rest.produce({"payload": "x"}).get_json()
    assert re.fullmatch("[0-9]+:0:-1", answer["messagePublishResults"][0]["messageId"])


@pytest.mark.parametrize(
    ("kind", "schema", "payload", "value"),
    [
        ("STRING", None, "x", "x"),
        ("INT8", None, "-5", -5),
        ("INT64", None, "9007199254740993", 9007199254740993),
        ("DOUBLE", None, "1.5", 1.5),
        ("DOUBLE", None, "NaN", "NaN"),
        ("BOOLEAN", None, "true", True),
        ("BYTES", None, "é", base64.b64encode("é".encode()).decode()),
        ("JSON", RECORD, '{"a": 1}', {"a": 1}),
        ("AVRO", RECORD, '{"a": 1}', {"a": 1}),
    ],
)
def test_pulsar_payload_is_read_as_its_schema_has_it(
    rest: Rest, kind: str, schema: Any, payload: str, value: Any
) -> None:
    answer = rest.produce({"payload": payload}, valueSchema=information(kind, schema))
    assert answer.status_code == 200, answer.text
    [message] = rest.read()
    # Bytes have no schema in the topic, so that these are text again.
    assert message["value"] == ("é" if kind == "BYTES" else value)


@pytest.mark.parametrize(
    ("kind", "schema", "value"),
    [
        ("STRING", None, "x"),
        ("INT32", None, 7),
        ("FLOAT", None, 0.5),
        ("BOOLEAN", None, False),
        ("JSON", RECORD, {"a": 1}),
        ("avro", RECORD, {"a": 1}),
        ("AVRO", json.dumps(RECORD), {"a": 1}),
        ("AVRO", {"type": "AVRO", "schema": RECORD}, {"a": 1}),
        ("AVRO", {"type": "AVRO", "schema": json.dumps(RECORD)}, {"a": 1}),
        (None, {"type": "JSON", "schema": RECORD}, {"a": 1}),
        (None, information("JSON", RECORD), {"a": 1}),
        (None, "INT32", 4),
        ("JSON", "string", "text"),
    ],
)
def test_pip_schema_may_be_written_in_many_ways(
    rest: Rest, kind: str | None, schema: Any, value: Any
) -> None:
    fields = {"schema_type": kind, "value_schema": schema}
    given = {name: found for name, found in fields.items() if found is not None}
    answer = rest.produce({"value": value}, **given)
    assert answer.status_code == 200, answer.text
    assert answer.get_json()["schema_version"] == 0
    assert rest.values() == [value]


def test_schema_may_be_named_by_the_version_of_an_earlier_answer(rest: Rest) -> None:
    rest.produce({"value": 1}, schema_type="INT32")
    assert rest.produce({"value": 2}, schema_version=0).status_code == 200
    assert rest.produce({"value": 3}, schema_version="0", schema_type="INT32").status_code == 200
    pulsar = rest.produce({"payload": "4"}, schemaVersion=0).get_json()
    assert pulsar["schemaVersion"] == 0
    assert rest.values() == [1, 2, 3, 4]


@pytest.mark.parametrize("encoding", ["SEPARATED", "INLINE"])
def test_pairs_are_routed_by_their_key(site: Site, parted: Rest, encoding: str) -> None:
    pair = {"key_schema": {"type": "JSON", "schema": RECORD}, "value_schema": "STRING"}
    fields = {"schema_type": "KEY_VALUE", **pair}
    answer = parted.produce(*({"key": {"a": 1}, "value": str(i)} for i in range(4)), **fields)
    assert answer.status_code == 200, answer.text
    homes = {found["partition"] for found in answer.get_json()["messageIds"]}
    assert homes == {partition_of(b'{"a":1}', 4)}
    assert all(message.key == b'{"a":1}' for message in stored(site))
    message = parted.read(partition=homes.pop())[0]
    assert (message["key"], message["value"]) == ({"a": 1}, "0")


def test_bytes_travel_as_base64(rest: Rest) -> None:
    answer = rest.produce({"value": "/wD+"}, schema_type="bytes")
    assert answer.get_json()["schema_version"] is None
    [message] = rest.read()
    assert (message["value"], message["valueEncoding"]) == ("/wD+", "base64")


def test_no_value_is_not_an_empty_one(site: Site, rest: Rest) -> None:
    rest.produce({"key": "k", "value": None}, {"key": "k", "value": ""})
    assert [message.null for message in stored(site)] == [True, False]
    assert rest.values() == [None, ""]


def test_keys_route_and_messages_without_take_turns(parted: Rest) -> None:
    answer = parted.produce(
        {"value": "a", "key": "k"}, {"value": "b"}, {"value": "c"}, {"value": "d", "key": "k"}
    ).get_json()
    places = [found["partition"] for found in answer["messageIds"]]
    assert places[0] == places[3] == partition_of(b"k", 4)
    assert places[2] == (places[1] + 1) % 4


def test_message_may_name_its_partition(parted: Rest) -> None:
    answer = parted.produce(
        {"value": "a", "key": "k", "partition": 3}, {"value": "b", "partition": 0}
    )
    assert [found["partition"] for found in answer.get_json()["messageIds"]] == [3, 0]


@pytest.mark.parametrize(("topic", "partition"), [("t", 0), ("p", 2)])
def test_produce_to_a_partition(rest: Rest, parted: Rest, topic: str, partition: int) -> None:
    client = {"t": rest, "p": parted}[topic]
    answer = client.produce({"value": "a", "key": "k"}, below=f"/partitions/{partition}")
    assert answer.get_json()["messageIds"][0]["partition"] == partition
    assert client.values(partition=partition) == ["a"]


def test_other_fields_reach_the_store(site: Site, rest: Rest) -> None:
    rest.produce(
        {
            "value": "a",
            "properties": {"x": "y"},
            "eventTime": "17",
            "sequenceId": 3,
            "deliverAt": 4_000_000_000_000,
            "replicationClusters": ["c"],
            "disableReplication": True,
        }
    )
    [message] = stored(site)
    assert (message.properties, message.event_time, message.sequence) == ({"x": "y"}, 17, 3)
    assert message.deliver_at == 4_000_000_000_000
    assert message.replicate_to == ("c", "__local__")


def test_clusters_of_a_message_are_kept_and_shown(rest: Rest) -> None:
    answer = rest.produce(
        {"value": "a", "replicationClusters": ["us", "eu"]},
        {"value": "b", "disableReplication": True},
        {"value": "c", "replicationClusters": ["us"], "disableReplication": True},
        {"value": "d", "replicationClusters": [], "disableReplication": False},
        {"value": "e"},
    )
    read = rest.read()
    assert [found["messageId"] for found in read] == [
        found["messageId"] for found in answer.get_json()["messageIds"]
    ]
    assert [(found["replicationClusters"], found["disableReplication"]) for found in read] == [
        (["us", "eu"], False),
        (None, True),
        (["us"], True),
        (None, False),
        (None, False),
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"replicationClusters": "us"},
        {"replicationClusters": [5]},
        {"replicationClusters": [""]},
        {"replicationClusters": ["a,b"]},
        {"replicationClusters": ["a"] * 101},
        {"disableReplication": "yes"},
        {"disableReplication": 1},
    ],
)
def test_clusters_that_cannot_be_read_are_42205(rest: Rest, fields: Any) -> None:
    assert told(rest.produce({"value": "a", **fields})) == (422, 42205)
    assert rest.read() == []


@pytest.mark.parametrize("word", ["value", "payload"])
def test_delay_counts_from_now(site: Site, rest: Rest, word: str) -> None:
    rest.produce({word: "a", "deliverAfterMs": 60_000})
    [message] = stored(site)
    [found] = rest.read()
    assert message.deliver_at is not None
    assert 50_000 < message.deliver_at - found["publishTime"] <= 60_000


@pytest.mark.parametrize("word", ["value", "payload"])
def test_message_with_two_times_of_delivery_is_refused(site: Site, rest: Rest, word: str) -> None:
    answer = rest.produce({word: "a", "deliverAt": 1, "deliverAfterMs": 60_000})
    assert answer.status_code == 422
    assert "deliverAt and deliverAfterMs" in answer.text
    assert stored(site) == []


def test_nothing_is_produced_with_success(rest: Rest) -> None:
    assert rest.produce().get_json() == {"schema_version": None, "messageIds": []}
    assert rest.produce(schemaVersion=-1).get_json()["messagePublishResults"] == []


def test_order_within_a_partition_is_that_of_the_request(rest: Rest) -> None:
    sent = [{"value": str(i)} | ({"deliverAt": 1} if i % 7 == 0 else {}) for i in range(50)]
    rest.produce(*sent)
    assert rest.values() == [str(i) for i in range(50)]


def test_large_requests_are_stored_in_pieces_whose_ids_are_right(site: Site, rest: Rest) -> None:
    sent = [{"value": f"{i:06d}" + "x" * 100_000} for i in range(12)]
    answer = rest.produce(*sent).get_json()
    assert len(site.backend.published) > 1
    read = rest.read()
    assert [found["messageId"] for found in answer["messageIds"]] == [m["messageId"] for m in read]
    assert [m["value"][:6] for m in read] == [f"{i:06d}" for i in range(12)]


def test_too_large_message_fails_alone_and_for_good(topics: Topics) -> None:
    _, rest = topics(publish_max_message="10")
    answer = rest.produce({"value": "a"}, {"value": "x" * 11}, {"value": "b"}).get_json()
    good, bad, other = answer["messageIds"]
    assert (good["error_code"], other["error_code"]) == (None, None)
    assert (bad["messageId"], bad["partition"], bad["error_code"]) == (None, None, 1)
    assert "11 bytes" in bad["error"]
    assert rest.values() == ["a", "b"]


@pytest.mark.parametrize(
    ("error", "code"), [(BackendUnavailableError(), 2), (TopicTerminatedError(), 1)]
)
def test_failure_of_a_partition_is_told_of_its_messages(
    site: Site, parted: Rest, error: Any, code: int
) -> None:
    site.backend.publishing = [error]
    answer = parted.produce(*({"value": str(i), "partition": i % 2} for i in range(4)))
    assert answer.status_code == 200
    codes = [found["error_code"] for found in answer.get_json()["messageIds"]]
    assert codes == [code, None, code, None]


def test_what_is_behind_a_failure_is_not_stored_before_it(site: Site, rest: Rest) -> None:
    site.backend.publishing = [None, BackendUnavailableError("gone")]
    sent = [{"payload": f"{i}", "deliverAt": 1} for i in range(4)]
    answer = rest.produce(*sent).get_json()["messagePublishResults"]
    assert [found["errorCode"] for found in answer] == [0, 2, 2, 2]
    assert answer[1]["messageId"] is None
    assert "gone" in answer[1]["errorMsg"]
    assert rest.values() == ["0"]


def test_repeats_of_a_named_producer_are_dropped_where_the_topic_says_so(topics: Topics) -> None:
    _, rest = topics(policies=Policies(deduplication=True))
    sent = [{"value": str(i), "sequenceId": i} for i in range(3)]
    first = rest.produce(*sent, producer_name="me").get_json()
    again = rest.produce(*sent, producer_name="me").get_json()
    assert all(found["error_code"] is None for found in again["messageIds"])
    assert again["messageIds"][2] == first["messageIds"][2]
    assert rest.values() == ["0", "1", "2"]
    rest.produce(*sent, producer_name="other")
    assert len(rest.values()) == 6


def test_repeats_are_stored_where_the_topic_does_not_say_otherwise(rest: Rest) -> None:
    for _ in range(2):
        rest.produce({"payload": "a", "sequenceId": 7}, producerName="me")
    assert rest.values() == ["a", "a"]


def test_request_with_an_idempotency_key_is_stored_once(parted: Rest) -> None:
    def produce() -> Any:
        sent = {"messages": [{"value": str(i)} for i in range(6)]}
        return parted.post("", sent, headers={"Idempotency-Key": "once"}).get_json()

    assert produce() == produce()
    assert sum(len(parted.values(partition=at)) for at in range(4)) == 6


def test_compressed_body_is_read(rest: Rest) -> None:
    body = gzip.compress(b'{"messages":[{"value":"a"}]}')
    answer = rest.post("", body, headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 200
    assert rest.values() == ["a"]


def test_topic_is_made_only_where_settings_say_so(topics: Topics) -> None:
    site, rest = topics()
    assert told(Rest(site.client, "new").produce({"value": "a"})) == (404, 40401)
    site, _ = topics(pip64_auto_create="true")
    made = Rest(site.client, "new")
    assert made.produce({"value": "a"}).status_code == 200
    assert made.values() == ["a"]
    assert rest.values() == []


def test_topic_that_was_made_anew_is_found(site: Site, rest: Rest) -> None:
    rest.texts("a")
    topic = TopicName.parse(rest.topic)
    site.backend.delete_topic(topic, 1)
    site.backend.create_topic(TopicInfo(topic, 3), 1)
    answer = rest.produce({"value": "b", "partition": 0})
    assert answer.status_code == 200
    assert rest.values() == ["b"]


@pytest.mark.parametrize("word", ["value", "payload"])
def test_delay_beyond_all_times_is_refused(site: Site, rest: Rest, word: str) -> None:
    answer = rest.produce({word: "a", "deliverAfterMs": 2**63 - 1})
    assert answer.status_code == 422
    assert site.backend.published == []


def test_pair_without_a_value_is_read_as_one(site: Site, rest: Rest) -> None:
    pair = {"schema_type": "KEY_VALUE", "key_schema": "STRING", "value_schema": "INT32"}
    rest.produce({"key": "k", "value": None}, {"value": None}, {"key": "k", "value": 1}, **pair)
    assert [message.null for message in stored(site)] == [True, True, False]
    found = [(m["key"], m["value"], m.get("valueError")) for m in rest.read()]
    assert found == [("k", None, None), (None, None, None), ("k", 1, None)]


def test_pair_in_one_payload_says_itself_that_it_has_no_value(site: Site, rest: Rest) -> None:
    schema = pair_schema(Schema(SchemaType.STRING), Schema(SchemaType.STRING), separated=False)
    topic = TopicName.parse(rest.topic)
    version = int.from_bytes(site.backend.schemas.put(topic, schema, 1))
    rest.produce({"key": "k", "value": None}, schema_version=version)
    [message] = stored(site)
    assert message.null is False
    [found] = rest.read()
    assert (found["key"], found["value"]) == ("k", None)


def test_named_producer_may_produce_where_the_store_tells_nothing(site: Site, rest: Rest) -> None:
    def refuse(*_: Any) -> Any:
        raise NotAllowedError("no administration")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site.backend, "describe_topic", refuse)
        assert rest.produce({"payload": "a"}, producerName="me").status_code == 200
    assert rest.values() == ["a"]


def test_what_may_be_stored_already_is_not_sent_again(site: Site, parted: Rest) -> None:
    """A timeout says nothing; a refusal behind it must not have the whole request repeated."""
    site.backend.publishing = [BackendTimeoutError(), TopicNotFoundError("gone")]
    answer = parted.produce(*({"value": str(i), "partition": i} for i in range(3)))
    codes = [found["error_code"] for found in answer.get_json()["messageIds"]]
    assert codes == [2, 1, None]
    assert [batch.partition for batch in site.backend.published] == [2]
