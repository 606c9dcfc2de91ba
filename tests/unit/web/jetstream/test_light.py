"""Light clients: `+OK` and `-ERR`, what publishing hands on, and acknowledging by tokens."""

from __future__ import annotations

import gzip
import json
from typing import Any
from urllib.parse import parse_qsl, unquote

import pytest
from hypothesis import given as holds
from hypothesis import strategies as st

from router.errors import (
    BackendUnavailableError,
    ForbiddenError,
    OutcomeUnknownError,
    SubscriptionNotFoundError,
)
from router.web.jetstream import light
from router.web.jetstream.acks import MAX_TOKENS
from router.wire.nats.headers import read
from router.wire.nats.message import AckResult
from tests.unit.web.applications import Site
from tests.unit.web.jetstream.conftest import Open
from tests.unit.web.jetstream.streams import FakeStreams, given

STORED = {"stream": "ORDERS", "seq": 10}
TOKEN = given(7, b"").reply


def publish(site: Site, body: bytes | str = b"x", path: str = "orders.new", **more: Any) -> Any:
    return site.client.post(f"/jetstream/publish/{path}", data=body, **more)


@pytest.fixture(params=["direct", "flask"], autouse=True)
def way(request: pytest.FixtureRequest) -> None:
    """Answers are the same by the views that the front calls itself and through Flask."""
    if request.param == "flask":
        request.getfixturevalue("through_flask")


@holds(st.dictionaries(st.sampled_from(["reason", "stream", "code"]), st.text(min_size=1)))
def test_fields_can_be_read_back_by_any_url_decoder(fields: dict[str, str]) -> None:
    for prefix, line in (("+OK", light.ok(fields)), ("-ERR", light.err(fields))):
        assert line.startswith(prefix)
        assert "+" not in line[1:]
        assert line.isascii()
        assert dict(parse_qsl(line.removeprefix(prefix).lstrip(" "))) == fields
        assert all("=" in pair and unquote(pair) for pair in line.split(" ")[1:])


def test_the_four_forms_are_those_of_the_seed() -> None:
    assert light.ok() == "+OK"
    assert light.ok({"stream": "ORDERS", "sequence": 10}) == "+OK stream=ORDERS&sequence=10"
    assert light.err() == "-ERR"
    fields = {"reason": "reason for failure", "stream": "STREAM"}
    assert light.err(fields) == "-ERR reason=reason%20for%20failure&stream=STREAM"


def test_publish_answers_where_the_message_is(site: Site, streams: FakeStreams) -> None:
    streams.answers("orders.", STORED, {**STORED, "duplicate": True})
    answer = publish(site)
    assert (answer.status_code, answer.text) == (200, "+OK stream=ORDERS&sequence=10")
    assert answer.mimetype == "text/plain"
    assert publish(site).text == "+OK stream=ORDERS&sequence=10&duplicate=true"
    streams.answers("orders.", STORED)
    answer = publish(site, path="orders.new?form=v1")
    assert (answer.mimetype, answer.get_json()) == ("application/json", STORED)


def test_publish_that_a_service_answers_is_ok(site: Site, streams: FakeStreams) -> None:
    streams.answers("orders.", [given(1, b"pong")])
    assert publish(site).text == "+OK"


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "application/json", ""])
def test_the_body_is_the_message_whatever_its_type(
    site: Site, streams: FakeStreams, kind: str
) -> None:
    streams.answers("orders.", STORED)
    body = b'a=b&c={"\n\x00\xff'
    publish(site, body, content_type=kind)
    assert streams.asked[-1].message == ("orders.new", "", b"", body)
    publish(site, b"")
    assert streams.asked[-1].message.payload == b""


def test_headers_of_nats_are_those_of_the_message(site: Site, streams: FakeStreams) -> None:
    streams.answers("orders.", STORED)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    given_headers = {
        "nats-msg-id": "17",
        "Nats-Expected-Last-Sequence": "9",
        "Nats-TTL": "1h",
        "Nats-Colour": "gr\xc3\xbcn",  # UTF-8, as WSGI has it
        "KV-Operation": "DEL",
        "Nats-Api-Form": "seed",
        "X-Other": "no",
        "traceparent": parent,
    }
    publish(site, headers=given_headers)
    assert sorted(read(streams.asked[-1].message.headers)) == [
        ("KV-Operation", "DEL"),
        ("Nats-Colour", "grün"),
        ("Nats-Expected-Last-Sequence", "9"),
        ("Nats-Msg-Id", "17"),
        ("Nats-TTL", "1h"),
        ("traceparent", parent),
    ]


def test_a_refusal_names_its_stream(site: Site, streams: FakeStreams) -> None:
    fault = {"code": 400, "err_code": 10071, "description": "wrong last sequence: 10"}
    refused = {"error": fault, "stream": "ORDERS", "seq": 0}
    streams.answers("orders.", refused)
    answer = publish(site)
    line = "-ERR reason=wrong%20last%20sequence%3A%2010&stream=ORDERS&code=10071"
    assert (answer.status_code, answer.text) == (400, line)
    answer = publish(site, path="orders.new?form=v1")
    assert (answer.status_code, answer.get_json()) == (400, refused)


def test_a_subject_without_a_stream_is_not_found(site: Site) -> None:
    answer = publish(site)
    assert (answer.status_code, answer.text[:12]) == (404, "-ERR reason=")


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (BackendUnavailableError("away"), 503),
        (OutcomeUnknownError(), 504),
        (ForbiddenError("no"), 403),
    ],
)
def test_failures_are_err_with_their_reason(
    site: Site, streams: FakeStreams, failure: Exception, status: int
) -> None:
    streams.answers("orders.", failure)
    answer = publish(site)
    assert (answer.status_code, answer.mimetype) == (status, "text/plain")
    assert dict(parse_qsl(answer.text.removeprefix("-ERR ")))["reason"] == str(failure)


def test_a_mistake_of_ours_is_err_without_a_reason(site: Site, streams: FakeStreams) -> None:
    streams.answers("orders.", ZeroDivisionError())
    answer = publish(site)
    assert (answer.status_code, answer.text) == (500, "-ERR")


def test_publish_that_is_not_acknowledged_in_time_says_so(site: Site, streams: FakeStreams) -> None:
    streams.answers("orders.", [])
    assert publish(site).status_code == 504


@pytest.mark.parametrize(
    "subject",
    ["a.*", "a.>", "a..b", ".a", "a%20b", "a%0Ab", "%ff", "$JS.API.STREAM.DELETE.S", TOKEN],
)
def test_a_subject_that_no_message_can_have_is_refused(
    site: Site, streams: FakeStreams, subject: str
) -> None:
    streams.answers("", STORED)
    answer = publish(site, path=subject)
    assert (answer.status_code, answer.text[:4]) == (400, "-ERR")
    assert not streams.asked


def test_publish_demands_nothing_of_the_store_while_jetstream_is_off(
    opened: Open, streams: FakeStreams
) -> None:
    streams.answers("orders.", STORED)
    answer = publish(opened(jetstream_enabled="no"))
    assert (answer.status_code, answer.text) == (
        503,
        "-ERR reason=JetStream%20not%20enabled&code=10076",
    )
    assert not streams.asked


def test_bodies_are_bounded_and_may_be_compressed(opened: Open, streams: FakeStreams) -> None:
    site = opened(publish_max_message="100", publish_max_batch="2K", nats_max_payload="1K")
    streams.answers("orders.", STORED)
    for size, headers in ((1_025, {}), (5_000, {}), (1_024, {"Nats-Msg-Id": "1"})):
        answer = publish(site, b"x" * size, headers=headers)
        assert (answer.status_code, answer.text[:4]) == (413, "-ERR")
    publish(site, b"x" * 1_024)
    assert len(streams.asked.pop().message.payload) == 1_024
    packed = gzip.compress(b"pears")
    publish(site, packed, headers={"Content-Encoding": "gzip"})
    assert [asked.message.payload for asked in streams.asked] == [b"pears"]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_publish_is_a_post(site: Site, method: str) -> None:
    answer = site.client.open("/jetstream/publish/x", method=method)
    assert (answer.status_code, answer.text[:4]) == (405, "-ERR")


KINDS = {
    "/jetstream/ack": b"+ACK",
    "/jetstream/nak": b"-NAK",
    "/jetstream/nak?delay=5000": b'-NAK {"delay": 5000000000}',
    "/jetstream/term": b"+TERM",
    "/jetstream/term?reason=broken%20thing": b"+TERM broken thing",
    "/jetstream/in-progress": b"+WPI",
}


@pytest.mark.parametrize("path", sorted(KINDS))
def test_acknowledgements_go_to_the_token(site: Site, streams: FakeStreams, path: str) -> None:
    bodies = [TOKEN, f"{TOKEN}\n", json.dumps({"token": TOKEN}), json.dumps({"tokens": [TOKEN]})]
    for body in bodies:
        answer = site.client.post(path, data=body)
        assert (answer.status_code, answer.text) == (200, "+OK")
        asked = streams.acked[-1]
        assert (asked.subjects, asked.payload) == ([TOKEN], KINDS[path])
    assert len(streams.acked) == len(bodies)


def test_of_several_tokens_a_failure_says_how_many_are_done(
    site: Site, streams: FakeStreams
) -> None:
    tokens = [given(number, b"").reply for number in (1, 2, 3)]
    streams.result = AckResult(1, SubscriptionNotFoundError("no consumer"))
    answer = site.client.post("/jetstream/ack", data="\n".join(tokens))
    fields = dict(parse_qsl(answer.text.removeprefix("-ERR ")))
    assert answer.status_code == 404
    assert fields == {"reason": "no consumer", "token": tokens[1], "done": "1"}


def test_of_acknowledgements_without_an_answer_none_counts_as_done(
    site: Site, streams: FakeStreams
) -> None:
    streams.result = OutcomeUnknownError()
    answer = site.client.post("/jetstream/ack", data=f"{TOKEN}\n{TOKEN}")
    fields = dict(parse_qsl(answer.text.removeprefix("-ERR ")))
    assert (answer.status_code, fields["token"], fields["done"]) == (504, TOKEN, "0")


def test_all_tokens_of_a_request_are_one_request_of_the_store(
    site: Site, streams: FakeStreams
) -> None:
    tokens = [given(number, b"").reply for number in range(1, MAX_TOKENS + 2)]
    answer = site.client.post("/jetstream/ack", data="\n".join(tokens[:-1]))
    assert (answer.status_code, answer.text) == (200, "+OK")
    assert [asked.subjects for asked in streams.acked] == [tokens[:-1]]
    answer = site.client.post("/jetstream/ack", json={"tokens": tokens})
    assert (answer.status_code, answer.text[:4]) == (400, "-ERR")
    assert len(streams.acked) == 1


@pytest.mark.parametrize(
    "body",
    [
        *("", "x", "{", "{}", '{"tokens":[]}', '{"token":1}', '{"tokens":"x"}'),
        *("$JS.API.STREAM.DELETE.S", "orders.new", "$JS.ACK.a.b.c", "$JS.ACK.S.c.x.1.1.1.1"),
        *(f"{TOKEN} x", f"{TOKEN}.1", f"{TOKEN.rpartition('.')[0]}.", f"{TOKEN}9".ljust(140, "9")),
        json.dumps({"token": TOKEN.replace("ORDERS", "ORD\x00ERS")}),
    ],
)
def test_what_is_no_token_is_sent_nowhere(site: Site, streams: FakeStreams, body: str) -> None:
    answer = site.client.post("/jetstream/ack", data=body)
    assert (answer.status_code, answer.text[:4]) == (400, "-ERR")
    assert not streams.acked


def test_a_token_may_name_a_domain_and_an_account(site: Site, streams: FakeStreams) -> None:
    tokens = [
        f"$JS.ACK.hub.account.{TOKEN.removeprefix('$JS.ACK.')}{more}" for more in ("", ".x", ".x.y")
    ]
    assert site.client.post("/jetstream/ack", data="\n".join(tokens)).text == "+OK"
    assert streams.acked[-1].subjects == tokens
