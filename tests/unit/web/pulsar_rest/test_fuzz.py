"""No body, path or query makes the router fail."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.web.applications import Site
from tests.unit.web.pulsar_rest.rest import Rest

QUIET = [HealthCheck.function_scoped_fixture]
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        [
            "STRING",
            "JSON",
            "AVRO",
            "INT32",
            "KEY_VALUE",
            "BYTES",
            "none",
            "CAEQAA==",
            "1:0:-1",
            "{}",
            '{"type":"record","name":"R","fields":[]}',
            '{"type":"AVRO","schema":"e30="}',
        ]
    )
)
json_values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
schemas = json_values | st.fixed_dictionaries(
    {"type": leaves}, optional={"schema": json_values, "properties": json_values, "name": leaves}
)
messages = st.fixed_dictionaries(
    {},
    optional={
        "value": json_values,
        "payload": json_values,
        "key": json_values,
        "partition": leaves,
        "properties": json_values,
        "eventTime": leaves,
        "sequenceId": leaves,
        "deliverAt": leaves,
        "deliverAfterMs": leaves,
    },
)
bodies = json_values | st.fixed_dictionaries(
    {},
    optional={
        "messages": st.lists(messages | leaves, max_size=3) | leaves,
        "schema_type": leaves,
        "schema_version": leaves,
        "key_schema": schemas,
        "value_schema": schemas,
        "schemaVersion": leaves,
        "keySchema": schemas,
        "valueSchema": schemas,
        "producerName": leaves,
        "producer_name": leaves,
        "name": leaves,
        "id": leaves,
        "start": leaves,
        "type": leaves | st.sampled_from(["individual", "cumulative"]),
        "messageIds": st.lists(leaves, max_size=3) | leaves,
    },
)


def dumped(body: Any) -> bytes:
    return json.dumps(body).encode()


@settings(max_examples=120, suppress_health_check=QUIET)
@given(
    body=bodies,
    below=st.sampled_from(["", "/partitions/0", "/subscription/s", "/subscription/s/cursor"]),
)
def test_no_body_is_a_failure_of_ours(site: Site, rest: Rest, body: Any, below: str) -> None:
    answer = rest.post(below, dumped(body))
    assert answer.status_code < 500, (body, answer.text)
    reading = rest.client.get(f"{rest.at}/partitions/0/messages?timeout=0&start=earliest")
    assert reading.status_code == 200


@settings(max_examples=60, suppress_health_check=QUIET)
@given(
    body=st.binary(max_size=60),
    below=st.sampled_from(["", "/subscription/s", "/subscription/s/cursor"]),
)
def test_no_bytes_are_a_failure_of_ours(rest: Rest, body: bytes, below: str) -> None:
    assert rest.post(below, body).status_code < 500


@settings(max_examples=80, suppress_health_check=QUIET)
@given(
    names=st.lists(
        st.sampled_from(["timeout", "max_messages", "max_bytes", "start", "after"]), max_size=3
    ),
    texts=st.lists(
        st.text(max_size=12) | st.sampled_from(["0", "-1", "1e9", "latest", "@1.2"]),
        min_size=3,
        max_size=3,
    ),
)
def test_no_query_is_a_failure_of_ours(rest: Rest, names: list[str], texts: list[str]) -> None:
    query = dict(zip(names, texts, strict=False)) | {"timeout": "0"}
    answer = rest.client.get(f"{rest.at}/partitions/0/messages", query_string=query)
    assert answer.status_code in {200, 400}


@settings(max_examples=40, suppress_health_check=QUIET)
@given(last=st.text(max_size=30))
def test_no_last_event_id_is_a_failure_of_ours(rest: Rest, last: str) -> None:
    query = {"stream": "", "last_event_id": last}
    answer = rest.client.get(f"{rest.at}/messages", query_string=query)
    assert answer.status_code in {200, 400}
    answer.close()
