"""Lists of topics and who watches them, frame by frame: what Java clients ask for."""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

import pytest

from router.broker.pulsar.patterns import topics_hash
from router.wire.node import node_pb2 as npb
from router.wire.pulsar import pulsar_pb2 as pb
from tests.broker.raw import RawClient


def admin(raw: RawClient, **request: Any) -> npb.CommandAdminResponse:
    response: npb.CommandAdminResponse = raw.ask("ADMIN", "ADMIN_RESPONSE", **request)
    assert not response.HasField("code"), response
    return response


def names(raw: RawClient, **asked: Any) -> pb.CommandGetTopicsOfNamespaceResponse:
    found: pb.CommandGetTopicsOfNamespaceResponse = raw.ask(
        "GET_TOPICS_OF_NAMESPACE",
        "GET_TOPICS_OF_NAMESPACE_RESPONSE",
        **{"namespace": "public/default", **asked},
    )
    return found


def watch(raw: RawClient, pattern: str, **asked: Any) -> pb.CommandWatchTopicListSuccess:
    found: pb.CommandWatchTopicListSuccess = raw.ask(
        "WATCH_TOPIC_LIST",
        "WATCH_TOPIC_LIST_SUCCESS",
        **{"namespace": "public/default", "watcher_id": 7, "topics_pattern": pattern, **asked},
    )
    return found


def updates(raw: RawClient, new: set[str], deleted: set[str]) -> str:
    """Wait until exactly this was told, in however many updates; return the last hash."""
    until = time.monotonic() + 30
    told: tuple[set[str], set[str]] = set(), set()
    last = ""
    while told != (new, deleted):
        assert time.monotonic() < until, told
        update = raw.expect("WATCH_TOPIC_UPDATE")
        assert update.watcher_id == 7
        told[0].update(update.new_topics)
        told[1].update(update.deleted_topics)
        last = update.topics_hash
    return last


def test_hello_says_that_lists_are_watched(connect: Any, shared_broker: Any) -> None:
    flags = connect(shared_broker).shake_hands().feature_flags
    assert flags.supports_topic_watchers
    assert flags.supports_topic_watcher_reconcile
    assert flags.supports_get_partitioned_metadata_without_auto_creation


def test_list_is_filtered_by_the_topic_and_named_by_partitions(raw: RawClient, topic: str) -> None:
    admin(raw, create_topic=npb.CreateTopic(topic=f"{topic}-a", partitions=2))
    admin(raw, create_topic=npb.CreateTopic(topic=f"{topic}-b"))
    wanted = [f"{topic}-a-partition-0", f"{topic}-a-partition-1"]
    found = names(raw, topics_pattern=f"{topic}-a")
    assert (list(found.topics), found.filtered, found.changed) == (wanted, True, True)
    assert found.topics_hash == topics_hash(wanted)
    again = names(raw, topics_pattern=f"{topic}-a", topics_hash=found.topics_hash)
    assert (list(again.topics), again.changed) == ([], False)
    assert {f"{topic}-b", *wanted} <= set(names(raw).topics)
    assert not names(raw).filtered


@pytest.mark.parametrize("pattern", ["(?=x)y", "(", "x" * 1_001])
def test_list_is_not_filtered_when_the_pattern_is_the_clients_to_evaluate(
    raw: RawClient, topic: str, pattern: str
) -> None:
    admin(raw, create_topic=npb.CreateTopic(topic=topic))
    found = names(raw, topics_pattern=pattern)
    assert not found.filtered
    assert topic in found.topics
    refused = raw.ask(
        "WATCH_TOPIC_LIST", "ERROR", namespace="public/default", watcher_id=1,
        topics_pattern=pattern,
    )  # fmt: skip
    assert refused.error == pb.NotAllowedError


def test_list_of_what_is_no_namespace_is_refused(raw: RawClient) -> None:
    refused = raw.ask("GET_TOPICS_OF_NAMESPACE", "ERROR", namespace="no namespace")
    assert refused.error == pb.InvalidTopicName
    assert list(names(raw, namespace="public/unheard-of").topics) == []


def test_watcher_is_told_what_comes_and_goes(raw: RawClient, other: RawClient, topic: str) -> None:
    admin(other, create_topic=npb.CreateTopic(topic=f"{topic}-0"))
    first = watch(raw, f"{topic}-.*")
    assert list(first.topic) == [f"{topic}-0"]
    assert first.topics_hash == topics_hash([f"{topic}-0"])
    admin(other, create_topic=npb.CreateTopic(topic=f"{topic}-p", partitions=1))
    admin(other, create_topic=npb.CreateTopic(topic=f"{topic}z"))
    assert updates(raw, {f"{topic}-p-partition-0"}, set()) == topics_hash(
        [f"{topic}-0", f"{topic}-p-partition-0"]
    )
    admin(other, update_partitions=npb.UpdatePartitions(topic=f"{topic}-p", partitions=2))
    updates(raw, {f"{topic}-p-partition-1"}, set())
    admin(other, delete_topic=npb.TopicRef(topic=f"{topic}-p"))
    last = updates(raw, set(), {f"{topic}-p-partition-0", f"{topic}-p-partition-1"})
    assert last == first.topics_hash
    raw.ask("WATCH_TOPIC_LIST_CLOSE", "SUCCESS", watcher_id=7)
    admin(other, delete_topic=npb.TopicRef(topic=f"{topic}-0"))
    assert raw.silent()


def test_watcher_that_comes_again_is_told_only_what_it_does_not_know(
    raw: RawClient, other: RawClient, topic: str
) -> None:
    admin(other, create_topic=npb.CreateTopic(topic=topic))
    known = watch(raw, topic).topics_hash
    again = watch(raw, topic, topics_hash=known)
    assert (list(again.topic), again.topics_hash) == ([], known)
    behind = watch(raw, topic, topics_hash="00000000")
    assert list(behind.topic) == [topic]


def test_connection_has_a_bounded_number_of_watchers(raw: RawClient) -> None:
    for number in range(1_000):
        raw.send(
            "WATCH_TOPIC_LIST", request_id=number, watcher_id=number,
            namespace="public/default", topics_pattern="public/default/none",
        )  # fmt: skip
    for _ in range(1_000):
        raw.expect("WATCH_TOPIC_LIST_SUCCESS")
    refused = raw.ask(
        "WATCH_TOPIC_LIST", "ERROR", namespace="public/default", watcher_id=1_000,
        topics_pattern="public/default/none",
    )  # fmt: skip
    assert refused.error == pb.NotAllowedError


def test_metadata_creates_nothing_when_that_is_not_asked_for(raw: RawClient, topic: str) -> None:
    answered = raw.ask(
        "PARTITIONED_METADATA",
        "PARTITIONED_METADATA_RESPONSE",
        topic=topic,
        metadata_auto_creation_enabled=False,
    )
    assert answered.error == pb.TopicNotFound
    namespace = f"public/{uuid4().hex}"
    policies = npb.Policies(auto_partitions=2)
    admin(raw, create_namespace=npb.CreateNamespace(namespace=namespace, policies=policies))
    for wanted, count in ((False, 0), (True, 2)):
        answered = raw.ask(
            "PARTITIONED_METADATA",
            "PARTITIONED_METADATA_RESPONSE",
            topic=f"persistent://{namespace}/t",
            metadata_auto_creation_enabled=wanted,
        )
        assert answered.partitions == count


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_lookups_fail_when_the_namespace_is_missing(raw: RawClient, domain: str) -> None:
    topic = f"{domain}://public/nowhere/t"
    looked = raw.ask("LOOKUP", "LOOKUP_RESPONSE", topic=topic)
    assert (looked.response, looked.error) == (
        pb.CommandLookupTopicResponse.Failed,
        pb.TopicNotFound,
    )
    answered = raw.ask("PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE", topic=topic)
    assert answered.error == pb.TopicNotFound
    assert "Namespace not found" in answered.message
