"""Polls that repeat a head: what follows from the head is kept, the rest is done for each.

A poll that is begun here takes the steps of any other, without a request of WSGI around them: its
mailbox calls back, and the next step is taken in a greenlet of the worker. If it ends with an
answer, that is sent from here, and acknowledged when all of it was written. If it fails, or waits
for something else, the application goes on with it in steps.

While it waits it costs no timer and no watcher: the connection says if its client leaves, and the
figures of the worker's polls are looked through for what is overdue. When it has ended, nothing of
it refers to itself, so that its memory is free without the garbage collector.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Final
from wsgiref.types import WSGIEnvironment

from router.clocks.steps import Steps, StepsClient, Wait
from router.model import Principal
from router.services.consume import (
    AnsweredPoll,
    ClientGoneError,
    PollMailbox,
    PollRequest,
    PollServer,
)
from router.web.addresses import USER
from router.web.front import DirectAnswer, Marks
from router.web.media import Format
from router.web.offload import CHECK_SECONDS, Watch

if TYPE_CHECKING:
    from router.web.dmaap.events import Events

GONE: Final = b"{}"
"""The body for a client that left, and may still read."""


@dataclass(eq=False, slots=True)
class PreparedPoll:
    """Begins the polls from one address that have the same head; thousands may wait.

    `form`: the format of the answers. What `authorize` raises refuses a poll.
    """

    marks: Marks
    subscriber: PollServer
    request: PollRequest
    _: KW_ONLY
    who: Callable[[], Principal | None]
    authorize: Callable[[Principal], None]
    answers: Events
    form: Format

    @property
    def at_once(self) -> bool:
        """Return whether polls wait here, where they keep less than the steps of a request."""
        return self.subscriber.is_direct

    def begin(self, body: bytes, client: StepsClient) -> BegunPoll | None:
        """Begin a poll; see `router.clocks.steps.Prepared`."""
        del body  # there is none
        try:
            if not self.marks.admits() or (principal := self.who()) is None:
                return None
            self.authorize(principal)
        except Exception:  # noqa: BLE001 - the step meets it too, and there is a handler for each
            return None
        begun = BegunPoll(self, client, principal.name)
        begun.take_step()
        return begun


class BegunPoll(PollMailbox):
    """A poll that was begun, as the mailbox that wakes it and as its own client."""

    __slots__ = (
        "_client",
        "_error",
        "_is_closed",
        "_is_early",
        "_is_gone",
        "_is_left",
        "_is_stepping",
        "_poll",
        "_prepared",
        "_steps",
        "_user",
        "_wait",
        "_watch",
        "began",
    )

    def __init__(self, prepared: PreparedPoll, client: StepsClient, user: str) -> None:
        super().__init__()
        self._prepared = prepared
        self._client = client
        self._user = user
        self.began = prepared.marks.clock()
        self._steps = prepared.subscriber.poll_steps(prepared.request, self, self)
        self._wait: Wait | None = None
        self._poll: AnsweredPoll | None = None
        self._error: Exception | None = None
        self._watch: Watch | None = None
        self._is_closed = self._is_early = self._is_left = self._is_stepping = False
        self._is_gone = False

    # What the poll asks of its client: router.services.consume.WaitingClient.

    def is_closed(self) -> bool:
        """Return whether the client left."""
        if self._watch is not None:
            return self._watch.is_closed()
        if self._is_early and not self._is_closed:
            self._is_closed = self._client.is_closed()
        return self._is_closed

    def check_seconds(self) -> float:
        """Return after how many seconds to look again; infinity as long as `early` wakes."""
        if self._watch is not None:
            return self._watch.check_seconds()
        # Behind what a client sent early its leaving is not seen.
        return CHECK_SECONDS if self._is_early else math.inf

    # What the connection calls.

    def early(self) -> None:
        """Wake the poll, which looks whether its client left."""
        self._is_early = True
        self.wake()

    def leave(self) -> None:
        """Give it up: the connection has ended."""
        self._is_left = True
        if self._is_stepping:
            return
        self.clear()
        self._wait = None
        self._steps.close()
        poll, self._poll = self._poll, None
        if poll is not None:
            poll.abandon()

    def finish(self, environ: WSGIEnvironment) -> Steps[DirectAnswer]:
        """Go on in steps, as `Events.polled` does."""
        if self._user:
            environ[USER] = self._user
        self._watch = watch = Watch(environ.get("gunicorn.socket"), self.wake)
        poll, self._poll = self._poll, None
        try:
            poll = poll or (yield from self._rest())
        except BaseException:
            watch.close()
            raise
        prepared = self._prepared
        return prepared.answers.answer_poll(environ, prepared.form, poll, watch)

    def take_step(self) -> None:
        """Take the next step, in a greenlet; answer with what it returns."""
        is_first = self._wait is None
        self._is_stepping, self._wait = True, None
        try:
            self._wait = next(self._steps)
        except StopIteration as stop:
            self._poll = stop.value
        except ClientGoneError:
            self._is_gone = True
        except Exception as error:  # noqa: BLE001 - raised again where there is a handler for it
            self._error = error
        finally:
            self._is_stepping = False
        if self._is_left:
            self.leave()
        elif self._poll is not None:
            if is_first:  # the client has not been given this poll yet
                self._client.soon(self._end)
            else:
                self._end()
        elif self._is_gone:
            self._client.answered(self._prepared.marks.answer(GONE, self._seconds()))
        elif self._error is None and self._waits_here():
            self.call(self._resume)
        else:
            self._client.go_on()

    def _waits_here(self) -> bool:
        """Return whether the wait of the last step needs neither a timer nor another event."""
        assert self._wait is not None
        event, seconds = self._wait
        if event is not self or not self._prepared.subscriber.is_direct:
            return False
        self.until = None if seconds is None else self._prepared.marks.clock() + seconds
        return True

    def _resume(self) -> None:
        self.clear()
        self._client.soon(self.take_step)

    def _end(self) -> None:
        """Send the answer, which is acknowledged once it is written."""
        prepared, poll = self._prepared, self._poll
        if self._is_left:
            return
        assert poll is not None
        try:
            body = prepared.answers.written(prepared.form, poll)
        except Exception as error:  # noqa: BLE001 - as above
            poll.abandon()
            self._error, self._poll = error, None
            self._client.go_on()
            return
        marks = prepared.marks
        if poll.messages and self._client.is_closed():
            poll.abandon()
        self._client.answered(marks.answer(body, self._seconds()), self._written)

    def _seconds(self) -> float:
        return self._prepared.marks.clock() - self.began

    def _written(self, whole: bool) -> None:
        poll, self._poll = self._poll, None
        if poll is None:
            return
        if whole and poll.messages:
            poll.delivered()
        else:
            poll.abandon()

    def _rest(self) -> Steps[AnsweredPoll]:
        """Take the steps that are left, beginning with the wait of the last one."""
        try:
            if self._error is not None:
                error, self._error = self._error, None
                try:
                    raise error
                finally:
                    del error
            wait, self._wait = self._wait, None
            if wait is not None:
                yield wait
            return (yield from self._steps)
        finally:
            self._steps.close()
