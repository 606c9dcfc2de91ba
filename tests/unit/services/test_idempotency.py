"""Names of request producers: the same on all nodes, and nobody else's to guess."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from router.errors import BackendUnavailableError
from router.model import REQUEST_PRODUCER
from router.node.memory import MemoryRegistry
from router.services.shared_secret import KIND, RequestNames, SharedSecret
from router.sharing.registry import RegistryRecord

IDENTITY = "user", "persistent://public/default/t", "key"


def test_name_is_the_same_wherever_the_registry_is_shared() -> None:
    registry = MemoryRegistry()
    first, second = RequestNames(registry, 1), RequestNames(registry, 1)
    assert first.producer(*IDENTITY) == second.producer(*IDENTITY)
    assert first.producer(*IDENTITY).startswith(REQUEST_PRODUCER)


def test_name_cannot_be_told_from_what_it_names() -> None:
    """Another registry has another secret: what others know does not make the name."""
    names = {RequestNames(MemoryRegistry(), 1).producer(*IDENTITY) for _ in range(3)}
    assert len(names) == 3


def test_names_differ_where_texts_are_cut_elsewhere() -> None:
    names = RequestNames(MemoryRegistry(), 1)
    assert names.digest("a\0b", "c") != names.digest("a", "b\0c") != names.digest("a", "b", "c")


class _Racing(MemoryRegistry):
    """Another node makes the secret between this one's look and its attempt."""

    def get(self, kind: str, name: str, timeout: float) -> RegistryRecord | None:
        found = super().get(kind, name, timeout)
        if found is None:
            super().put(kind, name, b"of the other node", 0, timeout)
        return found


def test_two_nodes_that_start_together_share_one_secret() -> None:
    registry = _Racing()
    mine = RequestNames(registry, 1).producer(*IDENTITY)
    assert mine == RequestNames(registry, 1).producer(*IDENTITY)
    record = registry.get(KIND, RequestNames.NAME, 1)
    assert record is not None
    assert record.value == b"of the other node"


class _Away(MemoryRegistry):
    def get(self, kind: str, name: str, timeout: float) -> RegistryRecord | None:
        raise BackendUnavailableError


def test_no_name_is_made_without_the_secret() -> None:
    with pytest.raises(BackendUnavailableError):
        RequestNames(_Away(), 0.1).producer(*IDENTITY)


class _Restarting(MemoryRegistry):
    """Does not answer the first questions."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals = 3

    def get(self, kind: str, name: str, timeout: float) -> RegistryRecord | None:
        if self.refusals:
            self.refusals -= 1
            raise BackendUnavailableError
        return super().get(kind, name, timeout)


def test_a_registry_that_starts_again_is_waited_for() -> None:
    registry = _Restarting()
    assert RequestNames(registry, 30).producer(*IDENTITY).startswith(REQUEST_PRODUCER)
    assert registry.refusals == 0


def test_all_that_ask_at_once_get_one_secret() -> None:
    registry, start = MemoryRegistry(), threading.Barrier(8)

    def ask(_: int) -> bytes:
        start.wait(20)
        return SharedSecret(registry, "console-session", 1).get()

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(ask, range(8)))
    assert len(found) == 1
    assert SharedSecret(registry, "other", 1).get() not in found
