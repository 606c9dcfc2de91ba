"""API keys."""

from __future__ import annotations

import pytest

from router.errors import BadRequestError, ConflictError
from router.node.memory import MemoryRegistry
from router.services import keys as module
from router.services.keys import CACHE_SECONDS, KIND, ApiKey, Keys
from router.sharing.registry import RegistryRecord
from tests.processes import ManualClock


@pytest.fixture
def registry() -> MemoryRegistry:
    return MemoryRegistry()


@pytest.fixture
def keys(registry: MemoryRegistry, clock: ManualClock) -> Keys:
    return Keys(registry, 1, clock)


def test_created_key_is_known_by_its_name(keys: Keys) -> None:
    made = keys.create("a@example.org", "mine")
    assert (len(made.name), len(made.secret)) == (16, 24)
    assert (made.name + made.secret).isalnum()
    assert keys.get(made.name) == keys.cached(made.name) == made
    assert keys.names() == [made.name]
    assert keys.get("other") is None


def test_keys_differ(keys: Keys) -> None:
    made = [keys.create("", "") for _ in range(50)]
    assert len({key.name for key in made} | {key.secret for key in made}) == 100


def test_key_whose_name_is_taken_gets_another(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter(["first", "s1", "first", "s2", "second", "s3"])
    monkeypatch.setattr(module, "_random", lambda _length: next(drawn))
    assert keys.create("", "").name == "first"
    assert keys.create("", "") == ApiKey("second", "s3")
    assert keys.get("first") == ApiKey("first", "s1")


def test_update_changes_what_is_given(keys: Keys) -> None:
    made = keys.create("a@example.org", "mine")
    changed = keys.update(made.name, None, "ours")
    assert changed == ApiKey(made.name, made.secret, "a@example.org", "ours")
    assert keys.update(made.name, "", None) == ApiKey(made.name, made.secret, "", "ours")
    assert keys.update("other", "", "") is None


def test_update_survives_another_one_at_the_same_time(
    keys: Keys, registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = keys.create("", "")
    put = registry.put
    raced: list[RegistryRecord] = []

    def race(
        kind: str, name: str, value: bytes, expected: int | None, timeout: float
    ) -> RegistryRecord:
        if not raced:
            raced.append(put(kind, name, ApiKey(name, "s", "e").dump(), None, timeout))
        return put(kind, name, value, expected, timeout)

    monkeypatch.setattr(registry, "put", race)
    assert keys.update(made.name, None, "d") == ApiKey(made.name, "s", "e", "d")


def test_update_that_always_conflicts_says_so(
    keys: Keys, registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = keys.create("", "")

    def conflict(*_: object) -> RegistryRecord:
        raise ConflictError

    monkeypatch.setattr(registry, "put", conflict)
    with pytest.raises(ConflictError):
        keys.update(made.name, "x", None)
    with pytest.raises(ConflictError):
        keys.create("", "")


def test_deleted_key_is_gone_here_at_once_and_elsewhere_soon(
    keys: Keys, registry: MemoryRegistry, clock: ManualClock
) -> None:
    elsewhere = Keys(registry, 1, clock)
    made = keys.create("", "")
    assert keys.cached(made.name) == elsewhere.cached(made.name) == made
    assert keys.delete(made.name)
    assert not keys.delete(made.name)
    assert keys.cached(made.name) is None
    assert elsewhere.cached(made.name) == made
    clock.advance(CACHE_SECONDS)
    assert elsewhere.cached(made.name) is None


def test_texts_of_a_key_are_bounded(keys: Keys) -> None:
    with pytest.raises(BadRequestError, match="4096"):
        keys.create("", "x" * 4_097)
    made = keys.create("", "")
    with pytest.raises(BadRequestError, match="4096"):
        keys.update(made.name, "x" * 4_097, None)


def test_record_without_aux_is_a_key(registry: MemoryRegistry, keys: Keys) -> None:
    registry.put(KIND, "old", b'{"secret":"s"}', 0, 1)
    assert keys.get("old") == ApiKey("old", "s")
