"""Laws of the JSON model of JetStream."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.wire.nats.jetstream import requests
from router.wire.nats.jetstream.config import ConsumerConfig, StreamConfig
from router.wire.nats.jetstream.consumer_rules import check_consumer_update, checked_consumer
from router.wire.nats.jetstream.errors import ErrorCode, JetStreamError
from router.wire.nats.jetstream.policies import Retention
from router.wire.nats.jetstream.replies import ApiReply, PubAck
from router.wire.nats.jetstream.stream_rules import checked_stream, checked_stream_update
from tests.nats.strategies import (
    RESULTS,
    STREAM,
    consumer_bodies,
    consumer_configs,
    errors,
    stream_bodies,
    stream_configs,
)

REQUESTS: list[Any] = [
    requests.StreamConfigRequest,
    requests.ConsumerCreateRequest,
    requests.StreamInfoRequest,
    requests.StreamPageRequest,
    requests.ConsumerPageRequest,
    requests.PurgeRequest,
    requests.MessageGetRequest,
    requests.MessageDeleteRequest,
    requests.PauseRequest,
    requests.PullRequest,
]
WITHOUT_BODY = (requests.MessageGetRequest, requests.MessageDeleteRequest)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def code_of(body: bytes, request: Any = requests.StreamConfigRequest) -> int:
    with pytest.raises(JetStreamError) as raised:
        request.read(body)
    return int(raised.value.err_code)


def stream() -> StreamConfig:
    return checked_stream(StreamConfig(name=STREAM, subjects=("s.>",)))


@given(stream_configs)
def test_a_stored_stream_reads_as_itself(config: StreamConfig) -> None:
    shown = orjson.loads(orjson.dumps(config.to_json()))
    assert checked_stream(StreamConfig.from_json(shown)) == config
    assert checked_stream_update(config, config) == config


@pytest.mark.slow
@given(consumer_configs)
def test_a_stored_consumer_reads_as_itself(config: ConsumerConfig) -> None:
    shown = orjson.loads(orjson.dumps(config.to_json()))
    read = ConsumerConfig.from_json(shown)
    assert checked_consumer(read, stream()) == config
    check_consumer_update(config, read, is_bound=True)


@given(stream_bodies)
def test_a_pedantic_stream_is_the_one_that_was_sent(body: dict[str, Any]) -> None:
    """What the pedantic form takes is stored as sent, but for members that were left out."""
    try:
        sent = StreamConfig.from_json({k: v for k, v in body.items() if k != "pedantic"})
        checked = checked_stream(sent, pedantic=True)
    except JetStreamError:
        return
    for name in ("max_age", "discard", "retention", "storage", "allow_rollup_hdrs", "deny_purge"):
        assert getattr(checked, name) == getattr(sent, name)


@given(consumer_bodies)
def test_a_consumer_that_is_taken_has_no_backoff_beyond_its_deliveries(
    body: dict[str, Any],
) -> None:
    try:
        config = checked_consumer(ConsumerConfig.from_json(body), stream())
    except JetStreamError:
        return
    assert config.max_deliver == -1 or len(config.backoff) <= config.max_deliver
    assert not config.backoff or config.ack_wait == config.backoff[0]
    assert config.is_push or config.max_waiting > 0


def refusal_of(request: Any, body: bytes) -> ErrorCode | None:
    """Return why a body is no request, None for one that is."""
    try:
        request.read(body)
    except JetStreamError as refused:
        return refused.err_code
    return None


REFUSALS = (None, ErrorCode.INVALID_JSON, ErrorCode.BAD_REQUEST)


@pytest.mark.slow
@given(st.sampled_from(REQUESTS), st.one_of(json_values, stream_bodies, consumer_bodies))
def test_any_json_is_a_request_or_is_refused(request: Any, value: object) -> None:
    assert refusal_of(request, json.dumps(value).encode()) in REFUSALS


@given(st.sampled_from(REQUESTS), st.binary(max_size=12))
def test_any_bytes_are_a_request_or_are_refused(request: Any, body: bytes) -> None:
    assert refusal_of(request, body) in REFUSALS


@pytest.mark.parametrize("request_type", REQUESTS)
def test_no_body_and_an_empty_object_mean_the_same(request_type: Any) -> None:
    if request_type in WITHOUT_BODY:
        assert code_of(b"", request_type) == code_of(b"{}", request_type) == 10003
    else:
        assert request_type.read(b"") == request_type.read(b"{}")


@pytest.mark.parametrize(
    "body",
    [
        b'{"unknown":1}',
        b'{"retention":"Limits"}',
        b'{"retention":null}',
        b'{"max_msgs":1.0}',
        b'{"max_msgs":"1"}',
        b'{"max_msgs":9223372036854775808}',
        b'{"max_msg_size":2147483648}',
        b'{"first_seq":-1}',
        b'{"no_ack":0}',
        b'{"subjects":"a"}',
        b'{"subjects":[1]}',
        b'{"placement":{"x":1}}',
        b'{"metadata":{"a":1}}',
        b'{"pedantic":1}',
        b'{"max_age":NaN}',
        b"[]",
        b"3",
        b"{",
        b"{} x",
        b"[" * 20_000,
    ],
)
def test_a_body_that_go_does_not_decode_is_invalid_json(body: bytes) -> None:
    assert code_of(body) == 10025


def test_names_match_in_any_case_and_the_last_one_counts() -> None:
    read = requests.StreamConfigRequest.read(b'{"name":"A","NAME":"B","Max_Msgs":null}')
    assert (read.config.name, read.config.max_msgs) == ("B", 0)


def test_metadata_of_the_server_is_dropped() -> None:
    read = StreamConfig.from_json({"metadata": {"_nats.ver": "2.15.2", "a": "b"}})
    assert read.metadata == {"a": "b"}


def test_a_request_with_a_body_where_none_belongs_is_refused() -> None:
    for empty in (b"", b"{}", b" { } "):
        requests.require_empty(empty)
    for full in (b"x", b'{"a":1}', b"[]", b" "):
        with pytest.raises(JetStreamError) as raised:
            requests.require_empty(full)
        assert raised.value.err_code is ErrorCode.NOT_EMPTY_REQUEST


@pytest.mark.parametrize(
    ("body", "batch"), [(b"", 1), (b" 7 ", 7), (b"x", 1), (b'{"batch":5,"new":1}', 5), (b"{}", 1)]
)
def test_a_pull_request_is_read_leniently(body: bytes, batch: int) -> None:
    assert requests.PullRequest.read(body).batch == batch


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", "Empty Request"),
        (b"{}", "Empty Request"),
        (b"x", "Malformed Request"),
        (b'{"seq":"x"}', "Malformed Request"),
        (b'{"seq":1,"last_by_subj":"a"}', "Bad Request"),
        (b'{"last_by_subj":"a","batch":2}', "Bad Request"),
        (b'{"multi_last":["a"],"next_by_subj":"a"}', "Bad Request"),
        (b'{"seq":1,"up_to_seq":2,"up_to_time":"2024-01-01T00:00:00Z"}', "Bad Request"),
    ],
)
def test_a_direct_get_is_refused_with_the_status_of_the_server(body: bytes, status: str) -> None:
    with pytest.raises(ValueError, match=status):
        requests.MessageGetRequest.read_direct(body)


def test_what_a_stream_may_not_do_yet_is_refused_by_name() -> None:
    for member, value in (
        ("mirror", {"name": "B"}),
        ("sources", [{"name": "B"}]),
        ("subject_transform", {"src": "a", "dest": "b"}),
        ("republish", {"src": "a", "dest": "b"}),
        ("allow_msg_counter", True),
        ("allow_msg_schedules", True),
    ):
        config = StreamConfig.from_json({"name": STREAM, member: value})
        with pytest.raises(JetStreamError) as raised:
            checked_stream(config)
        assert raised.value.err_code is ErrorCode.STREAM_INVALID_CONFIG
        assert raised.value.description.startswith(member.rstrip("s"))


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"mirror": {"name": "B"}, "first_seq": 2}, 10143),
        ({"mirror": {"name": "B"}, "subjects": ["a"]}, 10034),
        ({"mirror": {"name": "B"}, "sources": [{"name": "C"}]}, 10031),
        ({"mirror": {"name": "B.C"}}, 10142),
        ({"sources": [{"name": "B"}, {"name": "B.C"}]}, 10141),
    ],
)
def test_a_mirror_that_cannot_be_is_refused_with_the_code_of_the_server(
    members: dict[str, Any], code: int
) -> None:
    with pytest.raises(JetStreamError) as raised:
        checked_stream(StreamConfig.from_json({"name": STREAM, **members}))
    assert raised.value.err_code == code


def test_ttls_of_messages_are_not_turned_off_again() -> None:
    old = checked_stream(StreamConfig(name=STREAM, allow_msg_ttl=True))
    with pytest.raises(JetStreamError, match="TTL"):
        checked_stream_update(old, StreamConfig(name=STREAM))


def test_a_sealed_stream_keeps_everything() -> None:
    old = checked_stream(StreamConfig(name=STREAM, max_age=10**12, allow_rollup_hdrs=True))
    sealed = StreamConfig.from_json({**old.to_json(), "sealed": True})
    config = checked_stream_update(old, sealed)
    assert (config.max_age, config.deny_delete, config.deny_purge) == (0, True, True)
    assert not config.allow_rollup_hdrs


def test_retention_does_not_change_to_or_from_a_work_queue() -> None:
    old = checked_stream(StreamConfig(name=STREAM, retention=Retention.WORK_QUEUE))
    for changed in (Retention.LIMITS, Retention.INTEREST):
        new = checked_stream(StreamConfig(name=STREAM, retention=changed))
        for before, after in ((old, new), (new, old)):
            with pytest.raises(JetStreamError, match="workqueue"):
                checked_stream_update(before, after)


@given(st.sampled_from(sorted(RESULTS)), errors)
def test_an_error_comes_inside_the_type_of_its_call(kind: str, refused: JetStreamError) -> None:
    reply = orjson.loads(ApiReply(kind, error=refused).to_bytes())
    assert reply["type"] == f"io.nats.jetstream.api.v1.{kind}_response"
    assert reply["error"] == {
        "code": refused.code,
        "err_code": int(refused.err_code),
        "description": refused.description,
    }


def test_an_acknowledgement_has_no_type() -> None:
    assert PubAck("S", 3).to_json() == {"stream": "S", "seq": 3}
    assert PubAck("S", 3, duplicate=True).to_json()["duplicate"] is True
