"""The page of a message says who published it, whatever protocol it came by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pulsar
import pytest
import requests
from kafka import KafkaProducer

from tests.nats.api_client import ApiClient
from tests.ports import free_port
from tests.system.stack import Stack

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


def test_a_message_says_who_published_it_until_the_broker_restarts(tmp_path: Path) -> None:
    kafka, nats, port = free_port(), free_port(), free_port()
    listening = ("--kafka", f"127.0.0.1:{kafka}", "--nats", f"127.0.0.1:{nats}")
    stack = Stack(tmp_path, "--workers", "1", *listening, "--pulsar", f"127.0.0.1:{port}")
    stack.start()
    try:
        with requests.Session() as session:
            # The second time the head is known, and the publish is a prepared one.
            for number in range(4):
                headers = {"User-Agent": f"cash-desk/{number // 2}"}
                sent = session.post(
                    f"{stack.url}/events/t", data=str(number), headers=headers, timeout=20
                )
                assert sent.status_code == 200, sent.text
        producer = KafkaProducer(bootstrap_servers=f"127.0.0.1:{kafka}", client_id="billing")
        producer.send("t", b"4").get(20)
        producer.close()
        client = pulsar.Client(f"pulsar://127.0.0.1:{port}")
        client.create_producer("t", producer_name="till-7").send(b"5")
        client.close()
        with ApiClient(f"127.0.0.1:{nats}") as streams:
            streams.call("STREAM.CREATE.EVENTS", {"name": "EVENTS", "subjects": ["events.>"]})
            streams.publish("events.one", b"6")
        found = [publisher(stack, "t", place) for place in range(6)]
        nats_found = publisher(stack, "EVENTS", 0)
        stack.stop()
        stack.start()
        assert publisher(stack, "t", 5) == {}
    finally:
        stack.stop()
    assert [one["protocol"] for one in found] == [*["HTTP"] * 4, "Kafka", "Pulsar"]
    assert [one["client"] for one in found[:4]] == [f"cash-desk/{n // 2}" for n in range(4)]
    assert found[4]["client"].startswith("billing")
    assert found[5]["client"].startswith("till-7, Pulsar-CPP")
    assert nats_found["protocol"] == "NATS"
    assert all(one["address"].startswith("127.0.0.1") for one in (*found, nats_found))


def publisher(stack: Stack, topic: str, place: int) -> dict[str, Any]:
    """Return who published a message of a topic, by its number in the order of time."""
    pages = f"{stack.url}/console/topics/{topic}"
    listed = requests.get(f"{pages}?tab=messages&format=json&from=earliest", timeout=20).json()
    message = requests.get(
        f"{pages}/messages/{listed['messages'][place]['id']}?format=json", timeout=20
    )
    assert message.status_code == 200, message.text
    found: dict[str, Any] = message.json()["published_by"]
    return found
