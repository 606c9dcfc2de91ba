"""Plain publishes and polls are answered without Flask as Flask would answer them."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.routing import Rule

from router.errors import BackendUnavailableError, DiskFullError, RouterError
from router.web.front import DIRECT
from tests.unit.web.applications import HASHES, Site, header

PAGE = "https://pages.example"
ANNA = header("anna", "secret")
WHO = [ANNA, ANNA, ANNA, header("anna", "wrong"), "Basic !", "Bearer x", ""]
HEADERS = {
    "Origin": [PAGE, "https://foreign.example", "null"],
    "Sec-Fetch-Site": ["cross-site", "same-origin"],
    "Content-Encoding": ["gzip", "deflate", "br"],
    "Idempotency-Key": ["1", "2", "x" * 300],
    "Transfer-Encoding": ["gzip"],
}
BODIES = [b"", b"a\nb", b'{"a":1}', b"[1", b"1.2.kab", gzip.compress(b"a"), b"\xff", b"x" * 3000]
KINDS = ["text/plain", "application/json", "application/cambria", "application/cambria-zip", ""]
QUERIES = ["", "partitionKey=k", "partitionKey=%ff", "&".join(["a=1"] * 101)]
TOPICS = ["t", "a.b_C-1", "..", "x" * 300, "closed"]
POLLED = ["read", "none", "x" * 300], ["g", "h", ".."], ["c", "x" * 300]
POLL_HEADERS = {
    "Origin": [PAGE, "https://foreign.example"],
    "Accept": [
        "application/json",
        "application/x-ndjson",
        "application/cambria",
        "text/plain",
        "?",
    ],
    "Content-Length": ["3000"],
}
TROUBLES: list[RouterError | None] = [None, BackendUnavailableError("away"), DiskFullError("full")]

requests = st.fixed_dictionaries(
    {
        "path": st.sampled_from(TOPICS).map("/events/{}".format),
        "data": st.sampled_from(BODIES),
        "content_type": st.sampled_from(KINDS),
        "query_string": st.sampled_from(QUERIES),
        "headers": st.fixed_dictionaries(
            {"Authorization": st.sampled_from(WHO)},
            optional={name: st.sampled_from(texts) for name, texts in HEADERS.items()},
        ),
    }
)

polls = st.fixed_dictionaries(
    {
        "path": st.tuples(*[st.sampled_from(names) for names in POLLED]).map(
            "/events/{0[0]}/{0[1]}/{0[2]}".format
        ),
        "query_string": st.sampled_from(
            ["timeout=0", "timeout=0&limit=1", "timeout=0&ack=no", "timeout=0&maxBytes=1"]
        ),
        "method": st.sampled_from(["GET", "GET", "GET", "HEAD", "OPTIONS"]),
        "headers": st.fixed_dictionaries(
            {"Authorization": st.sampled_from(WHO)},
            optional={name: st.sampled_from(texts) for name, texts in POLL_HEADERS.items()},
        ),
    }
)


@pytest.fixture(scope="module", params=["", PAGE])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Site, Site]]:
    """Two applications that are alike, but that one has all served by Flask."""
    users: Path = tmp_path_factory.mktemp("users") / "users"
    users.write_text(f"anna:{HASHES['argon2']}\n")
    settings = {
        "auth_users": str(users),
        "cors_origins": request.param,
        "publish_max_batch": "2K",
        # What is rationed by the minute may run out for one of the two a moment before the other.
        "consume_empty_polls_per_minute": "0",
        "auth_attempts_per_minute": "0",
        "auth_failures_per_minute": "0",
        # What was fetched comes to neither of the two again meanwhile.
        "pip64_ack_timeout": "1h",
    }
    direct, through_flask = Site(settings), Site(settings)
    assert len(through_flask.app.extensions[DIRECT]) == 17
    through_flask.app.extensions[DIRECT] = {}
    yield direct, through_flask
    direct.close()
    through_flask.close()


def told(
    site: Site, asked: dict[str, Any], unavailable_reason: RouterError | None
) -> tuple[Any, ...]:
    """Return what is answered, without times and ids, and what is stored."""
    site.backend.publishing[:] = [unavailable_reason]
    answer = site.client.post(**asked)
    body = json.loads(answer.data)
    assert answer.headers["transactionId"]
    for name in ("serverTimeMs", "transactionid", "transactionId"):
        body.pop(name, None)
    given_headers = {(name, text) for name, text in answer.headers if name != "transactionId"}
    lengthless = {(name, text) for name, text in given_headers if name != "Content-Length"}
    assert int(answer.headers["Content-Length"]) == len(answer.data)
    site.backend.publishing.clear()
    stored = [batch.messages for batch in site.backend.published]
    site.backend.published.clear()
    return answer.status, lengthless, body, stored


@pytest.mark.slow
@given(asked=requests, unavailable_reason=st.sampled_from(TROUBLES))
def test_plain_publish_is_answered_as_flask_would(
    pair: tuple[Site, Site], asked: dict[str, Any], unavailable_reason: RouterError | None
) -> None:
    direct, through_flask = pair
    assert told(direct, asked, unavailable_reason) == told(through_flask, asked, unavailable_reason)


def polled(site: Site, asked: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a poll is answered, when there are three messages."""
    for value in (b"a", b"b", b"c" * 9):
        stored = site.client.post("/events/read", data=value, headers={"Authorization": ANNA})
        assert stored.status_code == 200
    answer = site.client.open(**asked, buffered=True)
    headers = {(name, text) for name, text in answer.headers if name != "transactionId"}
    assert answer.headers["transactionId"]
    # The two are not stored in the same millisecond.
    own = rb'"transactionid":"[^"]*"|"publish_time":[0-9]+'
    return answer.status, headers, re.sub(own, b"", answer.data)


@pytest.mark.slow
@given(asked=polls)
def test_poll_is_answered_as_flask_would(pair: tuple[Site, Site], asked: dict[str, Any]) -> None:
    direct, through_flask = pair
    assert polled(direct, asked) == polled(through_flask, asked)


REST = "/topics/public/default/rest"
GROUP = f"{REST}/subscription/s"
FETCH = f"{GROUP}/consumer/c/messages?timeout=0"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", REST, '{"schema_type":"STRING","messages":[{"value":"a","key":"k"}]}'),
        ("POST", "/topics/persistent/public/default/rest", '{"messages":[{"value":"a"}]}'),
        ("POST", REST, '{"messages":[{"payload":"a"}]}'),
        ("POST", REST, '{"messages":[{"payload":"a"}],"schema_type":"STRING"}'),
        ("POST", REST, '{"producerName":"p","messages":[{"payload":{}}]}'),
        ("POST", REST, '{"messages":[{"value":"a","partition":7}]}'),
        ("POST", REST, '{"messages":[{"value":"%s"}]}' % ("a" * 3000)),
        ("POST", REST, "{"),
        ("POST", REST, ""),
        ("POST", "/topics/public/default/none", '{"messages":[{"value":"a"}]}'),
        ("POST", "/topics/public/default/..", '{"messages":[{"value":"a"}]}'),
        ("GET", FETCH, ""),
        ("GET", f"{FETCH}&max_messages=1&schema_type=bytes", ""),
        ("GET", f"{FETCH}&max_messages=x", ""),
        ("GET", f"{GROUP}/consumer/none/messages?timeout=0", ""),
        ("HEAD", FETCH, ""),
        ("POST", f"{GROUP}/cursor", '{"type":"individual","messageIds":["%s"]}'),
        ("POST", f"{GROUP}/cursor", '{"messageIds":[]}'),
        ("POST", f"{GROUP}/cursor", '{"messageIds":["?"]}'),
        ("POST", f"{GROUP}/cursor", "[]"),
        ("POST", "/topics/public/default/none/subscription/s/cursor", '{"messageIds":["%s"]}'),
    ],
)
@pytest.mark.parametrize("headers", [{}, {"Origin": PAGE}, {"Authorization": "Basic !"}])
def test_pip64_is_answered_and_counted_as_flask_would(
    pair: tuple[Site, Site], method: str, path: str, body: str, headers: dict[str, str]
) -> None:
    given_headers = {"Authorization": ANNA, **headers}
    answers = [rest_answered(site, method, path, body, given_headers) for site in pair]
    assert answers[0] == answers[1]


def rest_answered(
    site: Site, method: str, path: str, body: str, headers: dict[str, str]
) -> tuple[Any, ...]:
    """Return what a call of PIP 64 is answered where a consumer has a message, and its metrics."""
    sent: Any = {"headers": {"Authorization": ANNA}}
    assert site.client.post("/events/rest", data=b"waits", **sent).status_code == 200
    created = b'{"id":"c","start":"earliest"}'
    assert site.client.post(GROUP, data=created, **sent).status_code == 200
    (found,) = site.client.get(f"{FETCH}&max_messages=1", **sent).get_json()["messages"]
    body = body.replace("%s", found["messageId"])
    answer = site.client.open(path, method=method, data=body, headers=headers, buffered=True)
    assert answer.headers["transactionId"]
    marks = {(name, text) for name, text in answer.headers if name != "transactionId"}
    lines = site.client.get("/metrics", **sent).get_data(as_text=True).splitlines()
    mine = [line for line in lines if "pip64" in line]
    counted = [line for line in mine if line.startswith("router_http_requests_total")]
    return answer.status, marks, re.sub(rb'"publishTime":[0-9]+', b"", answer.data), counted


def test_plain_publish_is_counted_as_any_request(pair: tuple[Site, Site]) -> None:
    counted = []
    for site in pair:
        sent = {"Authorization": ANNA}
        assert site.client.post("/events/t", data=b"a", headers=sent).status_code == 200
        lines = site.client.get("/metrics", headers=sent).get_data(as_text=True).splitlines()
        mine = [line for line in lines if 'route="/events/<topic>"' in line]
        counted.append([line for line in mine if line.startswith("router_http_requests_total")])
    assert counted[0] == counted[1] != []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/events/t", 200),
        ("GET", "/events/t/g/c?timeout=0", 200),
        ("GET", "/topics", 200),
        ("GET", "/health", 200),
        ("GET", "/nowhere", 404),
        ("PUT", "/topics", 405),
        ("GET", "/events/none/g/c", 404),
        ("POST", f"/events/{'x' * 300}", 400),
        ("GET", "/admin/v2/tenants/none", 404),
    ],
)
def test_no_answer_is_to_be_taken_for_another_type(method: str, path: str, status: int) -> None:
    site = Site({})
    try:
        site.post("/events/t", "<script>")
        answer = site.client.open(path, method=method, data=b"a" if method == "POST" else None)
    finally:
        site.close()
    assert answer.status_code == status
    assert answer.headers.getlist("X-Content-Type-Options") == ["nosniff"]


def test_no_route_compiles_what_makes_urls(
    sites: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Rule] = []
    monkeypatch.setattr(Rule, "_compile_builder", lambda rule, _unknown: compiled.append(rule))
    sites()
    assert not compiled
