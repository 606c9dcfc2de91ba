"""What administrators are answered where the two brokers could differ; Java's client does more."""

from __future__ import annotations

import base64
import json

from tests.interop.brokers import path_of
from tests.interop.world import World

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
