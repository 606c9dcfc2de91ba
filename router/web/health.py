"""Health, readiness and metrics over HTTP: `/health`, `/ready`, `/metrics`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from flask import Response, request

from router.backends import Backend
from router.errors import BackendUnavailableError, DiskFullError, RouterError
from router.errors.quoting import failure_text
from router.metrics import Metrics
from router.node import Node
from router.process.resources import Resources
from router.web.media import wants_json
from router.web.openapi import description as api
from router.web.requests import Query

PUSH_EVERY = 1.0
PUSHES_PER_SAMPLE = 10  # at what the process takes: its open files are counted one by one

_log = structlog.get_logger(__name__)


class MetricsOwner:
    """Hands what this worker counted to the node, every second and before each reading of them."""

    def __init__(self, metrics: Metrics, node: Node, timeout: float) -> None:
        self._metrics = metrics
        self._node = node
        self._timeout = timeout
        self._ended = threading.Event()
        self._cpu_seconds = 0.0
        self._failing = False

    def start(self) -> None:
        """Begin handing on."""
        threading.Thread(target=self._run, name="metrics", daemon=True).start()

    def stop(self) -> None:
        """Hand on what is left, and end."""
        self._ended.set()
        self.push()

    def push(self) -> None:
        """Hand on what was counted since the last time; keep it if the node does not answer."""
        drained = self._metrics.drain()
        try:
            self._node.push_metrics(drained.counters, drained.gauges, self._timeout)
        except RouterError as error:
            self._metrics.give_back(drained.counters)
            if not self._failing:
                _log.warning("metrics wait for the broker", reason=str(error))
            self._failing = True
        else:
            self._failing = False

    def _run(self) -> None:
        pushes = 0
        while not self._ended.wait(PUSH_EVERY):
            if pushes % PUSHES_PER_SAMPLE == 0:
                self._sample()
            pushes += 1
            self.push()

    def _sample(self) -> None:
        """Note the resources of this worker; without a free descriptor they are not known."""
        try:
            found = Resources.now()
        except OSError as error:
            _log.warning("the resources of this process are not known", reason=failure_text(error))
            return
        for name, value in found.gauges():
            self._metrics.set_gauge(name, value, process="worker")
        grown, self._cpu_seconds = found.cpu_seconds - self._cpu_seconds, found.cpu_seconds
        self._metrics.inc("router_process_cpu_seconds_total", grown, process="worker")


@dataclass(eq=False)
class Ops:
    """The views `/health`, `/ready`, `/metrics`, `/transaction`; they need no credentials."""

    _backend: Backend
    _node: Node
    _owner: MetricsOwner
    _timeout: float
    _in_json: Callable[[], Response]

    @api.operation(
        "GET /health",
        answers=api.answers_json(api.shape({"status": api.one_of(["up"])}), "Up."),
        fails=(),
        public=True,
    )
    def health(self) -> Response:
        """Say that HTTP answers."""
        return Response(b'{"status":"up"}', mimetype="application/json")

    @api.operation(
        "GET /ready",
        api.choice("for", ("all", "publish", "poll"), "What has to be served."),
        answers=api.answers_json(api.shape({"status": api.one_of(["ready"])}), "Ready."),
        public=True,
    )
    def ready(self) -> Response:
        """Say that publishes and polls are served, or fail with 503 or 504 and the reason.

        With `for=publish` it is enough that the store answers and its disk is not full, with
        `for=poll` its disk may be full.
        """
        scope = Query(request.environ).choice("for", ("all", "publish", "poll"), "all")
        try:
            self._backend.ready(self._timeout)
        except DiskFullError as error:
            if scope != "poll":
                raise BackendUnavailableError(str(error)) from error
        if scope != "publish":
            self._node.ready(self._timeout)
        return Response(b'{"status":"ready"}', mimetype="application/json")

    @api.operation(
        "GET /metrics",
        answers={
            200: api.ReplyDescription(
                "Prometheus' text format, or the original's figures.",
                {"text/plain": str, api.JSON: dict},
            )
        },
        public=True,
    )
    def metrics(self) -> Response:
        """Answer the node's counters, this worker's up to now among them.

        Who asks for JSON gets the original's names for some of them.
        """
        if wants_json(request.headers.get("Accept")):
            return self._in_json()
        self._owner.push()
        return Response(
            self._node.metrics(self._timeout),
            content_type="text/plain; version=0.0.4; charset=utf-8",
        )

    @api.operation(
        "GET /transaction/<number>",
        "GET /transaction",
        answers=api.answers_nothing("There is nothing."),
        fails=(),
        public=True,
    )
    def transaction(self, **_names: str) -> Response:
        """Answer nothing, as the original does: transactions are not kept."""
        return Response(status=204)
