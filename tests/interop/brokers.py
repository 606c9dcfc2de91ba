"""A broker that scenarios run against, ours or Apache Pulsar, and its administration over HTTP."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from tests.interop.world import World, official_client

SECONDS = 20.0


class Broker:
    """Where a broker is, in whose namespace scenarios run, and what administrators do there."""

    def __init__(self, name: str, url: str, admin: str, namespace: str) -> None:
        self.name = name
        self.url = url
        self.namespace = namespace
        self._admin = admin
        if self.asked("GET", f"namespaces/{namespace}") != 200:
            assert self.asked("PUT", f"namespaces/{namespace}", {}) == 204
        self.client = official_client(url)

    def create_partitioned(self, topic: str, partitions: int) -> None:
        """Create a partitioned topic."""
        assert self.asked("PUT", f"{path_of(topic)}/partitions", partitions) == 204

    def grow(self, topic: str, partitions: int) -> None:
        """Give a partitioned topic more partitions."""
        assert self.asked("POST", f"{path_of(topic)}/partitions", partitions) == 204

    def terminate(self, topic: str) -> None:
        """Let nobody publish to a topic any more."""
        assert self.asked("POST", f"{path_of(topic)}/terminate", {}) == 200

    def compact(self, topic: str) -> None:
        """Compact a topic, and return when that is done."""
        path, until = f"{path_of(topic)}/compaction", time.monotonic() + SECONDS
        assert self.asked("PUT", path) == 204
        while b"RUNNING" in (found := self.told("GET", path)[1]):
            assert time.monotonic() < until, found
            time.sleep(0.05)
        assert b"SUCCESS" in found, found

    def asked(self, method: str, path: str, body: Any = None) -> int:
        """Return the status with which the administration answers, below /admin/v2."""
        return self.told(method, path, body)[0]

    def told(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """Return status and body of what the administration answers, below /admin/v2."""
        request = urllib.request.Request(
            f"{self._admin}/admin/v2/{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def close(self) -> None:
        """Close what this opened."""
        self.client.close()


def world_on(broker: Broker) -> World:
    return World(broker, broker.client)


def path_of(topic: str) -> str:
    """Return the path of a topic in the administration."""
    parts = urlsplit(topic)
    return f"{parts.scheme}/{parts.netloc}{parts.path}"
