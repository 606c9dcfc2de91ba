"""One connection of the llhttp worker: its requests in turn, and how it ends.

A request is read, served and answered before the next is looked at, so that pipelined requests are
answered in order, and what a client may have read ahead is one reading of the socket. After each
answer the other connections of the worker have their turn: a client whose next request is there
already would else keep them waiting.

Serving is written in steps: where a connection waits for its client's next request, or the
application for others (`router.web.later`), nothing of it is on a stack.

`100 Continue` is sent when the application first waits for the body: one that refuses by the head
alone spares the client sending it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from http import HTTPStatus
from time import monotonic
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import gevent
from gunicorn import util

from router.waiting import Steps, Wait
from router.web.later import Later
from router.web.worker import environ as environs
from router.web.worker.answer import Answer
from router.web.worker.body import Body, ChunkedBody
from router.web.worker.bounds import DRAIN, DRAIN_TIME, Bounds
from router.web.worker.head import end_of
from router.web.worker.refusals import RefusedError
from router.web.worker.wire import Wire
from router.web.worker.writing import linger

if TYPE_CHECKING:
    from router.web.worker.environ import Request

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection:
    """Serves the requests of one client; `worker` says what to serve, and when to end."""

    def __init__(self, worker: Any, client: Any, common: dict[str, Any], bounds: Bounds) -> None:
        self._worker = worker
        self._client = client
        self._common = common
        self._bounds = bounds
        self._wire = Wire(client)
        # The request under way as far as it is known, and since when: for the access log.
        self._environ: dict[str, Any] = {}
        self._began = 0.0

    def serve(self) -> Generator[Wait | None, None, None]:
        """Serve until either side ends it; raise OSError where the connection is lost.

        Yields what it waits for; None: for the client to send something, or to leave.
        """
        try:
            more = True
            while more:
                if self._wire.ahead:
                    gevent.sleep(0)
                else:
                    yield None
                asked = self._next()
                more = asked is not None and (yield from self._answer(asked))
        except RefusedError as refusal:
            self._environ = self._common | environs.of_line(self._wire.ahead)
            self._log(f"{refusal.status.value}", None, ())
            self._refuse(refusal)

    def _next(self) -> Request | None:
        """Wait for the next request, None: there is none; raise RefusedError for a bad one."""
        wire, client = self._wire, self._client
        if not wire.ahead:
            client.settimeout(None)  # the worker ends who is silent for too long
            if not wire.more():
                return None
        self._began = monotonic()
        seen, until = 0, self._began + self._bounds.head_timeout
        while not (end := end_of(wire.ahead, seen)):
            seen = len(wire.ahead)
            client.settimeout(max(0.001, until - monotonic()))
            try:
                if not wire.more():
                    return None
            except TimeoutError as error:
                sentence = f"The head was not there in {self._bounds.head_timeout:g} seconds."
                raise RefusedError(HTTPStatus.REQUEST_TIMEOUT, sentence) from error
        client.settimeout(self._bounds.write_timeout)
        asked = environs.of_head(wire.ahead[:end])
        wire.ahead = wire.ahead[end:]
        return asked

    def _answer(self, asked: Request) -> Steps[bool]:
        """Answer a request; return whether another one may follow."""
        environ = self._environ = self._common | asked.environ
        closing = self._worker.count() or asked.framing.closing
        answer = Answer(self._wire, asked.method, asked.version, closing=closing)
        body = environ["wsgi.input"] = self._body(asked.framing, answer)
        self._worker.idle.pop(self._client, None)
        try:
            yield from self._run(environ, answer, body)
        finally:
            self._log(answer.status or "-", answer.sent, answer.headers)
            self._environ = {}  # whoever idles shall not keep what the last request brought
        if answer.closing or not self._drained(body):
            if body.failed or body.unread != 0:
                linger(self._client)
            return False
        self._worker.idle[self._client] = monotonic()
        return True

    def _body(self, framing: environs.Framing, answer: Answer) -> Body:
        go_on = _continuing(self._wire, answer) if framing.expects else None
        if framing.length is None:
            return ChunkedBody(self._wire, self._bounds.body_timeout, go_on)
        return Body(self._wire, framing.length, self._bounds.body_timeout, go_on)

    def _run(self, environ: dict[str, Any], answer: Answer, body: Body) -> Steps[None]:
        """Have the application answer; what it raises is logged, and is the end."""
        pieces: Iterable[bytes] = ()
        try:
            pieces = self._worker.wsgi(environ, answer.start_response)
            if isinstance(pieces, Later):
                pieces = yield from pieces.steps
            # What cannot be drained ends the connection, and the answer shall say so.
            if body.failed or body.waited_for or (body.unread or 0) > DRAIN:
                answer.closing = True
            answer.closing = answer.closing or not self._worker.alive
            for piece in pieces:
                answer.write(piece)
            answer.end()
        except OSError:
            raise
        except Exception:
            self._worker.log.exception("Error handling request %s", environ["RAW_URI"])
            answer.closing = True
            if not answer.begun:
                answer.status = "500"
                self._refuse(RefusedError(HTTPStatus.INTERNAL_SERVER_ERROR, ""))
        finally:
            if close := getattr(pieces, "close", None):
                close()

    def _drained(self, body: Body) -> bool:
        """Get to the next request; return False if that would take too long."""
        if body.unread == 0:
            return True
        self._client.settimeout(DRAIN_TIME)
        try:
            return body.drain(DRAIN)
        except OSError:
            return False
        except Exception as error:  # noqa: BLE001 - gunicorn's errors have no common ancestor
            self._worker.log.debug("A body that nobody read is malformed: %s", error)
            return False

    def _refuse(self, refusal: RefusedError) -> None:
        """Say why, let the client read it, and end."""
        status = refusal.status
        with suppress(OSError):
            util.write_error(self._client, status.value, status.phrase, refusal.sentence)
            linger(self._client)

    def _log(self, status: str, sent: int | None, headers: Sequence[tuple[str, str]]) -> None:
        """Have gunicorn write a line of its access log, if there is one; `sent`: None: unknown."""
        if not self._worker.log.access_log_enabled:
            return
        answered = SimpleNamespace(status=status, sent=sent, headers=headers)
        asked = [
            (key[5:].replace("_", "-"), value)
            for key, value in self._environ.items()
            if key.startswith("HTTP_")
        ]
        took = timedelta(seconds=monotonic() - self._began)
        self._worker.log.access(answered, asked, self._environ, took)


def _continuing(wire: Wire, answer: Answer) -> Callable[[], None]:
    """Return what tells a waiting client to send its body, unless it has an answer already."""

    def go_on() -> None:
        if not answer.begun:
            wire.write(_CONTINUE)

    return go_on
