"""Clients that leave, dawdle, crowd and push: everybody else is served, and nothing is lost."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.processes import wait_until
from tests.system.stack import Stack
from tests.system.traffic import (
    PATIENCE,
    Answer,
    Wire,
    allow_files,
    create,
    get,
    poll,
    post,
    publishing,
    read_all,
    started,
    waiting,
)

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(120)]

VANISHINGS = int(os.environ.get("SOAK_VANISHINGS", "60"))
WAITING_POLLS = int(os.environ.get("SOAK_WAITING_POLLS", "500"))
CROWD_SECONDS = float(os.environ.get("SOAK_CROWD_SECONDS", "6"))
BIG = 500_000
STALLED_PARTS = 24


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One router for all tests of clients; each has a topic of its own."""
    folder = tmp_path_factory.mktemp("clients")
    with started(folder, "--workers", "2", consume_idle="300ms") as made:
        yield made


def group(stack: Stack, topic: str, name: str = "g", first: str = "first") -> None:
    """Make a topic, and a group that stands behind its first message."""
    assert post(stack, topic, "start").status == 200
    assert poll(stack, f"{topic}/{name}/{first}", 5).json == ["start"]


def test_polls_one_after_another_never_meet_when_none_of_them_waits(stack: Stack) -> None:
    group(stack, "sequence", first="c")
    for number in range(100):
        assert post(stack, "sequence", str(number)).status == 200
        assert poll(stack, "sequence/g/c").json == [str(number)]
        assert poll(stack, "sequence/g/c").json == []


def test_an_id_polls_on_at_once_when_its_client_left_a_waiting_poll(stack: Stack) -> None:
    chance = random.Random(4)
    group(stack, "left", first="c")
    for number in range(20):
        with Wire(stack) as client:
            client.poll("left/g/c", 20)
            time.sleep(chance.uniform(0, 0.05))
        began = time.monotonic()
        assert post(stack, "left", str(number)).status == 200
        assert poll(stack, "left/g/c", 10).json == [str(number)]
        assert time.monotonic() - began < 5


def test_a_message_published_after_a_client_was_cut_off_goes_to_the_next(stack: Stack) -> None:
    chance = random.Random(5)
    group(stack, "cut", first="c")
    for number in range(20):
        client = Wire(stack)
        client.poll("cut/g/c", 20)
        time.sleep(chance.uniform(0, 0.05))
        client.reset()
        assert post(stack, "cut", str(number)).status == 200
        assert poll(stack, "cut/g/c", 10).json == [str(number)]


def vanish_while_publishing(
    stack: Stack, topic: str, number: int, chance: random.Random, query: str
) -> tuple[Wire, ThreadPoolExecutor]:
    """Let a message and a client's end come at the same time, in any order."""
    client = Wire(stack)
    client.poll(f"{topic}/g/c{number}", 20, query)
    time.sleep(chance.uniform(0.005, 0.03))
    publisher = ThreadPoolExecutor(1)
    publisher.submit(post, stack, topic, str(number))
    time.sleep(chance.uniform(0, 0.012))
    return client, publisher


def rest_of(stack: Stack, path: str) -> list[str]:
    """Poll until nothing comes any more."""
    found: list[str] = []
    while messages := poll(stack, path, 1).json:
        found += messages
    return found


def test_nothing_is_lost_when_clients_leave_just_before_their_answer(stack: Stack) -> None:
    chance = random.Random(6)
    group(stack, "leaving")
    received: list[str] = []
    for number in range(VANISHINGS):
        client, publisher = vanish_while_publishing(stack, "leaving", number, chance, "")
        # The end of what it sends is the end of the client, but what came before can be read.
        client.socket.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            received += client.answer().json
        client.close()
        publisher.shutdown()
    received += rest_of(stack, "leaving/g/last")
    assert set(received) == {str(number) for number in range(VANISHINGS)}


def test_nothing_is_lost_when_clients_that_acknowledge_later_are_cut_off(stack: Stack) -> None:
    chance = random.Random(7)
    group(stack, "later")
    for number in range(VANISHINGS):
        client, publisher = vanish_while_publishing(stack, "later", number, chance, "ack=next")
        client.reset()
        publisher.shutdown()
    # Nobody read an answer, and nobody came back to say so: it is all still there.
    received = rest_of(stack, "later/g/last")
    assert set(received) == {str(number) for number in range(VANISHINGS)}


def test_an_answer_that_was_never_read_comes_again_until_its_token_is_presented(
    stack: Stack,
) -> None:
    create(stack, "explicit", 2)
    token, received = "explicit", list[str]()
    for number in range(20):
        sent = sorted(f"{number} {part}" for part in range(3))
        for text in sent:
            assert post(stack, "explicit", text).status == 200
        repeated = 0
        while len(received) < 3 * (number + 1):
            client = Wire(stack)
            client.poll("explicit/g/c", 20, f"from=earliest&ack={token}")
            client.socket.recv(1, socket.MSG_PEEK)  # the answer is written, and in the kernel
            client.reset()
            answer = poll(stack, "explicit/g/c", 20, f"from=earliest&ack={token}")
            assert answer.status == 200, answer.body
            received += answer.json
            token = answer.headers["ack-token"]
            repeated += 1
        assert sorted(received[-3:]) == sent
        assert repeated <= 3
    last = poll(stack, "explicit/g/c", 0, f"ack={token}&limit=0")
    assert (last.status, last.json) == (200, [])
    assert poll(stack, "explicit/g/c", 1).json == []


def test_slow_clients_hold_up_nobody(stack: Stack) -> None:
    group(stack, "dawdle")
    with contextlib.ExitStack() as clients:
        heads = [clients.enter_context(Wire(stack)) for _ in range(50)]
        for client in heads:
            client.send(b"GET /events/dawdle/g/c HTTP/1.1\r\nHost: ")
        texts = [clients.enter_context(Wire(stack)) for _ in range(50)]
        for number, client in enumerate(texts):
            client.send(publishing("dawdle", b"slow %3d" % number)[:-6])
        slowest = 0.0
        for number in range(40):
            began = time.monotonic()
            assert post(stack, "dawdle", f"fast {number}").status == 200
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < 5
        for number, client in enumerate(texts):
            client.send((b"slow %3d" % number)[-6:-3])
        for number, client in enumerate(texts):
            client.send((b"slow %3d" % number)[-3:])
            assert client.answer().status == 200
    expected = {f"slow {n:3d}" for n in range(50)} | {f"fast {n}" for n in range(40)}
    stored = read_all(stack, "dawdle")
    assert set(stored) == expected | {"start"}
    assert len(stored) == len(expected) + 1


def fill(stack: Stack, topic: str) -> list[str]:
    """Publish more than a connection's buffers hold."""
    messages = [f"{number:03d}" + "z" * BIG for number in range(STALLED_PARTS)]
    for message in messages:
        assert post(stack, topic, message).status == 200
    return messages


def test_a_slow_reader_of_a_large_answer_gets_it_whole_and_holds_up_nobody(stack: Stack) -> None:
    messages = fill(stack, "large")
    with Wire(stack, receive_buffer=4096) as client:
        client.poll("large/g/c", 20)
        client.socket.recv(1, socket.MSG_PEEK)
        assert poll(stack, "large/other/c", 20).json == messages
        assert post(stack, "large", "more").status == 200
        # Its answer is on the way: who polls under its name waits, and is told.
        assert poll(stack, "large/g/c", 0.3).status == 503
        assert client.answer().json == messages
    assert poll(stack, "large/g/c", 5).json == ["more"]


def test_a_large_answer_that_breaks_off_comes_again(stack: Stack) -> None:
    messages = fill(stack, "broken")
    for _ in range(3):
        client = Wire(stack, receive_buffer=4096)
        client.poll("broken/g/c", 20)
        assert client.reader.read(10_000)
        client.reset()
    assert poll(stack, "broken/g/c", 20).json == messages
    assert poll(stack, "broken/g/c").json == []


def test_pipelined_requests_are_answered_in_turn(stack: Stack) -> None:
    with Wire(stack) as client:
        requests = [publishing("pipe", b"%d" % number) for number in range(20)]
        client.send(b"".join(requests) + get("/events/pipe/g/c?timeout=5000&from=earliest"))
        for _ in requests:
            assert client.answer().json["count"] == 1
        found = client.answer().json
        while len(found) < 20:
            found += poll(stack, "pipe/g/c", 5).json
    assert found == [str(number) for number in range(20)]


def test_a_poll_waits_on_when_its_client_sends_the_next_request_early(stack: Stack) -> None:
    group(stack, "early", first="c")
    with Wire(stack) as client:
        client.poll("early/g/c", 20)
        wait_until(lambda: waiting(stack) == 1)
        client.send(publishing("early", b"second"))
        time.sleep(0.2)
        assert post(stack, "early", "first").status == 200
        assert client.answer().json == ["first"]
        assert client.answer().json["count"] == 1
        client.poll("early/g/c", 20)
        assert client.answer().json == ["second"]


def test_a_poll_is_freed_when_its_client_leaves_after_an_early_request(stack: Stack) -> None:
    group(stack, "earlier", first="c")
    for number in range(5):
        with Wire(stack) as client:
            client.poll("earlier/g/c", 30)
            client.send(get("/health"))
            wait_until(lambda: waiting(stack) == 1)
        assert post(stack, "earlier", str(number)).status == 200
        began = time.monotonic()
        assert poll(stack, "earlier/g/c", 10).json == [str(number)]
        assert time.monotonic() - began < 5


def test_publishing_goes_on_and_all_are_woken_when_hundreds_of_polls_wait(stack: Stack) -> None:
    allow_files(WAITING_POLLS + 200)
    # A topic has at most 1,000 groups.
    topics = [f"many{first}" for first in range(0, WAITING_POLLS, 500)]
    for topic in topics:
        assert post(stack, topic, "start").status == 200
    with contextlib.ExitStack() as clients:
        polls = [clients.enter_context(Wire(stack)) for _ in range(WAITING_POLLS)]
        for number, client in enumerate(polls):
            client.poll(f"{topics[number // 500]}/g{number}/c", 90, "from=latest")
        wait_until(lambda: waiting(stack) == WAITING_POLLS, 60)
        slowest = 0.0
        for number in range(40):
            began = time.monotonic()
            assert post(stack, "elsewhere", str(number)).status == 200
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < 5
        for topic in topics:
            assert post(stack, topic, "wake").status == 200
        assert [client.answer().json for client in polls] == [["wake"]] * WAITING_POLLS
    wait_until(lambda: waiting(stack) == 0)


class Wanderer(threading.Thread):
    """A consumer id that polls for a while, stays away for a while, and comes back."""

    def __init__(self, stack: Stack, path: str, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self.stack, self.path, self.chance = stack, path, chance
        self.stopping = threading.Event()
        self.received: list[str] = []
        self.odd: list[Answer] = []

    def run(self) -> None:
        """Poll until told to stop; every poll is read to its end."""
        client = http.client.HTTPConnection("127.0.0.1", self.stack.port, timeout=PATIENCE)
        while not self.stopping.is_set():
            for _ in range(self.chance.randrange(1, 12)):
                timeout = self.chance.choice([0, 20, 100, 400])
                limit = self.chance.choice([1, 7, 4096])
                client.request("GET", f"{self.path}?timeout={timeout}&limit={limit}")
                answer = client.getresponse()
                found = Answer(answer.status, {}, answer.read())
                if found.status == 200:
                    self.received += found.json
                else:
                    self.odd.append(found)
            self.stopping.wait(self.chance.choice([0, 0.05, 0.2, 0.7]))
        client.close()


def test_each_message_comes_once_and_in_order_when_ids_join_and_leave(stack: Stack) -> None:
    create(stack, "crowd", 6)
    for number in range(6):
        post(stack, "crowd", "0", f"partitionKey=k{number}")
    assert Counter(rest_of(stack, "crowd/g/first")) == {"0": 6}
    path = "/events/crowd/g/id"
    crowd = [Wanderer(stack, f"{path}{n}", random.Random(n)) for n in range(10)]
    for wanderer in crowd:
        wanderer.start()
    sent: Counter[str] = Counter()
    until = time.monotonic() + CROWD_SECONDS
    number = 0
    while time.monotonic() < until:
        key = f"k{number % 7}"
        batch = [f"{key}:{number + more}" for more in range(0, 21, 7)]
        assert post(stack, "crowd", "\n".join(batch), f"partitionKey={key}").status == 200
        sent.update(batch)
        number += 1 if number % 7 < 6 else 15
    for wanderer in crowd:
        wanderer.stopping.set()
    for wanderer in crowd:
        wanderer.join(PATIENCE)
        assert not wanderer.is_alive()
        assert wanderer.odd == []
    received = Counter(rest_of(stack, "crowd/g/last"))
    for wanderer in crowd:
        received.update(wanderer.received)
        for key in (f"k{n}" for n in range(7)):
            numbers = [int(m.split(":")[1]) for m in wanderer.received if m.startswith(key + ":")]
            assert numbers == sorted(numbers), f"{wanderer.path}: {key} out of order"
    assert sum(len(wanderer.received) > 0 for wanderer in crowd) > 1, "one id got everything"
    assert received == sent


def test_a_second_poll_of_an_id_is_told_who_holds_what_it_wants(stack: Stack) -> None:
    group(stack, "twice", first="c")
    with Wire(stack) as client:
        client.poll("twice/g/c", 20)
        wait_until(lambda: waiting(stack) == 1)
        began = time.monotonic()
        refused = poll(stack, "twice/g/c", 1)
        assert 0.9 < time.monotonic() - began < 5
        assert (refused.status, refused.json["mrErrorCode"]) == (503, 3002)
        assert refused.json["mrstatus"] == 3002
        assert "c of group g is polling already" in refused.json["message"]
        assert int(refused.headers["retry-after"]) >= 1
        assert post(stack, "twice", "x").status == 200
        assert client.answer().json == ["x"]


def test_spare_ids_wait_their_time_and_get_nothing_until_they_are_needed(stack: Stack) -> None:
    group(stack, "spare")
    time.sleep(0.5)
    with contextlib.ExitStack() as clients:
        polls = [clients.enter_context(Wire(stack)) for _ in range(4)]
        for number, client in enumerate(polls):
            client.poll(f"spare/g/c{number}", 10)
        wait_until(lambda: waiting(stack) == 4)
        assert post(stack, "spare", "x").status == 200
        answers = sorted(str(client.answer().json) for client in polls)
    assert answers == ["['x']", "[]", "[]", "[]"]
