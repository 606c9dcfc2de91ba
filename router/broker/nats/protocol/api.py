"""The JetStream API: the table of all calls, and how they are answered.

A call that no row serves has no answer, as at nats-server; those of a cluster are refused. Calls of
one client run beside each other, at a pace that leaves time for other clients; each sees what was
acknowledged before it was sent.

A handler that returns a result has it sent in a reply of its type; one that returns None answers by
itself, with messages. A handler may be a coroutine function.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from inspect import isawaitable
from typing import Final, NamedTuple

import structlog

from router.broker.audit import AuditLog
from router.broker.nats.protocol.authorization import NatsCaller
from router.broker.nats.protocol.failures import FAILURES, jetstream_error
from router.broker.nats.protocol.hub import Hub, ServiceRequest
from router.broker.nats.protocol.pacing import Tasks, WorkPace, is_cancelled
from router.metrics import Sample
from router.wire.nats.headers import status
from router.wire.nats.jetstream.cluster_calls import CLUSTER_CALLS
from router.wire.nats.jetstream.errors import ErrorCode, JetStreamError, error
from router.wire.nats.jetstream.replies import ApiReply, ReplyResult
from router.wire.nats.message import NatsMessage
from router.wire.nats.subjects import api_change

PREFIX: Final = "$JS.API."
CHANGES: Final = (
    *("STREAM.CREATE.", "STREAM.UPDATE.", "STREAM.DELETE.", "STREAM.PURGE.", "STREAM.RESTORE."),
    *("STREAM.MSG.DELETE.", "CONSUMER.DELETE.", "CONSUMER.PAUSE.", "CONSUMER.RESET."),
)
"""What the subjects of administrative calls begin with."""
MAX_CALLS: Final = 4_096
"""Calls under way; those beyond them are refused."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One call: who makes it, what the wildcards of the subject took, the body, where to answer.

    A `>` takes the rest of the subject as one name. `subject` is the whole one.
    """

    caller: NatsCaller
    names: tuple[str, ...]
    body: bytes
    reply: str = ""
    subject: str = ""

    @property
    def name(self) -> str:
        """Return the first name, which is that of the stream."""
        return self.names[0]


Handler = Callable[[ApiCall], Awaitable[ReplyResult | None] | ReplyResult | None]


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """One API: the subject behind `$JS.API.`, the type of its reply, its handler.

    With the type "" the handler sends messages; a status is the answer if it fails.
    """

    subject: str
    type: str
    handler: Handler


def cluster_apis() -> tuple[ApiRoute, ...]:
    """Return the rows of calls that only a cluster serves."""
    return tuple(
        ApiRoute(".".join((one.words, *("*" for _ in one.names))), one.type, _refuse_cluster_call)
        for one in CLUSTER_CALLS
    )


def _refuse_cluster_call(_call: ApiCall) -> None:
    raise error(ErrorCode.CLUSTER_REQUIRED)


class _PatternRow(NamedTuple):
    """A row whose subject has wildcards, by its tokens."""

    tokens: list[str]
    api: ApiRoute


class JetStreamApi:
    """Answers the calls of `$JS.API.>`; `total` and `errors` count them."""

    def __init__(self, hub: Hub) -> None:
        self.total = self.errors = 0
        # Set by what starts the broker.
        self.audit: AuditLog | None = None
        self._hub = hub
        self._pace = WorkPace()
        self._tasks = Tasks()
        self._literal: dict[str, ApiRoute] = {}
        self._patterns: dict[str, list[_PatternRow]] = {}

    def add(self, apis: Iterable[ApiRoute]) -> None:
        """Serve more calls."""
        for api in apis:
            tokens = api.subject.split(".")
            wild = [place for place, token in enumerate(tokens) if token in {"*", ">"}]
            if wild:
                rows = self._patterns.setdefault(".".join(tokens[: wild[0]]), [])
                rows.append(_PatternRow(tokens, api))
            else:
                self._literal[api.subject] = api

    def find(self, subject: str) -> tuple[ApiRoute, tuple[str, ...]] | None:
        """Return who serves what follows `$JS.API.`, and what its wildcards take."""
        if (api := self._literal.get(subject)) is not None:
            return api, ()
        tokens = subject.split(".")
        for end in range(len(tokens) - 1, 0, -1):
            for row in self._patterns.get(".".join(tokens[:end]), ()):
                names = _take(row.tokens, tokens)
                if names is not None:
                    return row.api, names
        return None

    def handle(self, request: ServiceRequest) -> None:
        """Serve a request that came as a message; the service of `$JS.API.>`."""
        message = request.message
        found = self.find(message.subject.removeprefix(PREFIX))
        if found is None:
            return
        api, names = found
        call = ApiCall(request.caller, names, message.payload, message.reply, message.subject)
        if len(self._tasks) >= MAX_CALLS:
            refusal = error(ErrorCode.STREAM_TOO_MANY_REQUESTS)
            self._send(call, ApiReply(api.type, error=refusal) if api.type else refusal)
            return
        result: object = None
        try:
            result = api.handler(call)
        except FAILURES as failure:
            result = failure
        if result is not None and isawaitable(result):
            work = self._pace.run(self._finish(api, call, result))
            self._tasks.start(work)
        else:
            self._send(call, self._replied(api, call, result))

    async def collect(self) -> list[Sample]:
        """Return the counts of calls; nothing before the first."""
        if not self.total:
            return []
        return [
            ("router_nats_api_requests_total", (), float(self.total)),
            ("router_nats_api_errors_total", (), float(self.errors)),
        ]

    async def close(self) -> None:
        """End the calls under way."""
        await self._tasks.close()

    async def _finish(self, api: ApiRoute, call: ApiCall, work: object) -> None:
        try:
            self._send(call, self._replied(api, call, await _settled(work)))
        except Exception:  # noqa: BLE001 - the boundary of a task: other calls go on
            _log.exception("nats-api-failed", api=api.subject)

    def _replied(
        self, api: ApiRoute, call: ApiCall, result: object
    ) -> ApiReply | JetStreamError | None:
        reply = self._reply(api, result)
        changed = api.subject.startswith(CHANGES) and not isinstance(result, Exception)
        # Requests of HTTP have no address here: the front records them.
        if changed and self.audit is not None and (address := call.caller.identity.address):
            action, _ = api_change(api.subject.replace(".*", ""))
            target = "/".join(call.names)
            self.audit.add(action, target, call.caller.name, address, "nats")
        return reply

    def _reply(self, api: ApiRoute, result: object) -> ApiReply | JetStreamError | None:
        self.total += 1
        if isinstance(result, JetStreamError):
            self.errors += 1
            return ApiReply(api.type, error=result) if api.type else result
        if isinstance(result, Exception):
            return self._reply(api, jetstream_error(result))
        if result is None or not api.type:
            return None
        return ApiReply(api.type, result)  # type: ignore[arg-type]  # what a handler returns

    def _send(self, call: ApiCall, reply: ApiReply | JetStreamError | None) -> None:
        if reply is None or not call.reply:
            return
        if isinstance(reply, JetStreamError):
            block = status(reply.code, " ".join(reply.description.split()))
            self._hub.publish(NatsMessage(call.reply, headers=block))
        else:
            self._hub.publish(NatsMessage(call.reply, payload=reply.to_bytes()))


async def _settled(work: object) -> ReplyResult | Exception | None:
    try:
        return await work  # type: ignore[misc, no-any-return]  # checked by isawaitable
    except FAILURES as failure:
        return failure
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        # Not this call was cancelled, but what it waited for: the stream is closed.
        return error(ErrorCode.STREAM_NOT_FOUND)


def _take(pattern: list[str], tokens: list[str]) -> tuple[str, ...] | None:
    """Return what the wildcards of a pattern take, None: it does not match."""
    names: list[str] = []
    for place, word in enumerate(pattern):
        if place >= len(tokens):
            return None
        if word == ">":
            return (*names, ".".join(tokens[place:]))
        if word == "*":
            names.append(tokens[place])
        elif word != tokens[place]:
            return None
    return tuple(names) if len(tokens) == len(pattern) else None
