"""Publishes that repeat a head: what follows from the head is kept, the rest is done for each.

A client that publishes sends the same head again and again: who it is, the topic, the type of the
body and the form of the answer follow from it. For each request remain whether the address is on
the blacklist, whether the credentials are still remembered, the rights, the body, the memory for it
and the append. A request that is not stored as one part of a batch, or that is refused by any of
these, is not begun here: `Events.published` serves it as if nothing had been.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from wsgiref.types import WSGIEnvironment

from router.model import Principal, TopicName
from router.services.appending import Append
from router.services.batches import PublishBatch
from router.services.memory_budget import Reservation
from router.services.publish import Publisher, PublishResult, timeouts_of_publish
from router.steps import Client, Steps
from router.web import bodies
from router.web.addresses import USER
from router.web.front import ELAPSED, Answer, Marks

REPLAYED: Final = ("Idempotency-Replayed", "true")


def stored(count: int, seconds: float) -> bytes:
    """Return the body that says how many messages are stored, and how long the request took."""
    return b'{"serverTimeMs":%d,"count":%d}' % (round(seconds * 1000), count)


def answer(environ: WSGIEnvironment, published: PublishResult) -> Answer:
    """Return the answer to a publish."""
    body = stored(published.count, environ[ELAPSED]())
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    return (body,), [*headers, REPLAYED] if published.replayed else headers


class PreparedPublish:
    """Begins the publishes from one address that have the same head."""

    __slots__ = ("_authorize", "_form", "_reader", "_who", "marks", "name", "publisher")

    def __init__(
        self,
        parts: tuple[Marks, bodies.BodyReader, Publisher],
        name: TopicName,
        who: Callable[[], Principal | None],
        authorize: Callable[[Principal], None],
        form: bodies.Body,
    ) -> None:
        """`form`: a body of that head. What `authorize` raises refuses a publish."""
        self.marks, self._reader, self.publisher = parts
        self.name = name
        self._who = who
        self._authorize = authorize
        self._form = form

    def begin(self, body: bytes, client: Client) -> BegunPublish | None:
        """Begin to store the messages of a body; see `router.steps.Prepared`."""
        began = self.marks.clock()
        kind, encoding, _, key = self._form
        try:
            if not self.marks.admits() or (principal := self._who()) is None:
                return None
            self._authorize(principal)
            found = self._reader.at_once(bodies.Body(kind, encoding, body, key))
        except Exception:  # noqa: BLE001 - the step meets it too, and there is a handler for each
            return None
        if found is None:
            return None
        messages, reserved = found
        begun = BegunPublish(self, client, PublishBatch(messages), reserved, began)
        if not messages or not self._enters(begun):
            reserved.release()
            return None
        begun.user = principal.name
        if begun.is_leader:
            client.go_on()
        return begun

    def _enters(self, begun: BegunPublish) -> bool:
        """Return whether a publish is in a batch now; one that is refused is not."""
        try:
            return self.publisher.enter(self.name, begun)
        except Exception:  # noqa: BLE001 - as above
            return False


class BegunPublish(Append):
    """A publish that is in a batch."""

    __slots__ = ("_client", "_prepared", "_reserved", "began", "user")

    def __init__(
        self,
        prepared: PreparedPublish,
        client: Client,
        batch: PublishBatch,
        reserved: Reservation,
        began: float,
    ) -> None:
        super().__init__(batch, 0.0)
        self._prepared = prepared
        self._client = client
        self._reserved = reserved
        self.began = began
        self.user = ""

    def called(self) -> None:
        """Answer what is stored; have the application go on with what leads or has failed."""
        if self.is_leader or self.error is not None:
            self._client.go_on()
            return
        self._reserved.release()
        marks = self._prepared.marks
        took = marks.clock() - self.began
        self._client.answered(marks.answer(stored(len(self.batch.messages), took), took))

    def finish(self, environ: WSGIEnvironment) -> Steps[Answer]:
        """Go on with a publish that leads or has failed, as `Events.published` does."""
        prepared = self._prepared
        if self.user:
            environ[USER] = self.user
        with self._reserved, timeouts_of_publish():
            published = yield from prepared.publisher.finish_steps(prepared.name, self)
        return answer(environ, published)

    def early(self) -> None:
        """Do nothing: it is stored whether its client is there or not."""

    def leave(self) -> None:
        """Give it up."""
        self._prepared.publisher.leave(self)
        self._reserved.release()
