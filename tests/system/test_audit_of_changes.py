"""Administrative changes over HTTP, Kafka and NATS are in one audit, with who made them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import requests
from kafka import KafkaAdminClient, KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.admin import NewTopic

from tests.nats.api_client import ApiClient
from tests.ports import free_port
from tests.system.stack import Stack

PARTITION = TopicPartition("over-kafka", 0)
pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


def test_changes_of_every_protocol_are_in_the_audit_and_outlive_a_restart(tmp_path: Path) -> None:
    kafka, nats = free_port(), free_port()
    listening = ("--kafka", f"127.0.0.1:{kafka}", "--nats", f"127.0.0.1:{nats}")
    stack = Stack(tmp_path, "--workers", "1", *listening)
    stack.start()
    try:
        with requests.Session() as session:
            session.post(f"{stack.url}/topics/create", json={"topicName": "web"}, timeout=20)
            session.post(f"{stack.url}/events/web", data="a", timeout=20)
            form = {"mask": "$.card, key"}
            settings = f"{stack.url}/console/topics/web/settings?format=json"
            shown = f"{stack.url}/console/topics/web?tab=settings&format=json"
            assert session.post(settings, data=form, timeout=20).json()["changes"] == [
                "Masked when browsing: keys and values becomes $.card, key."
            ]
            session.post(settings, data=form | {"confirm": "yes"}, timeout=20)
            page = session.get(shown, timeout=20)
            assert page.json()["mask"] == "$.card, key"
            session.post(settings, data={"mask": "", "confirm": "yes"}, timeout=20)
            page = session.get(shown, timeout=20)
            assert page.json()["rows"]["Masked when browsing"] == "keys and values"
            session.delete(f"{stack.url}/topics/web", timeout=20)
        admin = KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{kafka}")
        admin.create_topics([NewTopic("over-kafka", 2, 1)])
        admin.alter_group_offsets("g", {PARTITION: OffsetAndMetadata(0, "", -1)})
        reading_forward(f"127.0.0.1:{kafka}")
        admin.delete_group_offsets("g", [PARTITION])
        admin.delete_topics(["over-kafka"])
        admin.close()
        with ApiClient(f"127.0.0.1:{nats}") as client:
            client.call("STREAM.CREATE.OVER", {"name": "OVER", "subjects": ["over.>"]})
            client.call("STREAM.DELETE.ABSENT")
            client.call("STREAM.DELETE.OVER")
        before = audit(stack)
        stack.stop()
        stack.start()
        assert audit(stack) == before
    finally:
        stack.stop()
    made = [(one["protocol"], one["action"], one["target"]) for one in reversed(before)]
    assert made == [
        ("http", "create-topic", "web"),
        ("http", "change-topic", "web"),
        ("http", "change-topic", "web"),
        ("http", "delete-topic", "web"),
        ("kafka", "create-topic", "over-kafka"),
        ("kafka", "reset-group", "over-kafka"),
        ("kafka", "reset-group", "over-kafka"),
        ("kafka", "delete-offsets", "over-kafka"),
        ("kafka", "delete-topic", "over-kafka"),
        ("nats", "create-stream", "OVER"),
        ("nats", "delete-stream", "OVER"),
    ]
    assert all(one["from"].startswith("127.0.0.1") for one in before)


def reading_forward(address: str) -> None:
    """Commit three times as a consumer that is no member of its group does: one record is made."""
    consumer = KafkaConsumer(bootstrap_servers=address, group_id="alone", enable_auto_commit=False)
    consumer.assign([PARTITION])
    for _ in range(3):
        consumer.commit({PARTITION: OffsetAndMetadata(0, "", -1)})
    consumer.close()


def audit(stack: Stack) -> list[dict[str, Any]]:
    """Return what the console exports."""
    answer = requests.get(f"{stack.url}/console/audit/export", timeout=20)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]
