"""One connection of the llhttp worker: its requests in turn, their answers, and how it ends.

A request is read, served and answered before the next is read, so that pipelined requests are
answered in order, and what a client may send ahead is one read of the socket. After each answer
the other connections of the worker have their turn: a client whose next request is there already
would else keep them waiting.

Serving is written in steps: where a connection waits for its client's next request, or the
application for others (`router.steps`), nothing of it is on a stack. What a suspended connection
waits for calls back: the event loop, when its client sent something or left; an event, when that
for which the application waits is there; a timer, when it waited for long enough. It then adds a
job to the worker's greenlet pool. One greenlet of the pool runs many jobs in turn, as long as none
of them waits; a job that waits keeps its greenlet, and the jobs behind it get another. So a worker
has a stack for each job that computes or waits for the disk or the network, and none for a
connection that is idle.

`100 Continue` is sent when the application first waits for the body: a request that is refused by
its head alone spares the client sending it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from http import HTTPStatus
from inspect import GEN_RUNNING, getgeneratorstate
from time import monotonic
from types import SimpleNamespace
from typing import Any, Final, Protocol

import gevent
from gevent import get_hub
from greenlet import getcurrent, greenlet
from gunicorn import util

from router.steps import YIELD_TO_LOOP, DeferredResponse, Event, Steps, Wait
from router.web.worker import request as requests
from router.web.worker.bounds import DRAIN_SECONDS, MAX_DRAINED_BYTES, Bounds
from router.web.worker.chunked import ChunkedBody
from router.web.worker.request import Framing, RefusedError, Request
from router.web.worker.stream import Answer, Body, BufferedSocket, linger

MAX_SPARE_GREENLETS: Final = 64
"""So many greenlets stay when there is nothing to do: a new one costs more than a short job."""
_READ: Final = 1
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection:
    """Serves the requests of one client; `worker` says what to serve, and when to end."""

    def __init__(self, worker: Any, client: Any, common: dict[str, Any], bounds: Bounds) -> None:
        self._worker = worker
        self._client = client
        self._common = common
        self._bounds = bounds
        self._stream = BufferedSocket(client)
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
                if self._stream.buffer:
                    gevent.sleep(0)
                else:
                    yield None
                request = self._next()
                more = request is not None and (yield from self._answer(request))
        except RefusedError as refusal:
            self._environ = self._common | requests.line_environ(self._stream.buffer)
            self._log(f"{refusal.status.value}", None, ())
            self._refuse(refusal)

    def _next(self) -> Request | None:
        """Wait for the next request, None: there is none; raise RefusedError for a bad one."""
        stream, client = self._stream, self._client
        if not stream.buffer:
            client.settimeout(None)  # the worker ends connections that are silent for too long
            if not stream.more():
                return None
        self._began = monotonic()
        request: Request | None
        buffer = stream.buffer
        end = buffer.find(b"\r\n\r\n") + 4
        if 4 <= end <= requests.MAX_CACHED_HEAD_BYTES:
            request = requests.cached(buffer[:end])
            stream.buffer = buffer[end:]
        else:
            request = self._long_head()
        client.settimeout(self._bounds.write_timeout)
        return request

    def _long_head(self) -> Request | None:
        """Wait for the rest of a head; return what `_next` does."""
        stream, client = self._stream, self._client
        seen, until = 0, self._began + self._bounds.head_timeout
        while not (end := requests.head_end(stream.buffer, seen)):
            seen = len(stream.buffer)
            client.settimeout(max(0.001, until - monotonic()))
            try:
                if not stream.more():
                    return None
            except TimeoutError as error:
                sentence = f"The head was not there in {self._bounds.head_timeout:g} seconds."
                raise RefusedError(HTTPStatus.REQUEST_TIMEOUT, sentence) from error
        request = requests.parse(stream.buffer[:end])
        stream.buffer = stream.buffer[end:]
        return request

    def _answer(self, request: Request) -> Steps[bool]:
        """Answer a request; return whether another one may follow."""
        environ = self._environ = self._common | request.environ
        worker = self._worker
        worker.nr += 1
        if worker.nr >= worker.max_requests:
            worker.retire()
        closing = request.framing.closing or not worker.alive
        answer = Answer(self._stream, request.method, request.version, closing=closing)
        body = environ["wsgi.input"] = self._body(request.framing, answer)
        worker.idle.pop(self._client, None)
        try:
            yield from self._run(environ, answer, body)
        finally:
            self._log(answer.status or "-", answer.sent, answer.headers)
            self._environ = {}  # an idle connection keeps nothing of its last request
        if answer.closing or not self._drained(body):
            if body.failed or body.unread != 0:
                linger(self._client)
            return False
        worker.idle[self._client] = monotonic()
        return True

    def _body(self, framing: Framing, answer: Answer) -> Body:
        go_on = _continuing(self._stream, answer) if framing.expects else None
        if framing.length is None:
            return ChunkedBody(self._stream, self._bounds.body_timeout, go_on)
        return Body(self._stream, framing.length, self._bounds.body_timeout, go_on)

    def _run(self, environ: dict[str, Any], answer: Answer, body: Body) -> Steps[None]:
        """Have the application answer; what it raises is logged and ends the connection."""
        pieces: Iterable[bytes] = ()
        try:
            pieces = self._worker.wsgi(environ, answer.start_response)
            if isinstance(pieces, DeferredResponse):
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
                self._refuse(RefusedError(HTTPStatus.INTERNAL_SERVER_ERROR, ""))
        finally:
            if close := getattr(pieces, "close", None):
                close()

    def _drained(self, body: Body) -> bool:
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
        headers_sent = [
            (key[5:].replace("_", "-"), value)
            for key, value in self._environ.items()
            if key.startswith("HTTP_")
        ]
        took = timedelta(seconds=monotonic() - self._began)
        self._worker.log.access(answered, headers_sent, self._environ, took)


def _continuing(stream: BufferedSocket, answer: Answer) -> Callable[[], None]:
    """Return what tells a waiting client to send its body, unless it has an answer already."""

    def go_on() -> None:
        if not answer.begun:
            stream.write(_CONTINUE)

    return go_on


class GreenletPool:
    """Runs jobs in the order of `add`; made, and used, in the event loop's thread."""

    def __init__(self) -> None:
        self._hub = get_hub()
        self._jobs: deque[Callable[[], None]] = deque()
        self._spare: list[Any] = []
        self._called = False

    def add(self, job: Callable[[], None]) -> None:
        """Run a job soon; the job raises nothing. Never waits."""
        self._jobs.append(job)
        if not self._called:
            self._called = True
            self._hub.loop.run_callback(self._start)

    def _start(self) -> None:
        """Hand the jobs to greenlets; called by the event loop, and never waits."""
        self._called = False
        while self._jobs:
            runner = self._spare.pop() if self._spare else greenlet(self._run, self._hub)
            runner.switch()  # until it waits, or has nothing left to do

    def _run(self) -> None:
        jobs = self._jobs
        while True:
            while jobs:
                jobs.popleft()()
            if len(self._spare) >= MAX_SPARE_GREENLETS:
                return
            self._spare.append(getcurrent())
            self._hub.switch()


class Owner(Protocol):
    """The worker as far as its suspended connections use it."""

    log: Any
    greenlets: GreenletPool

    def release(self, connection: SuspendedConnection) -> None:
        """Close the client of a connection that has ended; called once."""
        ...


class SuspendedConnection:
    """Takes the steps of one connection, each in a greenlet of the pool."""

    __slots__ = (
        "_event",
        "_idle",
        "_idle_watcher",
        "_owner",
        "_steps",
        "_timer",
        "_watched",
        "_watcher",
        "client",
        "slot",
    )

    def __init__(
        self, owner: Owner, client: Any, slot: str, steps: Generator[Wait | None, None, None]
    ) -> None:
        self.client = client
        self.slot = slot
        self._owner = owner
        self._steps = steps
        self._watcher: Any = get_hub().loop.io(client.fileno(), _READ)
        self._watched = False
        self._idle = False
        self._event: Event | None = None
        self._timer: Any = None
        self._idle_watcher: Any = None

    def resume(self) -> None:
        """Take the next step, which may wait in this greenlet. Raises nothing."""
        try:
            wait = next(self._steps)
        except StopIteration:
            self.end()
        except OSError as error:
            self._owner.log.debug("The connection is lost: %s", error)
            self.end()
        except Exception:
            self._owner.log.exception("A connection failed")
            self.end()
        else:
            self._suspend(wait)

    def end(self) -> None:
        """Stop all waits, close the steps and release the client; callable twice."""
        watcher, self._watcher = self._watcher, None
        if watcher is None:
            return
        self._stop_waiting()
        watcher.stop()
        watcher.close()
        try:
            # A step under way fails as its socket is closed; `_suspend` then closes the rest.
            if getgeneratorstate(self._steps) != GEN_RUNNING:
                self._steps.close()
        finally:
            self._owner.release(self)

    def _suspend(self, wait: Wait | None) -> None:
        if self._watcher is None:
            self._steps.close()
            return
        if wait is None:
            self._idle = True
            # The watcher stays on while a request is served: there is nothing to be seen then.
            if not self._watched:
                self._watched = True
                self._watcher.start(self._readable)
            return
        self._event, seconds = wait
        if seconds is not None:
            self._timer = get_hub().loop.timer(max(0.0, seconds))
            self._timer.start(self._called)
        if self._event is YIELD_TO_LOOP:
            self._idle_watcher = get_hub().loop.idle()
            self._idle_watcher.start(self._called)
        else:
            self._event.call(self._called)

    def _readable(self) -> None:
        """Resume a connection that waits for its client; called by the event loop."""
        if self._idle:
            self._idle = False
            self._owner.greenlets.add(self.resume)
        else:
            # The next request came early, or the client left; the loop would say so all the time.
            self._watcher.stop()
            self._watched = False

    def _called(self) -> None:
        """Resume: the event was set, or the time is over."""
        if self._event is not None:
            self._stop_waiting()
            self._owner.greenlets.add(self.resume)

    def _stop_waiting(self) -> None:
        event, self._event = self._event, None
        if event is not None:
            event.clear()
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.stop()
            timer.close()
        idle_watcher, self._idle_watcher = self._idle_watcher, None
        if idle_watcher is not None:
            idle_watcher.stop()
            idle_watcher.close()
