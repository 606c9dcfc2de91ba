"""For those who run the router."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from router.backends.memory import MemoryNode
from router.errors import BackendUnavailableError, DiskFullError
from router.metrics import Metrics
from router.process.resources import Resources
from router.web import health as ops
from router.web.health import MetricsOwner
from tests.unit.web.applications import Site


class Away(MemoryNode):
    """A node that does not answer."""

    away = True

    def push_metrics(self, *more: object) -> None:
        if self.away:
            raise BackendUnavailableError
        super().push_metrics(*more)  # type: ignore[arg-type] # handed on as it came


def test_health_says_that_http_answers(site: Site) -> None:
    site.backend.close()
    assert site.client.get("/health").get_json() == {"status": "up"}


def test_ready_says_that_the_store_answers(site: Site) -> None:
    assert site.client.get("/ready").get_json() == {"status": "ready"}
    site.backend.close()
    answer = site.client.get("/ready")
    assert (answer.status_code, answer.get_json()["mrErrorCode"]) == (503, 3002)


def test_ready_fails_with_the_reason_while_polls_cannot_be_served_and_publishing_is_told_apart(
    site: Site,
) -> None:
    site.node.unavailable_reason = "ZooKeeper at zk:2181 cannot be reached"
    answer = site.client.get("/ready")
    assert (answer.status_code, answer.get_json()["mrErrorCode"]) == (503, 3002)
    assert "ZooKeeper at zk:2181 cannot be reached" in answer.get_json()["message"]
    assert site.client.get("/ready?for=publish").get_json() == {"status": "ready"}
    site.node.unavailable_reason = None
    assert site.client.get("/ready?for=all").status_code == 200
    site.backend.close()
    assert site.client.get("/ready?for=publish").status_code == 503


def test_ready_fails_with_the_reason_while_the_disk_is_full(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(timeout: float) -> None:
        raise DiskFullError("the disk of the node is full: 1 bytes are free")

    monkeypatch.setattr(site.backend, "ready", full)
    for path in ("/ready", "/ready?for=publish"):
        answer = site.client.get(path)
        assert answer.status_code == 503
        assert "the disk of the node is full: 1 bytes" in answer.get_json()["message"]
    assert site.client.get("/ready?for=poll").get_json() == {"status": "ready"}
    site.node.unavailable_reason = "ZooKeeper at zk:2181 cannot be reached"
    assert site.client.get("/ready?for=poll").status_code == 503


def test_ready_for_what_is_not_known_is_refused(site: Site) -> None:
    answer = site.client.get("/ready?for=pushes")
    assert answer.status_code == 400
    assert "all or publish or poll" in answer.get_json()["message"]


def test_metrics_tell_what_was_answered_up_to_now(site: Site) -> None:
    site.post("/events/t", "ab")
    site.post("/events/t", "{", "application/json")
    site.client.open("/nowhere", method="BREW")
    answer = site.client.get("/metrics")
    assert answer.content_type.startswith("text/plain; version=0.0.4")
    lines = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in answer.text.splitlines()}

    def requests(method: str, route: str, status: int) -> float:
        [found] = [
            float(number)
            for name, number in lines.items()
            if name.startswith("router_http_requests_total{")
            and f'method="{method}"' in name
            and f'route="{route}"' in name
            and f'status="{status}"' in name
        ]
        return found

    assert requests("POST", "/events/<topic>", 200) == 1
    assert requests("POST", "/events/<topic>", 400) == 1
    assert requests("other", "other", 404) == 1
    assert float(lines["router_published_messages_total"]) == 1
    assert float(lines['router_publish_refused_total{code="bad-json"}']) == 1


def test_metrics_wait_for_a_node_that_is_away() -> None:
    metrics, node = Metrics(), Away()
    metrics.before_drain(lambda: metrics.inc("router_published_bytes_total"))
    owner = MetricsOwner(metrics, node, 1)
    owner.push()
    owner.push()
    node.away = False
    owner.push()
    assert "router_published_bytes_total 3" in node.metrics(1)


def test_metrics_are_handed_on_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "PUSH_EVERY", 0.005)
    gathered = threading.Semaphore(0)
    metrics = Metrics()
    metrics.before_drain(gathered.release)
    owner = MetricsOwner(metrics, MemoryNode(), 1)
    owner.start()
    assert gathered.acquire(timeout=20)
    assert gathered.acquire(timeout=20)
    owner.stop()


def test_metrics_are_handed_on_by_a_process_that_may_open_no_more_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_left() -> Resources:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(ops, "PUSH_EVERY", 0.005)
    monkeypatch.setattr(Resources, "now", none_left)
    gathered = threading.Semaphore(0)
    metrics = Metrics()
    metrics.before_drain(gathered.release)
    owner = MetricsOwner(metrics, MemoryNode(), 1)
    owner.start()
    assert gathered.acquire(timeout=5)
    owner.stop()
