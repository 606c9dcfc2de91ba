"""PIP 64's calls on one topic, as tests make them."""

from __future__ import annotations

import json
from typing import Any

from flask.testing import FlaskClient
from werkzeug.test import TestResponse

PATH = "/topics/public/default/"


class Rest:
    """A client of one topic."""

    def __init__(self, client: FlaskClient, topic: str = "t", path: str = PATH) -> None:
        self.client = client
        self.topic = topic
        self.at = f"{path}{topic}"

    def post(self, below: str, body: Any, **more: Any) -> TestResponse:
        """POST JSON, or bytes as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body)
        return self.client.post(self.at + below, data=data, **more)

    def produce(self, *messages: Any, below: Any = "", **fields: Any) -> TestResponse:
        """Produce messages."""
        return self.post(below, {**fields, "messages": list(messages)})

    def texts(self, *values: str, **fields: Any) -> list[str]:
        """Produce texts; return their ids."""
        answer = self.produce(*({"value": value} for value in values), **fields)
        assert answer.status_code == 200, answer.text
        return [found["messageId"] for found in answer.get_json()["messageIds"]]

    def read(self, query: str = "", partition: int = 0) -> list[Any]:
        """Read a partition, without waiting; return the messages."""
        answer = self.client.get(f"{self.at}/partitions/{partition}/messages?timeout=0&{query}")
        assert answer.status_code == 200, answer.text
        found: list[Any] = answer.get_json()["messages"]
        return found

    def values(self, query: str = "", partition: int = 0) -> list[Any]:
        """Read the values of a partition."""
        return [message["value"] for message in self.read(query, partition)]

    def consumer(self, subscription: str = "s", **fields: Any) -> Fetching:
        """Create a consumer; a new subscription begins with the first message."""
        fields.setdefault("start", "earliest")
        answer = self.post(f"/subscription/{subscription}", fields)
        assert answer.status_code == 200, answer.text
        return Fetching(self, subscription, answer.get_json())

    def acknowledge(
        self, *found: str, subscription: str = "s", kind: str = "individual"
    ) -> TestResponse:
        """Acknowledge messages."""
        body = {"type": kind, "messageIds": list(found)}
        return self.post(f"/subscription/{subscription}/cursor", body)

    def cursor(self, subscription: str = "s") -> Any:
        """Return the cursor of a subscription."""
        answer = self.client.get(f"{self.at}/subscription/{subscription}/cursor")
        assert answer.status_code == 200, answer.text
        return answer.get_json()["cursor"]


class Fetching:
    """A consumer that was created."""

    def __init__(self, rest: Rest, subscription: str, created: Any) -> None:
        self.rest = rest
        self.created = created
        self.id: str = created["id"]
        self.base_uri: str = created["base_uri"]
        self.at = f"{rest.at}/subscription/{subscription}/consumer/{self.id}"

    def ask(self, query: str = "", client: FlaskClient | None = None) -> TestResponse:
        """Fetch, without waiting unless the query says so."""
        wait = "" if "timeout" in query else "timeout=0&"
        return (client or self.rest.client).get(f"{self.at}/messages?{wait}{query}")

    def fetch(self, query: str = "", client: FlaskClient | None = None) -> list[Any]:
        """Fetch messages."""
        answer = self.ask(query, client)
        assert answer.status_code == 200, answer.text
        found: list[Any] = answer.get_json()["messages"]
        return found

    def values(self, query: str = "", client: FlaskClient | None = None) -> list[Any]:
        """Fetch the values of messages."""
        return [message["value"] for message in self.fetch(query, client)]

    def delete(self) -> TestResponse:
        """Delete the consumer."""
        return self.rest.client.delete(self.at)


def told(answer: TestResponse) -> tuple[int, int]:
    """Return status and number of a refusal in PIP 64's words."""
    body = answer.get_json()
    assert set(body) == {"error_code", "message"}, body
    assert body["message"]
    return answer.status_code, body["error_code"]
