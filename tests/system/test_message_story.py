"""The page of a message says what became of it, as long as the broker runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.system.stack import Stack

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


def test_a_message_says_that_it_was_requeued_replayed_and_sent_again(tmp_path: Path) -> None:
    stack = Stack(tmp_path, "--workers", "1")
    stack.start()
    try:
        pages = f"{stack.url}/console/topics/orders"
        for topic in ("orders", "orders.dlq", "copies"):
            create = {"topicName": topic, "partitionCount": 1}
            post(f"{stack.url}/topics/create", json=create)
        for value in ("good", "bad"):
            post(f"{stack.url}/events/orders", data=value)
        good, bad = get(f"{pages}?tab=messages&from=earliest")["messages"]
        bury(stack, bad["place"])
        address = f"{stack.url}/dead-letters/orders.dlq/requeue?all"
        assert post(address).json()["done"] == 1
        post(f"{pages}/messages/{bad['id']}/send?format=json", data={"edited": ""})
        form = get(f"{pages}/replay?from=earliest&filter=good")
        fields = {name: form[name] for name in ("id", "cursor", "until", "end")}
        for _ in range(2):  # as a client that lost the answer does
            sent = fields | {"to": "copies", "filter": "good"}
            assert post(f"{pages}/replay?format=json", data=sent).json()["batch"] == 1
        story = get(f"{pages}/messages/{bad['id']}")["story"]
        replayed = get(f"{pages}/messages/{good['id']}")["story"]
        stack.stop()
        stack.start()
        later = get(f"{pages}/messages/{bad['id']}")["story"]
    finally:
        stack.stop()
    (dead_letter,) = story["dead_letters"]
    assert (dead_letter["topic"], dead_letter["state"]) == ("orders.dlq", "requeued")
    assert [(one["action"], one["topic"]) for one in story["actions"]] == [("sent again", "orders")]
    assert [(one["action"], one["topic"]) for one in replayed["actions"]] == [
        ("replayed", "copies")
    ]
    assert replayed["dead_letters"] == []
    # The letter is stored, and what was done with it is not.
    assert later["dead_letters"] == [dead_letter | {"state": "requeued or discarded"}]
    assert later["actions"] == []
    assert later["since"] > story["since"]


def bury(stack: Stack, place: str) -> None:
    """Store a dead letter of a message, as a pipeline does."""
    ledger, entry, partition, *_ = place.split(":")
    notes = {
        "router-topic": "orders",
        "router-partition": partition,
        "router-position": f"{ledger}:{entry}",
        "router-error": "no JSON",
    }
    headers = "\n".join(f"{name}: {text}" for name, text in notes.items())
    post(
        f"{stack.url}/console/topics/orders.dlq/publish?format=json",
        data={"format": "Text", "message": "bad", "headers": headers},
    )


def post(url: str, **given: Any) -> requests.Response:
    answer = requests.post(url, timeout=20, **given)
    assert answer.status_code == 200, answer.text
    return answer


def get(url: str) -> dict[str, Any]:
    answer = requests.get(url, timeout=20, headers={"Accept": "application/json"})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = json.loads(answer.text)
    return found
