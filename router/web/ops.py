"""For those who run the router: is it up, is it ready, what does it count."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog
from flask import Blueprint, Response, request

from router.backends import Backend, Node
from router.errors import RouterError
from router.metrics import Metrics
from router.quoting import said
from router.resources import Resources
from router.web.media import wants_json
from router.web.openapi.description import (
    JSON,
    OBJECT,
    TEXT,
    Reply,
    answers_json,
    answers_nothing,
    choice,
    one_of,
    operation,
    shape,
)
from router.web.parameters import Query

PUSH_EVERY = 1.0
PUSHES_PER_LOOK = 10  # at what the process takes: its open files are counted one by one

_log = structlog.get_logger(__name__)


class MetricsOwner:
    """Hands what this worker counted to the node, every second and whenever somebody looks."""

    def __init__(
        self, metrics: Metrics, node: Node, timeout: float, gather: Callable[[], None]
    ) -> None:
        self._metrics = metrics
        self._gather = gather
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
        self._gather()
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
            if pushes % PUSHES_PER_LOOK == 0:
                self._look()
            pushes += 1
            self.push()

    def _look(self) -> None:
        """Note what this worker takes of the machine; without a free descriptor it cannot look."""
        try:
            found = Resources.now()
        except OSError as error:
            _log.warning("what this process takes is not seen", reason=said(error))
            return
        for name, value in found.gauges():
            self._metrics.set_gauge(name, value, process="worker")
        grown, self._cpu_seconds = found.cpu_seconds - self._cpu_seconds, found.cpu_seconds
        self._metrics.inc("router_process_cpu_seconds_total", grown, process="worker")


class Ops:
    """The views `/health`, `/ready`, `/metrics`, `/transaction`; they need no credentials."""

    def __init__(
        self,
        backend: Backend,
        node: Node,
        owner: MetricsOwner,
        timeout: float,
        in_json: Callable[[], Response],
    ) -> None:
        self._backend = backend
        self._node = node
        self._owner = owner
        self._timeout = timeout
        self._in_json = in_json

    def blueprint(self) -> Blueprint:
        """Return the routes."""
        routes = Blueprint("ops", __name__)
        routes.get("/health")(self.health)
        routes.get("/ready")(self.ready)
        routes.get("/metrics")(self.metrics)
        routes.get("/transaction")(self.transaction)
        routes.get("/transaction/<number>")(self.transaction)
        return routes

    @operation(
        answers=answers_json(shape({"status": one_of(["up"])}), "Up."), fails=(), public=True
    )
    def health(self) -> Response:
        """Say that HTTP answers."""
        return Response(b'{"status":"up"}', mimetype="application/json")

    @operation(
        choice("for", ("all", "publish"), "What has to be served."),
        answers=answers_json(shape({"status": one_of(["ready"])}), "Ready."),
        public=True,
    )
    def ready(self) -> Response:
        """Say that publishes and polls are served, or fail with 503 or 504 and the reason.

        With `for=publish` it is enough that the store answers.
        """
        wanted = Query(request.environ).choice("for", ("all", "publish"), "all")
        self._backend.ready(self._timeout)
        if wanted == "all":
            self._node.ready(self._timeout)
        return Response(b'{"status":"ready"}', mimetype="application/json")

    @operation(
        answers={
            200: Reply(
                "Prometheus' text format, or the original's figures.",
                {"text/plain": TEXT, JSON: OBJECT},
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

    @operation(answers=answers_nothing("There is nothing."), fails=(), public=True)
    def transaction(self, **_names: str) -> Response:
        """Answer nothing, as the original does: transactions are not kept."""
        return Response(status=204)
