"""The records of topics and groups, which outlive a topic that Kafka deletes by itself."""

from __future__ import annotations

import threading
import time

import pytest
from structlog.testing import capture_logs

from router.backends.kafka import known_topics as known_module
from router.backends.kafka.known_topics import GROUPS, TOPICS, GroupsRecord, KnownTopics
from router.backends.kafka.names import Names
from router.errors import CoordinationUnavailableError
from router.model import TopicInfo, TopicName
from router.model.policies import Policies
from router.node.memory import MemoryRegistry
from router.sharing.registry import RegistryRecord, check_record

TOPIC = TopicName.parse("orders")
NAME = "orders"
DAY_MS = 86_400_000
REPLACED = "topic-replaced-in-kafka"


class Days:
    """A wall clock in days."""

    def __init__(self) -> None:
        self.day = 20_000

    def __call__(self) -> int:
        return self.day * DAY_MS


class Registry(MemoryRegistry):
    """Counts writes, and can be away."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.away = False

    def get(self, kind: str, name: str, timeout: float) -> RegistryRecord | None:
        if self.away:
            raise CoordinationUnavailableError
        return super().get(kind, name, timeout)

    def put(
        self, kind: str, name: str, value: bytes, expected: int | None, timeout: float
    ) -> RegistryRecord:
        self.writes += 1
        return super().put(kind, name, value, expected, timeout)


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def days() -> Days:
    return Days()


@pytest.fixture
def known(registry: Registry, days: Days) -> KnownTopics:
    return worker(registry, days)


def worker(registry: Registry, days: Days) -> KnownTopics:
    return KnownTopics(registry, Names("public", "default", "{group}"), days)


def soon() -> float:
    return time.monotonic() + 5


def joined(known: KnownTopics, topic_id: str, *groups: str) -> None:
    for group in groups:
        known.joined(NAME, topic_id, group, soon())


def owed(known: KnownTopics, topic_id: str, *groups: str) -> list[str]:
    return [group for group in groups if known.is_owed(NAME, topic_id, group, soon())]


def test_a_topic_that_the_router_did_not_create_is_remembered_with_its_partitions(
    known: KnownTopics, registry: Registry, days: Days
) -> None:
    assert known.former(NAME, soon()) is None
    known.saw(NAME, "a", 3, soon())
    known.saw(NAME, "a", 3, soon())
    assert registry.writes == 1
    known.saw(NAME, "a", 4, soon())
    assert worker(registry, days).former(NAME, soon()) == TopicInfo(TOPIC, 4)


def test_a_topic_that_the_router_created_is_remembered_as_it_was_created(
    known: KnownTopics,
) -> None:
    info = TopicInfo(TOPIC, 3, Policies(1000, 2000, 3000, True), {"owner": "me"})
    known.created(NAME, info, "a", soon())
    known.saw(NAME, "a", 3, soon())
    assert known.former(NAME, soon()) == info
    known.deleted(NAME, soon())
    assert known.former(NAME, soon()) is None


def test_a_replaced_topic_is_logged_once_by_all_workers_together(
    registry: Registry, days: Days
) -> None:
    workers = [worker(registry, days) for _ in range(3)]
    for known in workers:
        known.saw(NAME, "a", 3, soon())
    with capture_logs() as lines:
        for known in workers * 2:
            known.saw(NAME, "b", 1, soon())
        # As a broker shows it that lags behind.
        workers[0].saw(NAME, "a", 3, soon())
        workers[0].saw(NAME, "b", 1, soon())
    assert [line["event"] for line in lines] == [REPLACED]
    assert lines[0]["log_level"] == "warning"
    assert (lines[0]["partitions_before"], lines[0]["partitions"]) == (3, 1)


def test_groups_of_a_replaced_topic_are_owed_a_start_until_they_had_it(
    known: KnownTopics, registry: Registry, days: Days
) -> None:
    joined(known, "a", "g", "h")
    assert owed(known, "a", "g", "h", "new") == []
    assert owed(worker(registry, days), "b", "g", "h", "new") == ["g", "h"]
    joined(known, "b", "g", "new")
    assert owed(known, "b", "g", "h", "new") == ["h"]
    assert owed(known, "c", "g", "h", "new") == ["g", "h", "new"]


def test_groups_are_noted_once_a_day_and_of_each_topic_anew(
    known: KnownTopics, registry: Registry, days: Days
) -> None:
    joined(known, "a", "g")
    assert known.is_noted(NAME, "a", "g")
    assert not known.is_noted(NAME, "b", "g")
    days.day += 1
    assert not known.is_noted(NAME, "a", "g")
    writes = registry.writes
    joined(known, "a", "g")
    assert known.is_noted(NAME, "a", "g")
    assert registry.writes == writes + 1


def test_a_group_that_left_or_whose_topic_the_router_deleted_is_owed_nothing(
    known: KnownTopics,
) -> None:
    joined(known, "a", "g", "h")
    known.left(NAME, "a", "g", soon())
    assert owed(known, "b", "g", "h") == ["h"]
    known.deleted(NAME, soon())
    assert owed(known, "b", "g", "h") == []


def test_a_broker_that_shows_the_topic_before_changes_nothing(known: KnownTopics) -> None:
    joined(known, "a", "g", "h")
    joined(known, "b", "g")
    joined(known, "a", "h")
    assert owed(known, "b", "g", "h") == ["h"]


def test_the_record_of_groups_is_bounded_in_number_and_days() -> None:
    record = GroupsRecord("a")
    for day in range(3):
        record = record.joined([f"{day}-{n}" for n in range(known_module.MAX_GROUPS // 2)], day)
    assert len(record.groups) == known_module.MAX_GROUPS
    assert "0-0" not in record.groups
    assert len(record.dump()) < 64 * 1024
    late = record.joined(["late"], 2 + known_module.MAX_GROUP_DAYS)
    assert list(late.groups) == ["late"]


def test_the_record_of_a_topic_that_is_replaced_again_and_again_is_bounded() -> None:
    record = GroupsRecord("0")
    for number in range(4):
        groups = [f"{number}-{n:014}" for n in range(known_module.MAX_GROUPS)]
        record = record.joined(groups, 20_000 + number)
        kept = RegistryRecord(NAME, record.dump(), 1)
        record = GroupsRecord.load(kept, str(number + 1)).joined(["g"], 20_000 + number)
    check_record(GROUPS, NAME, record.dump())
    assert f"3-{0:014}" in record.owed


def test_what_another_worker_noted_today_is_asked_for_once(
    known: KnownTopics, registry: Registry, days: Days
) -> None:
    joined(known, "a", "g")
    other = worker(registry, days)
    assert owed(other, "a", "g", "new") == []
    assert other.is_noted(NAME, "a", "g")
    assert not other.is_noted(NAME, "a", "new")
    days.day += 1
    assert owed(other, "a", "g") == []
    assert not other.is_noted(NAME, "a", "g")


def test_groups_that_come_at_once_share_writes(
    registry: Registry, days: Days, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, writing, go = worker(registry, days), threading.Event(), threading.Event()
    put = registry.put

    def slow(
        kind: str, name: str, value: bytes, expected: int | None, timeout: float
    ) -> RegistryRecord:
        writing.set()
        assert go.wait(5)
        return put(kind, name, value, expected, timeout)

    monkeypatch.setattr(registry, "put", slow)
    first = threading.Thread(target=joined, args=(known, "a", "g0"))
    first.start()
    assert writing.wait(5)
    groups = [f"g{number}" for number in range(1, 50)]
    joined(known, "a", *groups)
    go.set()
    first.join(5)
    assert registry.writes == 2
    assert owed(known, "b", "g0", *groups) == ["g0", *groups]


def test_without_the_registry_topics_are_as_the_worker_saw_them(
    known: KnownTopics, registry: Registry
) -> None:
    known.saw(NAME, "a", 3, soon())
    registry.away = True
    known.saw("other", "x", 2, soon())
    joined(known, "a", "g")
    assert not known.is_noted(NAME, "a", "g")
    found = known.former(NAME, soon())
    assert found is not None
    assert found.partitions == 3
    with pytest.raises(CoordinationUnavailableError):
        known.is_owed(NAME, "a", "g", soon())
    registry.away = False
    joined(known, "a", "g")
    assert known.is_noted(NAME, "a", "g")
    assert registry.get(GROUPS, NAME, 1) is not None
    assert registry.get(TOPICS, "other", 1) is None
