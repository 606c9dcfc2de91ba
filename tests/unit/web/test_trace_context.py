"""The trace context of a request is carried by its messages, if it is valid; nothing is refused."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from router.model import Message
from router.web.tracing import MAX_STATE_CHARS, read_parent, read_state
from tests.unit.web.applications import Site

Sites = Callable[..., Site]
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STATE = "rojo=00f067aa0ba902b7,congo@x=t61"
CONTEXT = {"traceparent": PARENT, "tracestate": STATE}


def stored(site: Site) -> list[Message]:
    return [message for batch in site.backend.published for message in batch.messages]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [
        ("/events/t", "text/plain", "a\nb"),
        ("/events/transaction/t", "application/json", '[{"a":1},{"b":2}]'),
        ("/events/t", "application/cambria", "1.1.ka0.1.b"),
        ("/topics/public/default/t", "", '{"messages":[{"value":"a"},{"value":"b"}]}'),
        ("/topics/public/default/t/partitions/0", "", '{"messages":[{"payload":"a"}]}'),
    ],
)
def test_context_of_a_request_is_carried_by_its_messages(
    site: Site, path: str, kind: str, body: str
) -> None:
    site.client.post("/topics/create", json={"topicName": "t"})
    answer = site.post(path, body, kind, headers=CONTEXT)
    assert answer.status_code == 200, answer.text
    assert stored(site)
    assert [message.properties for message in stored(site)] == [CONTEXT] * len(stored(site))
    lines = site.poll(Accept="application/x-ndjson").data.splitlines()
    assert [json.loads(line)["properties"] for line in lines] == [CONTEXT] * len(lines)


def test_context_that_a_message_has_itself_stays(site: Site) -> None:
    own = {"traceparent": "its own", "other": "x"}
    messages = [{"value": "a", "properties": own}, {"value": "b", "properties": {"other": "x"}}]
    body = json.dumps({"messages": messages})
    site.client.post("/topics/create", json={"topicName": "t"})
    site.post("/topics/public/default/t", body, "", headers=CONTEXT)
    assert [message.properties for message in stored(site)] == [own, {"other": "x"} | CONTEXT]


def test_event_carries_its_own_context_beside_that_of_the_request(site: Site) -> None:
    event = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
    other = PARENT.replace("b7", "c8")
    site.post("/events/t", "x", headers=event | CONTEXT | {"ce-traceparent": other})
    [message] = stored(site)
    assert message.properties["ce_traceparent"] == other
    assert message.properties["traceparent"] == PARENT
    answer = site.poll(Accept="application/cloudevents-batch+json").get_json()
    assert answer[0]["traceparent"] == other


def test_message_that_is_no_event_shows_its_context_as_one(site: Site) -> None:
    site.post("/events/t", "x", headers=CONTEXT)
    [event] = site.poll(Accept="application/cloudevents-batch+json").get_json()
    assert event["traceparent"] == PARENT
    assert event["tracestate"] == STATE


def test_message_that_the_context_would_make_too_large_is_stored_without(sites: Sites) -> None:
    site = sites(publish_max_message="100")
    assert site.post("/events/t", f"{'x' * 100}\nsmall", headers=CONTEXT).status_code == 200
    assert site.post("/events/t", f"{'x' * 101}", headers=CONTEXT).status_code == 413
    large, small = stored(site)
    assert large.properties == {}
    assert small.properties == {}
    site.post("/events/t", "s", headers={"traceparent": PARENT})
    assert stored(site)[2].properties == {"traceparent": PARENT}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given_parent", "expected"),
    [
        (PARENT, PARENT),
        (PARENT[:-2] + "03", PARENT[:-2] + "03"),
        (f"cc{PARENT[2:-2]}ff-what-comes", f"{PARENT[:-2]}01"),
        (f"cc{PARENT[2:-2]}02", f"{PARENT[:-2]}00"),
        (f"ff{PARENT[2:]}", None),
        (PARENT.upper(), None),
        (f"{PARENT}-more", None),
        (f"{PARENT},{PARENT}", None),
        (f"{PARENT[:3]}{'0' * 32}{PARENT[35:]}", None),
        (f"{PARENT[:36]}{'0' * 16}{PARENT[52:]}", None),
        ("", None),
        ("\xff" * 9000, None),
    ],
)
def test_parent_is_read_as_the_recommendation_says(
    site: Site, given_parent: str, expected: str | None
) -> None:
    assert read_parent(given_parent) == expected
    headers = {"traceparent": given_parent, "tracestate": STATE}
    assert site.post("/events/t", "x", headers=headers).status_code == 200
    [message] = stored(site)
    found = {} if expected is None else {"traceparent": expected, "tracestate": STATE}
    assert message.properties == found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (STATE, STATE),
        (" a=1 ,, b=2\t", "a=1,b=2"),
        ("a=1,a=2", ""),
        ("A=1", ""),
        ("a", ""),
        ("a=", ""),
        ("a=b=c", ""),
        ("a=é", ""),
        (",".join(f"a{number}=1" for number in range(33)), ""),
        (f"{'k' * 257}=1", ""),
        (f"k={'v' * 256},a=1", f"k={'v' * 256},a=1"),
        (f"k={'v' * 257}", ""),
        (f"a=1,k={'v' * 200},l={'v' * 120},m={'v' * 250},n=2", f"a=1,l={'v' * 120},n=2"),
    ],
)
def test_state_is_bounded_and_empty_when_it_is_not_valid(text: str, expected: str) -> None:
    assert read_state(text) == expected


def test_state_that_is_too_long_loses_its_last_members() -> None:
    members = [f"a{number}={'v' * 100}" for number in range(9)]
    found = read_state(",".join(members))
    assert found == ",".join(members[:4])
    assert len(found) <= MAX_STATE_CHARS


_HEX = st.text("0123456789abcdefF", min_size=1, max_size=34)


@given(
    version=st.sampled_from(["00", "01", "ff", "0"]),
    trace=st.sampled_from([PARENT[3:35], "0" * 32]) | _HEX,
    span=st.sampled_from([PARENT[36:52], "0" * 16]) | _HEX,
    flags=st.sampled_from(["00", "01", "x1"]),
    more=st.sampled_from(["", "-", "-x"]),
)
def test_parent_is_valid_where_opentelemetry_takes_it(
    version: str, trace: str, span: str, flags: str, more: str
) -> None:
    text = f"{version}-{trace}-{span}-{flags}{more}"
    context = TraceContextTextMapPropagator().extract({"traceparent": text})
    known = get_current_span(context).get_span_context()
    found = read_parent(text)
    assert (found is not None) == known.is_valid
    if found is not None:
        assert found[3:52] == f"{known.trace_id:032x}-{known.span_id:016x}"
