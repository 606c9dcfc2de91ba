"""Copying on stores in memory: whatever is killed and whatever fails, each message comes once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.backends import Batch
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    BadRequestError,
    ConflictError,
    EntryTooLargeError,
    OutcomeUnknownError,
    PublishRefusedError,
    TopicNotFoundError,
)
from router.model import NOT_PARTITIONED, Message, TopicInfo, TopicName, TopicStats
from router.model.policies import Policies
from router.services.copying.context import Throttle
from router.services.copying.copier import PartitionCopier
from router.services.copying.fidelity import StoreKind, checksum
from router.services.copying.plan import (
    CopyPlanner,
    check_patterns,
    made_again,
    selected_topics,
)
from router.services.copying.state import CopiedTopic
from tests.unit.services.copying.bench import (
    MOST,
    TIMEOUT,
    TOPIC,
    Bench,
    KilledError,
    Source,
    copy_of,
    copy_until_killed,
    read_all,
)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, batch_messages=3)
    yield bench
    bench.close()


names = st.text(st.characters(codec="utf-8"), max_size=4)
messages = st.builds(
    Message,
    st.binary(max_size=20),
    st.none() | st.binary(max_size=5),
    st.dictionaries(names, names, max_size=2),
    st.none() | st.integers(0, 2**41),
    st.none() | st.integers(0, 2**41),
    st.none() | st.integers(0, 2**41),
    st.just(b""),
)
WRITES = ("begin", "complete")


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    appends=st.lists(st.lists(messages, min_size=1, max_size=7), min_size=1, max_size=6),
    kills=st.lists(
        st.tuples(st.sampled_from(["publish", *WRITES]), st.booleans(), st.integers(0, 4)),
        max_size=5,
    ),
    bound=st.integers(1, 6),
)
def test_a_copy_that_is_killed_anywhere_stores_each_message_once(
    appends: list[list[Message]], kills: list[tuple[str, bool, int]], bound: int
) -> None:
    with TemporaryDirectory() as folder:
        bench = Bench(Path(folder), batch_messages=bound)
        try:
            bench.source.create_topic(TopicInfo(TOPIC), TIMEOUT)
            bench.target.create_topic(TopicInfo(TOPIC), TIMEOUT)
            bench.state.put_topic(CopiedTopic(TOPIC, TOPIC, 0, done=True))
            for some in appends:
                bench.publish(some)
            for where, after, later in kills:
                copy_until_killed(bench, where, after, later)
                bench.reopen()
            copy_until_killed(bench, "", after=False, later=0)
            bench.assert_whole()
        finally:
            bench.close()


def test_partitions_are_copied_into_the_same_partitions(bench: Bench) -> None:
    bench.source.create_topic(TopicInfo(TOPIC, 3), TIMEOUT)
    for number in range(20):
        bench.publish([Message(b"%d" % number, b"k%d" % number)] * 2, number % 3)
    copier = bench.run()
    assert copier.level
    assert bench.target.partitions(TOPIC, TIMEOUT) == 3
    bench.assert_whole(range(3))


def test_a_second_run_copies_what_came_since(bench: Bench) -> None:
    bench.source.create_topic(TopicInfo(TOPIC, properties={"owner": "anna"}), TIMEOUT)
    bench.publish([Message(b"%d" % number) for number in range(8)])
    bench.run()
    bench.publish([Message(b"later")])
    bench.reopen()
    bench.run()
    bench.assert_whole()
    assert bench.target.describe_topic(TOPIC, TIMEOUT).info.properties == {"owner": "anna"}


@pytest.mark.parametrize("stored", [False, True], ids=["refused", "answer lost"])
def test_a_target_that_goes_away_is_waited_for(bench: Bench, stored: bool) -> None:
    bench.publish([Message(b"%d" % number) for number in range(8)])
    bench.target.faults = [
        (stored, OutcomeUnknownError("no answer")),
        (stored, BackendTimeoutError("no answer")),
        (False, BackendUnavailableError("no connection")),
    ]
    assert bench.run().level
    bench.assert_whole()
    assert any("the target does not answer" in sentence for sentence in bench.said)


def test_a_source_that_goes_away_is_waited_for(bench: Bench) -> None:
    bench.publish([Message(b"%d" % number) for number in range(8)])
    bench.source.failures = 3
    assert bench.run().level
    bench.assert_whole()
    assert any("the source does not answer" in sentence for sentence in bench.said)


def test_a_topic_that_is_made_again_while_the_source_is_away_is_not_copied_on(
    bench: Bench,
) -> None:
    bench.source.create_topic(TopicInfo(TOPIC), TIMEOUT)
    bench.target.create_topic(TopicInfo(TOPIC), TIMEOUT)
    bench.state.put_topic(CopiedTopic(TOPIC, TOPIC, 0, done=True))
    bench.publish([Message(b"first")])
    copy = copy_of(bench.context())
    assert not copy.turn()
    created = bench.source.describe_topic(TOPIC, TIMEOUT).info.created_ms
    bench.state.note(f"created {TOPIC}", str(created - 1))
    bench.publish([Message(b"of another topic")])
    bench.source.failures = 1
    with pytest.raises(ConflictError, match="deleted and created again at the source"):
        copy.turn()
    copy.close()
    assert bench.copied() == [Message(b"first")]


def test_a_target_that_stays_away_ends_the_copy_with_a_sentence(tmp_path: Path) -> None:
    bench = Bench(tmp_path, retry_seconds=0.3)
    try:
        bench.publish([Message(b"x")])
        bench.target.faults = [(False, BackendUnavailableError("no connection"))] * 1_000
        (failure,) = bench.run().failures
        assert isinstance(failure, BackendUnavailableError)
        assert "Run the same command again" in str(failure)
        bench.target.faults = []
        bench.reopen()
        bench.run()
        bench.assert_whole()
    finally:
        bench.close()


def test_what_the_target_refuses_is_named_and_other_partitions_are_copied(tmp_path: Path) -> None:
    bench = Bench(tmp_path, retry_seconds=0.2, workers=1)
    try:
        bench.source.create_topic(TopicInfo(TOPIC, 2), TIMEOUT)
        bench.publish([Message(b"large")], 0)
        bench.publish([Message(b"small")], 1)
        bench.target.faults = [(False, PublishRefusedError("too large"))] * 3
        (failure,) = bench.run().failures
        assert "1 messages of topic orders, from " in str(failure)
        assert "cannot be stored at the target: too large" in str(failure)
        assert bench.copied(1) == [Message(b"small")]
    finally:
        bench.close()


def test_a_message_that_is_too_large_for_the_target_is_not_tried_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, retry_seconds=600.0, workers=1)
    try:
        bench.source.create_topic(TopicInfo(TOPIC, 2), TIMEOUT)
        large = Message(b"x" * 900, None, {"router-undecoded": "chunk"})
        bench.publish([Message(b"a"), large, Message(b"b")], 0)
        bench.publish([Message(b"small")], 1)
        bench.target.faults = [(False, EntryTooLargeError("the bound is 800"))]
        # A second try of the batch would succeed, and no partition would fail.
        (failure,) = bench.run().failures
        place = read_all(bench.source, TOPIC, 0)[1].position
        assert f"partition 0: the message at {place.ledger}:{place.entry}, of " in str(failure)
        assert "a chunked message" in str(failure)
        assert str(failure).endswith(": the bound is 800")
        assert bench.copied(1) == [Message(b"small")]
    finally:
        bench.close()


@pytest.mark.parametrize("deleted", [1, 3], ids=["some", "all"])
@pytest.mark.parametrize("stored", [True, False], ids=["stored", "not stored"])
@pytest.mark.parametrize("before", [0, 3], ids=["first batch", "second batch"])
def test_messages_that_the_source_deleted_meanwhile_do_not_stop_the_copy(
    bench: Bench, deleted: int, stored: bool, before: int
) -> None:
    """A batch of three was in flight when retention took its first messages, or all."""
    bench.source.create_topic(TopicInfo(TOPIC), TIMEOUT)
    bench.target.create_topic(TopicInfo(TOPIC), TIMEOUT)
    bench.state.put_topic(CopiedTopic(TOPIC, TOPIC, 0, done=True))
    sent = [b"%d" % number for number in range(before + 6)]
    for value in sent:
        bench.publish([Message(value)])
    copy_until_killed(bench, "publish", after=stored, later=before // 3)
    bench.source.deleted = set(sent[: before + deleted])
    bench.reopen()
    # Killed once more: the number of what is gone must not be used for what comes.
    copy_until_killed(bench, "begin", after=False, later=0)
    bench.reopen()
    copy_until_killed(bench, "", after=False, later=0)
    left = sent if stored else [*sent[:before], *sent[before + deleted :]]
    assert [message.value for message in bench.copied()] == left
    # Of a batch whose messages are all gone it is not known where it is.
    noted = [*sent[:before], *sent[before + deleted :]] if deleted == 3 else left
    rows = list(bench.state.batches(TOPIC, NOT_PARTITIONED))
    sources = [place for row in rows for place in row.sources()]
    targets = [place for row in rows for place in row.targets()]
    by_place = {one.position: one.message.value for one in read_all(bench.target, TOPIC, -1)}
    assert [by_place[place] for place in targets] == noted
    assert [place.entry for place in sources] == [sent.index(value) for value in noted]


def test_a_target_with_messages_of_others_is_refused(bench: Bench) -> None:
    bench.publish([Message(b"x")])
    bench.target.publish(Batch(TOPIC, NOT_PARTITIONED, [Message(b"foreign")]), TIMEOUT)
    with pytest.raises(ConflictError, match="holds 1 messages at the target") as refused:
        bench.plan()
    ways = [str(refused.value).index(way) for way in ("--state", "delete", "--into-existing")]
    assert ways == sorted(ways), "what stores messages twice is the last resort"
    bench.run(into_existing=True)
    assert [message.value for message in bench.copied()] == [b"foreign", b"x"]


def test_a_target_with_other_partitions_is_refused(bench: Bench) -> None:
    bench.source.create_topic(TopicInfo(TOPIC, 4), TIMEOUT)
    bench.target.create_topic(TopicInfo(TOPIC, 2), TIMEOUT)
    with pytest.raises(ConflictError, match="has 4 partitions at the source and 2 partitions"):
        bench.plan(into_existing=True)


def test_a_target_that_was_restored_from_a_backup_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has no more would be taken for copied."""
    bench.publish([Message(b"x")])
    bench.run()
    describe = bench.target.describe_topic

    def restored(topic: TopicName, timeout: float) -> TopicStats:
        stats = describe(topic, timeout)
        [one] = stats.partitions
        return replace(stats, partitions=(replace(one, next_entry=one.next_entry - 1),))

    bench.plan()
    monkeypatch.setattr(bench.target, "describe_topic", restored)
    with pytest.raises(ConflictError, match="restored from a backup"):
        bench.plan()


def test_a_target_that_holds_back_what_it_has_stored_lacks_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Kafka after a kill: what is committed is shown when it is marked."""
    bench.publish([Message(b"x")])
    bench.run()
    describe = bench.target.describe_topic

    def late(topic: TopicName, timeout: float) -> TopicStats:
        stats = describe(topic, timeout)
        [one] = stats.partitions
        shown = replace(one, next_entry=one.next_entry - 1, undecided=1)
        return replace(stats, partitions=(shown,))

    monkeypatch.setattr(bench.target, "describe_topic", late)
    assert bench.plan()


@pytest.mark.parametrize("into_existing", [False, True])
def test_two_names_of_one_store_are_noticed(bench: Bench, into_existing: bool) -> None:
    """A topic would be copied into itself without end."""
    bench.publish([Message(b"x")])
    source = bench.source
    planner = CopyPlanner(
        source, source, bench.state, TIMEOUT, kind=StoreKind.EMBEDDED, into_existing=into_existing
    )
    with pytest.raises(BadRequestError, match="the same store"):
        planner.plan(source.list_topics(TIMEOUT))


def test_a_topic_that_grew_grows_at_the_target(bench: Bench) -> None:
    bench.source.create_topic(TopicInfo(TOPIC, 2), TIMEOUT)
    bench.run()
    bench.source.grow_topic(TOPIC, 3, TIMEOUT)
    bench.publish([Message(b"new")], 2)
    bench.run()
    assert bench.copied(2) == [Message(b"new")]


def test_a_topic_that_was_created_again_is_refused(bench: Bench) -> None:
    bench.publish([Message(b"x")])
    bench.run()
    bench.state.note(f"created {TOPIC}", "1")
    topic = bench.source._topics[TOPIC]
    topic.info = replace(topic.info, created_ms=2)
    with pytest.raises(ConflictError, match="deleted and created again at the source"):
        bench.plan()


def test_what_comes_behind_the_plan_is_left_to_the_next_run(tmp_path: Path) -> None:
    """Else a copy of a topic that is always published to would not end."""
    bench = Bench(tmp_path, batch_messages=1)
    try:
        bench.publish([Message(b"planned")])
        planner = CopyPlanner(
            bench.source, bench.target, bench.state, TIMEOUT, kind=StoreKind.MEMORY
        )
        (planned,) = planner.plan(bench.source.list_topics(TIMEOUT))
        for number in range(3):
            bench.publish([Message(b"%d" % number)])
        copier = PartitionCopier(bench.context(), MOST)
        copier.add(planner.make(bench.context(), planned), planned.fences())
        copier.run(lambda level: None, 0.05)
        assert copier.level
        assert bench.copied() == [Message(b"planned")]
        bench.run()
        bench.assert_whole()
    finally:
        bench.close()


def test_other_messages_where_a_batch_was_in_flight_are_not_stored_in_its_place(
    bench: Bench,
) -> None:
    """As in a topic that was made again by a store that shows neither times nor ids."""
    bench.source.create_topic(TopicInfo(TOPIC), TIMEOUT)
    bench.target.create_topic(TopicInfo(TOPIC), TIMEOUT)
    bench.publish([Message(b"first")])
    bench.target.faults = [(False, KilledError())]
    topic = CopiedTopic(TOPIC, TOPIC, 0, done=True)
    bench.state.put_topic(topic)
    with pytest.raises(KilledError):
        copy_of(bench.context()).turn()
    begun = bench.state.newest(TOPIC, NOT_PARTITIONED)
    assert begun is not None
    bench.state.replace(TOPIC, replace(begun, checksum=checksum([Message(b"other")])))
    with pytest.raises(ConflictError, match="has other messages than before"):
        copy_of(bench.context()).turn()
    assert bench.copied() == []


def test_a_topic_that_was_deleted_at_the_target_is_refused(bench: Bench) -> None:
    bench.publish([Message(b"x")])
    bench.run()
    bench.target.delete_topic(TOPIC, TIMEOUT)
    with pytest.raises(ConflictError, match="was deleted at the target"):
        bench.plan()


def test_policies_are_copied(bench: Bench) -> None:
    policies = Policies(retention_ms=5_000, retention_bytes=-1)
    bench.source.create_topic(TopicInfo(TOPIC, policies=policies), TIMEOUT)
    bench.run()
    assert bench.target.describe_topic(TOPIC, TIMEOUT).info.policies == policies


def test_patterns_choose_topics(bench: Bench) -> None:
    for name in ("orders", "orders-eu", "other", "acme/sales/orders"):
        bench.source.create_topic(TopicInfo(TopicName.parse(name)), TIMEOUT)

    def chosen(*patterns: str) -> list[str]:
        found = selected_topics(bench.source, patterns, TIMEOUT, ("public", "default"))
        return sorted(info.topic.local for info in found)

    assert chosen("orders*") == ["orders", "orders-eu"]
    assert chosen("acme/*") == ["orders"]
    assert chosen("other", "acme/sales/*") == ["orders", "other"]
    assert len(chosen()) == 4


def test_a_copy_that_follows_copies_what_comes_until_it_is_stopped(tmp_path: Path) -> None:
    bench = Bench(tmp_path, follow=True)
    try:
        bench.publish([Message(b"0")])
        levels: list[int] = []

        def meanwhile(level: bool) -> None:
            if not level:
                return
            levels.append(len(bench.copied()))
            if len(levels) <= 3:
                bench.publish([Message(b"%d" % len(levels))])
            elif levels[-1] == 4:
                bench.stop.set()

        context = bench.context()
        planner = CopyPlanner(
            bench.source, bench.target, bench.state, TIMEOUT, kind=StoreKind.MEMORY
        )
        copier = PartitionCopier(context, MOST)
        for planned in planner.plan(bench.source.list_topics(TIMEOUT)):
            copier.add(planner.make(context, planned), planned.fences())
        copier.run(meanwhile, 0.02)
        assert copier.level
        bench.assert_whole()
    finally:
        bench.close()


class Kafka(Source):
    """A store whose readers notice nothing when a topic is made again, as Kafka's do."""

    id = "first"

    def identities(self, topics: Sequence[TopicName], timeout: float) -> dict[TopicName, str]:
        return dict.fromkeys(topics, self.id)


def test_a_topic_with_another_id_is_another_topic(tmp_path: Path) -> None:
    """It is told by its id, whatever times and places say, and its copy ends at once."""
    bench = Bench(tmp_path, follow=True)
    bench.source = source = Kafka()
    try:
        source.create_topic(TopicInfo(TOPIC, 2), TIMEOUT)
        bench.publish([Message(b"a")], 0)
        planner = CopyPlanner(source, bench.target, bench.state, TIMEOUT, kind=StoreKind.MEMORY)
        infos = source.list_topics(TIMEOUT)
        copier = PartitionCopier(bench.context(), MOST)
        (planned,) = planner.plan(infos)
        copier.add(planner.make(bench.context(), planned), planned.fences())
        assert planner.made_again(infos) == []
        seen: list[TopicName] = []

        def meanwhile(level: bool) -> None:
            if not level:
                return
            if not seen:
                source.id = "second"
                seen.extend(planner.made_again(infos))
                copier.refuse(TOPIC, made_again(TOPIC))
                bench.publish([Message(b"of the second")], 0)
            elif len(copier.failures) == 2:
                bench.stop.set()

        watch = threading.Timer(TIMEOUT, bench.stop.set)
        watch.start()
        copier.run(meanwhile, 0.05)
        watch.cancel()
        assert seen == [TOPIC]
        assert len(copier.failures) == 2
        assert not copier.level
        assert bench.copied(0) == [Message(b"a")]
        with pytest.raises(ConflictError, match="deleted and created again at the source"):
            bench.plan()
    finally:
        bench.close()


def test_a_topic_that_is_gone_is_forgotten_once_no_partition_is_copied(tmp_path: Path) -> None:
    """Else two would copy one partition when it is there again."""
    bench = Bench(tmp_path, follow=True)
    try:
        bench.source.create_topic(TopicInfo(TOPIC, 2), TIMEOUT)
        copier = PartitionCopier(bench.context(), MOST)
        planner = CopyPlanner(
            bench.source, bench.target, bench.state, TIMEOUT, kind=StoreKind.MEMORY
        )
        (planned,) = planner.plan(bench.source.list_topics(TIMEOUT))
        missing, read = [1], bench.source.read

        def reading(*given: Any) -> Any:
            if given[1] in missing:
                raise TopicNotFoundError("it is gone")
            return read(*given)

        bench.source.read = reading  # type: ignore[method-assign]
        found: list[list[TopicName]] = []

        def meanwhile(level: bool) -> None:
            if not level:
                return
            found.append(copier.forget_gone())
            if len(found) == 2:
                missing.append(0)
                bench.source.failures = 1
                bench.publish([Message(b"never read")], 0)
            elif found[-1]:
                bench.stop.set()

        copier.add(planner.make(bench.context(), planned), planned.fences())
        watch = threading.Timer(TIMEOUT, bench.stop.set)
        watch.start()
        copier.run(meanwhile, 0.05)
        watch.cancel()
        assert found[:2] == [[], []]
        assert found[-1] == [TOPIC]
        assert copier.forget_gone() == []
    finally:
        bench.close()


def test_the_rate_is_a_bound() -> None:
    """So many bytes a second: what is sent at once is waited for by what follows."""
    waits: list[float] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return False

    throttle = Throttle(1_000, Stop())
    for _ in range(3):
        throttle.take(500)
    assert waits[0] == pytest.approx(0, abs=0.1)
    assert waits[1] == pytest.approx(0.5, abs=0.1)
    assert waits[2] == pytest.approx(1.0, abs=0.1)


def test_topics_that_match_nothing_are_not_found(bench: Bench) -> None:
    with pytest.raises(TopicNotFoundError, match='matches "nothing\\*"'):
        check_patterns(["nothing*"], [])


def test_checksums_tell_messages_apart() -> None:
    different = [
        Message(b"ab"),
        Message(b"a", b"b"),
        Message(b"ab", b""),
        Message(b"", null=True),
        Message(b""),
        Message(b"ab", properties={"a": "b"}),
        Message(b"ab", properties={"ab": ""}),
        Message(b"ab", event_time=1),
        Message(b"ab", sequence=1),
        Message(b"ab", event_time=10**19 - 1),
        Message(b"ab", sequence=10**19 - 1),
        Message(b"ab", deliver_at=1),
        Message(b"ab", replicate_to=("ab",)),
    ]
    assert len({checksum([message]) for message in different}) == len(different)
    assert checksum([Message(b"a"), Message(b"b")]) != checksum([Message(b"ab")])
    assert checksum([Message(b"a", schema_version=b"1")]) == checksum([Message(b"a")])
