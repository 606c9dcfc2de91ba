"""Each rule of configurations, broken alone; that nats-server agrees is compared in tests/nats."""

from __future__ import annotations

from typing import Any

import pytest

from router.wire.nats.jetstream.config import ConsumerConfig, StreamConfig
from router.wire.nats.jetstream.consumer_rules import (
    addressed_consumer,
    check_consumer_update,
    check_new_consumer,
    checked_consumer,
)
from router.wire.nats.jetstream.errors import JetStreamError
from router.wire.nats.jetstream.requests import ConsumerCreateRequest, StreamConfigRequest
from router.wire.nats.jetstream.stream_rules import (
    check_stream_create,
    check_stream_update,
    checked_stream,
    checked_stream_update,
)

SECOND = 10**9
OLD: dict[str, Any] = {"name": "S", "subjects": ["s.>"]}


def refusal(call: Any, *arguments: Any, **named: Any) -> tuple[int, str]:
    with pytest.raises(JetStreamError) as raised:
        call(*arguments, **named)
    return int(raised.value.err_code), raised.value.description


def stream(**members: Any) -> StreamConfig:
    return checked_stream(StreamConfig.from_json(OLD | members))


STREAMS: list[tuple[dict[str, Any], int, str]] = [
    ({"name": ""}, 10052, "name is required"),
    ({"name": "a b"}, 10052, "name is required"),
    ({"name": "n" * 256}, 10052, "too long"),
    ({"description": "d" * 4097}, 10052, "description"),
    ({"metadata": {"k": "v" * (128 << 10)}}, 10052, "metadata"),
    ({"num_replicas": -1}, 10133, "negative"),
    ({"num_replicas": 2}, 10074, "replicas"),
    ({"num_replicas": 6}, 10052, "replicas"),
    ({"max_age": -1}, 10052, "max age can not be negative"),
    ({"max_age": SECOND // 20}, 10052, "max age needs"),
    ({"duplicate_window": -1}, 10052, "duplicates window can not be negative"),
    ({"duplicate_window": SECOND // 20}, 10052, "duplicates window needs"),
    ({"max_age": SECOND, "duplicate_window": 2 * SECOND}, 10052, "larger then max age"),
    ({"deny_purge": True, "allow_rollup_hdrs": True}, 10052, "roll-ups"),
    ({"discard_new_per_subject": True}, 10052, "requires discard new"),
    ({"discard_new_per_subject": True, "discard": "new"}, 10052, "max msgs per subject"),
    ({"subject_delete_marker_ttl": SECOND - 1}, 10052, "at least 1 second"),
    ({"subject_delete_marker_ttl": -1}, 10052, "must not be negative"),
    (
        {"subject_delete_marker_ttl": SECOND, "mirror": {"name": "m"}, "subjects": []},
        10052,
        "mirrors",
    ),
    ({"persist_mode": "async", "storage": "memory"}, 10052, "file storage"),
    ({"persist_mode": "async", "num_replicas": 2}, 10052, "replicated"),
    ({"subjects": ["a..b"]}, 10052, "invalid subject"),
    ({"subjects": ["a.*", "a.b"]}, 10052, "overlaps"),
    ({"subjects": [">"]}, 10052, "capturing all"),
    ({"subjects": ["$JS.API.x"]}, 10052, "jetstream api"),
    ({"subjects": ["$SYS.x"]}, 10052, "system api"),
    ({"placement": {"preferred": "p"}}, 10052, "preferred"),
]


@pytest.mark.parametrize(("members", "code", "words"), STREAMS)
def test_a_stream_that_breaks_a_rule(members: dict[str, Any], code: int, words: str) -> None:
    found, description = refusal(stream, **members)
    assert (found, words in description) == (code, True), description


@pytest.mark.parametrize("members", [{"sealed": True}, {"mirror_direct": True}])
def test_what_a_new_stream_can_not_be(members: dict[str, Any]) -> None:
    request = StreamConfigRequest(StreamConfig.from_json(OLD | members))
    assert refusal(check_stream_create, "S", request)[0] == 10052


@pytest.mark.parametrize(("name", "code"), [("T", 10056), ("a/b", 10128)])
def test_names_of_a_new_stream(name: str, code: int) -> None:
    config = StreamConfig(name="S" if code == 10056 else name)
    request = StreamConfigRequest(config)
    assert refusal(check_stream_create, name, request)[0] == code


def test_an_update_has_the_name_of_its_subject() -> None:
    request = StreamConfigRequest(StreamConfig(name="S"))
    assert check_stream_update("S", request).max_msgs == -1
    assert refusal(check_stream_update, "T", request)[0] == 10056


@pytest.mark.parametrize("subjects", [[">"], ["$JS.API.x"], ["$SYS.x"]])
def test_a_stream_that_acknowledges_nothing_may_store_anything(subjects: list[str]) -> None:
    assert stream(subjects=subjects, no_ack=True).subjects == tuple(subjects)


def test_defaults_of_a_stream() -> None:
    config = checked_stream(StreamConfig(name="S"))
    assert config.subjects == ("S",)
    limits = config.max_msgs, config.max_bytes, config.max_msg_size, config.max_consumers
    assert (*limits, config.max_msgs_per_subject) == (-1,) * 5
    assert (config.num_replicas, config.duplicate_window) == (1, 120 * SECOND)
    assert stream(max_age=SECOND).duplicate_window == SECOND


def test_delete_markers_need_a_time_to_live_and_rollups() -> None:
    given = OLD | {"subject_delete_marker_ttl": 1_700_000_000, "deny_purge": True}
    config = checked_stream(StreamConfig.from_json(given))
    assert (config.allow_msg_ttl, config.allow_rollup_hdrs, config.deny_purge) == (
        True,
        True,
        False,
    )
    assert config.marker_seconds == 1
    for members, words in (
        ({}, "TTLs are disabled"),
        ({"allow_msg_ttl": True}, "roll-ups are disabled"),
    ):
        config = StreamConfig.from_json(given | members)
        found, description = refusal(checked_stream, config, pedantic=True)
        assert (found, words in description) == (10052, True)


UPDATES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"name": "T"}, "name must match"),
    ({}, {"storage": "memory"}, "storage type"),
    ({}, {"retention": "workqueue"}, "to/from workqueue"),
    ({"sealed": True}, {"sealed": False}, "unseal"),
    ({"deny_delete": True}, {"deny_delete": False}, "deny message deletes"),
    ({"deny_purge": True}, {"deny_purge": False}, "deny purge"),
    ({"allow_msg_ttl": True}, {"allow_msg_ttl": False}, "TTL"),
    ({"persist_mode": "async"}, {"persist_mode": "default"}, "persist mode"),
]


@pytest.mark.parametrize(("old", "new", "words"), UPDATES)
def test_what_does_not_change(old: dict[str, Any], new: dict[str, Any], words: str) -> None:
    changed = StreamConfig.from_json(OLD | old | new)
    found, description = refusal(checked_stream_update, stream(**old), changed)
    assert (found, words in description) == (10052, True), description


CONSUMERS: list[tuple[dict[str, Any], dict[str, Any], int]] = [
    ({}, {"name": "a.b"}, 10052),
    ({}, {"durable_name": "a/b"}, 10052),
    ({}, {"name": "a", "durable_name": "b"}, 10132),
    ({}, {"num_replicas": 2}, 10126),
    ({}, {"num_replicas": -1}, 10133),
    ({}, {"backoff": [1, -1]}, 10184),
    ({}, {"ack_wait": -1}, 10183),
    ({}, {"backoff": [1, 2], "max_deliver": 1}, 10116),
    ({}, {"description": "d" * 4097}, 10107),
    ({}, {"metadata": {"k": "v" * (128 << 10)}}, 10135),
    ({}, {"deliver_subject": "d.*"}, 10079),
    ({}, {"deliver_subject": "d..e"}, 10112),
    ({}, {"deliver_subject": "s.a"}, 10081),
    ({}, {"deliver_subject": "d", "max_waiting": 1}, 10080),
    ({}, {"deliver_subject": "d", "max_ack_pending": 1}, 10082),
    ({}, {"deliver_subject": "d", "idle_heartbeat": 1}, 10083),
    ({}, {"deliver_subject": "d", "flow_control": True}, 10108),
    ({"retention": "workqueue"}, {}, 10084),
    ({}, {"rate_limit_bps": 1}, 10086),
    ({}, {"idle_heartbeat": SECOND}, 10088),
    ({}, {"flow_control": True}, 10089),
    ({}, {"max_expires": 1}, 10115),
    ({"consumer_limits": {"max_ack_pending": 5}}, {"max_ack_pending": 6}, 10121),
    ({"consumer_limits": {"inactive_threshold": 5}}, {"inactive_threshold": 6}, 10153),
    ({}, {"filter_subject": "a", "filter_subjects": ["b"]}, 10136),
    ({}, {"filter_subjects": [""]}, 10139),
    ({}, {"filter_subjects": ["a.*", "a.b"]}, 10138),
    ({}, {"filter_subject": "a b"}, 10052),
    ({}, {"opt_start_seq": 1}, 10094),
    ({}, {"opt_start_time": "2024-01-01T00:00:00Z"}, 10094),
    ({}, {"deliver_policy": "by_start_sequence"}, 10094),
    ({}, {"deliver_policy": "by_start_time"}, 10094),
    ({}, {"deliver_policy": "last_per_subject"}, 10094),
    ({}, {"sample_freq": "x"}, 10095),
    ({}, {"priority_groups": ["g"]}, 10196),
    ({}, {"priority_timeout": 1}, 10197),
    ({}, {"priority_policy": "overflow"}, 10159),
    ({}, {"priority_policy": "overflow", "deliver_subject": "d"}, 10178),
    ({}, {"priority_policy": "overflow", "priority_groups": ["g", ""]}, 10161),
    ({}, {"priority_policy": "overflow", "priority_groups": ["g" * 17]}, 10162),
    ({}, {"ack_policy": "flow_control"}, 10012),
    ({}, {"direct": True}, 10012),
    ({}, {"sourcing": True}, 10012),
]


@pytest.mark.parametrize(("of", "members", "code"), CONSUMERS)
def test_a_consumer_that_breaks_a_rule(
    of: dict[str, Any], members: dict[str, Any], code: int
) -> None:
    config = ConsumerConfig.from_json(members)
    assert refusal(checked_consumer, config, stream(**of))[0] == code


@pytest.mark.parametrize(
    "members",
    [
        {"max_deliver": -2},
        {"max_ack_pending": -2},
        {"max_waiting": -1},
        {"inactive_threshold": -1},
        {"backoff": [5], "ack_wait": 1},
    ],
)
def test_a_pedantic_consumer_is_not_corrected(members: dict[str, Any]) -> None:
    config = ConsumerConfig.from_json(members)
    assert checked_consumer(config, stream()) != config
    assert refusal(checked_consumer, config, stream(), pedantic=True)[0] == 10157


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"durable_name": "n" * 256}, 10102),
        ({"ack_policy": "all"}, 10098),
        ({"ack_policy": "explicit", "deliver_policy": "new"}, 10101),
    ],
)
def test_a_new_consumer_of_a_work_queue(members: dict[str, Any], code: int) -> None:
    of = stream(retention="workqueue")
    config = checked_consumer(ConsumerConfig.from_json({"ack_policy": "explicit"} | members), of)
    assert refusal(check_new_consumer, config, of)[0] == code


PUSH = {"deliver_subject": "d"}


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ({}, {"deliver_policy": "new"}, 10012),
        ({}, {"mem_storage": True}, 10012),
        ({"ack_policy": "all"}, {"ack_policy": "explicit"}, 10012),
        ({}, {"replay_policy": "original"}, 10012),
        ({}, {"max_waiting": 7}, 10012),
        ({}, PUSH, 10012),
        (PUSH, {"deliver_subject": ""}, 10012),
        (PUSH, {"deliver_subject": "e"}, 10013),
        (PUSH, {"idle_heartbeat": SECOND}, 10012),
        (PUSH | {"idle_heartbeat": SECOND}, {"flow_control": True}, 10012),
    ],
)
def test_what_of_a_consumer_does_not_change(
    old: dict[str, Any], new: dict[str, Any], code: int
) -> None:
    before, after = (
        checked_consumer(ConsumerConfig.from_json(members), stream())
        for members in (old, old | new)
    )
    assert refusal(check_consumer_update, before, after, is_bound=True)[0] == code
    check_consumer_update(before, before, is_bound=True)


@pytest.mark.parametrize(
    ("subject", "members", "code"),
    [
        ("CREATE.T.C", {}, 10056),
        ("CREATE.S.a/b", {}, 10127),
        ("CREATE.S.C", {"durable_name": "D"}, 10017),
        ("CREATE.S", {"durable_name": "D"}, 10020),
        ("DURABLE.CREATE.S", {}, 10016),
        ("DURABLE.CREATE.S.C", {}, 10018),
        ("DURABLE.CREATE.S.C", {"durable_name": "D"}, 10017),
        ("CREATE.S.C.a.b", {"filter_subject": "a"}, 10131),
        ("CREATE.S.C.a.b", {"filter_subjects": ["a.b"]}, 10137),
        ("CREATE.S.C", {"num_replicas": 3}, 10074),
    ],
)
def test_a_request_that_does_not_fit_its_subject(
    subject: str, members: dict[str, Any], code: int
) -> None:
    request = ConsumerCreateRequest("S", ConsumerConfig.from_json(members))
    assert refusal(addressed_consumer, f"CONSUMER.{subject}", request)[0] == code


def test_the_subject_names_the_consumer() -> None:
    request = ConsumerCreateRequest("S", ConsumerConfig(name="given", filter_subject="a.b"))
    for subject, name in (("CREATE.S.C.a.b", "C"), ("CREATE.S.C", "C"), ("CREATE.S", "given")):
        assert addressed_consumer(f"CONSUMER.{subject}", request).name == name
