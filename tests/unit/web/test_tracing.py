"""Spans of publishes and polls, as OpenTelemetry's conventions for messaging have them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from router import settings as all_settings
from router.app import create_app
from router.backends.memory import MemoryBackend, MemoryNode
from router.errors import SettingError
from router.model import TopicName
from router.web import spans
from tests.unit.web.applications import Site
from tests.unit.web.pulsar_rest.rest import Rest

Sites = Callable[..., Site]
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE, SPAN = PARENT[3:35], PARENT[36:52]
STATE = "rojo=00f067aa0ba902b7"


class Traced:
    """A site, and the spans that ended there."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.exporter = InMemorySpanExporter()
        spans_of(site)._provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def taken(self) -> list[ReadableSpan]:
        """Return the spans since the last call, the first to end first."""
        found = list(self.exporter.get_finished_spans())
        self.exporter.clear()
        return found

    def carried(self) -> dict[str, str]:
        """Return the properties of the last message stored."""
        return dict(self.site.backend.published[-1].messages[-1].properties)


def spans_of(site: Site) -> spans.Spans:
    view: Any = site.app.view_functions["events.publish"]
    found: spans.Spans = view.__self__._spans
    return found


@pytest.fixture
def traced(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> Traced:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    # The SDK's own bound is as large as ours by itself.
    monkeypatch.setenv("OTEL_SPAN_LINK_COUNT_LIMIT", "1000")
    return Traced(sites(tracing_enabled="true"))


def hexes(span: ReadableSpan) -> tuple[str, str]:
    context = span.get_span_context()
    assert context is not None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


def test_publish_is_a_span_whose_context_its_messages_carry(traced: Traced) -> None:
    headers = {"traceparent": PARENT, "tracestate": STATE}
    assert traced.site.post("/events/t", "a\nb", headers=headers).status_code == 200
    [span] = traced.taken()
    trace, own = hexes(span)
    assert (span.name, span.kind) == ("publish t", SpanKind.PRODUCER)
    assert trace == TRACE
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == SPAN
    assert traced.carried() == {"traceparent": f"00-{TRACE}-{own}-01", "tracestate": STATE}
    assert dict(span.attributes or {}) == {
        "messaging.system": "dragoman",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "t",
        "messaging.batch.message_count": 2,
    }
    assert span.resource.attributes["service.name"] == "dragoman"


@pytest.mark.parametrize("parent", [None, "nonsense", PARENT.upper()])
def test_publish_without_a_valid_context_begins_a_trace(traced: Traced, parent: str | None) -> None:
    headers = {} if parent is None else {"traceparent": parent, "tracestate": STATE}
    traced.site.post("/events/t", "a", headers=headers)
    [span] = traced.taken()
    assert span.parent is None
    # The flag beside "sampled" says that the trace's id is random.
    assert traced.carried() == {"traceparent": "00-{}-{}-03".format(*hexes(span))}


@pytest.mark.slow
def test_context_that_is_not_sampled_is_passed_on_and_not_recorded(traced: Traced) -> None:
    traced.site.post("/events/t", "a", headers={"traceparent": f"{PARENT[:-2]}00"})
    assert traced.taken() == []
    assert traced.carried()["traceparent"].startswith(f"00-{TRACE}-")
    assert traced.carried()["traceparent"].endswith("-00")


def test_refused_publish_is_a_failed_span(traced: Traced) -> None:
    assert traced.site.post("/events/t", "{", "application/json").status_code == 400
    [span] = traced.taken()
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "bad-json"


def test_poll_is_received_and_processed_with_links_to_what_was_published(traced: Traced) -> None:
    traced.site.post("/events/t", "a\nb", headers={"traceparent": PARENT})
    traced.site.post("/events/t", "c")
    published = [hexes(span) for span in traced.taken()]
    other = PARENT.replace(TRACE, "1" * 32)
    assert traced.site.poll(traceparent=other).get_json() == ["a", "b", "c"]
    receive, process = sorted(traced.taken(), key=lambda span: span.name, reverse=True)
    assert (receive.name, receive.kind) == ("receive t", SpanKind.CLIENT)
    assert (process.name, process.kind) == ("process t", SpanKind.CONSUMER)
    for span in (receive, process):
        assert hexes(span)[0] == "1" * 32
        linked = [(f"{x.context.trace_id:032x}", f"{x.context.span_id:016x}") for x in span.links]
        assert linked == published
        attributes = dict(span.attributes or {})
        assert attributes["messaging.consumer.group.name"] == "g"
        assert attributes["messaging.batch.message_count"] == 3
        assert span.status.status_code is StatusCode.UNSET


def test_poll_without_messages_is_received_and_not_processed(traced: Traced) -> None:
    traced.site.post("/events/t", "a")
    traced.site.poll()
    traced.taken()
    assert traced.site.poll().get_json() == []
    [span] = traced.taken()
    assert span.name == "receive t"
    assert (span.attributes or {})["messaging.batch.message_count"] == 0


def test_answer_that_is_not_taken_is_a_failed_span(traced: Traced) -> None:
    traced.site.post("/events/t", "a")
    traced.taken()
    answer = traced.site.client.get("/events/t/g/c?timeout=0&from=earliest")
    answer.close()
    receive, process = traced.taken()
    assert receive.status.status_code is StatusCode.UNSET
    assert process.status.status_code is StatusCode.ERROR
    assert (process.attributes or {})["error.type"] == "ClientGoneError"
    assert traced.site.poll().get_json() == ["a"]


def test_links_are_bounded(traced: Traced) -> None:
    traced.site.client.post("/topics/create", json={"topicName": "t"})
    for number in range(1, spans.MAX_LINKS + 10):
        properties = {"traceparent": f"00-{number:032x}-{number:016x}-01"}
        Rest(traced.site.client, "t").produce({"value": "v", "properties": properties})
    traced.taken()
    traced.site.poll()
    receive, process = traced.taken()
    assert len(receive.links) == len(process.links) == spans.MAX_LINKS


def test_pip64_is_traced_as_well(traced: Traced) -> None:
    traced.site.client.post("/topics/create", json={"topicName": "t"})
    rest = Rest(traced.site.client, "t")
    consumer = rest.consumer()
    rest.produce({"value": "a"}, {"value": "b"})
    [publish] = traced.taken()
    assert (publish.name, (publish.attributes or {})["messaging.batch.message_count"]) == (
        "publish t",
        2,
    )
    assert len(consumer.fetch()) == 2
    assert len(rest.read()) == 2
    fetched, read = traced.taken()
    assert fetched.name == read.name == "receive t"
    assert "messaging.consumer.group.name" in (fetched.attributes or {})
    assert "messaging.consumer.group.name" not in (read.attributes or {})
    for span in (fetched, read):
        assert [f"{link.context.span_id:016x}" for link in span.links] == [hexes(publish)[1]]


@pytest.mark.slow
def test_start_without_tracing_imports_none_of_it() -> None:
    program = (
        "import sys; from router.app import create_app; from router.settings import load;"
        "from router.backends.memory import MemoryBackend, MemoryNode;"
        "app = create_app(load(None, {}), MemoryBackend(), MemoryNode());"
        "app.test_client().post('/events/t', data='x');"
        "app.extensions['router.close']();"
        "print(sorted(name for name in sys.modules if name.startswith('opentelemetry')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_TRACES_EXPORTER": "absent"},
        {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
    ],
)
def test_exporter_that_is_not_there_stops_the_start(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings = all_settings.load(None, {}, {"tracing.enabled": "true"})
    with pytest.raises(SettingError, match=r"tracing\.enabled: there is no exporter"):
        create_app(settings, MemoryBackend(), MemoryNode())


def test_missing_packages_stop_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "router.web.spans", None)
    settings = all_settings.load(None, {}, {"tracing.enabled": "true"})
    with pytest.raises(SettingError, match=r"extra `opentelemetry`"):
        create_app(settings, MemoryBackend(), MemoryNode())


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """An exporter that does not come back from an export until the event is set."""
    released = threading.Event()

    class Hanging(InMemorySpanExporter):
        def export(self, spans: Any) -> Any:
            released.wait(30)
            return super().export(spans)

    monkeypatch.setattr(spans, "_exporter", lambda name, variables: Hanging())
    monkeypatch.setattr(spans, "SHUTDOWN_SECONDS", 0.1)
    yield released
    released.set()


def test_exporter_that_hangs_holds_up_neither_requests_nor_the_end(
    sites: Sites, hanging: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "16")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    site = sites(tracing_enabled="true")
    for _ in range(60):
        assert site.post("/events/t", "a").status_code == 200
    [processor] = spans_of(site)._provider._active_span_processor._span_processors
    assert len(processor._batch_processor._queue) == 16  # type: ignore[attr-defined]
    ended = threading.Thread(target=site.app.extensions["router.close"])
    ended.start()
    ended.join(20)
    assert not ended.is_alive()
    assert not hanging.is_set()
    assert TopicName.parse("t") in {info.topic for info in site.backend.list_topics(1)}
