"""Pauses between tries."""

from __future__ import annotations

import time

import pytest

from router.clocks.backoff import Backoff, retry
from router.errors import BackendUnavailableError, RouterError, TopicNotFoundError


def test_pauses_double_up_to_the_longest_until_reset() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.next() == 0.5


def test_pauses_are_the_same_without_a_longest() -> None:
    backoff = Backoff(0.5)
    assert [backoff.next() for _ in range(3)] == [0.5] * 3


def test_pauses_are_halved_no_further_than_the_first() -> None:
    backoff = Backoff(0.5, 8.0)
    for _ in range(4):
        backoff.next()
    backoff.halve(2)
    assert backoff.next() == 2.0
    backoff.halve(10)
    assert backoff.next() == 0.5


def test_sleep_refuses_at_once_a_pause_that_passes_the_deadline() -> None:
    before = time.monotonic()
    assert not Backoff(60.0).sleep(before + 30.0)
    assert Backoff(0.001).sleep(before + 30.0)
    assert time.monotonic() - before < 20.0


class Failing:
    def __init__(self, *failures: RouterError) -> None:
        self.failures = list(failures)

    def __call__(self) -> str:
        if self.failures:
            raise self.failures.pop(0)
        return "done"


def test_retry_repeats_what_may_pass() -> None:
    attempt = Failing(BackendUnavailableError("away"), BackendUnavailableError("away"))
    assert retry(attempt, Backoff(0.001), time.monotonic() + 20.0) == "done"


def test_retry_raises_what_does_not_pass_and_what_lasts_too_long() -> None:
    with pytest.raises(TopicNotFoundError):
        retry(Failing(TopicNotFoundError("t")), Backoff(0.001), time.monotonic() + 20.0)
    with pytest.raises(BackendUnavailableError):
        retry(Failing(BackendUnavailableError("away")), Backoff(60.0), time.monotonic() + 20.0)
