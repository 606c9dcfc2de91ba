"""Publishes that repeat a head: what follows from the head is kept, the rest is done for each.

A client that publishes sends the same head again and again: who it is, the topic, the type of the
body and the form of the answer follow from it. For each request remain whether the address is on
the blacklist, whether the credentials are still remembered, the rights, the body, the memory for it
and the append. A request that is not stored as one part of a batch, or that is refused by any of
these, is not begun here: `Events.published` serves it as if nothing had been.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final
from wsgiref.types import WSGIEnvironment

from router.clocks.steps import Steps, StepsClient, Wait
from router.model import Principal, TopicName
from router.services.appending import Append
from router.services.batches import PublishBatch
from router.services.memory_budget import Reservation
from router.services.publish import Publisher, PublishResult, timeouts_of_publish
from router.web import bodies
from router.web.addresses import USER
from router.web.front import ELAPSED, DirectAnswer, Marks

REPLAYED: Final = ("Idempotency-Replayed", "true")


def stored(count: int, seconds: float) -> bytes:
    """Return the body that says how many messages are stored, and how long the request took."""
    return b'{"serverTimeMs":%d,"count":%d}' % (round(seconds * 1000), count)


def answer(environ: WSGIEnvironment, published: PublishResult) -> DirectAnswer:
    """Return the answer to a publish."""
    body = stored(published.count, environ[ELAPSED]())
    return DirectAnswer.whole(body, bodies.JSON, *([REPLAYED] if published.replayed else []))


@dataclass(eq=False, slots=True)
class PreparedPublish:
    """Begins the publishes from one address that have the same head.

    `form`: a body of that head. What `authorize` raises refuses a publish. `source`: who publishes,
    by the protocol and the principal's name.
    """

    at_once: ClassVar[bool] = False

    marks: Marks
    reader: bodies.BodyReader
    publisher: Publisher
    name: TopicName
    who: Callable[[], Principal | None]
    authorize: Callable[[Principal], None]
    form: bodies.PublishBody
    source: Callable[[str, str], bytes]

    def begin(self, body: bytes, client: StepsClient) -> BegunPublish | None:
        """Begin to store the messages of a body; see `router.clocks.steps.Prepared`."""
        began = self.marks.clock()
        kind, encoding, _, key = self.form
        try:
            if not self.marks.admits() or (principal := self.who()) is None:
                return None
            self.authorize(principal)
            found = self.reader.at_once(bodies.PublishBody(kind, encoding, body, key))
        except Exception:  # noqa: BLE001 - the step meets it too, and there is a handler for each
            return None
        if found is None:
            return None
        messages, reserved = found
        batch = PublishBatch(messages, self.source("http", principal.name))
        begun = BegunPublish(self, client, batch, reserved, began)
        if not messages or not self._enters(begun):
            reserved.release()
            return None
        begun.user = principal.name
        if begun.is_leader:
            begun.called()
        return begun

    def _enters(self, begun: BegunPublish) -> bool:
        """Return whether a publish is in a batch now; one that is refused is not."""
        try:
            return self.publisher.enter(self.name, begun)
        except Exception:  # noqa: BLE001 - as above
            return False


class BegunPublish(Append):
    """A publish that is in a batch.

    One that leads takes its steps here. If they fail, the application answers that in steps.
    """

    __slots__ = (
        "_client",
        "_failure",
        "_is_left",
        "_is_stepping",
        "_prepared",
        "_reserved",
        "_steps",
        "began",
        "user",
    )

    def __init__(
        self,
        prepared: PreparedPublish,
        client: StepsClient,
        batch: PublishBatch,
        reserved: Reservation,
        began: float,
    ) -> None:
        super().__init__(batch, 0.0)
        self._prepared = prepared
        self._client = client
        self._reserved = reserved
        self._steps: Steps[PublishResult] | None = None
        self._failure: Exception | None = None
        self._is_left = self._is_stepping = False
        self.began = began
        self.user = ""

    def called(self) -> None:
        """Lead, or answer what is stored; have the application go on with what has failed."""
        if self.is_leader:
            self._client.soon(self._lead)
        elif self.error is not None:
            self._client.go_on()
        else:
            self._end()

    def _lead(self) -> None:
        """Store what is in the batch, in a greenlet, unless its client left meanwhile."""
        if not self._is_left:
            prepared = self._prepared
            self._steps = prepared.publisher.finish_steps(prepared.name, self)
            self._take_step()

    def _take_step(self) -> None:
        """Take the next step of one that leads, in a greenlet."""
        assert self._steps is not None
        wait: Wait | None = None
        self._is_stepping = True
        try:
            wait = next(self._steps)
        except StopIteration:
            pass
        except Exception as error:  # noqa: BLE001 - raised again where there is a handler for it
            self._failure = error
        finally:
            self._is_stepping = False
        if self._is_left:
            self.leave()
        elif wait is not None:
            self._client.wait_for(wait, self._take_step)
        elif self._failure is not None:
            self._client.go_on()
        else:
            self._end()

    def _end(self) -> None:
        self._reserved.release()
        marks = self._prepared.marks
        took = marks.clock() - self.began
        self._client.answered(marks.answer(stored(len(self.batch.messages), took), took))

    def finish(self, environ: WSGIEnvironment) -> Steps[DirectAnswer]:
        """Go on with a publish that has failed, as `Events.published` does."""
        prepared = self._prepared
        if self.user:
            environ[USER] = self.user
        with self._reserved, timeouts_of_publish():
            failure, self._failure = self._failure, None
            if failure is not None:
                try:
                    raise failure
                finally:
                    del failure  # whose traceback leads here
            published = yield from prepared.publisher.finish_steps(prepared.name, self)
        return answer(environ, published)

    def early(self) -> None:
        """Do nothing: it is stored whether its client is there or not."""

    def leave(self) -> None:
        """Give it up: what is not on its way is not stored."""
        self._is_left = True
        if self._is_stepping:
            return
        if self._steps is None:
            self._prepared.publisher.leave(self)
        else:
            self._steps.close()
        self._reserved.release()
