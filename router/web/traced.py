"""`/events` with traces: the views of a start that records them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from router.services.consume import ClientGoneError, Poll
from router.services.publish import Published
from router.waiting import Steps
from router.web import offload
from router.web.dmaap import Delivery, Events
from router.web.media import Format
from router.web.spans import Processing, Spans

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

    from router.web.front import Answer

_OPERATION: Final = "router.operation"


class TracedEvents(Events):
    """The views of `/events`, whose publishes and polls are recorded."""

    def __init__(self, spans: Spans, *parts: Any) -> None:
        super().__init__(*parts)
        self._spans = spans

    def _publish(self, environ: WSGIEnvironment, topic: str) -> Steps[Published]:
        with self._spans.publishing(environ, topic) as operation:
            published = yield from super()._publish(environ, topic)
            operation.stored(published.count)
            return published

    def polled(
        self, environ: WSGIEnvironment, topic: str, group: str, consumer: str
    ) -> Steps[Answer]:
        """Answer as `poll` does."""
        with self._spans.receiving(environ, topic, group) as operation:
            environ[_OPERATION] = operation, topic, group
            return (yield from super().polled(environ, topic, group, consumer))

    def _answer(
        self,
        environ: WSGIEnvironment,
        form: tuple[Format, str],
        poll: Poll,
        watch: offload.Watch,
    ) -> Answer:
        operation, topic, group = environ[_OPERATION]
        operation.received(poll.messages)
        body, headers = super()._answer(environ, form, poll, watch)
        if not isinstance(body, Delivery):
            return body, headers
        processing = self._spans.processing(environ, topic, group, poll.messages)
        return _Traced(body, processing), headers


class _Traced:
    """The body of a poll's answer, recorded until it is written."""

    def __init__(self, body: Delivery, processing: Processing) -> None:
        self._body = body
        self._processing = processing

    def __iter__(self) -> _Traced:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._body)
        except StopIteration:
            self._processing.end()
            raise
        except BaseException as error:
            self._processing.end(error)
            raise

    def close(self) -> None:
        """End, with what the body has not written."""
        self._body.close()
        self._processing.end(ClientGoneError())
