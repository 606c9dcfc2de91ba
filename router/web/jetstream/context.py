"""What the views of JetStream share, and how they ask the streams."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final
from wsgiref.types import WSGIEnvironment

from router.clocks.steps import Steps
from router.errors import BadRequestError
from router.model import Principal
from router.services.jetstream import JetStream, JetStreamRequest, unwatched
from router.services.memory_budget import MemoryBudget
from router.settings.options import SettingsOptions, from_setting
from router.web import bodies, offload, requests
from router.web.access import RequestAuthorizer
from router.web.jetstream.forms import Fault, Writer
from router.wire.nats.jetstream.errors import ErrorCode, JetStreamError
from router.wire.nats.jetstream.errors import error as jetstream_error
from router.wire.nats.message import NatsMessage
from router.wire.nats.subjects import is_literal

MAX_BODY_BYTES: Final = 1 << 20
"""Of acknowledgements, and of requests that need none."""
FAILED: Final = "router.jetstream.failed"
"""Where a view leaves in the environment what a failure is about, as fields of `-ERR`."""
_STATUS: Final = re.compile(rb"NATS/1\.0 ([0-9]{3})(?: ([^\r\n]*))?")


class FaultError(BadRequestError):
    """A request has a fault of JetStream's."""

    def __init__(self, fault: Fault, stream: str = "") -> None:
        super().__init__(fault.sentence)
        self.fault = fault
        self.stream = stream

    @classmethod
    def of_error(cls, error: JetStreamError, stream: str = "") -> FaultError:
        """Return the failure of an error of the API."""
        return cls(Fault.of_error(error), stream)

    @classmethod
    def of_code(cls, number: int, stream: str = "", **texts: object) -> FaultError:
        """Return the failure of one of JetStream's numbers."""
        return cls.of_error(jetstream_error(number, **texts), stream)

    @classmethod
    def of_status(cls, status: int, sentence: str, stream: str = "") -> FaultError:
        """Return a failure that JetStream has no number for."""
        return cls(Fault(status, 0, sentence), stream)


@dataclass(frozen=True, slots=True)
class JetStreamCaller:
    """Who makes a request, and whether they may administer the router."""

    principal: Principal
    administers: bool


@dataclass(frozen=True, slots=True)
class JetStreamOptions(SettingsOptions):
    """The settings that the views read; times are seconds, `max_fetch` messages.

    `max_payload` bounds what is sent to the streams, as it bounds a message of a NATS client.
    """

    enabled: bool = from_setting("jetstream.enabled")
    timeout: float = from_setting("backend.timeout")
    expires: float = from_setting("consume.timeout")
    max_expires: float = from_setting("consume.max_timeout")
    max_fetch: int = from_setting("consume.limit")
    max_bytes: int = from_setting("consume.max_bytes")
    max_payload: int = from_setting("nats.max_payload")


@dataclass(frozen=True, slots=True)
class JetStreamContext:
    """The parts that the views share; `streams` answers NATS messages."""

    access: RequestAuthorizer
    streams: JetStream
    reader: bodies.BodyReader
    unsent: MemoryBudget
    options: JetStreamOptions
    writer: Writer
    wall_ns: Callable[[], int]

    def principal(self, environ: WSGIEnvironment) -> Principal:
        """Return who makes a request.

        Raises UnauthenticatedError, TooManyRequestsError, and FaultError if JetStream is off.
        """
        principal = self.access.principal(environ)
        if not self.options.enabled:
            raise FaultError.of_code(ErrorCode.NOT_ENABLED)
        return principal

    def caller(self, environ: WSGIEnvironment) -> JetStreamCaller:
        """Return who makes a request, with the rights of administrators; raise as `principal`."""
        principal = self.principal(environ)
        return JetStreamCaller(principal, self.access.may_administer(principal, environ))

    def body(self, environ: WSGIEnvironment, limit: int) -> bytes:
        """Return a body without its compression; raise BatchTooLargeError for a longer one."""
        bounds = self.reader.bounds
        data = requests.body(environ, min(limit, bounds.batch))
        encoding = environ.get("HTTP_CONTENT_ENCODING", "")
        return bodies.inflate(encoding, data, bounds) if encoding and data else data

    def ask(
        self,
        environ: WSGIEnvironment,
        caller: JetStreamCaller,
        message: NatsMessage,
        *,
        max_replies: int = 1,
        seconds: float | None = None,
        waits: bool = True,
        reads: bool = False,
    ) -> Steps[list[NatsMessage]]:
        """Send a message and return its replies.

        `seconds`: those of a long poll; without `waits` its answer comes at once, so that the
        client is not watched; `reads`: it changes nothing. Raises what `JetStream.request` raises.
        """
        request = JetStreamRequest(
            caller.principal,
            caller.administers,
            message,
            max_replies,
            self.options.timeout if seconds is None else seconds,
            long_poll=seconds is not None,
            reads=reads,
        )
        watch = partial(offload.Watch, environ.get("gunicorn.socket")) if waits else unwatched
        return (yield from self.streams.request(request, watch))


def status_of(message: NatsMessage) -> tuple[int, str]:
    """Return status and text of a message, 0 and "" if it has none."""
    found = _STATUS.match(message.headers) if message.headers else None
    if found is None:
        return 0, ""
    return int(found[1]), (found[2] or b"").decode("utf-8", "replace")


def check_subject(subject: str) -> str:
    """Return the subject of a message; raise BadRequestError for one that is not literal."""
    if not is_literal(subject) or any(c < " " or c == "\x7f" for c in subject):
        raise BadRequestError("The subject is not valid: words with dots between, no wildcards.")
    return subject
