"""Connections without a greenlet: what each goes on for, how often, and how it ends."""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator
from typing import Any, TypeAlias

import gevent
from gevent import get_hub, monkey

from router.clocks.steps import YIELD_TO_LOOP, Event, Wait
from router.web.worker.suspended import GreenletPool, SuspendedConnection
from tests.unit.web.worker.greenlets import under_gevent

PATIENCE = 20.0
QUIET = 0.03
"""Seconds in which anything would have happened that is going to."""

Steps: TypeAlias = Generator[Wait | None, None, None]


class Log:
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def debug(self, line: str, *args: object) -> None:
        self.lines.append(f"debug: {line % args}")

    def exception(self, line: str, *args: object) -> None:
        self.lines.append(f"exception: {line % args}")


class Bench:
    """A suspended connection that waits for these, one after another, and notes when it goes on."""

    def __init__(self, *waits: Wait | None, after: BaseException | None = None) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.waits = waits
        self.after = after
        self.taken = self.ends = self.closed = 0
        self.order: list[str] = []
        self.log = Log()
        self.greenlets = GreenletPool()
        self.suspended = SuspendedConnection(self, self.ours, "", self.serve())

    def serve(self) -> Steps:
        try:
            for wait in self.waits:
                yield wait
                self.taken += 1
                self.order.append("on")
            if self.after is not None:
                raise self.after
        except GeneratorExit:
            self.closed += 1
            raise

    def release(self, connection: SuspendedConnection) -> None:
        self.ends += 1
        connection.client.close()

    def begin(self) -> Bench:
        """Take the first step."""
        self.suspended.resume()
        return self

    def goes_on(self, taken: int = 1) -> None:
        """See that it goes on so often, and no more."""
        until(lambda: self.taken >= taken)
        gevent.sleep(QUIET)
        assert self.taken == taken

    def stays(self) -> None:
        """See that it does not go on."""
        taken = self.taken
        gevent.sleep(QUIET)
        assert self.taken == taken


def until(condition: Callable[[], object]) -> None:
    with gevent.Timeout(PATIENCE):
        while not condition():
            gevent.sleep(0.001)


def never() -> Wait:
    return Event(), None


def hold_up_the_loop(seconds: float) -> None:
    sleep: Any = monkey.get_original("time", "sleep")
    sleep(seconds)
    get_hub().loop.update_now()


@under_gevent
def test_it_goes_on_when_its_client_sends_something() -> None:
    bench = Bench(None, never()).begin()
    bench.stays()
    bench.theirs.send(b"x")
    bench.goes_on()


@under_gevent
def test_it_goes_on_at_once_when_something_is_there_already() -> None:
    bench = Bench(None, never())
    bench.theirs.send(b"x")
    bench.begin().goes_on()


@under_gevent
def test_it_goes_on_when_its_client_leaves() -> None:
    bench = Bench(None, never()).begin()
    bench.theirs.close()
    bench.goes_on()


class Reading(Bench):
    """Reads what its client sends, and waits for more."""

    def serve(self) -> Steps:
        while True:
            yield None
            if not self.ours.recv(1):
                return
            self.taken += 1


@under_gevent
def test_it_goes_on_each_time_its_client_sends_something() -> None:
    bench = Reading().begin()
    for turn in range(5):
        bench.stays()
        bench.theirs.send(b"x")
        bench.goes_on(turn + 1)
    bench.theirs.send(b"yz")
    bench.goes_on(7)
    bench.theirs.close()
    until(lambda: bench.ends)
    assert bench.taken == 7


@under_gevent
def test_it_goes_on_when_woken() -> None:
    wakeup = Event()
    bench = Bench((wakeup, None), never()).begin()
    bench.stays()
    wakeup.wake()
    assert bench.taken == 0, "whoever wakes does not do its work"
    bench.goes_on()


@under_gevent
def test_it_goes_on_when_woken_before_it_waits() -> None:
    wakeup = Event()
    wakeup.wake()
    Bench((wakeup, 100.0), never()).begin().goes_on()


@under_gevent
def test_it_goes_on_when_its_time_is_over() -> None:
    for seconds in (0.01, 0.0, -1.0):
        Bench((Event(), seconds), never()).begin().goes_on()


@under_gevent
def test_it_goes_on_once_when_woken_as_its_time_is_over() -> None:
    for early in (True, False):
        wakeup = Event()
        bench = Bench((wakeup, 0.01), never(), never()).begin()
        if early:
            wakeup.wake()
            hold_up_the_loop(0.02)
        else:
            hold_up_the_loop(0.02)
            wakeup.wake()
        wakeup.wake()
        bench.goes_on(1)


@under_gevent
def test_its_time_counts_for_one_wait_alone() -> None:
    first, second = Event(), Event()
    bench = Bench((first, 0.02), (second, None), never()).begin()
    first.wake()
    bench.goes_on(1)
    first.wake()
    bench.stays()
    second.wake()
    bench.goes_on(2)


@under_gevent
def test_it_goes_on_for_a_wakeup_that_it_waits_for_again() -> None:
    wakeup = Event()
    bench = Bench(*[(wakeup, 100.0)] * 3, never()).begin()
    for turn in range(3):
        bench.stays()
        wakeup.wake()
        bench.goes_on(turn + 1)


@under_gevent
def test_it_goes_on_in_a_lull_after_all_who_could_do_so_before() -> None:
    bench = Bench((YIELD_TO_LOOP, 100.0), never()).begin()
    run = get_hub().loop.run_callback

    def others(left: int) -> None:
        bench.order.append("other")
        if left:
            run(bench.greenlets.add, lambda: others(left - 1))

    bench.greenlets.add(lambda: others(20))
    bench.goes_on()
    assert bench.order == ["other"] * 21 + ["on"]


@under_gevent
def test_it_goes_on_after_its_time_when_there_is_no_lull() -> None:
    bench = Bench((YIELD_TO_LOOP, 0.01), never()).begin()
    with gevent.Timeout(PATIENCE):
        while not bench.taken:
            gevent.sleep(0)
    bench.goes_on(1)


@under_gevent
def test_what_comes_early_is_not_watched_but_seen_when_it_is_waited_for() -> None:
    wakeup = Event()
    bench = Bench(None, (wakeup, None), None, never()).begin()
    bench.theirs.send(b"first")
    bench.goes_on(1)
    bench.ours.recv(100)
    bench.theirs.send(b"early")
    bench.stays()
    assert not bench.suspended._watched, "the loop would say so all the time"
    wakeup.wake()
    bench.goes_on(3)


@under_gevent
def test_a_client_that_leaves_early_is_seen_when_it_is_waited_for() -> None:
    wakeup = Event()
    bench = Bench((wakeup, None), None).begin()
    bench.theirs.close()
    bench.stays()
    wakeup.wake()
    until(lambda: bench.ends)
    assert bench.taken == 2


@under_gevent
def test_it_ends_once_with_its_steps() -> None:
    bench = Bench((YIELD_TO_LOOP, None)).begin()
    until(lambda: bench.ends)
    bench.suspended.end()
    assert (bench.ends, bench.closed, bench.log.lines) == (1, 0, [])


@under_gevent
def test_it_is_ended_once_and_waits_for_nothing_any_more() -> None:
    for wait in (None, never(), (Event(), 0.01), (YIELD_TO_LOOP, 0.01)):
        bench = Bench(wait, never()).begin()
        for _ in range(2):
            bench.suspended.end()
            assert (bench.ends, bench.closed) == (1, 1)
        if wait is not None:
            wait[0].wake()
        assert not bench.greenlets._jobs
        assert (bench.suspended._timer, bench.suspended._idle_watcher) == (None, None)
        bench.theirs.close()
        bench.stays()
        assert (bench.taken, bench.ends, bench.log.lines) == (0, 1, [])


@under_gevent
def test_it_is_ended_when_it_was_about_to_go_on() -> None:
    wakeup = Event()
    bench = Bench((wakeup, None), never()).begin()
    wakeup.wake()
    bench.suspended.end()
    bench.stays()
    assert (bench.taken, bench.ends, bench.closed, bench.log.lines) == (0, 1, 1, [])


class Busy(Bench):
    """Waits in its second step, as for a disk."""

    def serve(self) -> Steps:
        yield None
        self.taken += 1
        gevent.sleep(10 * QUIET)
        self.taken += 1
        yield None
        self.taken += 1


@under_gevent
def test_it_is_ended_while_it_does_something() -> None:
    bench = Busy().begin()
    bench.theirs.send(b"x")
    until(lambda: bench.taken == 1)
    bench.suspended.end()
    assert bench.ends == 1
    until(lambda: bench.taken == 2)
    bench.stays()
    bench.suspended.end()
    assert (bench.ends, bench.log.lines) == (1, [])


@under_gevent
def test_it_ends_and_says_so_when_its_connection_is_lost() -> None:
    bench = Bench((YIELD_TO_LOOP, None), after=ConnectionResetError("reset")).begin()
    until(lambda: bench.ends)
    assert bench.log.lines == ["debug: The connection is lost: reset"]


@under_gevent
def test_it_ends_and_says_so_when_its_steps_fail() -> None:
    bench = Bench((YIELD_TO_LOOP, None), after=ZeroDivisionError("x")).begin()
    until(lambda: bench.ends)
    assert bench.log.lines == ["exception: A connection failed"]


@under_gevent
def test_many_go_on_while_one_does_something() -> None:
    busy, many = Busy().begin(), [Bench((Event(), 0.0), never()) for _ in range(100)]
    busy.theirs.send(b"x")
    until(lambda: busy.taken == 1)
    for bench in many:
        bench.begin()
    until(lambda: all(bench.taken for bench in many))
    assert busy.taken == 1, "it is at it still"
    assert [bench.taken for bench in many] == [1] * 100
