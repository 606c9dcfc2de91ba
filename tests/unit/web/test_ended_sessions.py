"""Sessions that were ended, at all nodes and for as long as they would have lasted."""

from __future__ import annotations

import pytest

from router.errors import BackendUnavailableError
from router.node import memory
from router.node.memory import MemoryRegistry
from router.sharing import registry as records
from router.web.access.sessions import ENDED_CACHE_SECONDS, ENDED_RECORDS, EndedSessions
from tests.processes import ManualClock


class Nodes:
    """Two nodes over one registry, with a clock of the test's."""

    def __init__(self) -> None:
        self.registry, self.clock = MemoryRegistry(), ManualClock()
        self.first, self.second = self.node(), self.node()

    def node(self) -> EndedSessions:
        return EndedSessions(self.registry, 1, self.clock, lambda: int(self.clock() * 1000))

    def names(self) -> list[str]:
        return [record.name for record in self.registry.list(ENDED_RECORDS, 1)]


def test_session_that_is_ended_at_one_node_ends_at_the_other_in_seconds() -> None:
    nodes = Nodes()
    assert not nodes.first.has("a")
    assert not nodes.second.has("a")
    nodes.first.add("a", 60_000)
    assert nodes.first.has("a")
    nodes.clock.advance(ENDED_CACHE_SECONDS)
    assert nodes.second.has("a")
    assert not nodes.second.has("b")


def test_records_go_once_the_sessions_would_be_over() -> None:
    nodes = Nodes()
    now = int(nodes.clock() * 1000)
    nodes.first.add("a", now + 60_000)
    nodes.first.add("b", now + 90_000)
    nodes.clock.advance(60)
    nodes.second.add("c", now + 120_000)
    assert nodes.names() == ["b", "c"]


def test_sign_out_beyond_the_bound_of_records_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = Nodes()
    far = int(nodes.clock() * 1000) + 60_000
    monkeypatch.setattr(records, "MAX_RECORDS_PER_KIND", 1)
    nodes.first.add("a", far)
    nodes.first.add("b", far)
    assert nodes.names() == ["a"]


def test_session_that_was_seen_goes_on_while_the_registry_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = Nodes()
    assert not nodes.first.has("a")

    def away(*_: object) -> None:
        raise BackendUnavailableError

    monkeypatch.setattr(memory.MemoryRegistry, "get", away)
    nodes.clock.advance(60)
    assert not nodes.first.has("a")
    with pytest.raises(BackendUnavailableError):
        nodes.first.has("b")
