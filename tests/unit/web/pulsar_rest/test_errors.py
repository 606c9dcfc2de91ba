"""Every number that PIP 64 gives, and ours, reached by a request."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    IncompatibleSchemaError,
    NotSupportedError,
    by_code,
)
from router.model import Position
from router.web.pulsar_rest import ids
from router.web.pulsar_rest.errors import NUMBERS, number_of
from tests.unit.web.applications import HASHES, Site, header
from tests.unit.web.pulsar_rest.rest import Rest, told

Sites = Callable[..., Site]
DEEP = json.loads('{"type":"array","items":' * 300 + '"int"' + "}" * 300)
RECORD = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}


def test_every_failure_has_a_number_whose_status_is_an_error() -> None:
    assert set(NUMBERS) <= set(by_code())
    for code, kind in by_code().items():
        if code == "partial-publish":
            continue
        assert 400 <= number_of(kind()) // 100 < 600


@pytest.mark.parametrize("below", ["", "/partitions/0"])
def test_unknown_topic_is_40401(site: Site, below: str) -> None:
    nowhere = Rest(site.client, "nowhere")
    assert told(nowhere.produce({"value": "a"}, below=below)) == (404, 40401)


@pytest.mark.parametrize("path", ["/topics/no/default/", "/topics/non-persistent/public/default/"])
def test_other_tenant_or_domain_is_40401(site: Site, rest: Rest, path: str) -> None:
    assert told(Rest(site.client, "t", path).produce({"value": "a"})) == (404, 40401)


@pytest.mark.parametrize("number", ["4", "99999999999"])
def test_unknown_partition_is_40401(parted: Rest, number: str) -> None:
    assert told(parted.produce({"value": "a"}, below=f"/partitions/{number}")) == (404, 40401)
    answer = parted.client.get(f"{parted.at}/partitions/{number}/messages")
    assert told(answer) == (404, 40401)


def test_unknown_topic_of_the_other_calls_is_40401(site: Site) -> None:
    at = Rest(site.client, "nowhere").at
    for path in (
        "/partitions/0/messages",
        "/messages?stream",
        "/subscription/s/consumer/c/messages",
    ):
        assert told(site.client.get(at + path)) == (404, 40401), path
    assert told(site.client.post(f"{at}/subscription/s", data="{}")) == (404, 40401)
    assert told(site.client.get(f"{at}/subscription/s/cursor")) == (404, 40401)


def test_unknown_subscription_is_40402(rest: Rest) -> None:
    answer = rest.client.get(f"{rest.at}/subscription/none/cursor")
    assert told(answer) == (404, 40402)


def test_unknown_consumer_is_40403(rest: Rest) -> None:
    for word in ("consumer", "consumers"):
        at = f"{rest.at}/subscription/s/{word}/nobody"
        assert told(rest.client.delete(at)) == (404, 40403)
        assert told(rest.client.get(f"{at}/messages")) == (404, 40403)
        assert told(rest.client.get(f"{at}/messages?stream")) == (404, 40403)


@pytest.mark.parametrize("missing", ["key_schema", "value_schema"])
def test_half_of_a_pair_is_42201(rest: Rest, missing: str) -> None:
    fields = {"key_schema": {"type": "STRING"}, "value_schema": {"type": "STRING"}}
    del fields[missing]
    answer = rest.produce({"key": "k", "value": "v"}, schema_type="KEY_VALUE", **fields)
    assert told(answer) == (422, 42201)


@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
def test_missing_definition_is_42202(rest: Rest, kind: str) -> None:
    assert told(rest.produce({"value": {}}, schema_type=kind)) == (422, 42202)


@pytest.mark.parametrize(
    "schema",
    [{"type": "NOPE"}, {"type": "AVRO", "schema": "!"}, 5, {"type": "JSON", "schema": "{}"}, "{"],
)
def test_bad_key_schema_is_42203(rest: Rest, schema: Any) -> None:
    fields = {"key_schema": schema, "value_schema": {"type": "STRING"}}
    assert told(rest.produce({"value": "v"}, schema_type="KEY_VALUE", **fields)) == (422, 42203)


def test_key_schema_without_a_pair_is_42203(rest: Rest) -> None:
    answer = rest.produce({"value": "v"}, schema_type="STRING", key_schema={"type": "STRING"})
    assert told(answer) == (422, 42203)


@pytest.mark.parametrize(
    "fields",
    [
        {"schema_type": "NOPE"},
        {"schema_type": "AUTO_CONSUME"},
        {"schema_type": "AVRO", "value_schema": {"type": "record"}},
        {"schema_type": "AVRO", "value_schema": {"type": "JSON", "schema": RECORD}},
        {"schema_type": "AVRO", "value_schema": "{"},
        {"schema_type": "AVRO", "value_schema": 7},
        {"value_schema": {"type": "JSON", "schema": 7}},
        {"value_schema": {"type": "JSON", "schema": RECORD, "properties": {"a": 1}}},
        {"value_schema": {"type": "JSON", "schema": RECORD, "name": 1}},
        {"schema_type": "AVRO", "value_schema": DEEP},
        {"value_schema": {"type": "AVRO", "schema": DEEP}},
        {"value_schema": {"type": "JSON", "schema": {"type": ["object", "null"]}}},
        {"schema_version": 9},
        {"schemaVersion": 9},
        {"schema_type": "KEY_VALUE", "key_schema": "STRING", "value_schema": {"type": "X"}},
    ],
)
def test_bad_value_schema_is_42204(rest: Rest, fields: Any) -> None:
    answer = rest.post("", {**fields, "messages": []})
    if "schemaVersion" in fields:
        assert answer.status_code == 422
        assert set(answer.get_json()) == {"reason"}
    else:
        assert told(answer) == (422, 42204)


def test_version_of_another_type_is_42204(rest: Rest) -> None:
    rest.produce({"value": 1}, schema_type="INT32")
    assert told(rest.produce({"value": 1}, schema_type="INT64", schema_version=0)) == (422, 42204)


def test_incompatible_schema_is_42204(site: Site, rest: Rest) -> None:
    def put(*_: Any) -> bytes:
        raise IncompatibleSchemaError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site.backend.schemas, "put", put)
        assert told(rest.produce({"value": 1}, schema_type="INT32")) == (422, 42204)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"{}",
        b'{"messages":{}}',
        b'{"messages":[7]}',
        b'{"messages":[{}]}',
        b'{"messages":[{"value":5}]}',
        b'{"messages":[{"value":{"a":1}}]}',
        b'{"messages":[{"value":"a","key":5}]}',
        b'{"messages":[{"value":"a","properties":{"a":1}}]}',
        b'{"messages":[{"value":"a","properties":[]}]}',
        b'{"messages":[{"value":"a","eventTime":"noon"}]}',
        b'{"messages":[{"value":"a","eventTime":-1}]}',
        b'{"messages":[{"value":"a","sequenceId":true}]}',
        b'{"messages":[{"value":"a","sequenceId":9223372036854775808}]}',
        b'{"messages":[{"value":"a","deliverAt":1.5}]}',
        b'{"messages":[{"value":"a","partition":1}]}',
        b'{"messages":[{"value":"a"},{"payload":"b"}]}',
        b'{"messages":[{"value":"a"}],"schemaVersion":1}',
        b'{"messages":[],"producer_name":5}',
        b'{"messages":[],"producer_name":"idempotency:0f"}',
        b'{"messages":[],"schema_type":5}',
        b'{"messages":[{"value":"a"}],"schema_type":"INT32"}',
        b'{"messages":[{"value":"!"}],"schema_type":"BYTES"}',
        b'{"messages":[{"value":"\\ud800"}]}',
    ],
)
def test_bad_messages_are_42205_and_nothing_is_stored(site: Site, rest: Rest, body: bytes) -> None:
    assert told(rest.post("", body)) == (422, 42205)
    assert site.backend.published == []


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"payload": "a", "eventTime": "noon"}]},
        {"messages": [{"payload": "a"}, 7]},
        {"messages": {}, "producerName": "p"},
        {"messages": [], "producerName": 5},
        {"messages": [], "schemaVersion": "first"},
    ],
)
def test_bad_messages_of_apache_pulsars_dialect_are_refused_in_it(rest: Rest, body: Any) -> None:
    answer = rest.post("", body)
    assert answer.status_code == 422
    assert set(answer.get_json()) == {"reason"}


def test_message_of_another_partition_than_the_path_is_42205(parted: Rest) -> None:
    answer = parted.produce({"value": "a", "partition": 1}, below="/partitions/2")
    assert told(answer) == (422, 42205)


@pytest.mark.parametrize(("kind", "payload"), [("JSON", "not json"), ("INT32", "xx"), ("AVRO", {})])
def test_payload_that_does_not_fit_is_refused_rather_than_stored_empty(
    site: Site, rest: Rest, kind: str, payload: Any
) -> None:
    schema = "" if kind == "INT32" else RECORD
    answer = rest.produce(
        {"payload": payload}, valueSchema={"type": kind, "schema": schema or None}
    )
    assert answer.status_code == 422
    assert "messages[0]" in answer.get_json()["reason"]
    assert site.backend.published == []


def test_delay_where_the_store_cannot_is_42205(site: Site, rest: Rest) -> None:
    site.backend.publishing = [NotSupportedError("no delays here")]
    assert told(rest.produce({"value": "a", "deliverAfterMs": 5})) == (422, 42205)


def test_consumer_of_the_same_name_is_40901(rest: Rest) -> None:
    rest.consumer(name="c")
    assert told(rest.post("/subscription/s", {"name": "c"})) == (409, 40901)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"[]", (422, 42205)),
        (b'{"name":5}', (422, 42205)),
        (b'{"name":"a b"}', (400, 40001)),
        (b'{"start":true}', (400, 40001)),
        (b'{"start":"noon"}', (400, 40001)),
        (b'{"schema_type":"AVRO"}', (422, 42202)),
        (b'{"value_schema":{"type":"X"}}', (422, 42204)),
    ],
)
def test_bad_consumer_is_refused(rest: Rest, body: bytes, expected: tuple[int, int]) -> None:
    assert told(rest.post("/subscription/s", body)) == expected


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"type":"all","messageIds":[]}',
        b'{"type":5,"messageIds":[]}',
        b'{"type":"individual","messageIds":"x"}',
        b'{"type":"individual","messageIds":[5]}',
        b'{"type":"individual","messageIds":["?"]}',
        b'{"type":"individual","messageIds":["1:0:5"]}',
    ],
)
def test_bad_acknowledgement_is_42205(rest: Rest, body: bytes) -> None:
    rest.consumer()
    assert told(rest.post("/subscription/s/cursor", body)) == (422, 42205)


def test_acknowledging_in_too_many_large_batches_is_42205(rest: Rest) -> None:
    rest.consumer()
    found = [ids.write(Position(1, entry, 0, 0, 100_000)) for entry in range(101)]
    assert told(rest.acknowledge(*found)) == (422, 42205)
    assert "10000000" not in rest.acknowledge(*found[:100]).text


def test_acknowledgement_of_an_unknown_subscription_is_40402(rest: Rest) -> None:
    [found] = rest.texts("a")
    assert told(rest.acknowledge(found, subscription="none")) == (404, 40402)


@pytest.mark.parametrize(
    "query",
    [
        "start=noon",
        "start=%3F",
        "after=x",
        "start=1:0:3",
        "after=0:0:7",
    ],
)
def test_place_that_cannot_be_read_is_40001(parted: Rest, query: str) -> None:
    answer = parted.client.get(f"{parted.at}/partitions/0/messages?{query}")
    assert told(answer) == (400, 40001)


@pytest.mark.parametrize("name", ["a%2Fb", "a b", "%zz", "x" * 250])
def test_bad_name_is_40001(site: Site, name: str) -> None:
    raw = f"/topics/public/default/{name}"
    answer = site.client.post(raw, data="{}", environ_overrides={"RAW_URI": raw})
    assert told(answer) == (400, 40001)


def test_body_over_the_limit_is_41301(sites: Sites) -> None:
    site = sites(publish_max_batch="10")
    assert told(Rest(site.client).post("", b"x" * 11)) == (413, 41301)


def test_unknown_coding_is_41501(rest: Rest) -> None:
    answer = rest.post("", b"x", headers={"Content-Encoding": "br"})
    assert told(answer) == (415, 41501)


@pytest.mark.parametrize(
    ("error", "expected"), [(BackendUnavailableError(), 50301), (BackendTimeoutError(), 50401)]
)
def test_store_that_fails_is_told(site: Site, rest: Rest, error: Any, expected: int) -> None:
    def fail(*_: Any) -> int:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site.backend, "partitions", fail)
        answer = rest.produce({"value": "a"})
    assert told(answer) == (expected // 100, expected)
    assert ("Retry-After" in answer.headers) == (expected == 50301)


def test_failure_of_ours_is_50001_without_its_words(site: Site, rest: Rest) -> None:
    def fail(*_: Any) -> int:
        raise ZeroDivisionError("secret")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site.backend, "partitions", fail)
        answer = rest.produce({"value": "a"})
    assert told(answer) == (500, 50001)
    assert "secret" not in answer.text


def test_everybody_needs_credentials_and_rights(sites: Sites, tmp_path: Any) -> None:
    users, rights = tmp_path / "users", tmp_path / "rights"
    users.write_text(f"ann:{HASHES['bcrypt']}\nbob:{HASHES['bcrypt']}\n")
    rights.write_text("ann t publish\nbob t subscribe\n")
    site = sites(auth_users=str(users), auth_permissions=str(rights), auth_forbidden_status="401")
    rest = Rest(site.client)
    assert told(rest.produce({"value": "a"})) == (401, 40101)
    ann = {"headers": {"Authorization": header("ann", "secret")}}
    bob = {"headers": {"Authorization": header("bob", "secret")}}
    refused = rest.post("", {"messages": []}, **bob)
    assert told(refused) == (401, 40103)
    assert told(rest.post("", {"messages": []}, **ann)) == (404, 40401)
    for path in ("/partitions/0/messages", "/messages?stream", "/subscription/s/cursor"):
        assert told(rest.client.get(rest.at + path, **ann)) == (401, 40103)
        assert told(rest.client.get(rest.at + path, **bob)) == (404, 40401)
    for path in ("/subscription/s", "/subscription/s/cursor"):
        assert told(rest.post(path, b"{}", **ann)) == (401, 40103)
    assert told(rest.client.delete(f"{rest.at}/subscription/s/consumer/c", **ann)) == (401, 40103)
