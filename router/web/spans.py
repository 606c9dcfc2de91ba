"""Traces with OpenTelemetry: spans of publishes and polls, by the conventions for messaging.

Theory of operation. This module is imported by a start that traces and by no other. A span's parent
is the context in the request's headers, and the span's own context takes its place there, so that
the messages of a publish carry it. Spans are never made current: a waiting publish or poll is taken
up by another greenlet. What a poll receives are links to the contexts that the messages carry.

Ended spans go into the SDK's queue, which is bounded and drops the oldest, and are exported by its
own thread, a greenlet under gevent. What is not exported when the worker ends has SHUTDOWN_SECONDS.
Each worker builds its own after the fork. Which exporter, sampler and queue, OTEL_* variables say.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Any, Final
from wsgiref.types import WSGIEnvironment

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace import (
    SpanContext,
    SpanKind,
    StatusCode,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from router.clocks.steps import Steps
from router.errors import RouterError, SettingError
from router.errors.quoting import quoted
from router.model import Stored
from router.process.build import VERSION
from router.services.consume import AnsweredPoll, ClientGoneError
from router.services.publish import PublishResult
from router.web import offload
from router.web.dmaap.events import Delivery, Events
from router.web.front import DirectAnswer, MarksOf
from router.web.media import Format
from router.web.tracing import TRACEPARENT, TRACESTATE, of_request, read_parent

SERVICE: Final = "dragoman"
SYSTEM: Final = "dragoman"
MAX_LINKS: Final = 128
MAX_NAME_CHARS: Final = 249
SHUTDOWN_SECONDS: Final = 3.0
_EXPORTERS: Final = "opentelemetry_traces_exporter"
_PROTOCOLS: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_CONTEXT: Final = TraceContextTextMapPropagator()
_OPERATION: Final = "router.operation"


def provider_of(variables: Mapping[str, str]) -> TracerProvider:
    """Return what records spans, exporting as the OTEL_* variables say; raise SettingError."""
    found = Resource.create()
    if str(found.attributes[SERVICE_NAME]).startswith("unknown_service"):
        found = found.merge(Resource({SERVICE_NAME: SERVICE, SERVICE_VERSION: VERSION}))
    provider = TracerProvider(resource=found, shutdown_on_exit=False)
    for name in variables.get("OTEL_TRACES_EXPORTER", "otlp").split(","):
        if name.strip() not in {"", "none"}:
            provider.add_span_processor(BatchSpanProcessor(_exporter(name.strip(), variables)))
    return provider


def _exporter(name: str, variables: Mapping[str, str]) -> SpanExporter:
    if name == "otlp":
        protocol = variables.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or variables.get(
            "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
        )
        name = _PROTOCOLS.get(protocol, protocol)
    found = next(iter(entry_points(group=_EXPORTERS, name=name)), None)
    if found is None:
        raise SettingError(
            f"tracing.enabled: there is no exporter {quoted(name)} (OTEL_TRACES_EXPORTER,"
            " OTEL_EXPORTER_OTLP_PROTOCOL)."
        )
    exporter: SpanExporter = found.load()()
    return exporter


class RecordedSpan:
    """An operation that is recorded."""

    def __init__(self, span: OtelSpan) -> None:
        self._span = span

    def stored(self, messages: int) -> None:
        """Note how many messages are stored."""
        self._span.set_attribute("messaging.batch.message_count", messages)

    def received(self, messages: Sequence[Stored]) -> None:
        """Note the messages that were received."""
        self._span.set_attribute("messaging.batch.message_count", len(messages))
        for context in _contexts(messages):
            self._span.add_link(context)


class Processing:
    """The handing over of what a poll received, until it is written and acknowledged, or not."""

    def __init__(self, span: OtelSpan) -> None:
        self._span = span
        self._ended = False

    def end(self, error: BaseException | None = None) -> None:
        """End; callable twice."""
        if not self._ended:
            self._ended = True
            if error is not None:
                _failed(self._span, error)
            self._span.end()


class Spans:
    """Records the operations of one worker."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(SERVICE, VERSION)

    @contextmanager
    def publishing(self, environ: WSGIEnvironment, topic: str) -> Iterator[RecordedSpan]:
        """Record a publish; the context of the request becomes that of the publish."""
        span = self._start("publish", "send", SpanKind.PRODUCER, environ, topic)
        own: dict[str, str] = {}
        _CONTEXT.inject(own, set_span_in_context(span, Context()))
        if TRACEPARENT in own:
            environ["HTTP_TRACEPARENT"] = own[TRACEPARENT]
            environ["HTTP_TRACESTATE"] = own.get(TRACESTATE, "")
        with _recorded(span):
            yield RecordedSpan(span)

    @contextmanager
    def receiving(self, environ: WSGIEnvironment, topic: str, group: str) -> Iterator[RecordedSpan]:
        """Record a poll of a group, or a reading where it is empty, until it has its messages."""
        span = self._start("receive", "receive", SpanKind.CLIENT, environ, topic, group)
        with _recorded(span):
            yield RecordedSpan(span)

    def processing(
        self, environ: WSGIEnvironment, topic: str, group: str, messages: Sequence[Stored]
    ) -> Processing:
        """Record how messages are handed over, from now on."""
        span = self._start("process", "process", SpanKind.CONSUMER, environ, topic, group)
        RecordedSpan(span).received(messages)
        return Processing(span)

    def close(self) -> None:
        """Export what is left, within SHUTDOWN_SECONDS."""
        ending = threading.Thread(target=self._provider.shutdown, name="tracing-end", daemon=True)
        ending.start()
        ending.join(SHUTDOWN_SECONDS)

    def _start(
        self,
        name: str,
        kind: str,
        role: SpanKind,
        environ: WSGIEnvironment,
        topic: str,
        group: str = "",
    ) -> OtelSpan:
        topic = topic[:MAX_NAME_CHARS]
        attributes = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": name,
            "messaging.operation.type": kind,
            "messaging.destination.name": topic,
        }
        if group:
            attributes["messaging.consumer.group.name"] = group[:MAX_NAME_CHARS]
        parent = _CONTEXT.extract(dict(of_request(environ)), Context())
        return self._tracer.start_span(f"{name} {topic}", parent, role, attributes)


@contextmanager
def _recorded(span: OtelSpan) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        _failed(span, error)
        raise
    finally:
        span.end()


def _failed(span: OtelSpan, error: BaseException) -> None:
    """Note a failure: its stable code, and the sentence of the answer."""
    if isinstance(error, RouterError):
        span.set_attribute("error.type", error.code)
        span.set_status(StatusCode.ERROR, str(error))
    else:
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(StatusCode.ERROR)


def _contexts(messages: Sequence[Stored]) -> Iterator[SpanContext]:
    """Yield the contexts that messages carry, each once, MAX_LINKS at most."""
    seen: set[str] = set()
    for stored in messages:
        given = stored.message.properties.get(TRACEPARENT)
        if given is None or given in seen or read_parent(given) is None:
            continue
        seen.add(given)
        found = _CONTEXT.extract({TRACEPARENT: given}, Context())
        yield get_current_span(found).get_span_context()
        if len(seen) == MAX_LINKS:
            return


class TracedEvents(Events):
    """The views of `/events`, whose publishes and polls are recorded."""

    def __init__(self, spans: Spans, *parts: Any) -> None:
        super().__init__(*parts)
        self._spans = spans

    def repeatable(
        self, environ: WSGIEnvironment, names: tuple[str, ...], marks_of: MarksOf
    ) -> None:
        """Return nothing: each publish is recorded, in its steps."""

    def repeatable_poll(
        self, environ: WSGIEnvironment, names: tuple[str, ...], marks_of: MarksOf
    ) -> None:
        """Return nothing: each poll is recorded, in its steps."""

    def _publish(self, environ: WSGIEnvironment, topic: str) -> Steps[PublishResult]:
        with self._spans.publishing(environ, topic) as operation:
            published = yield from super()._publish(environ, topic)
            operation.stored(published.count)
            return published

    def polled(
        self, environ: WSGIEnvironment, topic: str, group: str, consumer: str
    ) -> Steps[DirectAnswer]:
        """Answer as `poll` does."""
        with self._spans.receiving(environ, topic, group) as operation:
            environ[_OPERATION] = operation, topic, group
            return (yield from super().polled(environ, topic, group, consumer))

    def answer_poll(
        self, environ: WSGIEnvironment, form: Format, poll: AnsweredPoll, watch: offload.Watch
    ) -> DirectAnswer:
        """Answer as `answer_poll` of the views does."""
        operation, topic, group = environ[_OPERATION]
        operation.received(poll.messages)
        answer = super().answer_poll(environ, form, poll, watch)
        if not isinstance(answer.body, Delivery):
            return answer
        processing = self._spans.processing(environ, topic, group, poll.messages)
        return replace(answer, body=_Traced(answer.body, processing))


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
