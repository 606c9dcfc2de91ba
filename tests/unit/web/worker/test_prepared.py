"""Publishes that repeat a head are answered, stored and counted as those served in steps."""

from __future__ import annotations

import errno
import gzip
from collections.abc import Callable
from typing import Any

import gevent
import gevent.event
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from router.clocks.steps import Wait
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    DiskFullError,
    NotAllowedError,
    PartialPublishError,
    RouterError,
    TooManyRequestsError,
    TopicNotFoundError,
)
from router.web.addresses import USER
from router.web.dmaap.prepared import PreparedPublish
from router.web.worker.bounds import WorkerBounds
from router.web.worker.connection import HttpConnection
from router.web.worker.suspended import SuspendedConnection
from tests.unit.web.applications import HASHES, header
from tests.unit.web.worker.greenlets import under_gevent
from tests.unit.web.worker.prepared import (
    House,
    comparable,
    count_of,
    request,
    whole_answer,
)

PAGE = "https://pages.example"
HOST = ("Host", "127.0.0.1")
# Two of one address, which share what is prepared.
ADDRESSES = ["10.0.0.1", "10.0.0.2", "10.0.0.2"]
TEXT = ("Content-Type", "text/plain")
ANNA = ("Authorization", header("anna", "secret"))
EVENT = [("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "x"), ("ce-specversion", "1.0")]
HEADS: list[tuple[str, list[tuple[str, str]]]] = [
    ("/events/t", [HOST, TEXT]),
    ("/events/t", [HOST, TEXT, ANNA]),
    ("/events/t", [HOST, TEXT, ("Authorization", header("bert", "secret"))]),
    ("/events/other?partitionKey=k%25", [HOST, ANNA]),
    ("/events/t", [HOST, TEXT, ("Authorization", header("anna", "wrong"))]),
    ("/events/t", [HOST, TEXT, ("Authorization", "Basic !")]),
    ("/events/t", [HOST, ANNA, ("Content-Type", "application/json")]),
    ("/events/t", [HOST, ANNA, ("Content-Type", "application/cambria")]),
    ("/events/t", [HOST, ANNA, TEXT, ("Content-Encoding", "gzip")]),
    ("/events/t", [HOST, ANNA, TEXT, ("Origin", PAGE)]),
    ("/events/t", [HOST, ANNA, TEXT, ("Origin", "https://foreign.example")]),
    ("/events/t", [("Host", "elsewhere.example"), TEXT]),
    ("/events/t", [HOST, ANNA, TEXT, ("Connection", "keep-alive")]),
    ("/events/t", [HOST, ANNA, TEXT, ("X-Forwarded-For", "10.0.0.2")]),
    ("/events/t?" + "&".join(["a=1"] * 101), [HOST, ANNA]),
    ("/events/t", [HOST, ANNA, TEXT, ("traceparent", f"00-{'1' * 32}-{'2' * 16}-01")]),
    ("/events/t", [HOST, ANNA, TEXT, *EVENT]),
    (f"/events/{'x' * 300}", [HOST, ANNA, TEXT]),
    ("/events/t", [HOST, ANNA, TEXT, ("Nats-Subject", "t.new")]),
    ("/events/t", [HOST, ANNA, TEXT, ("Idempotency-Key", "once")]),
]
KEYED = len(HEADS) - 1
BODIES = [
    b"a",
    b"b\nc",
    b"",
    b"x" * 700,
    b"y" * 3000,
    b"l\n" * 1200,
    b'{"a":1}',
    b"[1",
    b"1.2.kab",
    b"1.1.aA1.1.bB1.1.cC1.1.dD",
    gzip.compress(b"zipped"),
    b"\r\n",
]
FAILURES: list[RouterError] = [
    BackendUnavailableError("away"),
    DiskFullError("full"),
    NotAllowedError("made again"),
    TooManyRequestsError("too fast", retry_after=2),
    PartialPublishError("some", stored=1),
]
CHANGES = [
    "users: without anna",
    "users: as before",
    "users: other password",
    "rights: bert may not",
    "rights: as before",
    "ban 10.0.0.2",
    "unban 10.0.0.2",
    "remove topic",
    "no memory",
    "memory",
]

# Which connection, which head, which body; few of each, so that heads are repeated.
asked = st.dictionaries(
    st.integers(0, len(ADDRESSES) - 1),
    st.tuples(st.integers(0, 3) | st.integers(0, len(HEADS) - 1), st.sampled_from(BODIES)),
    min_size=1,
)
rounds = st.lists(
    st.tuples(
        asked,
        st.integers(1, 4),
        st.none() | st.sampled_from(CHANGES),
        st.none() | st.sampled_from(FAILURES),
    ),
    min_size=1,
    max_size=6,
)


def change(house: House, what: str | None) -> None:
    """Change users, permissions, addresses, topics or memory."""
    kind, _, how = (what or "").partition(": ")
    users, rights = house.users.read_text(), house.rights.read_text()
    if kind == "users":
        anna = {"without anna": "", "other password": f"anna:{HASHES['bcrypt'][:-1]}.\n"}
        users = anna.get(how, f"anna:{HASHES['argon2']}\n") + f"bert:{HASHES['argon2']}\n"
    elif kind == "rights":
        rights = "anna * publish\n" + ("bert t publish\n" if how == "as before" else "")
    elif what == "remove topic":
        house.remove("t")
    elif what in {"no memory", "memory"}:
        budget: Any = house.site.body_reader()._budget
        # Held by others for as long as this change is in force, and not waited for.
        budget._stopping = what == "no memory"
        budget._used = budget.limit - 900 if what == "no memory" else 0
    if kind in {"users", "rights"}:
        house.users.write_text(users)
        house.rights.write_text(rights)
        house.reload()
    if kind.endswith("ban 10.0.0.2"):
        house.ban("10.0.0.2", banned=kind.startswith("ban"))


def everybody(head: int, body: bytes = b"a") -> dict[int, tuple[int, bytes]]:
    """Return one request of every connection."""
    return dict.fromkeys(range(len(ADDRESSES)), (head, body))


def exchanged(house: House, requests: dict[int, bytes], *, apart: bool) -> dict[int, bytes]:
    """Send requests at once, or one after the other, where the first gets something else."""
    if not apart:
        return house.exchange(requests)
    return {at: house.exchange({at: requests[at]})[at] for at in requests}


def check(plain: House, prepared: House, told: Any) -> None:
    """Do the same to both, and see that they do the same."""
    houses = plain, prepared
    for house in houses:
        house.reset_files()
        house.ban("10.0.0.2", banned=False)
        change(house, "memory")
        for address in ADDRESSES:
            house.connect(address)
    short = False
    for sent, times, what, trouble in told:
        requests = {
            at: request(HEADS[head][0], body, HEADS[head][1]) for at, (head, body) in sent.items()
        }
        for house in houses:
            change(house, what)
        short = {"no memory": True, "memory": False}.get(what or "", short)
        apart = short or any(head == KEYED for head, _ in sent.values())
        # What is stored in part is counted off over the requests of an append, whichever they are.
        divided = isinstance(trouble, PartialPublishError) and len(sent) > 1
        held = [house.reserved() for house in houses]
        for turn in range(times):
            # The last time the store fails, and each append of that turn meets it.
            fails = trouble is not None and not divided and turn == times - 1
            failing = [trouble] * 20 if fails else []
            answers = []
            for house in houses:
                house.site.backend.publishing[:] = failing
                answers.append(exchanged(house, requests, apart=apart))
                house.site.backend.publishing.clear()
            for at in requests:
                assert comparable(answers[0][at]) == comparable(answers[1][at])
            assert plain.stored() == prepared.stored()
            assert [house.reserved() for house in houses] == held
            assert plain.counted() == prepared.counted()
    for house in houses:
        assert house.log.failures == []
        house.disconnect()


def law(**given_settings: str) -> None:
    """Check the law with these settings."""
    given_settings |= {
        "publish_max_batch": "2K",
        "publish_max_message": "600",
        # What is rationed by the minute may run out for one of the two a moment before the other.
        "auth_attempts_per_minute": "0",
        "auth_failures_per_minute": "0",
        "topics_auto_partitions": "2",
    }
    plain, prepared = (House(prepares=prepares, **given_settings) for prepares in (False, True))
    begun = []
    begin = PreparedPublish.begin

    def begin_and_count(self: PreparedPublish, body: bytes, client: Any) -> Any:
        found = begin(self, body, client)
        if found is not None:
            begun.append(found.is_leader)
        return found

    PreparedPublish.begin = begin_and_count  # type: ignore[method-assign]

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    @given(told=rounds)
    @example(told=[(everybody(1), 4, None, None)])
    @example(told=[(everybody(1), 4, None, FAILURES[0])])
    @example(told=[(everybody(1, b"x" * 700), 4, None, None)])
    @example(told=[(everybody(2), 4, None, None), (everybody(2), 2, "rights: bert may not", None)])
    @example(told=[(everybody(1), 4, None, None), (everybody(1), 2, "users: without anna", None)])
    @example(told=[(everybody(1), 4, None, None), (everybody(1), 2, "ban 10.0.0.2", None)])
    @example(told=[(everybody(1, b"l\n" * 1200), 4, None, None)])
    @example(told=[(everybody(7, b"1.1.aA1.1.bB1.1.cC1.1.dD"), 4, None, None)])
    @example(told=[(everybody(head), 4, None, None) for head in range(len(HEADS))])
    @example(told=[(everybody(1), 4, None, None), (everybody(1), 2, "remove topic", None)])
    @example(told=[(everybody(1), 4, None, None), (everybody(1), 2, "no memory", None)])
    def same(told: Any) -> None:
        check(plain, prepared, told)

    try:
        same()
    finally:
        PreparedPublish.begin = begin  # type: ignore[method-assign]
    # Both kinds of what is prepared were there.
    assert {True, False} <= set(begun)
    plain.close()
    prepared.close()


pytestmark = pytest.mark.slow


@under_gevent
def test_prepared_publishes_of_anonymous_clients_are_as_those_in_steps() -> None:
    law()


@under_gevent
def test_prepared_publishes_of_known_clients_are_as_those_in_steps() -> None:
    law(guarded="yes", cors_origins=PAGE, server_trusted_proxies="10.0.0.1")


PUBLISH = request("/events/t", b"a", [HOST, TEXT])


class Held(House):
    """Prepares the publishes of some clients, whose appends wait until `go`."""

    def __init__(self, clients: int) -> None:
        super().__init__(prepares=True)
        for _ in range(clients):
            self.connect("10.0.0.1")
        for _ in range(3):
            self.exchange(dict.fromkeys(range(clients), PUBLISH))
        self.stored()
        self.go, self.publishing = gevent.event.Event(), gevent.event.Event()
        publish = self.site.backend.publish

        def wait_and_publish(batch: Any, timeout: float) -> Any:
            self.publishing.set()
            assert self.go.wait(20)
            return publish(batch, timeout)

        self.site.backend.publish = wait_and_publish  # type: ignore[method-assign]

    def send(self, at: int) -> None:
        """Have a client publish, and see that it is begun."""
        self.clients[at].sendall(PUBLISH)
        until(lambda: self.ours(at) not in self.idle and not self.served[at]._stream.buffer)

    def ours(self, at: int) -> Any:
        """Return the server's end of a connection."""
        return self.served[at]._client

    def prepared(self) -> Any:
        """Return what is prepared for the head of PUBLISH."""
        head = PUBLISH[: PUBLISH.index(b"\r\n\r\n") + 4]
        key = self.served[0]._origin, head
        return (self.heads.get(key) or self.heads.learn(key)).prepared

    def finish(self) -> None:
        """See that nothing is held any more, and put everything away."""
        assert (self.reserved(), self.log.failures) == (0, [])
        self.close()


def until(condition: Callable[[], object]) -> None:
    """Wait until this is true."""
    with gevent.Timeout(20):
        while not condition():
            gevent.sleep(0.001)


@under_gevent
def test_what_waits_for_its_batch_is_not_stored_when_its_connection_is_ended() -> None:
    house = Held(3)
    for at in range(3):
        house.send(at)
    assert house.served[2]._begun is not None, "it has steps"
    house._suspended[2].end()
    house.go.set()
    assert [count_of(whole_answer(client)) for client in house.clients[:2]] == [1, 1]
    assert len(house.stored()) == 2
    house.finish()


@under_gevent
def test_what_is_under_way_when_its_connection_is_ended_is_stored_and_answered_to_nobody() -> None:
    house = Held(3)
    house.go.clear()
    for at in range(3):
        house.send(at)
    assert house.publishing.wait(20)
    house._suspended[1].end()
    house.go.set()
    assert count_of(whole_answer(house.clients[0])) == 1
    assert count_of(whole_answer(house.clients[2])) == 1
    assert house.clients[1].recv(1) == b""
    house.finish()


@under_gevent
def test_what_leads_is_stored_when_its_connection_is_ended_meanwhile() -> None:
    house = Held(3)
    house.send(0)
    assert house.publishing.wait(20)
    for at in (1, 2):
        house.send(at)
    house._suspended[0].end()
    house.go.set()
    assert [count_of(whole_answer(client)) for client in house.clients[1:]] == [1, 1]
    assert house.clients[0].recv(1) == b""
    assert len(house.stored()) == 3
    house.finish()


@under_gevent
def test_another_leads_when_the_connection_of_what_leads_is_ended_before() -> None:
    house = Held(3)
    house.go.set()
    for client in house.clients:
        client.sendall(PUBLISH)
    waits = SuspendedConnection.wait_for
    ended: list[SuspendedConnection] = []
    stored: list[str] = []

    def end_first(self: SuspendedConnection, wait: Wait, job: Callable[[], None]) -> None:
        waits(self, wait, job)
        if not ended:
            ended.append(self)
            self.end()

    SuspendedConnection.wait_for = end_first  # type: ignore[method-assign]
    while len(stored) < 2:
        stored += house.stored()
        gevent.sleep(0.001)
    SuspendedConnection.wait_for = waits  # type: ignore[method-assign]
    assert len(ended) == 1
    for at, client in enumerate(house.clients):
        if house._suspended[at] is ended[0]:
            assert client.recv(1) == b""
        else:
            assert count_of(whole_answer(client)) == 1
    house.finish()


@under_gevent
def test_nothing_is_stored_of_a_connection_that_is_ended_before_its_first_step() -> None:
    house = Held(1)
    house.go.set()
    soon = HttpConnection.soon

    def end_at_once(self: HttpConnection, job: Callable[[], None]) -> None:
        soon(self, job)
        house._suspended[0].end()

    HttpConnection.soon = end_at_once  # type: ignore[method-assign]
    house.clients[0].sendall(PUBLISH)
    assert house.clients[0].recv(1) == b""
    HttpConnection.soon = soon  # type: ignore[method-assign]
    gevent.sleep(0.01)
    assert house.stored() == []
    house.finish()


@under_gevent
def test_failure_of_what_leads_is_answered_as_in_steps() -> None:
    house = House(prepares=True)
    house.connect("10.0.0.1")
    for _ in range(3):
        house.exchange({0: PUBLISH})
    left, publish = [0], house.site.backend.publish

    def fail(batch: Any, timeout: float) -> Any:
        if left[0]:
            left[0] -= 1
            raise TopicNotFoundError("deleted meanwhile")
        return publish(batch, timeout)

    house.site.backend.publish = fail  # type: ignore[method-assign]
    for left[0], status in ((1, 200), (2, 404), (0, 200)):
        answer = house.exchange({0: PUBLISH})[0]
        assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert (house.reserved(), house.log.failures) == (0, [])
    house.close()


@under_gevent
def test_worker_that_stops_answers_what_was_begun_and_ends_the_connection() -> None:
    house = Held(3)
    for at in range(3):
        house.send(at)
    house.alive = False
    house.go.set()
    for client in house.clients:
        assert b"\r\nConnection: close\r\n" in whole_answer(client)
        assert client.recv(1) == b""
    house.finish()


@under_gevent
def test_heads_are_prepared_for_all_connections_of_an_address() -> None:
    house = House(prepares=True)
    for address in ("10.0.0.1", "10.0.0.1", "10.0.0.2"):
        house.connect(address)
    publishes = [request(f"/events/t{number}", b"a", [HOST, TEXT]) for number in range(20)]
    begun: list[str] = []
    begin = PreparedPublish.begin

    def begin_and_note(self: PreparedPublish, body: bytes, client: Any) -> Any:
        begun.append(self.name.local)
        return begin(self, body, client)

    PreparedPublish.begin = begin_and_note  # type: ignore[method-assign]
    expected: list[list[int]] = [[], [], [*range(20)], [*range(20)], []]
    for at, found in zip((0, 1, 0, 1, 2), expected, strict=True):
        begun.clear()
        for publish in publishes:
            assert count_of(house.exchange({at: publish})[at]) == 1
        assert begun == [f"t{number}" for number in found]
    PreparedPublish.begin = begin  # type: ignore[method-assign]
    house.close()


@under_gevent
def test_request_with_a_known_head_that_is_not_received_as_a_whole_alone_is_read_as_any_other() -> (
    None
):
    house = House(prepares=True)
    house.connect("10.0.0.1")
    client, publish = house.clients[0], request("/events/t", b"first\nsecond", [HOST, TEXT])
    for _ in range(3):
        assert count_of(house.exchange({0: publish})[0]) == 2
    client.sendall(publish[:-8])
    gevent.sleep(0.01)
    client.sendall(publish[-8:])
    assert count_of(whole_answer(client)) == 2
    client.sendall(publish * 2)
    data = b""
    while data.count(b'"count":2}') < 2:
        data += client.recv(65536)
    assert len(house.stored()) == 12
    house.close()


class Trickle:
    """A system's socket that takes three bytes at a time, or none at first."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.refusing = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def send(self, data: bytes, *flags: int) -> int:
        self.refusing = not self.refusing
        if not self.refusing:
            raise BlockingIOError(errno.EAGAIN, "")
        return int(self._real.send(data[:3], *flags))


@under_gevent
def test_answer_that_a_client_does_not_take_at_once_is_sent_whole() -> None:
    house = Held(3)
    for at in range(3):
        house.ours(at)._sock = Trickle(house.ours(at)._sock)
    for _ in range(3):
        for at in range(3):
            house.send(at)
        house.go.set()
        assert [count_of(whole_answer(client)) for client in house.clients] == [1, 1, 1]
        house.go.clear()
        until(lambda: len(house.idle) == 3)
    house.finish()


class Stuck(Trickle):
    """A system's socket that takes nothing."""

    def send(self, data: bytes, *flags: int) -> int:
        raise BlockingIOError(errno.EAGAIN, "")


@under_gevent
def test_client_that_does_not_take_its_first_answer_is_given_up() -> None:
    house = Held(1)
    house.go.set()
    for leads in (False, True):
        house.go.clear()
        if not leads:
            house.send(0)
        house.connect("10.0.0.1")
        at = len(house.clients) - 1
        house.served[at]._bounds = WorkerBounds(write_timeout=0.1)
        house.ours(at)._sock = Stuck(house.ours(at)._sock)
        house.send(at)
        house.go.set()
        assert house.clients[at].recv(1) == b""
        if not leads:
            assert count_of(whole_answer(house.clients[0])) == 1
    house.finish()


@under_gevent
def test_next_request_that_comes_early_is_answered_after_the_last() -> None:
    house = Held(3)
    for at in range(3):
        house.send(at)
    for client in house.clients:
        client.sendall(PUBLISH + PUBLISH)
    gevent.sleep(0.05)
    house.go.set()
    for client in house.clients:
        data = b""
        while data.count(b"transactionId: ") < 3 or not data.endswith(b"}"):
            data += client.recv(65536)
        assert data.count(b"HTTP/1.1 200 OK") == 3
    assert len(house.stored()) == 9
    house.finish()


@under_gevent
def test_failure_that_is_no_refusal_is_answered_as_in_steps() -> None:
    house = Held(1)
    house.go.set()
    reader: Any = house.site.body_reader()
    calls = fail(reader, "_light", ValueError("not foreseen"))
    assert house.exchange({0: PUBLISH})[0].startswith(b"HTTP/1.1 500 ")
    assert len(calls) == 2
    del reader._light
    prepared = house.prepared()
    calls = fail(prepared.publisher, "enter", ValueError("not foreseen"))
    assert count_of(house.exchange({0: PUBLISH})[0]) == 1
    assert len(calls) == 1
    del prepared.publisher.enter
    assert count_of(house.exchange({0: PUBLISH})[0]) == 1
    house.finish()


@under_gevent
def test_store_that_does_not_answer_is_asked_once_for_a_publish() -> None:
    house = Held(1)
    house.go.set()
    prepared = house.prepared()
    prepared.publisher._topics_cache.forget(prepared.name)
    calls = fail(house.site.backend, "partitions", BackendTimeoutError("no answer"))
    assert house.exchange({0: PUBLISH})[0].startswith(b"HTTP/1.1 504 ")
    assert len(calls) == 1
    house.finish()


@under_gevent
def test_topic_that_was_made_again_is_published_to_again() -> None:
    house = Held(1)
    house.go.set()
    house.site.backend.publishing[:] = [NotAllowedError("made again")]
    assert count_of(house.exchange({0: PUBLISH})[0]) == 1
    assert len(house.stored()) == 1
    house.finish()


@under_gevent
def test_time_of_a_publish_is_that_since_it_came() -> None:
    house = Held(3)
    marks, now = house.prepared().marks, [10.0]
    marks.clock = house.site.app._clock = lambda: now[0]  # type: ignore[attr-defined]
    for at in range(3):
        house.send(at)
    now[0] = 10.25
    house.go.set()
    for client in house.clients:  # the first two lead
        assert b'"serverTimeMs":250,' in whole_answer(client)
    house.finish()


@under_gevent
def test_worker_that_has_served_enough_is_retired_by_a_prepared_publish_too() -> None:
    house, retired = Held(1), []
    house.go.set()
    house.retire = lambda: retired.append(house.nr)  # type: ignore[attr-defined]
    house.max_requests = house.nr + 3
    for _ in range(3):
        house.exchange({0: PUBLISH})
    assert retired == [house.max_requests]
    house.finish()


@under_gevent
def test_publish_that_is_refused_late_is_logged_with_its_user() -> None:
    house = House(prepares=True, guarded="yes")
    house.connect("10.0.0.1")
    publish = request("/events/t", b"a", [HOST, TEXT, ANNA])
    for _ in range(3):
        house.exchange({0: publish})
    app, users = house.site.app, []
    app._refusals.note = lambda _, environ: users.append(environ[USER])  # type: ignore[attr-defined]
    house.site.backend.publishing[:] = [DiskFullError("full")]
    assert house.exchange({0: publish})[0].startswith(b"HTTP/1.1 5")
    assert users == ["anna"]
    house.close()


@under_gevent
def test_connection_that_ends_while_its_publish_is_begun_leaves_nothing() -> None:
    house = Held(2)
    house.go.set()
    prepared, asked = house.prepared(), gevent.event.Event()
    authorize, prepared.authorize = prepared.authorize, lambda _: asked.wait(20)
    house.clients[0].sendall(PUBLISH)
    until(lambda: house.ours(0) not in house.idle)
    house._suspended[0].end()
    asked.set()
    gevent.sleep(0.01)
    prepared.authorize = authorize
    assert house.stored() == []
    assert count_of(house.exchange({1: PUBLISH})[1]) == 1
    house.finish()


@under_gevent
def test_client_that_closes_its_connections_has_each_closed() -> None:
    house = House(prepares=True)
    publish = request("/events/t", b"a", [HOST, TEXT, ("Connection", "close")])
    for first in range(0, 12, 3):
        for _ in range(3):
            house.connect("10.0.0.1")
        answers = house.exchange(dict.fromkeys(range(first, first + 3), publish))
        for at, answer in answers.items():
            assert b"\r\nConnection: close\r\n" in answer
            assert house.clients[at].recv(1) == b""
    house.close()


@under_gevent
def test_publish_of_nothing_appends_nothing() -> None:
    house = House(prepares=True)
    house.connect("10.0.0.1")
    for body in (b"a\n", b"b\n", b"\n\n", b"\n\n"):
        count = count_of(house.exchange({0: request("/events/t", body, [HOST, TEXT])})[0])
        assert count == len(body.split())
    assert [len(batch.messages) for batch in house.site.backend.published] == [1, 1]
    house.close()


@under_gevent
def test_each_publish_has_its_line_in_an_access_log() -> None:
    house, lines = House(prepares=True), []
    house.log.access_log_enabled = True
    house.log.access = lambda *line: lines.append(line)  # type: ignore[attr-defined]
    for _ in range(3):
        house.connect("10.0.0.1")
    for _ in range(4):
        house.exchange(dict.fromkeys(range(3), PUBLISH))
    assert len(lines) == 12
    house.close()


@under_gevent
def test_origin_is_answered_as_it_was_sent() -> None:
    house = House(prepares=True, cors_origins="*")
    for _ in range(3):
        house.connect("10.0.0.1")
    publish = request("/events/t", b"a", [HOST, TEXT, ("Origin", "https://a%d%%s%.example")])
    for _ in range(4):  # the last of the three is answered by the leader of its batch
        for answer in house.exchange(dict.fromkeys(range(3), publish)).values():
            assert b"\r\nAccess-Control-Allow-Origin: https://a%d%%s%.example\r\n" in answer
    house.close()


def fail(owner: Any, name: str, error: Exception) -> list[None]:
    """Have a method raise from now on; return a list that has an item for each call."""
    calls: list[None] = []

    def call(*_given: Any, **_named: Any) -> Any:
        calls.append(None)
        raise error

    setattr(owner, name, call)
    return calls
