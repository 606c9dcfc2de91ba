"""Greenlets that run jobs: in order, past those that wait, and few that stay."""

from __future__ import annotations

from collections.abc import Callable

import gevent
from gevent.event import Event
from greenlet import getcurrent

from router.web.worker.suspended import MAX_SPARE_GREENLETS, GreenletPool
from tests.unit.web.worker.greenlets import under_gevent

PATIENCE = 20.0


def until(condition: Callable[[], object]) -> None:
    with gevent.Timeout(PATIENCE):
        while not condition():
            gevent.sleep(0.001)


@under_gevent
def test_jobs_are_run_in_order_and_not_by_whoever_adds_them() -> None:
    runners, done = GreenletPool(), list[int]()
    for number in range(100):
        runners.add(lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == []
    until(lambda: len(done) == 100)
    assert done == list(range(100))


@under_gevent
def test_one_greenlet_runs_all_jobs_when_none_waits() -> None:
    runners, seen, due = GreenletPool(), list[object](), 0
    for _ in range(3):
        for _ in range(50):
            runners.add(lambda: seen.append(getcurrent()))
        due += 50
        until(lambda due=due: len(seen) == due)  # type: ignore[misc]
    assert len(set(map(id, seen))) == 1
    assert seen[0] is not getcurrent()


@under_gevent
def test_jobs_that_a_job_adds_come_after_those_that_are_there() -> None:
    runners, done = GreenletPool(), list[str]()

    def first() -> None:
        done.append("first")
        runners.add(lambda: done.append("added"))

    runners.add(first)
    runners.add(lambda: done.append("second"))
    until(lambda: len(done) == 3)
    assert done == ["first", "second", "added"]


@under_gevent
def test_a_job_that_waits_holds_up_no_other() -> None:
    runners, done, go = GreenletPool(), list[str](), Event()

    def waiting() -> None:
        done.append("begun")
        go.wait()
        done.append("waited")

    runners.add(waiting)
    for number in range(3):
        runners.add(lambda number=number: done.append(str(number)))  # type: ignore[misc]
    until(lambda: len(done) == 4)
    assert done == ["begun", "0", "1", "2"]
    runners.add(lambda: done.append("later"))
    until(lambda: done[-1] == "later")
    go.set()
    until(lambda: done[-1] == "waited")


@under_gevent
def test_jobs_wait_each_for_its_own_when_many_do() -> None:
    runners, done = GreenletPool(), list[int]()

    def job(number: int) -> None:
        gevent.sleep(0.001 * (number % 7))
        done.append(number)

    for number in range(1000):
        runners.add(lambda number=number: job(number))  # type: ignore[misc]
    until(lambda: len(done) == 1000)
    assert sorted(done) == list(range(1000))


@under_gevent
def test_who_waited_runs_the_jobs_that_came_meanwhile_once_each() -> None:
    runners, done = GreenletPool(), list[int]()

    def job(number: int) -> None:
        if number % 3 == 0:
            gevent.sleep(0)
        done.append(number)
        if number < 300:
            runners.add(lambda: job(number + 100))

    for number in range(100):
        runners.add(lambda number=number: job(number))  # type: ignore[misc]
    until(lambda: len(done) >= 400)
    gevent.sleep(0.02)
    assert sorted(done) == list(range(400))


@under_gevent
def test_few_runners_stay_when_many_were_needed() -> None:
    runners, go, waiting = GreenletPool(), Event(), list[object]()

    def job() -> None:
        waiting.append(getcurrent())
        go.wait()

    many = 3 * MAX_SPARE_GREENLETS
    for _ in range(many):
        runners.add(job)
    until(lambda: len(waiting) == many)
    assert len(set(map(id, waiting))) == many
    assert runners._spare == []
    go.set()
    until(lambda: len(runners._spare) == MAX_SPARE_GREENLETS)
    gevent.sleep(0.01)
    assert len(runners._spare) == MAX_SPARE_GREENLETS
    assert sum(not runner.dead for runner in waiting) == MAX_SPARE_GREENLETS  # type: ignore[attr-defined]
    # Those that stay are taken again before a new one is made.
    again = list(waiting)
    waiting.clear()
    go.clear()
    for _ in range(MAX_SPARE_GREENLETS):
        runners.add(job)
    until(lambda: len(waiting) == MAX_SPARE_GREENLETS)
    assert set(map(id, waiting)) <= set(map(id, again))
    go.set()


@under_gevent
def test_jobs_are_run_when_the_event_loop_adds_them() -> None:
    runners, done = GreenletPool(), Event()
    gevent.get_hub().loop.run_callback(runners.add, done.set)
    assert done.wait(PATIENCE)
