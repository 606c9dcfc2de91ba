"""Moving in: what is new is written, what is here stays, and twice is the same as once."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.node.memory import MemoryRegistry
from router.services.keys import ApiKey
from router.services.record_moving import MovableRecord, Standing, compare, write
from router.services.rights import TopicRights

NEW, SAME, DIFFERS = Standing.NEW, Standing.SAME, Standing.DIFFERS
KEY = MovableRecord("key", "K", ApiKey("K", "S").dump())
TOPIC = MovableRecord("topic", "persistent://a/b/c", TopicRights("K", frozenset("xyz")).dump())
LISTED = MovableRecord("blacklist", "192.0.2.7", b"{}")


@pytest.fixture
def registry() -> MemoryRegistry:
    return MemoryRegistry()


def standings(registry: MemoryRegistry, *found: MovableRecord) -> list[Standing]:
    return [step.standing for step in compare(list(found), registry, 1.0)]


def move(registry: MemoryRegistry, *found: MovableRecord, overwrite: bool = False) -> list[str]:
    return write(compare(list(found), registry, 1.0), registry, overwrite, 1.0)


def test_moving_in_twice_is_moving_in_once(registry: MemoryRegistry) -> None:
    assert standings(registry, KEY, TOPIC, LISTED) == [NEW, NEW, NEW]
    assert move(registry, KEY, TOPIC, LISTED) == []
    before = [registry.list(kind, 1.0) for kind in ("key", "topic", "blacklist")]
    assert standings(registry, KEY, TOPIC, LISTED) == [SAME, SAME, SAME]
    assert move(registry, KEY, TOPIC, LISTED, overwrite=True) == []
    assert [registry.list(kind, 1.0) for kind in ("key", "topic", "blacklist")] == before


@given(st.permutations(["owner", "readers", "writers", "description", "transactional"]))
def test_records_are_compared_by_what_they_mean(names: list[str]) -> None:
    registry = MemoryRegistry()
    fields = orjson.loads(TOPIC.value) | {"readers": ["z", "y", "x"]}
    value = orjson.dumps({name: fields[name] for name in names})
    registry.put("topic", TOPIC.name, value, None, 1.0)
    assert standings(registry, TOPIC) == [SAME]


def test_what_differs_stays_unless_it_shall_be_overwritten(registry: MemoryRegistry) -> None:
    registry.put("key", "K", ApiKey("K", "ours").dump(), None, 1.0)
    assert standings(registry, KEY) == [DIFFERS]
    assert move(registry, KEY) == []
    assert registry.list("key", 1.0)[0].value == ApiKey("K", "ours").dump()
    assert move(registry, KEY, overwrite=True) == []
    assert registry.list("key", 1.0)[0].value == KEY.value


@pytest.mark.parametrize("value", [b"", b"[]", b'{"email":1}'])
def test_a_record_that_nobody_can_read_differs(registry: MemoryRegistry, value: bytes) -> None:
    registry.put("key", "K", value, None, 1.0)
    assert standings(registry, KEY) == [DIFFERS]


def test_a_record_that_changed_meanwhile_is_left_alone(registry: MemoryRegistry) -> None:
    registry.put("key", "K", ApiKey("K", "ours").dump(), None, 1.0)
    steps = compare([KEY, LISTED], registry, 1.0)
    registry.put("key", "K", ApiKey("K", "newest").dump(), None, 1.0)
    [failure] = write(steps, registry, True, 1.0)
    assert failure.startswith("key K: ")
    assert registry.list("key", 1.0)[0].value == ApiKey("K", "newest").dump()
    assert registry.list("blacklist", 1.0) != []


def test_a_record_that_is_too_large_is_told(registry: MemoryRegistry) -> None:
    large = MovableRecord("topic", "t", TopicRights("K", description="x" * 70_000).dump())
    [failure] = move(registry, large)
    assert failure.startswith("topic t: ")
