"""Polls that repeat a head are answered, acknowledged and counted as those served in steps."""

from __future__ import annotations

import gc
from typing import Any

import gevent
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from router.backends import Batch
from router.backends.polling import GroupPoll
from router.errors import BackendUnavailableError, ReadFailedError, RouterError
from router.model import Message, PollOutcome, TopicInfo, TopicName
from router.node import Mailbox
from router.web.dmaap.prepared_polls import BegunPoll, PreparedPoll
from tests.unit.web.applications import header
from tests.unit.web.worker.greenlets import under_gevent
from tests.unit.web.worker.prepared import House, comparable, poll, whole_answer
from tests.unit.web.worker.test_prepared import until

pytestmark = pytest.mark.slow

HOST = ("Host", "127.0.0.1")
ANNA = ("Authorization", header("anna", "secret"))
PAGE = "https://pages.example"
TOPIC = TopicName.parse("t")
HEADS: list[tuple[str, list[tuple[str, str]]]] = [
    ("/events/t/g/c?from=earliest&timeout=0", [HOST]),
    ("/events/t/g/c?from=earliest&timeout=0", [HOST, ANNA]),
    ("/events/t/g/c?from=earliest&timeout=0&limit=1", [HOST, ANNA]),
    ("/events/t/h/c?from=earliest&timeout=0&ack=next&limit=2", [HOST, ANNA]),
    ("/events/t/h/c?from=earliest&timeout=10&limit=2", [HOST, ANNA]),
    ("/events/t/i/c?from=earliest&timeout=0", [HOST, ANNA, ("Accept", "application/cambria")]),
    ("/events/t/i/c?from=earliest&timeout=0", [HOST, ANNA, ("Accept", "image/png")]),
    ("/events/t/i/c?from=earliest&timeout=0&maxBytes=3", [HOST, ANNA]),
    ("/events/t/j/c?timeout=0", [HOST, ANNA, ("Origin", PAGE)]),
    ("/events/t/j/c?timeout=0", [HOST, ANNA, ("Origin", "https://foreign.example")]),
    ("/events/t/j/c?timeout=x", [HOST, ANNA]),
    ("/events/none/g/c?timeout=0", [HOST, ANNA]),
    ("/events/t/g/c?from=earliest&timeout=0", [HOST, ("Authorization", header("anna", "wrong"))]),
    ("/events/t/k/c?from=earliest&timeout=0", [HOST, ("Authorization", header("bert", "secret"))]),
    ("/events/t/l/c?from=earliest&timeout=0&ack=explicit", [HOST, ANNA]),
    ("/events/t/m/c?from=earliest&timeout=0", [HOST, ANNA, ("Content-Length", "0")]),
]
FAILURES: list[RouterError] = [BackendUnavailableError("away"), ReadFailedError("damaged")]
CHANGES = ["bert may not", "as before", "ban", "unban", "remove topic"]
rounds = st.lists(
    st.tuples(
        st.lists(st.integers(0, 5) | st.integers(0, len(HEADS) - 1), min_size=1, max_size=4),
        st.integers(1, 4),
        st.lists(st.binary(max_size=5), max_size=4),
        st.none() | st.sampled_from(CHANGES),
        st.none() | st.sampled_from(FAILURES),
    ),
    min_size=1,
    max_size=8,
)
LETTERS = [b"a", b"bb", b"ccc", b"dddd"]


def change(house: House, what: str | None) -> None:
    """Change permissions, addresses or topics."""
    if what in {"bert may not", "as before"}:
        may = "bert t publish subscribe\n" if what == "as before" else ""
        house.rights.write_text("anna * publish subscribe\n" + may)
        house.reload()
    elif what in {"ban", "unban"}:
        house.ban("10.0.0.1", banned=what == "ban")
    elif what == "remove topic":
        house.remove("t")
        create(house)


def create(house: House) -> None:
    """Create the topic."""
    house.site.backend.create_topic(TopicInfo(TOPIC, 1), 5.0)


def publish(house: House, values: list[bytes]) -> None:
    """Store messages as one entry."""
    if values:
        messages = [Message(value, b"k") for value in values]
        house.site.backend.publish(Batch(TOPIC, 0, messages), 5.0)


def check(plain: House, prepared: House, told: Any) -> None:
    """Do the same to both, and see that they do the same."""
    houses = plain, prepared
    for house in houses:
        house.reset_files()
        change(house, "as before")
        change(house, "unban")
        change(house, "remove topic")
        house.connect("10.0.0.1")
    for heads, times, values, what, failure in told:
        for house in houses:
            change(house, what)
            publish(house, values)
        for turn in range(times):
            for head in heads:
                path, headers = HEADS[head]
                answers = []
                for house in houses:
                    consuming: Any = house.site.backend
                    fails = failure is not None and turn == times - 1
                    consuming.opening[:] = [failure] if fails else []
                    answers.append(house.exchange({0: poll(path, headers)})[0])
                    consuming.opening.clear()
                first, second = map(comparable, answers)
                assert first[1] == second[1]
                # The tokens are signed with secrets of their own.
                assert "explicit" in path or first[0] == second[0]
        assert plain.counted() == prepared.counted()
    for house in houses:
        assert house.log.failures == []
        house.disconnect()


def law(**given_settings: str) -> None:
    """Check the law with these settings."""
    given_settings |= {
        "auth_attempts_per_minute": "0",
        "auth_failures_per_minute": "0",
        "consume_empty_polls_per_minute": "0",
    }
    plain, prepared = (House(prepares=prepares, **given_settings) for prepares in (False, True))
    begun: list[bool] = []
    begin = PreparedPoll.begin

    def begin_and_count(self: PreparedPoll, body: bytes, client: Any) -> Any:
        found = begin(self, body, client)
        begun.append(found is not None)
        return found

    PreparedPoll.begin = begin_and_count  # type: ignore[method-assign]
    for house in (plain, prepared):
        create(house)

    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(told=rounds)
    @example(told=[([0], 4, LETTERS, None, None)] * 2)
    @example(told=[([1], 4, LETTERS, None, None), ([1], 2, LETTERS, "ban", None)])
    @example(told=[([2], 4, LETTERS, None, None)] * 2)
    @example(told=[([3], 4, LETTERS, None, None), ([4], 4, LETTERS, None, None)])
    @example(told=[([1], 4, LETTERS, None, None), ([1], 2, LETTERS, "remove topic", None)])
    @example(told=[([1], 4, LETTERS, None, FAILURES[0]), ([1], 1, [], None, None)])
    @example(told=[([head], 3, LETTERS, None, None) for head in range(len(HEADS))])
    @example(told=[([13], 4, LETTERS, None, None), ([13], 2, LETTERS, "bert may not", None)])
    def same(told: Any) -> None:
        check(plain, prepared, told)

    try:
        same()
    finally:
        PreparedPoll.begin = begin  # type: ignore[method-assign]
    # Both kinds of what is prepared were there.
    assert {True, False} == set(begun)
    plain.close()
    prepared.close()


@under_gevent
def test_prepared_polls_of_anonymous_clients_are_as_those_in_steps() -> None:
    law()


@under_gevent
def test_prepared_polls_of_known_clients_are_as_those_in_steps() -> None:
    law(guarded="yes", cors_origins=PAGE)


def warmed() -> tuple[House, bytes]:
    """Return an application that has prepared a poll, and the poll."""
    house = House(prepares=True, consume_empty_polls_per_minute="0")
    create(house)
    house.connect("10.0.0.1")
    asked = poll("/events/t/g/c?from=earliest&timeout=5000&limit=1", [HOST])
    for _ in range(3):
        publish(house, [b"warm"])
        assert whole_answer_of(house, asked).endswith(b'["warm"]')
    return house, asked


def whole_answer_of(house: House, asked: bytes) -> bytes:
    return house.exchange({0: asked})[0]


@under_gevent
def test_poll_that_waits_is_answered_by_what_comes() -> None:
    house, asked = warmed()
    house.clients[0].sendall(asked)
    gevent.sleep(0.05)
    publish(house, [b"late"])
    assert whole_answer(house.clients[0]).endswith(b'["late"]')
    assert house.log.failures == []
    house.close()


@under_gevent
def test_messages_are_free_again_when_the_client_of_a_waiting_poll_leaves() -> None:
    house, asked = warmed()
    house.clients[0].sendall(asked)
    gevent.sleep(0.05)
    house.clients[0].close()
    with gevent.Timeout(20):
        while house.idle or house.served[0]._begun is not None:
            gevent.sleep(0.001)
    publish(house, [b"late"])
    house.connect("10.0.0.1")
    again = poll("/events/t/g/other?timeout=5000&limit=1", [HOST])
    assert house.exchange({1: again})[1].endswith(b'["late"]')
    house.clients.pop(0)
    house.close()


class Waiting:
    """A store that serves polls itself, and has nothing for them."""

    def __init__(self) -> None:
        self.ended: list[PollOutcome] = []

    def poll(self, poll: GroupPoll, mailbox: Mailbox, timeout: float) -> Waiting:
        return self

    @property
    def is_held(self) -> bool:
        return False

    def answer(self) -> None:
        """Return nothing yet."""

    def done(self, outcome: PollOutcome, *, keep: bool = False, upto: object = ()) -> None:
        self.ended.append(outcome)


@under_gevent
def test_connection_of_a_client_that_leaves_is_ended_with_its_poll() -> None:
    leave(b"")


@under_gevent
def test_connection_of_a_client_that_sends_early_and_leaves_is_ended_with_its_poll() -> None:
    leave(b"GET / HTTP/1.1\r\n")


def begun_polls() -> int:
    """Return how many polls are in memory, those that nothing refers to among them."""
    return sum(type(one) is BegunPoll for one in gc.get_objects())


@under_gevent
def test_memory_of_a_poll_is_free_without_the_collector_when_it_has_ended() -> None:
    house, asked = warmed()
    gc.collect()
    gc.disable()
    before = begun_polls()
    try:
        house.clients[0].sendall(asked)
        until(lambda: begun_polls() == before + 1)
        publish(house, [b"late"])
        assert whole_answer(house.clients[0]).endswith(b'["late"]')
        until(lambda: begun_polls() <= before)
    finally:
        gc.enable()
    house.close()


@under_gevent
def test_first_poll_of_a_head_is_begun_as_its_next_ones_where_the_store_serves_polls() -> None:
    house, asked = warmed()
    served = house.served[0]
    known: Any = house.heads.get((served._origin, asked))
    store = known.prepared.subscriber._store = Waiting()
    house.clients[0].sendall(poll("/events/t/new/c?timeout=60000", [HOST]))
    with gevent.Timeout(20):
        while served._begun is None:
            gevent.sleep(0.001)
    assert not served._environ
    house.clients[0].close()
    with gevent.Timeout(20):
        while served._client.fileno() >= 0:
            gevent.sleep(0.01)
    assert store.ended == [PollOutcome.REFUSED]
    house.clients.clear()
    house.close()


@under_gevent
def test_first_poll_that_is_not_begun_is_answered_in_steps() -> None:
    house, _ = warmed()
    asked = poll("/events/t/new/c?timeout=10", [HOST])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PreparedPoll, "at_once", True)
        patched.setattr(PreparedPoll, "begin", lambda *_: None)
        for _ in range(2):
            assert whole_answer_of(house, asked).endswith(b"[]")
    assert house.log.failures == []
    house.close()


def leave(early: bytes) -> None:
    """See that a client that leaves ends its poll, whatever it sent before."""
    house, asked = warmed()
    gc.collect()
    gc.disable()
    before = begun_polls()  # other tests may have left some
    try:
        leave_house(house, asked, early)
        until(lambda: begun_polls() <= before)
    finally:
        gc.enable()


def leave_house(house: House, asked: bytes, early: bytes) -> None:
    served = house.served[0]
    known: Any = house.heads.get((served._origin, asked))
    store = known.prepared.subscriber._store = Waiting()
    house.clients[0].sendall(asked)
    with gevent.Timeout(20):
        while served._begun is None:
            gevent.sleep(0.001)
    if early:
        house.clients[0].sendall(early)
        gevent.sleep(0.05)
        assert served._begun is not None
    house.clients[0].close()
    with gevent.Timeout(20):
        while served._client.fileno() >= 0:
            house.counted()  # as every second
            gevent.sleep(0.01)
    assert store.ended == [PollOutcome.REFUSED]
    assert house.log.failures == []
    house.clients.clear()
    house.close()


@under_gevent
def test_what_a_client_does_not_take_is_not_acknowledged() -> None:
    house, asked = warmed()
    ours = house.served[0]._client

    class Gone:
        """A socket of a client that left."""

        def __getattr__(self, name: str) -> Any:
            return getattr(ours_sock, name)

        def send(self, *_: object) -> int:
            raise BrokenPipeError

        def recv(self, size: int) -> bytes:
            return bytes(ours_sock.recv(size))

    ours_sock = ours._sock
    publish(house, [b"once"])
    house.clients[0].sendall(asked)
    ours._sock = Gone()
    with gevent.Timeout(20):
        while ours in house.idle or house.served[0]._begun is not None:
            gevent.sleep(0.001)
    gevent.sleep(0.01)
    house.connect("10.0.0.1")
    found = house.exchange({1: poll("/events/t/g/c?timeout=5000&limit=1", [HOST])})[1]
    assert found.endswith(b'["once"]')
    house.clients.pop(0)
    house.close()
