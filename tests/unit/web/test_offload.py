"""Native threads and watched clients, without gevent and with it."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from router.web import offload

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    listener = socket.create_server(("127.0.0.1", 0))
    theirs = socket.create_connection(listener.getsockname())
    ours, _ = listener.accept()
    with listener, ours, theirs:
        yield ours, theirs


def test_work_is_done_here_without_gevent() -> None:
    assert offload.run(threading.get_ident) == threading.get_ident()
    assert offload.run(int, "ff", base=16) == 255
    with pytest.raises(ZeroDivisionError):
        offload.run(divmod, 1, 0)


def test_client_is_there_until_it_leaves(pair: Pair) -> None:
    watch = offload.Watch(pair[0], lambda: None)
    assert watch.check_seconds() == offload.CHECK_SECONDS
    assert not watch.is_closed()
    pair[1].sendall(b"the next request")
    assert not watch.is_closed()
    pair[1].close()
    assert watch.is_closed()
    watch.close()


def test_client_that_only_ends_its_side_counts_as_gone(pair: Pair) -> None:
    watch = offload.Watch(pair[0], lambda: None)
    pair[1].shutdown(socket.SHUT_WR)
    assert watch.is_closed()


def test_client_whose_socket_we_closed_is_gone(pair: Pair) -> None:
    watch = offload.Watch(pair[0], lambda: None)
    pair[0].close()
    assert watch.is_closed()
    watch.close()


def test_client_without_a_socket_is_always_there() -> None:
    watch = offload.Watch(None, lambda: None)
    assert not watch.is_closed()
    assert watch.check_seconds() == math.inf
    watch.bound_write(1)
    watch.close()


def test_pool_has_threads_of_its_own_and_raises_what_its_work_raises() -> None:
    pool = offload.DeadlinePool(1, "few")
    assert pool.run(20, threading.get_ident) not in {threading.get_ident()}
    assert pool.run(20, lambda: threading.current_thread().name) == "few_0"
    with pytest.raises(ZeroDivisionError):
        pool.run(20, divmod, 1, 0)


def test_pool_gives_up_work_that_is_not_done_in_time() -> None:
    pool, go = offload.DeadlinePool(1, "few"), threading.Event()
    with pytest.raises(TimeoutError):
        pool.run(0.01, go.wait, 20)
    ran: list[int] = []
    with pytest.raises(TimeoutError):
        pool.run(0.01, ran.append, 1)
    go.set()
    pool.run(20, ran.append, 2)
    assert ran == [2], "what was given up while it waited is not done later"


UNDER_GEVENT = """
from gevent import monkey
monkey.patch_all()
import math, socket, sys, threading, time
import gevent
from gevent import get_hub, spawn
from gevent.event import Event
from router.web import offload

assert offload.under_gevent()
here = monkey.get_original("threading", "get_ident")
assert offload.run(here) != here()
ticks = []
ticker = spawn(lambda: [ticks.append(time.sleep(0.01)) for _ in range(1000)])
slow = monkey.get_original("time", "sleep")
def work():
    for _ in range(2000):
        if len(ticks) > 3:
            return True
        slow(0.01)
assert offload.run(work), "heavy work held up the others"
try:
    offload.run(divmod, 1, 0)
except ZeroDivisionError:
    pass
else:
    raise AssertionError("the failure was lost")

pool, go = offload.DeadlinePool(1, "few"), monkey.get_original("threading", "Event")()
try:
    pool.run(0.05, go.wait, 20)
except TimeoutError:
    pass
else:
    raise AssertionError("it waited too long")
waiting = spawn(pool.run, 20, here)
time.sleep(0.05)
assert not waiting.ready(), "the pool has one thread"
assert offload.run(here) != here(), "other work waits behind the pool"
go.set()
assert waiting.get(timeout=20) not in {None, here()}
try:
    pool.run(20, divmod, 1, 0)
except ZeroDivisionError:
    pass
else:
    raise AssertionError("the failure was lost")
passed = time.monotonic()
offload.pause(0.05)
assert time.monotonic() - passed > 0.04

listener = socket.create_server(("127.0.0.1", 0))
def connect():
    theirs = socket.create_connection(listener.getsockname())
    return listener.accept()[0], theirs

ours, theirs = connect()
woken = Event()
watch = offload.Watch(ours, woken.set)
assert watch.check_seconds() == math.inf
assert not woken.wait(0.05)
theirs.close()
assert woken.wait(10), "nobody was woken"
assert watch.is_closed()
watch.close()

ours, theirs = connect()
woken.clear()
watch = offload.Watch(ours, woken.set)
theirs.sendall(b"early")
assert woken.wait(10)
assert not watch.is_closed()
assert watch.check_seconds() == offload.CHECK_SECONDS, "behind early bytes the end is not seen"
theirs.close()
with gevent.Timeout(10):
    while not watch.is_closed():
        time.sleep(0.001)
watch.close()
ticker.kill()
sys.stderr.write("done")
"""


@pytest.mark.slow
def test_work_and_watching_under_gevent() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", UNDER_GEVENT],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "done")
