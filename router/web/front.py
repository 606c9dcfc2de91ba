"""The Flask application: its routing, and what runs before and after every view.

Each request is checked for a blacklisted address, for a host that is not the router's (`hosts`) and
for a page of a foreign origin (`cors`) before its view runs, and each answer gets its transaction
id and is counted. Flask's hooks for that, functions registered with
before_request and after_request, cost a tenth of a small publish; the methods overridden here are
the ones that Flask documents for the purpose, and the whole of it is in one place.

Plain publishes, polls and acknowledgements are the requests whose cost is Flask's more than the
router's: so `wsgi_app` has their views answer from the WSGI environment (`Direct`), without the
request, the context and the response that Flask makes for each, and keeps while a poll waits. Their
failures go Flask's way. They are written in steps (`clocks.steps`): a server that asks for it by
DEFERRED in the environment gets the steps as the answer, and takes them when it likes; any other is
given the answer as WSGI has it.

Publishers send the same head again and again. A view that is `Repeatable` therefore offers the
server what follows from a head (`clocks.steps.Prepared`), by which it begins the next requests
that have it and come from the same address. Such a request ends in one of three ways: it was begun
and is stored, and `Marks` words its 200; or it was begun and leads a batch or has failed, and
`wsgi_app` goes on with it in steps (BEGUN); or it was not begun, and is served as any other. So
every refusal is worded in one place. What depends on more than the head is looked at for each
request.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, cast
from wsgiref.types import StartResponse, WSGIEnvironment

from flask import Flask, Request, Response, request
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import HTTPException
from werkzeug.local import LocalProxy
from werkzeug.routing import Rule

from router.access.addresses import refusal
from router.access.authorizer import unproven
from router.clocks.steps import (
    BEGUN,
    DEFERRED,
    REPEATED,
    DeferredResponse,
    Prepared,
    Steps,
    run_blocking,
)
from router.errors import ForbiddenError, RouterError
from router.log import request_id
from router.metrics import Metrics, taken
from router.model import NON_PERSISTENT, PERSISTENT, Principal
from router.services.blacklist import WorkerBlacklist
from router.services.memory_budget import MemoryBudget, Reservation
from router.web.access import RequestAuthorizer
from router.web.errors import RefusalLog, allowed
from router.web.origins import PAGE_HEADERS, PROBES, Cors, Hosts
from router.web.requests import TRANSACTION, DmaapTransactionIds


@dataclass(frozen=True, slots=True)
class DirectAnswer:
    """What a direct view answers; a body that has `close` is closed however the answer ends."""

    body: Iterable[bytes]
    headers: list[tuple[str, str]]
    status: str = "200 OK"

    @classmethod
    def whole(cls, body: bytes, kind: str, *headers: tuple[str, str]) -> DirectAnswer:
        """Return a 200 with a body of this media type."""
        length = str(len(body))
        return cls((body,), [("Content-Type", kind), ("Content-Length", length), *headers])

    @classmethod
    def unsent(cls, budget: MemoryBudget, body: bytes, *headers: tuple[str, str]) -> DirectAnswer:
        """Return a 200 with JSON, whose memory counts as unsent until it is out.

        Raises OverloadedError if there is no memory for it.
        """
        reserved = budget.try_reserve(len(body))
        if reserved is None:
            raise budget.overloaded()
        length = str(len(body))
        fields = [("Content-Type", "application/json"), ("Content-Length", length), *headers]
        return cls(_UnsentBody(body, reserved), fields)

    @classmethod
    def of(cls, response: Response) -> DirectAnswer:
        """Return the answer that Flask's is; its hooks of closing are not called."""
        return cls(response.response, response.headers.to_wsgi_list(), response.status)  # type: ignore[arg-type]

    def response(self) -> Response:
        """Return it as Flask has it."""
        return Response(self.body, status=self.status, headers=self.headers)


class _UnsentBody:
    """A body whose memory is reserved until it is out."""

    def __init__(self, body: bytes, reserved: Reservation) -> None:
        self._pieces = iter((body,))
        self._reserved = reserved

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def close(self) -> None:
        """Release the memory; called by the server however the answer ended."""
        self._reserved.release()


Direct: TypeAlias = Callable[..., Steps[DirectAnswer]]
"""Takes the environment and the rule's segments of the path."""

MarksOf: TypeAlias = Callable[[list[tuple[str, str]]], "Marks"]
"""Takes the headers of a view's 200s, `%d` for the length of the body."""
Repeatable: TypeAlias = Callable[[WSGIEnvironment, tuple[str, ...], MarksOf], Prepared | None]
"""Takes the environment, the rule's segments of the path, and what words and counts its 200s."""

DIRECT: Final = "router.direct"
"""Where an application's extensions have, by method and rule, the views that are `Direct`."""
REPEATABLE: Final = "router.repeatable"
"""Where they have what prepares the requests of such a view that repeat a head."""
PUBLISH: Final = "POST", "/events/<topic>"
POLL: Final = "GET", "/events/<topic>/<group>/<consumer>"
JETSTREAM_PUBLISH: Final = "POST", "/jetstream/publish/<subject>"
JETSTREAM_FETCH: Final = "POST", "/jetstream/fetch/<stream>/<consumer>"
JETSTREAM_ACKS: Final = {
    word: ("POST", f"/jetstream/{word}") for word in ("ack", "nak", "term", "in-progress")
}
PIP64_TOPICS: Final = {
    None: "/topics/<pip64_tenant:tenant>/<pip64_namespace:namespace>/<topic>",
    PERSISTENT: "/topics/persistent/<pip64_tenant:tenant>/<namespace>/<topic>",
    NON_PERSISTENT: "/topics/non-persistent/<pip64_tenant:tenant>/<namespace>/<topic>",
}
"""The rules of a topic of PIP 64, by the domain that the path names."""
PIP64_PRODUCE: Final = "POST", ""
PIP64_ACKNOWLEDGE: Final = "POST", "/subscription/<subscription>/cursor"
PIP64_FETCH: Final = "GET", "/subscription/<subscription>/consumer/<consumer>/messages"
"""Methods, and what rules have behind those of topics."""
ELAPSED: Final = "router.elapsed"
"""Where the environment has what returns the seconds since the request began."""
Note: TypeAlias = Callable[[float], None]
# What publishers sent goes out as the type that the answer names, and as no page.
NOT_SNIFFED: Final = ("X-Content-Type-Options", "nosniff")
# Nothing to decode, nothing that Flask would take apart in another way.
_PLAIN: Final = re.compile(r"/events/([A-Za-z0-9._-]+)(?:/([A-Za-z0-9._-]+)/([A-Za-z0-9._-]+))?")
_JETSTREAM: Final = re.compile(r"/jetstream/(?:publish/([^/%]+)|fetch/([^/%]+)/([^/%]+)|([a-z-]+))")
# No tenant is named as one of DMaaP's paths, nor without a domain a namespace: see `paths`.
_PIP64: Final = re.compile(
    r"/topics/(?:((?:non-)?persistent)/)?(?!groups/)([A-Za-z0-9._-]+)/"
    r"(?(1)|(?!(?:producers|consumers|groups)/))([A-Za-z0-9._-]+)/([A-Za-z0-9._-]+)"
    r"(?:/subscription/([A-Za-z0-9._-]+)/(?:cursor|consumer/([A-Za-z0-9._-]+)/messages))?"
)
_NO_RULE: Final = "", ""
_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
_UNLISTED: Final = ("/admin/", "/v1/admin/")
# Between two calls of `_count`, a second apart; further answers go uncounted.
_MAX_UNCOUNTED: Final = 100_000


def check_address(blacklist: WorkerBlacklist, environ: WSGIEnvironment) -> None:
    """Raise BlacklistedError if a request comes from an address that is on the list."""
    address = environ.get("REMOTE_ADDR", "")
    if blacklist.holds(address):
        raise refusal(address)


def check_administrator(
    access: RequestAuthorizer, blacklist: WorkerBlacklist, environ: WSGIEnvironment
) -> Principal:
    """Return the administrator who makes a request; raise ForbiddenError for others.

    On this machine anonymous clients are administrators; see `RequestAuthorizer.may_administer`.
    """
    principal = access.principal(environ)
    if access.may_administer(principal, environ):
        return principal
    check_address(blacklist, environ)
    name = principal.name or "(no user)"
    raise ForbiddenError(
        f"Access denied for {name}: this is for administrators.{unproven(principal)}"
    )


class LazyRule(Rule):
    """A rule that compiles what makes its URLs on demand, which no view needs.

    Compiling that for all rules is most of the time in which an application is put together.
    """

    def _compile_builder(self, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
        def build(rule: Rule, **values: object) -> tuple[str, str]:
            return Rule._compile_builder(rule, append_unknown)(rule, **values)

        return build


class Marks:
    """Words and counts the 200s of requests that have the same head, as `Front` does."""

    __slots__ = ("_address", "_blacklist", "_note", "_template", "_transactions", "clock")

    def __init__(
        self, front: Front, address: str, headers: list[tuple[str, str]], note: Note
    ) -> None:
        """`headers`: those of all answers, the length of the body as `%d`, the id as `%s`."""
        self.clock, self._blacklist, self._transactions = front.parts
        self._address = address
        self._note = note
        lines = [f"{name}: {value}\r\n" for name, value in headers]
        self._template = sys.intern(f"{''.join(lines)}\r\n")

    def admits(self) -> bool:
        """Return whether the client's address is not on the blacklist."""
        return not self._blacklist.active or not self._blacklist.holds(self._address)

    def answer(self, body: bytes, took: float) -> bytes:
        """Count an answer that took so many seconds; return its head's last lines and its body."""
        self._note(took)
        identity = self._transactions.next(self._address)
        return (self._template % (len(body), identity)).encode("latin-1") + body


class Front(Flask):
    """A Flask application with the router's marks on every answer."""

    url_rule_class = LazyRule

    def __init__(
        self,
        cors: Cors,
        hosts: Hosts | None,
        transactions: DmaapTransactionIds,
        metrics: Metrics,
        blacklist: WorkerBlacklist,
        clock: Callable[[], float],
    ) -> None:
        super().__init__("router", static_folder=None)
        # A redirect to the path with single slashes would be HTML, and nothing that the API knows.
        self.url_map.merge_slashes = False
        self.url_map.strict_slashes = False
        self._cors = cors
        self._hosts = hosts
        self._transactions = transactions
        self._metrics = metrics
        self._blacklist = blacklist
        self._clock = clock
        self._refusals = RefusalLog(clock)
        # Set by what puts the application together: called with each answer to a request that
        # may change something.
        self.audit: Callable[[Request, int], None] | None = None
        # By route, method and status: the seconds that answers took which are not counted yet.
        self._ended: defaultdict[tuple[str, str, int], deque[float]] = defaultdict(
            partial(deque, maxlen=_MAX_UNCOUNTED)
        )
        self.parts = clock, blacklist, transactions
        self.extensions[DIRECT], self.extensions[REPEATABLE] = {}, {}
        metrics.before_drain(self._count)

    def wsgi_app(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Serve a request."""
        rule, names = _direct_rule(environ["PATH_INFO"])
        direct: Direct | None = self.extensions[DIRECT].get(rule)
        if direct is None or environ["REQUEST_METHOD"] != rule[0]:
            return self._by_flask(environ, start_response)
        begun = environ.get(BEGUN)
        view = partial(direct, environ, *names) if begun is None else partial(begun.finish, environ)
        steps = self._direct(view, rule[1], environ, start_response)
        if DEFERRED not in environ:
            return run_blocking(steps)
        if REPEATED not in environ or rule not in self.extensions[REPEATABLE]:
            return DeferredResponse(steps)
        return DeferredResponse(steps, self._prepare(rule, environ, names))

    def _prepare(
        self, rule: tuple[str, str], environ: WSGIEnvironment, names: tuple[str, ...]
    ) -> Prepared | None:
        """Return what begins the next requests with this head, None: they are served in steps."""
        prepare: Repeatable = self.extensions[REPEATABLE][rule]
        try:
            self._check_head(environ)
            return prepare(environ, names, partial(self._marks_of, rule, environ))
        except RouterError:
            return None

    def _marks_of(
        self, rule: tuple[str, str], environ: WSGIEnvironment, headers: list[tuple[str, str]]
    ) -> Marks:
        fixed = [NOT_SNIFFED, *self._cors.marks(environ)]
        marked = [*headers, ("transactionId", "%s")]
        marked += [(name, value.replace("%", "%%")) for name, value in fixed]
        note = self._ended[rule[1], rule[0], 200].append
        return Marks(self, environ.get("REMOTE_ADDR", ""), marked, note)

    def _by_flask(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Serve a request in Flask's way; what is logged meanwhile has the id of its answer."""
        known = request_id.set(self._identify(environ))
        try:
            return super().wsgi_app(environ, start_response)
        finally:
            request_id.reset(known)

    def _identify(self, environ: WSGIEnvironment) -> str:
        """Return the id of a request's answer; it is made now unless a view made it."""
        made: str | None = environ.get(TRANSACTION)
        if made is None:
            made = environ[TRANSACTION] = self._transactions.next(environ.get("REMOTE_ADDR", ""))
        return made

    def _direct(
        self,
        view: Callable[[], Steps[DirectAnswer]],
        rule: str,
        environ: WSGIEnvironment,
        start_response: StartResponse,
    ) -> Steps[Iterable[bytes]]:
        """Answer a request by a direct view, or one that was begun before."""
        try:
            if BEGUN in environ:
                environ[ELAPSED] = partial(self._since, environ[BEGUN].began)
            else:
                self._begin(environ)
            answer = yield from view()
        except Exception as error:  # noqa: BLE001 - Flask has a handler for each
            known = request_id.set(self._identify(environ))
            try:
                with self.request_context(environ):
                    refusal = self.finalize_request(self.handle_user_exception(error))
                    return refusal(environ, start_response)
            finally:
                request_id.reset(known)
        identity = self._transactions.next(environ.get("REMOTE_ADDR", ""))
        marks = [("transactionId", identity), NOT_SNIFFED]
        if self._cors.origins:
            marks += self._cors.marks(environ)
        start_response(answer.status, answer.headers + marks)
        self._note(rule, environ, int(answer.status[:3]))
        return answer.body

    def handle_user_exception(self, error: Exception) -> HTTPException | ResponseReturnValue:
        """Answer a failure; a refusal is logged."""
        if isinstance(error, RouterError):
            self._refusals.note(error, request.environ)
        return super().handle_user_exception(error)

    def preprocess_request(self) -> None:
        """Note the time; raise ForbiddenError for a client or page that may not use the router."""
        self._begin(request.environ)

    def _begin(self, environ: WSGIEnvironment) -> None:
        environ[ELAPSED] = partial(self._since, self._clock())
        if self._blacklist.active:
            self._check_address(environ)
        self._check_head(environ)

    def _check_head(self, environ: WSGIEnvironment) -> None:
        """Refuse by what is in the head alone, and in the settings."""
        if self._hosts is not None:
            self._hosts.check(environ)
        if not environ.keys().isdisjoint(PAGE_HEADERS):
            self._cors.check(environ)

    def _since(self, began: float) -> float:
        return self._clock() - began

    def _check_address(self, environ: WSGIEnvironment) -> None:
        # Administration checks it itself, after the credentials: no list locks out administrators.
        path = environ["PATH_INFO"]
        if path.startswith(_UNLISTED) or path.rstrip("/") in PROBES:
            return
        check_address(self._blacklist, environ)

    def make_default_options_response(self) -> Response:
        """Answer which methods the path has."""
        answer = self.response_class()
        answer.headers["Allow"] = ", ".join(allowed(self) or ["OPTIONS"])
        return answer

    def process_response(self, response: Response) -> Response:
        """Mark and count an answer; unknown paths count as one route."""
        # The request itself, once: each access through Flask's proxy costs as much as a dict.
        current = cast(LocalProxy[Request], request)._get_current_object()
        environ, rule, status = current.environ, current.url_rule, response.status_code
        # Refusals carry the id in their body, and have it already.
        if status < 400 or "transactionId" not in response.headers:
            response.headers["transactionId"] = self._identify(environ)
        response.headers.set(*NOT_SNIFFED)
        if status == 405:
            response.headers["Allow"] = ", ".join(allowed(self))
        for name, value in self._cors.marks(environ) if self._cors.origins else ():
            response.headers.add(name, value)
        if self.audit is not None and environ["REQUEST_METHOD"] != "GET" and rule is not None:
            self.audit(current, status)
        self._note("other" if rule is None else rule.rule, environ, status)
        return response

    def _note(self, route: str, environ: WSGIEnvironment, status: int) -> None:
        elapsed = environ.get(ELAPSED)
        took = 0.0 if elapsed is None else elapsed()
        method = environ["REQUEST_METHOD"]
        # Methods that clients invent do not become labels.
        known = method if method in _METHODS else "other"
        self._ended[route, known, status].append(took)

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function itself: no view of the router is a coroutine."""
        return func

    def _count(self) -> None:
        """Hand the answers since the last call to the metrics."""
        took: defaultdict[str, list[float]] = defaultdict(list)
        for (route, method, status), ended in list(self._ended.items()):
            if times := taken(ended):
                took[route] += times
                self._metrics.inc(
                    "router_http_requests_total",
                    len(times),
                    route=route,
                    method=method,
                    status=str(status),
                )
        for route, all_seconds in took.items():
            self._metrics.observe_all("router_http_request_seconds", all_seconds, route=route)


def _direct_rule(path: str) -> tuple[tuple[str, str], tuple[str, ...]]:
    """Return the rule of a path that a direct view may serve, with its segments."""
    if (plain := _PLAIN.fullmatch(path)) is not None:
        return (POLL, plain.groups()) if plain[2] else (PUBLISH, plain.groups()[:1])
    if (found := _JETSTREAM.fullmatch(path)) is not None:
        subject, *names, word = found.groups()
        if word:
            return JETSTREAM_ACKS.get(word, _NO_RULE), ()
        return (JETSTREAM_PUBLISH, (subject,)) if subject else (JETSTREAM_FETCH, tuple(names))
    if (topic := _PIP64.fullmatch(path)) is not None:
        domain, *names = topic.groups()
        subscription, consumer = names[3:]
        method, below = (
            PIP64_PRODUCE if not subscription else PIP64_FETCH if consumer else PIP64_ACKNOWLEDGE
        )
        given = tuple(name for name in names if name)
        return (method, PIP64_TOPICS[domain] + below), (domain or PERSISTENT, *given)
    return _NO_RULE, ()
