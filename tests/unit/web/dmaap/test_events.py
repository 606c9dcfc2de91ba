"""Publishing and polling over HTTP."""

from __future__ import annotations

import gzip
import io
import json
import os
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from router.backends import Batch, Receipt, Start
from router.errors import OutcomeUnknownError
from router.model import Subscription, TopicInfo, TopicName
from router.services.consume import AckMode, ConnectedClient, PollMailbox, PollRequest
from router.web import offload
from router.web.dmaap.events import Delivery
from tests.processes import ManualClock
from tests.unit.web.applications import HASHES, Site, header

Sites = Callable[..., Site]
TOPIC = TopicName.parse("t")
WRITTEN = AckMode.WRITTEN


@pytest.mark.parametrize("path", ["/events/t", "/events/transaction/t"])
def test_publish_answers_the_milliseconds_that_it_took_and_the_count(
    site: Site, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    publish = site.backend.publish

    def slow(batch: Batch, timeout: float) -> Receipt:
        clock.advance(0.019)
        return publish(batch, timeout)

    monkeypatch.setattr(site.app, "_clock", clock)
    monkeypatch.setattr(site.backend, "publish", slow)
    answer = site.post(path, "a\nb\n")
    assert answer.status_code == 200
    assert answer.mimetype == "application/json"
    body = answer.get_json()
    assert body["count"] == 2
    assert body["serverTimeMs"] == 19


def test_publish_without_an_answer_says_that_the_outcome_is_unknown_and_how_to_repeat(
    site: Site,
) -> None:
    site.backend.publishing.append(OutcomeUnknownError.because("Kafka did not answer in time."))
    answer = site.post("/events/t", "a")
    assert (answer.status_code, answer.get_json()["mrErrorCode"]) == (504, 3006)
    sentence = answer.get_json()["message"]
    assert "It is unknown whether the messages are stored. Kafka did not answer" in sentence
    assert "Idempotency-Key" in sentence


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        ("text/plain", b"a\r\nb\n\nc", ["a", "b", "c"]),
        ("Text/Plain; charset=utf-8", "é".encode(), ["é"]),
        ("application/json", b' {"a" : 1.0} ', ['{"a" : 1.0}']),
        ("application/json;charset=UTF-8", b'[{"a":1},{"b":2}]', ['{"a":1}', '{"b":2}']),
        ("APPLICATION/JSON", b'{"a":1}\n{"b":2}\n', ['{"a":1}', '{"b":2}']),
        ("application/cambria", b"1.2.kab 0.1.c\n", ["ab", "c"]),
        ("application/cambria-zip", gzip.compress(b"1.2.kab0.1.c", mtime=0), ["ab", "c"]),
        ("text/xml", b"<a>\n</a>", ["<a>\n</a>"]),
        ("", b"raw\n", ["raw\n"]),
        ("application/x-www-form-urlencoded", b"a=b", ["a=b"]),
    ],
)
def test_publish_reads_each_format(site: Site, kind: str, body: bytes, expected: list[str]) -> None:
    assert site.post("/events/t", body, kind).get_json()["count"] == len(expected)
    assert site.poll().get_json() == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["text/plain", "application/json", "application/cambria", "application/cambria-zip", ""]
)
def test_publish_of_an_empty_body_is_no_message(site: Site, kind: str) -> None:
    answer = site.post("/events/t", b"", kind)
    assert (answer.status_code, answer.get_json()["count"]) == (200, 0)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_publish_reads_compressed_bodies(site: Site, coding: str) -> None:
    body = (gzip if coding == "gzip" else zlib).compress(b"a\nb")
    site.post("/events/t", body, headers={"Content-Encoding": coding})
    assert site.poll().get_json() == ["a", "b"]


def test_publish_reads_chunked_bodies(site: Site) -> None:
    site.client.post(
        "/events/t",
        input_stream=io.BytesIO(b"a\nb"),
        content_type="text/plain",
        environ_overrides={"wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked"},
    )
    assert site.poll().get_json() == ["a", "b"]


@pytest.mark.parametrize("compressed", [False, True])
def test_publish_hands_heavy_bodies_to_native_threads(site: Site, compressed: bool) -> None:
    body = b'{"a":"' + os.urandom(40_000).hex().encode() + b'"}\n'
    if not compressed:
        body *= 20
    sent = gzip.compress(body) if compressed else body
    used = []

    def run(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        used.append(function)
        return function(*args, **kwargs)

    site.body_reader().offload = run
    coding = {"Content-Encoding": "gzip"} if compressed else {}
    answer = site.post("/events/t", sent, "application/json", headers=coding)
    assert answer.get_json()["count"] == body.count(b"\n")
    assert len(used) == 1


def test_publish_with_any_error_stores_nothing(site: Site) -> None:
    assert site.post("/events/t", '[{"a":1},{"b":}]', "application/json").status_code == 400
    assert site.post("/events/t", b"0.1.a0.9.b", "application/cambria").status_code == 400
    assert site.backend.published == []


def keys(site: Site) -> list[bytes | None]:
    return [m.key for batch in site.backend.published for m in batch.messages]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "key"),
    [("", None), ("?partitionKey=", None), ("?partitionKey=k1", b"k1"),
     ("?partitionKey=%C3%A9+k&x=%zz", b"\xc3\xa9 k")],
)  # fmt: skip
def test_partition_key_is_taken_as_it_is(site: Site, query: str, key: bytes | None) -> None:
    site.post(f"/events/t{query}", "a")
    assert keys(site) == [key]


def test_partition_key_yields_to_keys_of_the_body(site: Site) -> None:
    body = '{"cambria.partition":"own"}{"a":1}'
    site.post("/events/t?partitionKey=k", body, "application/json")
    site.post("/events/t?partitionKey=k", "3.1.ownx0.1.y", "application/cambria")
    assert keys(site) == [b"own", b"k", b"own", None]


def test_unknown_parameters_are_tolerated(site: Site) -> None:
    query = "version=1&envContext=TEST&partner=X&routeOffer=Y&nonsense=%zz"
    assert site.post(f"/events/t?{query}", "a").status_code == 200
    assert site.poll(f"/events/t/g/c?filter=%7B%7D&{query}").get_json() == ["a"]


def test_repeat_with_an_idempotency_key_answers_the_first_result(site: Site) -> None:
    sent = {"Idempotency-Key": "once"}
    first = site.post("/events/t", "a\nb", headers=sent)
    again = site.post("/events/t", "a\nb", headers=sent)
    assert "Idempotency-Replayed" not in first.headers
    assert again.headers["Idempotency-Replayed"] == "true"
    assert first.get_json()["count"] == again.get_json()["count"] == 2
    assert site.poll().get_json() == ["a", "b"]


def test_idempotency_key_is_bounded(site: Site) -> None:
    answer = site.post("/events/t", "a", headers={"Idempotency-Key": "x" * 256})
    assert answer.status_code == 400


def test_poll_has_the_headers_of_the_original(site: Site) -> None:
    site.post("/events/t", "a")
    answers = [site.poll(), site.poll()]
    for answer in answers:
        assert answer.headers["Cache-Control"] == "no-store, no-cache, must-revalidate"
        assert answer.headers["Pragma"] == "no-cache"
        assert answer.headers["Expires"] == "0"
        assert answer.headers["Content-Type"] == "application/json"
        assert answer.headers["Content-Length"] == str(len(answer.data))
        assert answer.headers["transactionId"]
    assert [answer.data for answer in answers] == [b'["a"]', b"[]"]


@pytest.mark.parametrize(
    ("accept", "body"),
    [
        ("application/json", b'["\xef\xbf\xbda"]'),
        ("application/cambria", b"1.2.k\xffa\n"),
        ("text/plain", b"\xffa\n"),
    ],
)
def test_poll_answers_in_the_format_asked_for(site: Site, accept: str, body: bytes) -> None:
    site.post("/events/t?partitionKey=k", b"\xffa", "image/png")
    answer = site.poll(Accept=accept)
    assert (answer.data, answer.mimetype) == (body, accept)


def test_poll_answers_by_content_type_as_the_guide_has_it(site: Site) -> None:
    site.post("/events/t", "a")
    assert site.poll(**{"Content-Type": "application/cambria"}).data == b"0.1.a\n"


def test_poll_answers_all_of_a_message_as_ndjson(site: Site) -> None:
    site.post("/events/t?partitionKey=k", b"\xff", "image/png")
    line = json.loads(site.poll(Accept="application/x-ndjson").data)
    assert (line["key"], line["value_base64"]) == ("k", "/w==")
    assert line["position"] == {"ledger": 1, "entry": 0, "partition": -1, "batch_index": -1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", (10.0, 4096, None, Start.LATEST, WRITTEN)),
        ("?timeout=0&limit=1", (0.0, 1, None, Start.LATEST, WRITTEN)),
        ("?timeout=1500", (1.5, 4096, None, Start.LATEST, WRITTEN)),
        ("?timeout=999999999&limit=99999", (120.0, 4096, None, Start.LATEST, WRITTEN)),
        ("?limit=0&maxBytes=0", (10.0, 4096, None, Start.LATEST, WRITTEN)),
        ("?maxBytes=5&from=earliest&ack=next", (10.0, 4096, 5, Start.EARLIEST, AckMode.NEXT)),
        ("?maxBytes=99999999999", (10.0, 4096, 1 << 24, Start.LATEST, WRITTEN)),
    ],
)
def test_poll_reads_its_options(site: Site, query: str, expected: tuple[Any, ...]) -> None:
    seen: list[PollRequest] = []

    def poll(wanted: PollRequest, _mailbox: PollMailbox, _client: object) -> None:
        seen.append(wanted)
        raise ZeroDivisionError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site.subscriber(), "poll_steps", poll)
        site.client.get(f"/events/t/g/c{query}")
    [got] = seen
    assert got.subscription == Subscription(TOPIC, "g")
    assert (got.timeout, got.limit, got.max_bytes, got.start, got.ack) == expected


def test_poll_starts_where_settings_say(sites: Sites) -> None:
    site = sites(consume_from="earliest")
    site.post("/events/t", "a")
    assert site.client.get("/events/t/g/c?timeout=0").get_json() == ["a"]


def test_poll_with_ack_next_acknowledges_on_the_next(site: Site) -> None:
    site.post("/events/t", "a\nb")
    assert site.poll("/events/t/g/c?ack=next&limit=1").get_json() == ["a"]
    assert site.poll("/events/t/g/c").get_json() == ["b"]


def test_poll_with_ack_explicit_acknowledges_what_its_token_names(site: Site) -> None:
    site.post("/events/t", "a\nb\nc")
    first = site.poll("/events/t/g/c?ack=explicit&limit=2")
    again = site.poll("/events/t/g/c?ack=explicit&limit=2")
    assert first.get_json() == again.get_json() == ["a", "b"]
    token = first.headers["Ack-Token"]
    second = site.poll(f"/events/t/g/c?ack={token}")
    assert second.get_json() == ["c"]
    last = site.client.get(f"/events/t/g/c?ack={second.headers['Ack-Token']}&limit=0")
    assert (last.status_code, last.get_json()) == (200, [])
    assert site.client.get("/events/t/g/c?timeout=0").get_json() == []
    assert "Ack-Token" not in site.poll().headers


@pytest.mark.parametrize("path", ["/events/t/g/c2", "/events/t/g2/c", "/events/t2/g/c"])
def test_token_of_another_consumer_is_refused_and_consumes_nothing(site: Site, path: str) -> None:
    site.backend.create_topic(TopicInfo(TopicName.parse("t2")), 1)
    site.post("/events/t", "a")
    token = site.poll("/events/t/g/c?ack=explicit").headers["Ack-Token"]
    for ack in (token, "", "nxt", "a" * 3000):
        answer = site.client.get(f"{path}?ack={ack}")
        assert (answer.status_code, answer.get_json()["mrErrorCode"]) == (400, 3010)
        assert "ack: expected next, explicit, or the Ack-Token" in answer.get_json()["message"]
    assert site.poll("/events/t/g/c").get_json() == ["a"]


def test_poll_that_only_acknowledges_says_what_was_overtaken(site: Site) -> None:
    site.post("/events/t", "a")
    token = site.poll("/events/t/g/c?ack=explicit").headers["Ack-Token"]
    site.backend.reset(Subscription(TOPIC, "g"), Start.EARLIEST, 1)
    answer = site.client.get(f"/events/t/g/c?ack={token}&limit=0")
    assert (answer.status_code, answer.get_json()["mrErrorCode"]) == (409, 5005)
    assert "the group was reset" in answer.get_json()["message"]
    assert site.poll(f"/events/t/g/c?ack={token}").get_json() == ["a"]


def test_poll_of_an_unknown_topic_creates_it_when_settings_say_so(sites: Sites) -> None:
    assert sites(consume_unknown_topic="create").poll("/events/new/g/c").get_json() == []


@pytest.mark.parametrize("method", ["head", "options"])
def test_head_and_options_consume_nothing(site: Site, method: str) -> None:
    site.post("/events/t", "a")
    site.backend.subscribe(Subscription(TOPIC, "g"), Start.EARLIEST, 1)
    answer = getattr(site.client, method)("/events/t/g/c")
    assert (answer.status_code, answer.data) == (200, b"")
    assert site.poll().get_json() == ["a"]


def test_groups_and_ids_may_be_escaped(site: Site) -> None:
    site.post("/events/t", "a")
    assert site.poll("/events/t/g%40x/c%7E%2B").get_json() == ["a"]


def test_names_of_topics_may_be_bounded_as_in_the_guide(sites: Sites) -> None:
    site = sites(names_max_length="40")
    assert site.post("/events/" + "x" * 40, "a").status_code == 200
    assert site.post("/events/" + "x" * 41, "a").status_code == 400


def test_every_answer_has_a_transaction_id_of_its_own(site: Site) -> None:
    answers = [site.post("/events/t", "a"), site.poll(), site.client.get("/nowhere"),
               site.client.get("/health"), site.client.options("/events/t")]  # fmt: skip
    assert len({answer.headers["transactionId"] for answer in answers}) == 5


@pytest.fixture
def guarded(sites: Sites, tmp_path: Path) -> Site:
    (tmp_path / "users").write_text(f"alice:{HASHES['argon2']}\n")
    (tmp_path / "permissions").write_text("alice orders.* publish\n")
    return sites(auth_users=str(tmp_path / "users"), auth_permissions=str(tmp_path / "permissions"))


ALICE = {"Authorization": header("alice", "secret")}


@pytest.mark.parametrize("sent", [{}, {"Authorization": header("alice", "wrong")}])
@pytest.mark.parametrize("path", ["/events/orders.eu/g/c", "/topics", "/topics/orders.eu"])
def test_credentials_are_needed(guarded: Site, sent: dict[str, str], path: str) -> None:
    answer = guarded.client.get(path, headers=sent)
    body = answer.get_json()
    assert (answer.status_code, body["mrErrorCode"], body["mrstatus"]) == (401, 4001, 4001)
    assert answer.headers["WWW-Authenticate"].startswith("Basic ")


def test_rights_are_needed(guarded: Site) -> None:
    assert guarded.post("/events/orders.eu", "a", headers=ALICE).status_code == 200
    for answer in (
        guarded.post("/events/other", "a", headers=ALICE),
        guarded.client.get("/events/orders.eu/g/c", headers=ALICE),
        guarded.client.get("/topics/other", headers=ALICE),
        guarded.client.delete("/topics/orders.eu", headers=ALICE),
        guarded.client.post("/topics/create", json={"topicName": "orders.us"}, headers=ALICE),
    ):
        body = answer.get_json()
        assert (answer.status_code, body["mrErrorCode"], body["mrstatus"]) == (403, 4002, 4002)


def test_missing_right_is_401_when_settings_say_so(sites: Sites, tmp_path: Path) -> None:
    (tmp_path / "users").write_text(f"alice:{HASHES['argon2']}\n")
    (tmp_path / "permissions").write_text("")
    site = sites(
        auth_users=str(tmp_path / "users"),
        auth_permissions=str(tmp_path / "permissions"),
        auth_forbidden_status="401",
    )
    answer = site.post("/events/t", "a", headers=ALICE)
    assert (answer.status_code, answer.get_json()["mrErrorCode"]) == (401, 4002)


def test_only_topics_that_the_caller_may_use_are_listed(guarded: Site) -> None:
    for name in ("orders.eu", "other"):
        guarded.backend.create_topic(TopicInfo(TopicName.parse(name)), 1)
    assert guarded.client.get("/topics", headers=ALICE).get_json() == {"topics": ["orders.eu"]}
    details = guarded.client.get("/topics/orders.eu", headers=ALICE).get_json()
    assert details["writerAcl"] == {"enabled": True, "users": ["alice"]}
    assert details["readerAcl"] == {"enabled": True, "users": []}


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


class Delivered:
    """A poll's answer as the server handles it."""

    def __init__(self, site: Site, client: socket.socket) -> None:
        subscriber = site.subscriber()
        expected = PollRequest(Subscription(TOPIC, "g"), "c", 0, 10, start=Start.EARLIEST)
        watch = offload.Watch(client, lambda: None)
        self.answer = Delivery(
            subscriber.poll(expected, PollMailbox(), ConnectedClient()), b"body", watch
        )
        self._site = site

    def backlog(self) -> int:
        """Return how many messages are not acknowledged."""
        return self._site.backend.describe_topic(TOPIC, 1).subscriptions[0].backlog


@pytest.mark.slow
def test_answer_is_acknowledged_when_the_server_asks_for_more(
    site: Site, pair: tuple[socket.socket, socket.socket]
) -> None:
    site.post("/events/t", "a")
    poll = Delivered(site, pair[0])
    assert next(poll.answer) == b"body"
    assert poll.backlog() == 1
    with pytest.raises(StopIteration):
        next(poll.answer)
    assert poll.backlog() == 0
    poll.answer.close()


@pytest.mark.parametrize("written", [False, True])
def test_answer_is_not_acknowledged_when_the_server_closes_it(
    site: Site, pair: tuple[socket.socket, socket.socket], written: bool
) -> None:
    site.post("/events/t", "a")
    poll = Delivered(site, pair[0])
    if written:
        next(poll.answer)
    poll.answer.close()
    assert poll.backlog() == 1
    assert site.poll().get_json() == ["a"]


def test_answer_is_not_acknowledged_when_the_client_left_before_it(
    site: Site, pair: tuple[socket.socket, socket.socket]
) -> None:
    site.post("/events/t", "a")
    poll = Delivered(site, pair[0])
    pair[1].close()
    assert list(poll.answer) == [b"body"]
    assert poll.backlog() == 1
    assert site.poll().get_json() == ["a"]


def test_writing_an_answer_takes_as_long_as_the_server_says(
    site: Site, pair: tuple[socket.socket, socket.socket]
) -> None:
    site.post("/events/t", "a")
    pair[0].settimeout(7)
    poll = Delivered(site, pair[0])
    next(poll.answer)
    assert pair[0].gettimeout() == 7
    poll.answer.close()
    assert pair[0].gettimeout() == 7


def test_stop_answers_waiting_polls(site: Site) -> None:
    site.post("/events/t", "a")
    site.poll()
    answers: list[Any] = []
    thread = threading.Thread(
        target=lambda: answers.append(site.client.get("/events/t/g/c?timeout=20000").get_json())
    )
    thread.start()
    subscriber = site.subscriber()
    while not subscriber.context.figures.waiting:
        threading.Event().wait(0.002)
    site.app.extensions["router.stop"]()
    thread.join(10)
    assert answers == [[]]


@pytest.mark.parametrize("path", ["/events/t", "/events/transaction/t"])
def test_messages_have_the_subject_of_the_request_unless_they_name_one(
    site: Site, path: str
) -> None:
    lines = '{"value":"a"}\n{"value":"b","properties":{"Nats-Subject":"own","x":"y"}}'
    kind = "application/vnd.dragoman+ndjson"
    subject = "t.\u00fc"
    headers = {"Nats-Subject": subject.encode().decode("latin-1")}
    assert site.post(path, lines, kind, headers=headers).status_code == 200
    found = [one.properties for batch in site.backend.published for one in batch.messages]
    assert found == [{"Nats-Subject": subject}, {"Nats-Subject": "own", "x": "y"}]


@pytest.mark.parametrize("subject", ["a.*", ">", "a..b", "a b", "x" * 1_025, "\xff"])
def test_a_subject_that_no_message_can_have_is_refused(site: Site, subject: str) -> None:
    answer = site.post("/events/t", "a", headers={"Nats-Subject": subject})
    assert answer.status_code == 400
    assert "Nats-Subject" in answer.get_json()["message"]
    assert not site.backend.published
