"""The DMaaP Message Router's `/events`: publish with POST, poll with GET.

Theory of operation. A view reads the request, asks `access`, turns the body into messages, calls a
service and writes the answer; every refusal is an exception, which `errors` turns into the body
that the guide and the original describe. A poll's answer is a `Delivery`: the server writes its one
piece and comes back for more, and only then the messages are acknowledged; a server that closes it
earlier lets them go. Acknowledging in the view would lose what a broken connection swallows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final
from wsgiref.types import WSGIEnvironment

from flask import Blueprint, Response, request
from werkzeug.utils import get_content_type

from router.backends import Start
from router.clocks.steps import Prepared, Steps, run_blocking
from router.errors import MissingConsumerError
from router.model import VALUE_OF, ConsumerId, Message, Subscription, TopicName
from router.model.publish_source import MAX_TEXT, encode_source
from router.services.consume import AckMode, AnsweredPoll, PollMailbox, PollRequest, PollServer
from router.services.consume.ack_tokens import MAX_TOKEN_CHARACTERS
from router.services.publish import Publisher, PublishResult, timeouts_of_publish
from router.settings.options import SettingsOptions, from_setting
from router.web import bodies, offload, requests, tracing
from router.web.access import RequestAuthorizer, Right
from router.web.bodies.cloudevents import message as event_message
from router.web.bodies.reader import HEADERS, event_attributes
from router.web.dmaap import prepared
from router.web.dmaap.events_description import (
    MESSAGES,
    POLL_FAILS,
    PUBLISH_FAILS,
    SENDING,
    publish_replies,
)
from router.web.dmaap.prepared_polls import PreparedPoll
from router.web.front import DIRECT, ELAPSED, POLL, PUBLISH, REPEATABLE, DirectAnswer, MarksOf
from router.web.media import Format, answer_format, media_type
from router.web.openapi import description as api
from router.web.requests import (
    BYTES,
    MILLISECONDS,
    TRANSACTION,
    DmaapTransactionIds,
    Query,
    consumer_name,
)
from router.web.tracing import TRACE_HEADER
from router.wire.nats.headers import SUBJECT

HEAVY_ANSWER_BYTES: Final = 1024 * 1024
_SINGULAR: Final = HEADERS | {"HTTP_IDEMPOTENCY_KEY", TRACE_HEADER, requests.SUBJECT_HEADER}
"""In the environment: what publishes have that are no repetitions."""
NO_STORE: Final = (
    ("Cache-Control", "no-store, no-cache, must-revalidate"),
    ("Pragma", "no-cache"),
    ("Expires", "0"),
)
ACK_HEADER: Final = "Ack-Token"
"""The header that names the messages of an answer for the poll that acknowledges them."""
ACK: Final = rf"^(next|explicit|[A-Za-z0-9_-]{{22,{MAX_TOKEN_CHARACTERS}}})$"
_ACK_MODES: Final = {"next": AckMode.NEXT, "explicit": AckMode.EXPLICIT}
_KINDS: Final = {choice: get_content_type(choice.value, "utf-8") for choice in Format}


@dataclass(frozen=True, slots=True)
class EventOptions(SettingsOptions):
    """The settings that publishing and polling over HTTP read."""

    timeout: float = from_setting("consume.timeout")
    max_timeout: float = from_setting("consume.max_timeout")
    limit: int = from_setting("consume.limit")
    max_bytes: int = from_setting("consume.max_bytes")
    start: Start = from_setting("consume.from", Start)


class Delivery:
    """The body of a poll's answer, in one piece; what it holds is acknowledged once it is out."""

    def __init__(self, poll: AnsweredPoll, body: bytes, watch: offload.Watch) -> None:
        self._poll = poll
        self._body: bytes | None = body
        self._watch = watch

    def __iter__(self) -> Delivery:
        return self

    def __next__(self) -> bytes:
        body, self._body = self._body, None
        if body is None:
            self._poll.delivered()
            self.close()
            raise StopIteration
        if self._watch.is_closed():
            self._poll.abandon()
        return body

    def close(self) -> None:
        """End the poll; unless the body was written, nothing is acknowledged."""
        self._poll.abandon()
        self._watch.close()


class Events:
    """The views of `/events`."""

    def __init__(
        self,
        access: RequestAuthorizer,
        publishing: tuple[bodies.BodyReader, Publisher],
        subscriber: PollServer,
        topic_name: Callable[[str], TopicName],
        options: EventOptions,
        transactions: DmaapTransactionIds,
    ) -> None:
        self._access = access
        self._reader, self._publisher = publishing
        self._subscriber = subscriber
        self._topic_name = topic_name
        self._options = options
        self._transactions = transactions

    def blueprint(self) -> Blueprint:
        """Return the routes; the application keeps which of them are direct."""
        routes = Blueprint("events", __name__)
        direct = {PUBLISH: self.published, POLL: self.polled}
        routes.record_once(lambda state: state.app.extensions[DIRECT].update(direct))
        repeatable = {PUBLISH: self.repeatable, POLL: self.repeatable_poll}
        routes.record_once(lambda state: state.app.extensions[REPEATABLE].update(repeatable))
        return api.add_routes(routes, self)

    @api.operation(
        "POST /events/<topic>",
        *SENDING,
        body=MESSAGES,
        answers=publish_replies(),
        fails=PUBLISH_FAILS,
    )
    def publish(self, topic: str) -> Response:
        """Store the messages of the body; answer when they are durable."""
        return run_blocking(self.published(request.environ, topic)).response()

    def published(self, environ: WSGIEnvironment, topic: str) -> Steps[DirectAnswer]:
        """Store the messages of a request's body, as `publish` does."""
        return prepared.answer(environ, (yield from self._publish(environ, topic)))

    def repeatable(
        self, environ: WSGIEnvironment, names: tuple[str, ...], marks_of: MarksOf
    ) -> Prepared | None:
        """Return what begins the next publishes with this head; raise what `published` raises.

        None: the head says what only that request has, or its client is looked at each time.
        """
        who = self._access.repeated(environ)
        length = requests.declared_length(environ)
        if who is None or length is None or length > self._reader.bounds.batch:
            return None
        if not environ.keys().isdisjoint(_SINGULAR):
            return None
        name = self._topic_name(names[0])
        authorize = partial(self._access.authorize, topic=name, right=Right.PUBLISH)
        marks = marks_of([("Content-Type", "application/json"), ("Content-Length", "%d")])
        form = _body(environ, b"", environ.get("CONTENT_TYPE", ""))
        address, client = environ.get("REMOTE_ADDR", ""), environ.get("HTTP_USER_AGENT", "")
        source = partial(encode_source, address=address, client=client[:MAX_TEXT])
        return prepared.PreparedPublish(
            marks, self._reader, self._publisher, name, who, authorize, form, source
        )

    @api.operation(
        "POST /events/transaction/<topic>",
        *SENDING,
        body=MESSAGES,
        answers=publish_replies({"transactionId": str}),
        fails=PUBLISH_FAILS,
    )
    def publish_transaction(self, topic: str) -> Response:
        """Store the messages as `publish` does; the answer's body has a transaction id too.

        It is the header's, followed by the number of the last message, as in the original.
        """
        environ = request.environ
        published = run_blocking(self._publish(environ, topic))
        identity = environ[TRANSACTION] = self._transactions.next(environ.get("REMOTE_ADDR", ""))
        body = b'{"serverTimeMs":%d,"count":%d,"transactionId":"%s::%d"}' % (
            _elapsed_ms(environ),
            published.count,
            identity.encode(),
            published.count,
        )
        headers = [prepared.REPLAYED] if published.replayed else []
        return Response(body, headers=headers, content_type="application/json")

    def _publish(self, environ: WSGIEnvironment, topic: str) -> Steps[PublishResult]:
        with timeouts_of_publish():
            return (yield from self._store(environ, topic))

    def _store(self, environ: WSGIEnvironment, topic: str) -> Steps[PublishResult]:
        principal = self._access.principal(environ)
        name = self._topic_name(topic)
        self._access.authorize(principal, name, Right.PUBLISH)
        key = requests.idempotency_key(environ)
        subject = requests.nats_subject(environ)
        attributes = event_attributes(environ)
        kind = environ.get("CONTENT_TYPE", "")
        # The data of an event are one message, whatever they are.
        read = requests.body(environ, self._reader.bounds.batch)
        body, read = _body(environ, read, kind if attributes is None else ""), b""
        messages, reserved = yield from self._reader.messages(body)
        with reserved:
            if attributes is not None:
                data = messages[0].value if messages else None
                messages = [event_message(attributes, kind or None, data, body.key)]
            del body
            if subject is not None:
                messages = self._publisher.compute(len(messages), _with_subject, messages, subject)
            if TRACE_HEADER in environ and (context := tracing.of_request(environ)):
                longest = self._reader.bounds.message
                messages = self._publisher.compute(
                    len(messages), tracing.add, messages, context, longest
                )
            source = requests.source_of(environ, principal.name)
            steps = self._publisher.publish_steps(name, messages, principal, key, source)
            return (yield from steps)

    @api.operation(
        "GET /events/<topic>/<group>", answers={}, fails=("missing-consumer",), public=True
    )
    def incomplete(self, topic: str, group: str) -> Response:
        """Refuse a poll without a consumer id."""
        del group
        raise incomplete(topic, "a consumer id")

    @api.operation(
        "GET /events/<topic>/<group>/<consumer>",
        api.number("timeout", "Milliseconds to wait for a message, at most `consume.max_timeout`."),
        api.number("limit", "Most messages to answer; 0 is the default, `consume.limit`."),
        api.number("maxBytes", "Most bytes of messages to answer."),
        api.moment("from", "Where a group starts that does not exist yet."),
        api.text(
            "ack",
            "What acknowledges the messages of this answer: `next`, the next poll of this id;"
            " `explicit`, a poll with the answer's header `Ack-Token` as its `ack`, which answers"
            " as `explicit` does. With a token a `limit` of 0 acknowledges only.",
            ACK,
        ),
        answers={
            200: api.ReplyDescription(
                "Messages, none if there were none in time; the format is chosen by `Accept`."
                " With `ack=explicit` the header `Ack-Token` names them.",
                {
                    api.JSON: [str],
                    Format.NDJSON.value: str,
                    Format.CAMBRIA.value: str,
                    Format.TEXT.value: str,
                    Format.EVENTS.value: [dict],
                },
            )
        },
        fails=(*api.TOPIC, *api.STORE, *POLL_FAILS),
    )
    def poll(self, topic: str, group: str, consumer: str) -> Response:
        """Answer messages of the topic, waiting for some; HEAD reads nothing."""
        return run_blocking(self.polled(request.environ, topic, group, consumer)).response()

    def polled(
        self, environ: WSGIEnvironment, topic: str, group: str, consumer: str
    ) -> Steps[DirectAnswer]:
        """Answer as `poll` does."""
        principal = self._access.principal(environ)
        name = self._topic_name(topic)
        subscription = Subscription(name, consumer_name(group, "group"))
        consumer = consumer_name(consumer, "consumer")
        self._access.authorize(principal, name, Right.SUBSCRIBE)
        choice = answer_format(environ.get("HTTP_ACCEPT"), environ.get("CONTENT_TYPE"))
        poll_request = self._request(subscription, consumer, Query(environ))
        requests.no_body(environ, self._reader.bounds.batch)
        if environ["REQUEST_METHOD"] == "HEAD":
            return DirectAnswer((b"",), [("Content-Type", _KINDS[choice]), *NO_STORE])
        mailbox = PollMailbox()
        watch = offload.Watch(environ.get("gunicorn.socket"), mailbox.wake)
        try:
            poll = yield from self._subscriber.poll_steps(poll_request, mailbox, watch)
        except BaseException:
            watch.close()
            raise
        return self.answer_poll(environ, choice, poll, watch)

    def repeatable_poll(
        self, environ: WSGIEnvironment, names: tuple[str, ...], marks_of: MarksOf
    ) -> Prepared | None:
        """Return what begins the next polls with this head; raise what `polled` raises.

        None: the head says what only that poll has, or its client is looked at each time.
        """
        who = self._access.repeated(environ)
        if who is None or environ.get("CONTENT_LENGTH", "0") != "0":
            return None
        name = self._topic_name(names[0])
        subscription = Subscription(name, consumer_name(names[1], "group"))
        consumer = consumer_name(names[2], "consumer")
        poll_request = self._request(subscription, consumer, Query(environ))
        if poll_request.ack is AckMode.EXPLICIT:
            return None
        choice = answer_format(environ.get("HTTP_ACCEPT"), environ.get("CONTENT_TYPE"))
        marks = marks_of(_headers(choice, "%d"))
        authorize = partial(self._access.authorize, topic=name, right=Right.SUBSCRIBE)
        return PreparedPoll(
            marks,
            self._subscriber,
            poll_request,
            who=who,
            authorize=authorize,
            answers=self,
            form=choice,
        )

    def written(self, form: Format, poll: AnsweredPoll) -> bytes:
        """Return the body of an answer; CloudEvents that the router makes have the topic's path."""
        source = f"/events/{poll.topic.local}"
        size = sum(map(len, map(VALUE_OF, poll.messages)))
        if size > HEAVY_ANSWER_BYTES:
            return offload.run(bodies.write, form, poll.messages, source)
        return bodies.write(form, poll.messages, source)

    def answer_poll(
        self, environ: WSGIEnvironment, form: Format, poll: AnsweredPoll, watch: offload.Watch
    ) -> DirectAnswer:
        """Return the answer to a poll, which is acknowledged when it is written."""
        del environ
        try:
            body = self.written(form, poll)
        except BaseException:
            poll.abandon()
            watch.close()
            raise
        headers = _headers(form, str(len(body)))
        if poll.token is not None:
            headers.append((ACK_HEADER, poll.token))
        if not poll.messages:
            watch.close()
            return DirectAnswer((body,), headers)
        return DirectAnswer(Delivery(poll, body, watch), headers)

    def _request(self, subscription: Subscription, consumer: str, query: Query) -> PollRequest:
        options = self._options
        default, max_timeout = round(options.timeout * 1000), round(options.max_timeout * 1000)
        limit = query.number("limit", options.limit, options.limit)
        max_bytes = query.number("maxBytes", 0, options.max_bytes, BYTES)
        start = query.moment("from")
        poll_request = PollRequest(
            subscription,
            consumer,
            query.number("timeout", default, max_timeout, MILLISECONDS) / 1000,
            limit or options.limit,
            max_bytes or None,
            options.start if start is None else start,
        )
        ack = query.text("ack")
        if ack is None:
            return poll_request
        if ack in _ACK_MODES:
            return replace(poll_request, ack=_ACK_MODES[ack])
        # Anything else names an answer. Empty, it is a token that the client lost.
        answered = self._subscriber.tokens.read(ConsumerId(subscription, consumer), ack)
        poll_request = replace(poll_request, ack=AckMode.EXPLICIT, acknowledged=answered)
        return poll_request if limit else replace(poll_request, limit=0, limited=False)


def _with_subject(messages: Sequence[Message], subject: str) -> list[Message]:
    """Return messages with a subject; those that name one keep theirs."""
    given = {SUBJECT: subject}
    return [one._replace(properties={**given, **one.properties}) for one in messages]


def _headers(choice: Format, length: str) -> list[tuple[str, str]]:
    return [("Content-Type", _KINDS[choice]), *NO_STORE, ("Content-Length", length)]


def _body(environ: WSGIEnvironment, data: bytes, kind: str) -> bodies.PublishBody:
    """Return a body of this type and the head's coding, with the key that the query names."""
    key = (Query(environ).text("partitionKey") or "").encode() or None
    return bodies.PublishBody(media_type(kind), environ.get("HTTP_CONTENT_ENCODING", ""), data, key)


def incomplete(topic: str, missing: str) -> MissingConsumerError:
    """Return the failure that says what a poll's address lacks."""
    return MissingConsumerError(
        f"This is not a URL to poll: expected {missing} after it,"
        f" /events/{topic}/<group>/<id>. Got {request.path} from {request.remote_addr}."
    )


def _elapsed_ms(environ: WSGIEnvironment) -> int:
    """Return how long the request took up to now, in ms: the guide's `serverTimeMs` (seed 002)."""
    elapsed: float = environ[ELAPSED]()
    return round(elapsed * 1000)
