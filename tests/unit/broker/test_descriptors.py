"""What the process may open, and who gets which part of it."""

from __future__ import annotations

import resource
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.broker import descriptors
from router.broker.storage import StoreOptions
from router.broker.transport.context import TransportOptions
from router.settings import load

FOREVER = resource.RLIM_INFINITY


class Limits:
    """The limits of a process."""

    def __init__(self, soft: int, hard: int) -> None:
        self.now = soft, hard

    def get(self, _kind: int) -> tuple[int, int]:
        return self.now

    def set(self, _kind: int, limits: tuple[int, int]) -> None:
        if limits[1] != self.now[1] or (self.now[1] != FOREVER and limits[0] > self.now[1]):
            raise ValueError("not allowed to raise maximum limit")
        self.now = limits


@pytest.fixture
def under(monkeypatch: pytest.MonkeyPatch) -> Any:
    def having(soft: int, hard: int) -> Limits:
        limits = Limits(soft, hard)
        monkeypatch.setattr(resource, "getrlimit", limits.get)
        monkeypatch.setattr(resource, "setrlimit", limits.set)
        return limits

    return having


@pytest.mark.parametrize(
    ("soft", "hard", "after"),
    [
        (1_024, 4_096, 4_096),
        (1_024, 1 << 20, descriptors.MAX_DESCRIPTORS),
        (1_024, FOREVER, descriptors.MAX_DESCRIPTORS),
        (100_000, 1 << 20, 100_000),
        (FOREVER, FOREVER, FOREVER),
    ],
)
def test_process_takes_what_it_may_have(under: Any, soft: int, hard: int, after: int) -> None:
    limits = under(soft, hard)
    descriptors.raise_limit()
    assert limits.now == (after, hard)


@given(limit=st.integers(256, 1 << 20), wanted=st.integers(0, 1 << 20))
def test_clients_and_segments_leave_files_for_the_rest(limit: int, wanted: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resource, "getrlimit", Limits(limit, limit).get)
        clients = descriptors.for_clients(wanted)
        assert clients <= wanted
        assert clients + descriptors.for_segments() <= limit - limit // 4


def test_broker_takes_fewer_clients_than_settings_say_when_files_are_few(under: Any) -> None:
    under(1_024, 1_024)
    settings = load(None, {}, {})
    assert TransportOptions.from_settings(settings).max_connections == 512
    assert StoreOptions.from_settings(settings).open_files == 256
    under(FOREVER, FOREVER)
    assert TransportOptions.from_settings(settings).max_connections == 10_000
