"""HTTP as the front's workers speak it: what is malformed is refused, and nobody reads it twice.

The answers are read by h11. Each malformed request is followed by a good one, and may hide another:
an answer to either of them is what smuggling looks like.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import h11
import pytest

from tests.deploy.nginx import Nginx
from tests.http import corpus
from tests.http.client import Answer, Exchange, talk
from tests.http.mutating import by_chance, mutated
from tests.ports import free_port
from tests.system.stack import Stack

MUTATIONS = int(os.environ.get("SOAK_HTTP_MUTATIONS", "3"))
SECONDS = float(os.environ.get("SOAK_FUZZ_SECONDS", "5"))

pytestmark = [pytest.mark.system, pytest.mark.timeout(180 + 5 * MUTATIONS + 2 * SECONDS)]
SEED = int(os.environ.get("FUZZ_SEED", "0")) or random.SystemRandom().getrandbits(32)
BAD = {**corpus.HEADS, **corpus.CHUNKS}
# What a worker refuses by itself: what a request is at fault for, and what it will not do.
REFUSALS = {400, 405, 408, 413, 414, 417, 431, 501, 505}


@pytest.fixture(scope="module", params=["llhttp", "gthread"])
def front(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Stack]:
    """The router with each kind of worker; its log has no failure in the end."""
    folder = tmp_path_factory.mktemp(request.param)
    stack = Stack(folder, "--backend", "memory", server_worker_class=request.param)
    stack.start()
    try:
        yield stack
    finally:
        assert stack.stop() == 0
    log = (folder / "serve.log").read_text()
    assert "Traceback" not in log
    assert "exception" not in log


def wrong(answers: list[Answer]) -> str | None:
    """Return what is wrong with the answers to a malformed request, None: nothing."""
    if len(answers) != 1:
        return f"answered {[answer.status for answer in answers]}"
    (answer,) = answers
    if answer.status not in REFUSALS:
        return f"answered {answer.status}"
    return None if answer.closing else "does not say that the connection ends"


def topics(stack: Stack) -> bytes:
    """Return the list of topics."""
    return talk(stack.port, corpus.get(b"Connection: close\r\n"), finish=False)[0].body


def test_what_is_malformed_is_refused_once_and_ends_the_connection(front: Stack) -> None:
    before = topics(front)
    found = {
        name: wrong(talk(front.port, data + corpus.SECOND, finish=False))
        for name, data in BAD.items()
    }
    assert {name: what for name, what in found.items() if what} == {}
    assert topics(front) == before, "a malformed request was published"


def test_what_is_too_large_has_its_status(front: Stack) -> None:
    for name, (status, data) in corpus.SIZES.items():
        answers = talk(front.port, data + corpus.SECOND, finish=False)
        assert [answer.status for answer in answers] == [status], name
        assert answers[0].closing, name


def test_what_is_unusual_and_right_is_served(front: Stack) -> None:
    for name, (statuses, data) in corpus.FINE.items():
        methods = ["HEAD"] if name == "head" else []
        answers = talk(front.port, data + corpus.SECOND, methods, finish=True)
        assert [answer.status for answer in answers] == statuses, name


def sane(answers: list[Answer]) -> bool:
    """Return whether no answer is a failure of the server's, and none follows the last."""
    return all(answer.status < 500 or answer.status in REFUSALS for answer in answers) and not any(
        answer.closing for answer in answers[:-1]
    )


def test_damaged_requests_get_whole_answers_and_harm_nobody_fuzz(front: Stack) -> None:
    chance = random.Random(1)
    vectors = {**BAD, **{f"fine-{name}": data for name, (_, data) in corpus.FINE.items()}}
    for name, data in vectors.items():
        for _ in range(MUTATIONS):
            damaged = mutated(chance, data) + corpus.SECOND
            # A damaged method may be HEAD; none of these is, and the second is GET.
            if b"HEAD" in damaged:
                continue
            assert sane(talk(front.port, damaged, finish=True)), (name, damaged)


def test_requests_by_chance_get_whole_answers_fuzz(front: Stack) -> None:
    chance = random.Random(SEED)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        data = b"".join(by_chance(chance) for _ in range(chance.randint(1, 4)))
        if chance.random() < 0.5:
            data = mutated(chance, data)
        with Exchange(front.port) as exchange:
            for start in range(0, len(data), step := chance.choice([1 << 20, 50, 400])):
                exchange.send(data[start : start + step])
            exchange.finish()
            if b"HEAD" not in data:
                assert sane(exchange.answers()), (SEED, data)
    assert talk(front.port, corpus.SECOND, finish=True)[0].status == 200


def test_nothing_is_smuggled_behind_nginx(front: Stack, tmp_path: Path) -> None:
    """Whatever nginx lets pass, the next request on its connections gets its own answer."""
    port = free_port()
    chance = random.Random(2)
    with Nginx(tmp_path / "nginx", port, [front.port]):
        for number, (name, data) in enumerate(BAD.items()):
            for damaged in (data, mutated(chance, data)):
                # nginx leaves a client that half-closes without the rest of its answer.
                with contextlib.suppress(h11.RemoteProtocolError):
                    answers = talk(port, damaged + corpus.SECOND, finish=True)
                    assert sane(answers), (name, answers)
                mine = f"mine{number}"
                line = f"GET /events/{mine}/g HTTP/1.1".encode()
                (answer,) = talk(port, corpus.get(b"Connection: close\r\n", line), finish=False)
                assert answer.status == 404, name
                assert mine.encode() in answer.body, name


def test_a_client_that_waits_to_be_told_sends_its_body_only_then(front: Stack) -> None:
    with Exchange(front.port) as exchange:
        exchange.send(corpus.post(b"Expect: 100-continue\r\nContent-Length: 1\r\n"))
        assert exchange.socket.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        exchange.send(b"x" + corpus.SECOND)
        exchange.finish()
        assert [answer.status for answer in exchange.answers()] == [200, 200]


def test_answers_are_what_the_client_can_read(front: Stack) -> None:
    for line, status in {
        b"GET /events/sse?stream=true HTTP/1.1": 400,
        b"GET /nowhere HTTP/1.1": 404,
        b"OPTIONS /topics HTTP/1.1": 200,
        b"DELETE /topics HTTP/1.1": 405,
        b"GET /metrics HTTP/1.1": 200,
    }.items():
        answers = talk(front.port, corpus.get(b"", line) * 2, finish=True)
        assert len(answers) == 2, line
        assert answers[0].status == answers[1].status, line
        assert answers[0].status < 500, (line, status)


def test_a_connection_that_half_closes_within_a_head_ends_without_an_answer(front: Stack) -> None:
    assert talk(front.port, b"GET /topics HTTP/1.1\r\nHost:", finish=True) == []
    assert talk(front.port, b"", finish=True) == []


def test_many_pipelined_requests_are_answered_in_turn(front: Stack) -> None:
    lines = [b"GET /events/p%d/g HTTP/1.1" % number for number in range(200)]
    answers = talk(front.port, b"".join(corpus.get(b"", line) for line in lines), finish=True)
    assert [b"p%d/" % n in answer.body for n, answer in enumerate(answers)] == [True] * 200


def test_refused_clients_that_stay_hold_up_nobody(front: Stack) -> None:
    refused = [Exchange(front.port) for _ in range(20)]
    until = time.monotonic() + 25  # waited for one after another they would take 40
    for exchange in refused:
        exchange.send(b"GARBAGE\r\n\r\n")
    for exchange in refused:
        answer = exchange.answer()
        assert answer is not None
        assert answer.status == 400
    assert topics(front)
    assert time.monotonic() < until
    for exchange in refused:
        exchange.socket.close()


Make = Callable[..., Stack]


@pytest.fixture
def bounded(tmp_path: Path) -> Iterator[Make]:
    """Routers whose bounds the test sets."""
    made: list[Stack] = []

    def make(kind: str, **settings: str) -> Stack:
        made.append(Stack(tmp_path, "--backend", "memory", server_worker_class=kind, **settings))
        made[-1].start()
        return made[-1]

    yield make
    for stack in made:
        stack.stop()
    assert "Traceback" not in (tmp_path / "serve.log").read_text()


def trickle(exchange: Exchange, data: bytes) -> None:
    """Send a few bytes twenty times a second, until the server answers."""
    for _ in range(20 * 60):
        exchange.send(data)
        if exchange.answered(0.05):
            return
    raise AssertionError("the server takes all of it")


@pytest.mark.parametrize("kind", ["llhttp", "gthread"])
def test_a_head_that_trickles_in_is_given_up(bounded: Make, kind: str) -> None:
    stack = bounded(kind, server_head_timeout="500ms")
    with Exchange(stack.port) as exchange:
        exchange.send(b"GET /topics HTTP/1.1\r\nX: ")
        trickle(exchange, b"x")
        (answer,) = exchange.answers()
    assert (answer.status, answer.closing) == (408, True)


@pytest.mark.parametrize("kind", ["llhttp", "gthread"])
@pytest.mark.parametrize(
    "framing", [b"Content-Length: 1000\r\n", b"Transfer-Encoding: chunked\r\n"]
)
def test_a_body_that_trickles_in_is_given_up(bounded: Make, kind: str, framing: bytes) -> None:
    stack = bounded(kind, server_body_timeout="500ms")
    with Exchange(stack.port) as exchange:
        exchange.send(corpus.post(framing))
        trickle(exchange, b"1\r\nx\r\n")
        (answer,) = exchange.answers()
    assert (answer.status, answer.closing) == (400, True)
    assert b"in time" in answer.body


def test_an_address_has_so_many_connections(bounded: Make) -> None:
    stack = bounded("llhttp", server_connections_per_address="3")
    held = [Exchange(stack.port) for _ in range(3)]
    try:
        for exchange in held:
            exchange.send(corpus.get())
            assert exchange.answer() is not None
        (refused,) = talk(stack.port, b"", finish=False)
        assert (refused.status, refused.closing) == (503, True)
        held.pop().socket.close()
        until = time.monotonic() + 10
        while talk(stack.port, corpus.SECOND, finish=True)[0].status != 200:
            assert time.monotonic() < until
    finally:
        for exchange in held:
            exchange.socket.close()


def test_the_connection_that_is_idle_longest_makes_room(bounded: Make) -> None:
    stack = bounded("llhttp", server_connections="3")
    held = [Exchange(stack.port) for _ in range(3)]
    for exchange in held:
        exchange.send(corpus.get())
        assert exchange.answer() is not None
    with Exchange(stack.port) as fourth:
        fourth.send(corpus.get())
        assert fourth.answer() is not None
        assert held[0].ended()
        held[1].send(corpus.get())
        assert held[1].answer() is not None
    for exchange in held:
        exchange.socket.close()
