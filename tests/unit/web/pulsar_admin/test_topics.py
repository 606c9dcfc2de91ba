"""Topics, subscriptions and messages by Pulsar's administration, over a real broker."""

from __future__ import annotations

import base64
import unicodedata
from itertools import product
from typing import Any
from urllib.parse import quote, quote_plus

import pulsar
import pytest
from flask.testing import FlaskClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.web.pulsar_admin.messages import headers
from router.web.pulsar_admin.views import subscription_name
from router.wire.pulsar import pulsar_pb2 as pb

BASE = "/admin/v2"


def published(client: pulsar.Client, topic: str, *values: bytes, **options: Any) -> list[Any]:
    """Publish one by one; return the ids."""
    producer = client.create_producer(f"{topic.replace('/', '://', 1)}")
    ids = [producer.send(value, **options) for value in values]
    producer.close()
    return ids


def told(answer: Any, *, json: bool = True) -> Any:
    """Return the JSON of an answer that is a success, or the answer."""
    assert answer.status_code == 200, answer.data
    return answer.json if json else answer


def reason(answer: Any, status: int) -> str:
    assert answer.status_code == status, answer.data
    assert list(answer.json) == ["reason"]
    return str(answer.json["reason"])


@given(name=st.text(st.characters(codec="utf-8"), min_size=1, max_size=20))
def test_subscription_is_what_the_official_client_names(name: str) -> None:
    assert subscription_name(quote(quote_plus(name, safe=""), safe="")) == name


@given(name=st.text("abc:@~ /é", min_size=1, max_size=20))
def test_subscription_is_what_is_escaped_once(name: str) -> None:
    assert subscription_name(quote(name, safe="")) == name


@given(
    key=st.text(),
    name=st.text(),
    properties=st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=3),
    times=st.tuples(st.integers(0, 2**41), st.integers(0, 2**41)),
)
def test_no_message_writes_other_headers_than_its_own(
    key: str, name: str, properties: dict[str, str], times: tuple[int, int]
) -> None:
    metadata = pb.MessageMetadata(
        producer_name=name, sequence_id=1, publish_time=times[0], event_time=times[1]
    )
    metadata.partition_key = key
    metadata.properties.extend(pb.KeyValue(key=k, value=v) for k, v in properties.items())
    for text in headers(metadata).values():
        assert not any(unicodedata.category(character) == "Cc" for character in text)
        assert text.encode("latin-1")


def test_list_is_of_the_mode_that_is_asked_for(
    site: FlaskClient, namespace: str, topic: str, client: pulsar.Client
) -> None:
    consumer = client.subscribe(f"non-persistent://{namespace}/f", "s")
    found = {
        mode: told(site.get(f"{BASE}/namespaces/{namespace}/topics?mode={mode}"))
        for mode in ("PERSISTENT", "NON_PERSISTENT", "ALL")
    }
    below = told(site.get(f"{BASE}/non-persistent/{namespace}"))
    consumer.close()
    log, fleeting = f"persistent://{namespace}/t", f"non-persistent://{namespace}/f"
    assert found == {"PERSISTENT": [log], "NON_PERSISTENT": [fleeting], "ALL": [log, fleeting]}
    assert below == [fleeting]
    assert "mode" in reason(site.get(f"{BASE}/namespaces/{namespace}/topics?mode=SOME"), 400)


def test_lists_with_system_topics_are_the_same_where_there_are_none(
    site: FlaskClient, namespace: str, topic: str
) -> None:
    for path in (f"persistent/{namespace}", f"namespaces/{namespace}/topics"):
        listed = told(site.get(f"{BASE}/{path}?includeSystemTopic=true"))
        assert listed == told(site.get(f"{BASE}/{path}")) == [topic.replace("/", "://", 1)]


def test_statistics_are_of_a_topic_that_is_not_persistent_too(
    site: FlaskClient, namespace: str, client: pulsar.Client
) -> None:
    consumer = client.subscribe(f"non-persistent://{namespace}/f", "s")
    found = told(site.get(f"{BASE}/non-persistent/{namespace}/f/stats"))
    names = told(site.get(f"{BASE}/non-persistent/{namespace}/f/subscriptions"))
    consumer.close()
    assert len(found["subscriptions"]["s"]["consumers"]) == 1
    assert found["subscriptions"]["s"]["isDurable"] is False
    assert names == ["s"]
    reason(site.put(f"{BASE}/non-persistent/{namespace}/made"), 405)


@pytest.mark.parametrize("partitions", ["-1", "0", "1001", "true", "x", '"2"', "2.5", "[]", ""])
def test_partitions_are_a_number_of_them(
    site: FlaskClient, namespace: str, partitions: str
) -> None:
    answer = site.put(f"{BASE}/persistent/{namespace}/p/partitions", data=partitions)
    reason(answer, 406 if partitions in {"-1", "0"} else 400)


def test_partition_is_looked_at_by_its_own_name(
    site: FlaskClient, namespace: str, client: pulsar.Client
) -> None:
    parts = f"persistent/{namespace}/parts"
    assert site.put(f"{BASE}/{parts}/partitions", data="2").status_code == 204
    published(client, f"{parts}-partition-1", b"a", b"b")
    counts = [
        told(site.get(f"{BASE}/{parts}-partition-{n}/stats"))["msgInCounter"] for n in range(2)
    ]
    assert counts == [0, 2]
    assert told(site.get(f"{BASE}/{parts}/partitioned-stats"))["msgInCounter"] == 2
    last = told(site.get(f"{BASE}/{parts}-partition-1/lastMessageId"))
    assert (last["partitionIndex"], last["entryId"]) == (1, 1)
    reason(site.get(f"{BASE}/{parts}-partition-2/stats"), 404)


def test_topic_in_use_is_deleted_by_force_only(
    site: FlaskClient, topic: str, client: pulsar.Client
) -> None:
    producer = client.create_producer(topic.replace("/", "://", 1))
    assert "active" in reason(site.delete(f"{BASE}/{topic}"), 412)
    assert site.delete(f"{BASE}/{topic}?force=true").status_code == 204
    producer.close()


def test_lookup_for_clients_makes_partitions_as_their_namespace_says(
    site: FlaskClient, namespace: str
) -> None:
    path = f"{BASE}/persistent/{namespace}/made/partitions"
    body = {
        "allowAutoTopicCreation": True,
        "topicType": "partitioned",
        "defaultNumPartitions": 3,
    }
    site.post(f"{BASE}/namespaces/{namespace}/autoTopicCreation", json=body)
    reason(site.get(path), 404)
    assert told(site.get(f"{path}?checkAllowAutoCreation=true"))["partitions"] == 3
    assert told(site.get(path))["partitions"] == 3
    closed = {"allowAutoTopicCreation": False}
    site.post(f"{BASE}/namespaces/{namespace}/autoTopicCreation", json=closed)
    reason(site.get(path.replace("made", "none") + "?checkAllowAutoCreation=true"), 404)


@pytest.mark.parametrize("path", ["position/1", "skip/1", "resetcursor"])
def test_messages_of_all_partitions_are_none(site: FlaskClient, namespace: str, path: str) -> None:
    parts = f"{BASE}/persistent/{namespace}/parts"
    site.put(f"{parts}/partitions", data="2")
    site.put(f"{parts}/subscription/s")
    ask = site.get if path == "position/1" else site.post
    body = {"json": {"ledgerId": 1, "entryId": 1}} if path == "resetcursor" else {}
    reason(ask(f"{parts}/subscription/s/{path}", **body), 405)


def test_skipping_what_is_old_leaves_what_is_new(
    site: FlaskClient, topic: str, client: pulsar.Client
) -> None:
    sub = f"{BASE}/{topic}/subscription/s"
    site.put(sub, json={"ledgerId": -1, "entryId": -1})
    published(client, topic, b"a", b"b")
    assert site.post(f"{sub}/expireMessages/3600").status_code == 204
    assert site.get(f"{sub}/position/1").data == b"a"
    assert site.post(f"{BASE}/{topic}/all_subscription/expireMessages/0").status_code == 204
    assert reason(site.get(f"{sub}/position/1"), 404) == "Message not found"


def test_reset_excludes_the_message_where_asked(
    site: FlaskClient, topic: str, client: pulsar.Client
) -> None:
    ids = published(client, topic, b"a", b"b", b"c")
    sub = f"{BASE}/{topic}/subscription/s"
    site.put(sub)
    place = {"ledgerId": ids[0].ledger_id(), "entryId": ids[0].entry_id()}
    # The official Java client writes the shorter word.
    for word, excluded in product(("excluded", "isExcluded"), (False, True)):
        site.post(f"{sub}/resetcursor", json=place | {word: excluded})
        assert site.get(f"{sub}/position/1").data == (b"b" if excluded else b"a")
    reason(site.post(f"{sub}/resetcursor"), 400)
    reason(site.post(f"{sub}/resetcursor/tomorrow"), 400)


@pytest.mark.parametrize("excluded", [False, True])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_reset_into_a_batch_gives_what_is_left_of_it(
    site: FlaskClient, topic: str, client: pulsar.Client, index: int, excluded: bool
) -> None:
    name = topic.replace("/", "://", 1)
    producer = client.create_producer(
        name, batching_enabled=True, batching_max_publish_delay_ms=10_000
    )
    for batch in (b"a", b"b", b"c"), (b"d",):
        for value in batch:
            producer.send_async(value, lambda *_: None)
        producer.flush()
    last = told(site.get(f"{BASE}/{topic}/examinemessage?initialPosition=earliest"), json=False)
    ledger, entry = map(int, last.headers["X-Pulsar-Message-ID"].split(":")[:2])
    place = {"ledgerId": ledger, "entryId": entry, "batchIndex": index, "excluded": excluded}
    sub = f"{BASE}/{topic}/subscription/s"
    site.put(sub)
    assert site.post(f"{sub}/resetcursor", json=place).status_code == 204
    rest = [b"a", b"b", b"c", b"d"][index + excluded :]
    backlog = told(site.get(f"{BASE}/{topic}/stats"))["subscriptions"]["s"]["msgBacklog"]
    consumer = client.subscribe(name, "s")
    assert [consumer.receive(10_000).data() for _ in rest] == rest
    assert backlog == len(rest)


def test_message_is_shown_with_what_it_says_of_itself(
    site: FlaskClient, topic: str, client: pulsar.Client
) -> None:
    options = {"partition_key": "k\n€", "properties": {"ü": "\n"}, "event_timestamp": 1000}
    (where,) = published(client, topic, b"value", **options)
    path = f"{BASE}/{topic}/ledger/{where.ledger_id()}/entry/{where.entry_id()}"
    found = site.get(path)
    assert found.data == b"value"
    assert found.headers["X-Pulsar-PROPERTY"] == '{"\\u00fc": "\\n"}'
    assert found.headers["X-Pulsar-event-time"] == "1970-01-01T00:00:01.000Z"
    assert "X-Pulsar-partition-key" not in found.headers
    reason(site.get(path.replace("/ledger/", "/ledger/9")), 404)


def test_schemas_of_every_kind_come_back_as_they_were_given(
    site: FlaskClient, namespace: str, topic: str
) -> None:
    base = f"{BASE}/schemas/{namespace}"
    record = '{"type":"record","name":"R","fields":[]}'
    pair = {"kv.encoding.type": "INLINE", "key.schema.type": "STRING", "value.schema.type": "JSON"}
    payloads = [
        {"type": "STRING", "schema": "", "properties": {"a": "b"}},
        {"type": "JSON", "schema": record, "properties": {}},
        {"type": "KEY_VALUE", "schema": f'{{"key":"","value":{record}}}', "properties": pair},
    ]
    for number, payload in enumerate(payloads):
        assert told(site.post(f"{base}/s{number}/schema", json=payload)) == {
            "version": {"version": 0}
        }
        found = told(site.get(f"{base}/s{number}/schema"))
        assert (found["type"], found["data"]) == (payload["type"], payload["schema"])
        assert found["properties"] == payload["properties"]
        assert told(site.post(f"{base}/s{number}/version", json=payload)) == {"version": 0}


def test_administrators_bring_schemas_where_clients_may_not(
    site: FlaskClient, namespace: str, topic: str, client: pulsar.Client
) -> None:
    site.post(f"{BASE}/namespaces/{namespace}/isAllowAutoUpdateSchema", data="false")
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic.replace("/", "://", 1), schema=pulsar.schema.StringSchema())
    payload = {"type": "STRING", "schema": "", "properties": {}}
    path = f"{BASE}/schemas/{namespace}/t"
    assert site.post(f"{path}/schema", json=payload).status_code == 200
    client.create_producer(
        topic.replace("/", "://", 1), schema=pulsar.schema.StringSchema()
    ).close()
    assert told(site.delete(f"{path}/schema")) == {"version": 1}
    reason(site.delete(f"{path}/schema"), 404)
    reason(site.get(f"{path}/schema"), 404)


@pytest.mark.parametrize(
    "body",
    [{}, {"type": 5}, {"type": "AVRO", "schema": "x"}, {"type": "KEY_VALUE", "schema": "[]"}],
    ids=str,
)
def test_schema_that_is_none_is_refused(
    site: FlaskClient, namespace: str, topic: str, body: dict[str, Any]
) -> None:
    reason(site.post(f"{BASE}/schemas/{namespace}/t/schema", json=body), 422)


@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE"]),
    path=st.sampled_from(
        [
            "namespaces/public/{x}/retention",
            "persistent/public/default/{x}/partitions",
            "persistent/public/default/{x}/subscription/{x}/{x}",
            "schemas/public/{x}/t/schema",
            "tenants/{x}",
            "namespaces/{x}/{x}",
            "persistent/{x}/{x}/stats",
            "{x}",
        ]
    ),
    word=st.text(max_size=12),
    body=st.binary(max_size=40) | st.sampled_from([b"[]", b"{}", b"null", b"-1", b'"x"', b"1e999"]),
)
def test_whatever_is_asked_is_answered_and_never_our_fault(
    site: FlaskClient, method: str, path: str, word: str, body: bytes
) -> None:
    url = f"{BASE}/{path.replace('{x}', quote(word, safe='') or 'w')}"
    answer = site.open(url, method=method, data=body, environ_overrides={"RAW_URI": url})
    assert answer.status_code < 500, (answer.status_code, answer.data)


def test_bytes_of_a_schema_version_are_told_in_base64() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    metadata.schema_version = b"\0\1"
    told = headers(metadata)["Base64-schema-version-b64encoded"]
    assert base64.b64decode(told) == b"\0\1"


def test_tenant_is_deleted_by_force_with_all_it_has(site: FlaskClient) -> None:
    tenant = {"adminRoles": [], "allowedClusters": ["standalone"]}
    assert site.put(f"{BASE}/tenants/forced", json=tenant).status_code == 204
    for name in ("a", "b"):
        site.put(f"{BASE}/namespaces/forced/{name}")
        site.put(f"{BASE}/persistent/forced/{name}/t")
    reason(site.delete(f"{BASE}/tenants/forced"), 409)
    reason(site.delete(f"{BASE}/tenants/forced?force=perhaps"), 400)
    assert site.delete(f"{BASE}/tenants/forced?force=true").status_code == 204
    reason(site.get(f"{BASE}/namespaces/forced"), 404)


def test_namespace_is_made_with_the_policies_that_are_given(site: FlaskClient) -> None:
    body = {
        "retention_policies": {"retentionTimeInMinutes": 5, "retentionSizeInMB": -1},
        "backlog_quota_map": {
            "destination_storage": {"limitSize": 9, "policy": "consumer_backlog_eviction"}
        },
        "autoTopicCreationOverride": {"allowAutoTopicCreation": False},
        "schema_compatibility_strategy": "FORWARD",
        "is_allow_auto_update_schema": False,
        "deduplicationEnabled": True,
        "bundles": {"numBundles": 4},
    }
    path = f"{BASE}/namespaces/public/given"
    assert site.put(path, json=body).status_code == 204
    found = told(site.get(path))
    assert found["retention_policies"] == body["retention_policies"]
    assert found["backlog_quota_map"]["destination_storage"]["limitSize"] == 9
    assert found["autoTopicCreationOverride"] == {"allowAutoTopicCreation": False}
    assert found["schema_compatibility_strategy"] == "FORWARD"
    assert (found["is_allow_auto_update_schema"], found["deduplicationEnabled"]) == (False, True)


@pytest.mark.parametrize(
    ("field", "body", "status"),
    [
        ("retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}, 400),
        ("retention", {"retentionTimeInMinutes": 2**62, "retentionSizeInMB": 1}, 400),
        ("retention", [], 400),
        ("backlogQuota", {"limitSize": 1, "policy": "producer_exception"}, 412),
        ("backlogQuota?backlogQuotaType=message_age", {"limitTime": 1}, 412),
        ("backlogQuota", {"limitSize": "1", "policy": "consumer_backlog_eviction"}, 400),
        ("deduplication", "yes", 400),
        ("autoTopicCreation", {"allowAutoTopicCreation": True, "topicType": "x"}, 400),
        ("isAllowAutoUpdateSchema", None, 400),
    ],
    ids=str,
)
def test_policy_that_means_something_else_here_is_refused(
    site: FlaskClient, namespace: str, field: str, body: object, status: int
) -> None:
    reason(site.post(f"{BASE}/namespaces/{namespace}/{field}", json=body), status)
