"""How many password checks a user and an address may cause."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from router.access import login_limits
from router.access.login_limits import LoginLimits
from router.backends.memory import MemoryNode
from router.errors import TooManyRequestsError
from router.settings import load
from tests.processes import ManualClock

ADDRESS = "10.0.0.1"
NAMES = (f"user{number}" for number in count())


class Limits(LoginLimits):
    """Limits over the counts of a node, which tells how often it was asked."""

    def __init__(self, node: MemoryNode, clock: Callable[[], float], **settings: str) -> None:
        self.asked = 0

        def take(
            bucket: str, per_minute: float, burst: int, *, look_only: bool = False
        ) -> float | None:
            self.asked += 1
            return node.take_token(bucket, per_minute, burst, 1, look_only=look_only)

        given = {f"auth.{name}_per_minute": text for name, text in settings.items()}
        super().__init__(load(None, {}, given), take, clock)

    def fail(self, name: str = "", address: str = ADDRESS) -> None:
        """Check a password that is wrong."""
        self.admit(name or next(NAMES), address)
        self.failed(address)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def node(clock: ManualClock) -> MemoryNode:
    return MemoryNode(clock=clock)


def test_failures_of_an_address_are_limited_whatever_the_names(
    node: MemoryNode, clock: ManualClock
) -> None:
    limits = Limits(node, clock, failures="3")
    for _ in range(3):
        limits.fail()
    with pytest.raises(TooManyRequestsError, match="from this address") as refusal:
        limits.admit("anna", ADDRESS)
    assert refusal.value.retry_after == pytest.approx(20)
    limits.admit("anna", "10.0.0.2")
    clock.advance(20)
    limits.fail()
    with pytest.raises(TooManyRequestsError):
        limits.admit("anna", ADDRESS)


def test_failures_at_once_are_fewer_than_those_of_a_minute(
    node: MemoryNode, clock: ManualClock
) -> None:
    limits = Limits(node, clock, failures="60")
    for _ in range(login_limits.MAX_FAILURES_AT_ONCE):
        limits.fail()
    with pytest.raises(TooManyRequestsError) as refusal:
        limits.fail()
    assert refusal.value.retry_after == pytest.approx(1)


def test_checks_that_succeed_do_not_count_for_the_address(
    node: MemoryNode, clock: ManualClock
) -> None:
    limits = Limits(node, clock, failures="1")
    for _ in range(100):
        limits.admit(next(NAMES), ADDRESS)
    limits.fail()


def test_failures_count_for_all_processes_of_the_node(node: MemoryNode, clock: ManualClock) -> None:
    first, second = (Limits(node, clock, failures="2") for _ in range(2))
    first.fail()
    second.fail()
    for limits in (first, second):
        with pytest.raises(TooManyRequestsError):
            limits.admit("anna", ADDRESS)


def test_addresses_of_one_ipv6_network_count_together(node: MemoryNode, clock: ManualClock) -> None:
    limits = Limits(node, clock, failures="2")
    for host in range(2):
        limits.fail(address=f"2001:db8:0:1::{host}")
    with pytest.raises(TooManyRequestsError):
        limits.admit("anna", "2001:db8:0:1::9")
    limits.admit("anna", "2001:db8:0:2::9")


def test_refused_address_is_known_without_asking_the_node(
    node: MemoryNode, clock: ManualClock
) -> None:
    limits = Limits(node, clock, failures="1")
    limits.fail()
    asked = limits.asked
    with pytest.raises(TooManyRequestsError):
        limits.check_address(ADDRESS)
    with pytest.raises(TooManyRequestsError):
        limits.admit("a", ADDRESS)
    assert limits.asked == asked
    limits.check_address("10.0.0.2")
    clock.advance(60)
    limits.check_address(ADDRESS)


def test_refused_addresses_that_are_remembered_are_bounded(
    node: MemoryNode, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_limits, "MAX_REFUSED_ADDRESSES", 2)
    limits = Limits(node, clock, failures="1")
    for host in range(3):
        limits.fail(address=f"10.0.0.{host}")
    limits.check_address("10.0.0.0")
    with pytest.raises(TooManyRequestsError):
        limits.admit("anna", "10.0.0.0")


def test_limits_of_zero_are_none(node: MemoryNode, clock: ManualClock) -> None:
    limits = Limits(node, clock, failures="0", attempts="0")
    for _ in range(200):
        limits.fail("anna")
    assert limits.asked == 0
