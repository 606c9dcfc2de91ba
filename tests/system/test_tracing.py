"""Traces of a real router, exported to a receiver of OTLP over HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.processes import wait_until
from tests.system.stack import Stack

PATIENCE = 30.0
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(120)]


class Receiver(ThreadingHTTPServer):
    """Takes spans; while `closed` is set it answers nothing."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.names: list[tuple[str, str]] = []
        self.services: set[str] = set()
        self.held = threading.Event()
        self.asked = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.asked.set()
        if self.server.held.is_set():
            time.sleep(60)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for attribute in resource.resource.attributes:
                if attribute.key == "service.name":
                    self.server.services.add(attribute.value.string_value)
            for scope in resource.scope_spans:
                self.server.names += [(s.trace_id.hex(), s.name) for s in scope.spans]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        thread = threading.Thread(target=receiver.serve_forever, args=(0.05,))
        thread.start()
        yield receiver
        receiver.shutdown()
        thread.join()


def started(folder: Path, receiver: Receiver, kind: str, delay_ms: int) -> Stack:
    stack = Stack(
        folder,
        backend_url="memory",
        server_worker_class=kind,
        server_workers="1",
        tracing_enabled="true",
    )
    stack.environ |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_BSP_SCHEDULE_DELAY": str(delay_ms),
        "OTEL_SERVICE_NAME": "shop",
    }
    stack.start()
    return stack


def publish_and_poll(stack: Stack) -> None:
    url, headers = f"{stack.url}/events/t", {"traceparent": PARENT}
    assert requests.post(url, "a", headers=headers, timeout=PATIENCE).status_code == 200
    poll = f"{url}/g/c?from=earliest&timeout=20000"
    assert requests.get(poll, headers=headers, timeout=PATIENCE).json() == ["a"]


EXPECTED = {(TRACE, "publish t"), (TRACE, "receive t"), (TRACE, "process t")}


@pytest.mark.parametrize("kind", ["llhttp", "gthread"])
def test_spans_reach_a_receiver(tmp_path: Path, receiver: Receiver, kind: str) -> None:
    stack = started(tmp_path, receiver, kind, 50)
    try:
        publish_and_poll(stack)
        wait_until(lambda: set(receiver.names) >= EXPECTED)
        assert receiver.services == {"shop"}
    finally:
        stack.stop()


def test_spans_that_wait_are_exported_when_the_router_stops(
    tmp_path: Path, receiver: Receiver
) -> None:
    stack = started(tmp_path, receiver, "llhttp", 600_000)
    try:
        publish_and_poll(stack)
        assert receiver.names == []
    finally:
        stack.stop()
    assert set(receiver.names) >= EXPECTED


def test_receiver_that_does_not_answer_holds_up_nothing(tmp_path: Path, receiver: Receiver) -> None:
    receiver.held.set()
    stack = started(tmp_path, receiver, "llhttp", 50)
    try:
        publish_and_poll(stack)
        assert receiver.asked.wait(PATIENCE)
        requests.post(f"{stack.url}/events/t", "b", timeout=PATIENCE)
        begun = time.monotonic()
    finally:
        assert stack.stop() == 0
    # The exporter would wait 10 s for an answer, and try again.
    assert time.monotonic() - begun < 9
