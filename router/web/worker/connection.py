"""One connection of the llhttp worker: its requests in turn, their answers, and how it ends.

A request is read, served and answered before the next is read, so that pipelined requests are
answered in order, and what a client may send ahead is one read of the socket. After each answer
the other connections of the worker have their turn: a client whose next request is there already
would else keep them waiting.

Serving is written in steps: where a connection waits for its client's next request, or the
application for others (`router.clocks.steps`), nothing of it is on a stack (`suspended`).

A request whose head the worker knows, and which is there as a whole, may take no step at all: the
application prepared what follows from the head (`steps.Prepared`) and begins it by its body,
and whatever it was waiting for has the answer sent (`take`, `answered`). For that the connection is
read in place of the next step. What is received of any other request is left in the buffer, and the
step finds it there. Heads are found by their bytes and by who sends them (`KnownHeads`), so a
prepared request has passed all checks of its head, and its length is known.

`100 Continue` is sent when the application first waits for the body: a request that is refused by
its head alone spares the client sending it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from time import monotonic
from types import SimpleNamespace
from typing import Any, Final

import gevent
from gunicorn import util

from router.clocks.steps import BEGUN, REPEATED, Begun, DeferredResponse, Prepared, Steps, Wait
from router.web.offload import is_closed
from router.web.worker import request as requests
from router.web.worker.bounds import DRAIN_SECONDS, MAX_DRAINED_BYTES, WorkerBounds
from router.web.worker.chunked import ChunkedBody
from router.web.worker.request import (
    ConnectionEnds,
    Framing,
    KnownHead,
    KnownHeads,
    RequestHead,
    RequestRefusedError,
)
from router.web.worker.stream import (
    RECEIVE_BYTES,
    BufferedSocket,
    RequestBody,
    ResponseStream,
    lead,
    linger,
)
from router.web.worker.suspended import SuspendedConnection

TIMES_TO_REPEAT: Final = 2
"""So often a head is met before what follows from it is prepared; once if it may be a poll's."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_NOTHING: Final[dict[str, Any]] = {}


@dataclass(eq=False, slots=True)
class HttpConnection:
    """Serves the requests of one client; `worker` says what to serve, and when to end."""

    _worker: Any
    _client: Any
    _ends: ConnectionEnds
    _bounds: WorkerBounds
    _stream: BufferedSocket = field(init=False)
    # The request under way as far as it is known, and since when: for the access log.
    _environ: dict[str, Any] = field(default_factory=lambda: _NOTHING, init=False)
    _began: float = field(default=0.0, init=False)
    # What it is suspended in; None: it has a greenlet of its own, and each request its steps.
    suspended: SuspendedConnection | None = field(default=None, init=False)
    # With a head, all that what is prepared depends on.
    _origin: str = field(init=False)
    # The head of the request under way, if it is short, and what begins that request.
    _known: KnownHead | None = field(default=None, init=False)
    _prepared: Prepared | None = field(default=None, init=False)
    # What was begun and has no step; what is left of its answer, None: it has none; what is told
    # whether that was written.
    _begun: Begun | None = field(default=None, init=False)
    _unsent: bytes | None = field(default=None, init=False)
    _written: Callable[[bool], None] | None = field(default=None, init=False)
    _ended: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._stream = BufferedSocket(self._client)
        self._origin = requests.origin(self._ends)

    def serve(self) -> Generator[Wait | None, None, None]:
        """Serve until either side ends it; raise OSError where the connection is lost.

        Yields what it waits for; None: for the client to send something, or to leave.
        """
        try:
            more = True
            while more:
                if self._stream.buffer:
                    gevent.sleep(0)
                else:
                    yield None
                if self._begun is not None or self._unsent is not None:
                    more = yield from self._go_on()
                    continue
                if self._known is not None:  # it was not begun
                    more = yield from self._answer(self._known.whole(), is_new=False)
                    continue
                request = self._next()
                more = request is not None and (yield from self._answer(request))
        except RequestRefusedError as refusal:
            self._environ = requests.line_environ(self._stream.buffer)
            self._environ |= requests.connection_environ(self._client, self._ends)
            self._log(f"{refusal.status.value}", None, ())
            self._refuse(refusal)
        finally:
            self._ended = True
            if self._begun is not None:
                self._begun.leave()
            self._tell_written(whole=False)

    def take(self) -> bool:
        """Receive what came, and begin it if its head is known.

        False: it is to be served in steps. In a greenlet.
        """
        stream, worker = self._stream, self._worker
        try:
            # The system's socket, which never waits.
            stream.buffer = data = self._client._sock.recv(RECEIVE_BYTES)
        except OSError:
            return False  # the step meets it too
        end = data.find(b"\r\n\r\n") + 4
        if not 4 <= end <= requests.MAX_CACHED_HEAD_BYTES:
            return False
        known = worker.heads.get((self._origin, data[:end]))
        if known is None or known.prepared is None or len(data) != known.size:
            return False
        if not worker.alive or worker.nr + 1 >= worker.max_requests:
            return False
        worker.idle.pop(self._client, None)
        self._known = known
        begun = known.prepared.begin(data[end:], self)
        if begun is None:
            self._known = None
            return False
        worker.nr += 1
        stream.buffer = b""
        if self._ended:  # meanwhile
            begun.leave()
        else:
            self._begun = begun
        return True

    def begin(self) -> bool:
        """Begin the request that is to be begun by what was prepared; return whether there is one.

        In a greenlet, when no step is under way.
        """
        prepared, self._prepared = self._prepared, None
        if prepared is None:
            return False
        begun = prepared.begin(b"", self)
        if begun is None:
            self.go_on()
        elif self._ended:  # meanwhile
            begun.leave()
        else:
            self._begun = begun
        return True

    def answered(self, rest: bytes, written: Callable[[bool], None] | None = None) -> None:
        """Send the answer to what was begun; see `router.clocks.steps.StepsClient`."""
        worker, suspended, known = self._worker, self.suspended, self._known
        assert suspended is not None
        assert known is not None
        self._begun = self._known = None
        begin = lead(known.request.version[1], "200 OK", closing=not worker.alive)
        data = begin.encode("latin-1") + rest
        try:
            sent = self._client._sock.send(data)
        except OSError:
            sent = 0  # it takes nothing now, or is gone, which the step meets too
        self._written = written
        if sent == len(data) and worker.alive:
            self._tell_written(whole=True)
            worker.idle[self._client] = monotonic()
            suspended.rest()
        else:
            self._unsent = data[sent:]
            self.go_on()

    def soon(self, job: Callable[[], None]) -> None:
        """Run a job in a greenlet soon; see `router.clocks.steps.StepsClient`."""
        self._worker.greenlets.add(job)

    def wait_for(self, wait: Wait, job: Callable[[], None]) -> None:
        """Run a job in a greenlet when a wait is over; see `router.clocks.steps.StepsClient`."""
        if self.suspended is not None:
            self.suspended.wait_for(wait, job)

    def is_closed(self) -> bool:
        """Return whether the client closed its connection."""
        return is_closed(self._client)

    def early(self) -> None:
        """Learn that the client sent something, or left, while its request is served."""
        if self._begun is not None:
            self._begun.early()

    def go_on(self) -> None:
        """Go on with what was begun in steps; see `router.clocks.steps.StepsClient`."""
        if self.suspended is not None:
            self.suspended.go_on()

    def _go_on(self) -> Steps[bool]:
        """Go on with what was begun, or with its answer; return whether a request may follow."""
        self._client.settimeout(self._bounds.write_timeout)
        begun, self._begun = self._begun, None
        if begun is not None and self._known is not None:
            return (yield from self._answer(self._known.whole(), begun))
        unsent, self._unsent = self._unsent, None
        if unsent:
            self._stream.write(unsent)
        self._tell_written(whole=True)
        self._worker.idle[self._client] = monotonic()
        return bool(self._worker.alive)

    def _tell_written(self, *, whole: bool) -> None:
        written, self._written = self._written, None
        if written is not None:
            written(whole)

    def _next(self) -> RequestHead | None:
        """Wait for the next request, None: there is none; raise RefusedError for a bad one."""
        stream, client = self._stream, self._client
        if not stream.buffer:
            client.settimeout(None)  # the worker ends connections that are silent for too long
            if not stream.more():
                return None
        self._began = monotonic()
        end = stream.buffer.find(b"\r\n\r\n") + 4
        if not 4 <= end <= requests.MAX_CACHED_HEAD_BYTES and not (end := self._head_end()):
            return None
        request = self._parsed(stream.buffer[:end])
        stream.buffer = stream.buffer[end:]
        client.settimeout(self._bounds.write_timeout)
        return request

    def _head_end(self) -> int:
        """Wait for the rest of a head; return where it ends, 0: the client left before."""
        stream, client = self._stream, self._client
        seen, until = 0, self._began + self._bounds.head_timeout
        while not (end := requests.head_end(stream.buffer, seen)):
            seen = len(stream.buffer)
            client.settimeout(max(0.001, until - monotonic()))
            try:
                if not stream.more():
                    return 0
            except TimeoutError as error:
                sentence = f"The head was not there in {self._bounds.head_timeout:g} seconds."
                raise RequestRefusedError(HTTPStatus.REQUEST_TIMEOUT, sentence) from error
        return end

    def _parsed(self, head: bytes) -> RequestHead:
        """Return what a head says; raise RefusedError."""
        if len(head) > requests.MAX_CACHED_HEAD_BYTES:
            self._known = None
            return requests.parse(head)
        heads: KnownHeads = self._worker.heads
        known = heads.get(key := (self._origin, head)) or heads.learn(key)
        self._known = known
        return known.whole()

    def _answer(
        self, request: RequestHead, begun: Begun | None = None, *, is_new: bool = True
    ) -> Steps[bool]:
        """Answer a request, or go on with one; return whether another one may follow."""
        environ = self._environ = requests.connection_environ(self._client, self._ends)
        environ |= request.environ
        worker = self._worker
        closing = request.framing.closing or not worker.alive
        answer = ResponseStream(self._stream, request.method, request.version, closing=closing)
        if begun is None:
            if is_new:
                self._note(request, environ)
            body = self._body(request.framing, answer)
        else:
            environ[BEGUN] = begun
            body = RequestBody(self._stream, 0, 0.0, None)
        environ["wsgi.input"] = body
        try:
            yield from self._run(environ, answer, body)
        finally:
            self._log(answer.status or "-", answer.sent, answer.headers)
            # An idle connection keeps nothing of its last request.
            self._environ = _NOTHING
            if self._prepared is None:
                self._known = None
        if self._prepared is not None:
            return True
        if answer.closing or not self._drained(body):
            if body.failed or body.unread != 0:
                linger(self._client)
            return False
        worker.idle[self._client] = monotonic()
        return True

    def _note(self, request: RequestHead, environ: dict[str, Any]) -> None:
        """Note that a request is under way, and ask for what repeats it if it does so itself."""
        worker = self._worker
        worker.nr += 1
        if worker.nr >= worker.max_requests:
            worker.retire()
        worker.idle.pop(self._client, None)
        known = self._known
        if known is not None and self._is_repeatable(request):
            known.times += 1
            is_poll = request.method == "GET" and not request.framing.length
            if known.times == (1 if is_poll else TIMES_TO_REPEAT):
                known.size = len(request.head) + (request.framing.length or 0)
                environ[REPEATED] = True

    def _is_repeatable(self, request: RequestHead) -> bool:
        """Return whether requests with this head may be prepared, by what the worker knows."""
        length, expects, closing = request.framing
        if length is None or len(request.head) + length > RECEIVE_BYTES or expects or closing:
            return False
        return self.suspended is not None and not self._worker.log.access_log_enabled

    def _body(self, framing: Framing, answer: ResponseStream) -> RequestBody:
        go_on = _continuing(self._stream, answer) if framing.expects else None
        if framing.length is None:
            return ChunkedBody(self._stream, self._bounds.body_timeout, go_on)
        return RequestBody(self._stream, framing.length, self._bounds.body_timeout, go_on)

    def _run(
        self, environ: dict[str, Any], answer: ResponseStream, body: RequestBody
    ) -> Steps[None]:
        """Have the application answer; what it raises is logged and ends the connection."""
        pieces: Iterable[bytes] = ()
        try:
            pieces = self._worker.wsgi(environ, answer.start_response)
            if isinstance(pieces, DeferredResponse):
                if self._leaves_to_prepared(environ, pieces.prepared):
                    pieces.steps.close()
                    pieces = ()
                    return
                pieces = yield from pieces.steps
            # What cannot be drained ends the connection, and the answer shall say so.
            if body.failed or body.waited_for or (body.unread or 0) > MAX_DRAINED_BYTES:
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
                self._refuse(RequestRefusedError(HTTPStatus.INTERNAL_SERVER_ERROR, ""))
        finally:
            if close := getattr(pieces, "close", None):
                close()

    def _leaves_to_prepared(self, environ: dict[str, Any], prepared: Prepared | None) -> bool:
        """Note what was prepared; return whether it begins the request under way, too."""
        if prepared is None or REPEATED not in environ or self._known is None:
            return False
        self._known.prepared = prepared
        if prepared.at_once and not self._stream.buffer:
            self._prepared = prepared
            self._known.drop_environ()
        return self._prepared is not None

    def _drained(self, body: RequestBody) -> bool:
        """Get to the next request; return False if that would take too long."""
        if body.unread == 0:
            return True
        self._client.settimeout(DRAIN_SECONDS)
        try:
            return body.drain(MAX_DRAINED_BYTES)
        except OSError:
            return False
        except Exception as error:  # noqa: BLE001 - gunicorn's errors have no common ancestor
            self._worker.log.debug(
                "A body that the application did not read is malformed: %s", error
            )
            return False

    def _refuse(self, refusal: RequestRefusedError) -> None:
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
        headers_sent = [
            (key[5:].replace("_", "-"), value)
            for key, value in self._environ.items()
            if key.startswith("HTTP_")
        ]
        took = timedelta(seconds=monotonic() - self._began)
        self._worker.log.access(answered, headers_sent, self._environ, took)


def _continuing(stream: BufferedSocket, answer: ResponseStream) -> Callable[[], None]:
    """Return what tells a waiting client to send its body, unless it has an answer already."""

    def go_on() -> None:
        if not answer.begun:
            stream.write(_CONTINUE)

    return go_on
