"""What administrators are answered where the two brokers could differ; Java's client does more."""

from __future__ import annotations

import base64
import json

from tests.interop.brokers import path_of
from tests.interop.world import World, until

RECORD = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}


def a_subscription_that_is_not_there(world: World) -> object:
    topic = world.topic()
    world.publish(topic, 2)
    base = f"{path_of(topic)}/subscription/missing"
    asked = world.server.asked
    return {
        "peek": asked("GET", f"{base}/position/1"),
        "skip": asked("POST", f"{base}/skip/1"),
        "reset": asked("POST", f"{base}/resetcursor/0"),
        "delete": asked("DELETE", base.replace("missing", "other")),
        "there now": world.server.told("GET", f"{path_of(topic)}/subscriptions")[1].decode(),
    }


def a_subscription_of_a_topic_that_is_not_there(world: World) -> object:
    return world.server.asked("PUT", f"{path_of(world.topic())}/subscription/s")


def a_schema_of_another_kind(world: World) -> object:
    topic = world.topic()
    path = path_of(topic).replace("persistent/", "schemas/", 1)
    given = {"type": "AVRO", "schema": json.dumps(RECORD), "properties": {}}
    assert world.server.asked("PUT", path_of(topic)) == 204
    assert world.server.asked("POST", f"{path}/schema", given) == 200
    text = {"type": "STRING", "schema": "", "properties": {}}
    return {
        "posted": world.server.asked("POST", f"{path}/schema", text),
        "tested": world.server.asked("POST", f"{path}/compatibility", text),
    }


def the_time_to_live_of_a_namespace(world: World) -> object:
    path = f"namespaces/{world.server.namespace}/messageTTL"
    set_status = world.server.asked("POST", path, 0)
    status, body = world.server.told("GET", path)
    return set_status, status, body.decode()


def what_a_peek_tells(world: World) -> object:
    topic = world.topic()
    producer = world.producer(topic)
    producer.send(b"\x00\xff", partition_key="k", properties={"a": "b"})
    world.consumer(topic).close()
    status, body = world.server.told("GET", f"{path_of(topic)}/subscription/s/position/1")
    return status, base64.b64encode(body).decode()


def compaction(world: World) -> object:
    topic, path = world.topic(), path_of(world.topic())
    missing = [world.server.asked(method, f"{path}/compaction") for method in ("PUT", "GET")]
    world.publish(topic, 2)
    before = json.loads(world.server.told("GET", f"{path}/compaction")[1])
    world.server.compact(topic)
    return missing, before, json.loads(world.server.told("GET", f"{path}/compaction")[1])


def compaction_of_a_partitioned_topic(world: World) -> object:
    topic = world.partitioned(2)
    begun = world.server.asked("PUT", f"{path_of(topic)}/compaction")
    return begun, world.server.asked("GET", f"{path_of(topic)}/compaction")


def the_compaction_threshold_of_a_namespace(world: World) -> object:
    return _threshold(world, f"namespaces/{world.server.namespace}/compactionThreshold", "PUT")


def the_compaction_threshold_of_a_topic(world: World) -> object:
    topic = world.topic()
    assert world.server.asked("PUT", path_of(topic)) == 204
    return _threshold(world, f"{path_of(topic)}/compactionThreshold", "POST")


def _threshold(world: World, path: str, method: str) -> object:
    def told() -> tuple[int, str]:
        status, body = world.server.told("GET", path)
        return status, body.decode()

    def is_told(value: str) -> bool:
        # Apache Pulsar reads a topic's policies from a topic, a moment later.
        return until(lambda: told() == (200, value))

    # So much that no other scenario's topics are compacted, or none.
    values = (10**12, 0)
    return [
        told(),
        world.server.asked(method, path, -1),
        [(world.server.asked(method, path, value), is_told(str(value))) for value in values],
        (world.server.asked("DELETE", path), is_told("")),
    ]
