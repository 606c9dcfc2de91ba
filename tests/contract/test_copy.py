"""Copying between stores: a message out is the message in, for each pair of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition

from router.backends import Backend, Batch, Start
from router.backends.pulsar import PulsarBackend
from router.errors import RouterError
from router.model import (
    LOCAL_CLUSTER,
    NOT_PARTITIONED,
    Message,
    Schema,
    SchemaType,
    Stored,
    TopicInfo,
    TopicName,
)
from router.services.copying.context import CopyContext, CopyOptions, Figures, Throttle
from router.services.copying.copier import PartitionCopier
from router.services.copying.fidelity import StoreKind, checksum, held
from router.services.copying.plan import CopyPlanner
from router.services.copying.reading import DELETED
from router.services.copying.state import CopiedTopic, CopyState
from router.services.copying.verify import Verifier
from router.wire.kafka.record_messages import ALL_HEADERS, SEQUENCE, read_message
from router.wire.kafka.records import KafkaRecord
from tests.contract.conftest import WAIT, Bell, Opened, open_apache, open_with_node
from tests.contract.copied import stored as read_all
from tests.servers.kafka import Kafka
from tests.servers.pulsar import Pulsar

pytestmark = pytest.mark.contract

KINDS = {
    "embedded": StoreKind.EMBEDDED,
    "pulsar": StoreKind.EMBEDDED,
    "kafka": StoreKind.KAFKA,
    "apache": StoreKind.PULSAR,
}
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)
# What Kafka's clients send may have headers that properties cannot carry, and publishers of
# properties may choose any names.
odd_properties = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"\xff"]), st.none() | st.sampled_from([b"1", b"2", b"\0\xff\xfe"])
    ),
    max_size=3,
).map(
    lambda headers: read_message(KafkaRecord(0, 0, None, b"", headers)).properties
) | st.dictionaries(
    st.sampled_from(["a", SEQUENCE, ALL_HEADERS]), st.sampled_from(["1", "AA=="]), max_size=2
)
messages = st.builds(
    Message,
    st.binary(max_size=30) | st.just(b"x" * 2_000),
    st.none() | st.binary(max_size=10),
    st.dictionaries(names, names, max_size=2) | odd_properties,
    st.none() | st.integers(1, 2**41),
    st.none() | st.just(1_700_000_000_000),
    st.none() | st.integers(0, 2**53),
    st.just(b""),
    st.just(False),
    st.sampled_from([(), (LOCAL_CLUSTER,)]),
).flatmap(lambda one: st.sampled_from([one, one._replace(value=b"", null=True)]))


@dataclass(frozen=True)
class Pair:
    """Two stores, and a folder for the states of copies."""

    source: Opened
    target: Opened

    @property
    def kinds(self) -> tuple[StoreKind, StoreKind]:
        return KINDS[self.source.kind], KINDS[self.target.kind]

    def new_topic(self, partitions: int) -> CopiedTopic:
        """Make a topic at both ends, under names that differ."""
        source, target = self.source.new_topic(partitions), self.target.new_topic(partitions)
        return CopiedTopic(source, target, partitions, done=True)

    def copy(self, state: CopyState, topic: CopiedTopic, bound: int = 1_000) -> Figures:
        """Copy a topic whole; fails with what fails."""
        stop, figures = Event(), Figures(lambda sentence: None)
        with ThreadPoolExecutor(2) as pool:
            context = CopyContext(
                self.source.backend,
                self.target.backend,
                self.kinds[1],
                state,
                CopyOptions(timeout=WAIT, retry_seconds=WAIT, batch_messages=bound),
                figures,
                Throttle(0, stop),
                pool,
                stop,
            )
            context.schemas(topic).copy_all()
            copier = PartitionCopier(context, 1 << 20)
            copier.add(topic, {})
            copier.run(lambda level: None, 0.05)
        for failure in copier.failures:
            raise failure
        assert copier.level
        return figures


@contextmanager
def new_state(topic: CopiedTopic) -> Iterator[CopyState]:
    with TemporaryDirectory() as folder:
        state = CopyState.open(Path(folder) / "copy.db", "here", "there")
        state.put_topic(topic)
        try:
            yield state
        finally:
            state.close()


@pytest.fixture(scope="module")
def pair(source_and_target: tuple[Opened, Opened]) -> Pair:
    return Pair(*source_and_target)


def stored_in(backend: Backend, topic: TopicName, partition: int, count: int) -> list[Stored]:
    """Return the messages of a partition, which are so many.

    Kafka shows the messages of a transaction soon after it says that it is committed.
    """
    bell = Bell()
    reader = backend.read(topic, partition, Start.EARLIEST, bell, WAIT)
    found: list[Stored] = []

    def all_found() -> bool:
        found.extend(reader.receive(100_000, 1 << 30, WAIT))
        return len(found) >= count

    try:
        bell.until(all_found)
        assert not reader.receive(1, 1, WAIT)
    finally:
        reader.close()
    assert len(found) == count
    return found


def publish(opened: Opened, batch: Batch) -> None:
    """Store a batch; what the store does not hold of its messages is left out."""
    kept = [held(message, KINDS[opened.kind]) for message in batch.messages]
    opened.backend.publish(Batch(batch.topic, batch.partition, kept), WAIT)


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    appends=st.lists(
        st.tuples(st.integers(0, 1), st.lists(messages, min_size=1, max_size=5)),
        min_size=1,
        max_size=5,
    ),
    bound=st.integers(1, 8),
)
def test_messages_are_the_same_at_the_target(
    pair: Pair, appends: list[tuple[int, list[Message]]], bound: int
) -> None:
    """Keys, values, nulls, properties, times and numbers, in the order of their partition."""
    topic = pair.new_topic(2)
    for partition, some in appends:
        publish(pair.source, Batch(topic.source, partition, some))
    with new_state(topic) as state:
        pair.copy(state, topic, bound)
        for partition in range(2):
            count = sum(len(some) for number, some in appends if number == partition)
            here = stored_in(pair.source.backend, topic.source, partition, count)
            there = stored_in(pair.target.backend, topic.target, partition, count)
            wanted = [held(stored.message, pair.kinds[1]) for stored in here]
            assert [stored.message for stored in there] == wanted
            published = [m for number, some in appends if number == partition for m in some]
            expected = [held(held(m, pair.kinds[0]), pair.kinds[1]) for m in published]
            assert wanted == expected
            rows = list(state.batches(topic.source, partition))
            places = [place for row in rows for place in row.targets()]
            assert places == [stored.position for stored in there]
            assert [place for row in rows for place in row.sources()] == [
                replace(stored.position, epoch=0) for stored in here
            ]
            at = 0
            for row in rows:
                assert row.checksum == checksum(wanted[at : at + row.count])
                at += row.count


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "not stored"])
def test_a_batch_in_flight_is_stored_once(
    pair: Pair, stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copier dies behind the note of a batch, before or after the target has it."""
    topic = pair.new_topic(0)
    sent = [Message(b"%d" % number, b"k", {"a": "b"}) for number in range(12)]
    # Different times of delivery cannot share an entry: the batch is stored in parts.
    sent[5] = sent[5]._replace(deliver_at=1_700_000_000_000)
    for at in range(0, 12, 3):
        publish(pair.source, Batch(topic.source, NOT_PARTITIONED, sent[at : at + 3]))
    with new_state(topic) as state:
        monkeypatch.setattr(state, "complete", _dies)
        if not stored:
            monkeypatch.setattr(pair.target.backend, "publish", _dies)
        with pytest.raises(RouterError):
            pair.copy(state, topic, 8)
        monkeypatch.undo()
        newest = state.newest(topic.source, NOT_PARTITIONED)
        assert newest is not None
        assert newest.receipt is None
        # Another client publishes behind it.
        foreign = Batch(topic.target, NOT_PARTITIONED, [Message(b"foreign")])
        pair.target.backend.publish(foreign, WAIT)
        pair.copy(state, topic, 3)
        there = stored_in(pair.target.backend, topic.target, NOT_PARTITIONED, 13)
        copied = [one.message for one in there if one.message.value != b"foreign"]
        assert copied == [held(held(m, pair.kinds[0]), pair.kinds[1]) for m in sent]
        by_value = {one.message.value: one.position for one in there}
        here = stored_in(pair.source.backend, topic.source, NOT_PARTITIONED, 12)
        rows = list(state.batches(topic.source, NOT_PARTITIONED))
        places = [place for row in rows for place in zip(row.sources(), row.targets(), strict=True)]
        assert places == [
            (replace(one.position, epoch=0), by_value[one.message.value]) for one in here
        ]


def _dies(*given: object) -> None:
    raise RouterError("the copier dies here")


def test_schemas_keep_their_order_and_messages_their_schema(pair: Pair) -> None:
    topic = pair.new_topic(0)
    schemas = [order_schema("a"), order_schema("a", "b")]
    put = pair.source.backend.schemas.put
    versions = [put(topic.source, schema, WAIT) for schema in schemas]
    sent = [Message(b"{}", schema_version=version) for version in (*versions, b"", versions[0])]
    publish(pair.source, Batch(topic.source, NOT_PARTITIONED, sent))
    with new_state(topic) as state:
        pair.copy(state, topic)
    there = stored_in(pair.target.backend, topic.target, NOT_PARTITIONED, 4)
    here = stored_in(pair.source.backend, topic.source, NOT_PARTITIONED, 4)
    for mine, copied in zip(here, there, strict=True):
        version = mine.message.schema_version
        assert bool(copied.message.schema_version) == bool(version)
        if version:
            wanted = pair.source.backend.schemas.get(topic.source, version, WAIT)
            found = pair.target.backend.schemas.get(
                topic.target, copied.message.schema_version, WAIT
            )
            assert (found.type, found.data) == (wanted.type, wanted.data)
    newest = pair.target.backend.schemas.get(topic.target, None, WAIT)
    assert newest.data == schemas[1].data


def order_schema(*names: str) -> Schema:
    fields = [{"name": name, "type": ["null", "string"], "default": None} for name in names]
    record = {"type": "record", "name": "Order", "fields": fields}
    return Schema(SchemaType.JSON, json.dumps(record).encode())


def test_topics_are_planned_and_made_at_the_target(pair: Pair) -> None:
    """As the command does, where the ends are two stores."""
    name = TopicName.parse(f"planned-{pair.source.kind}-{pair.target.kind}")
    for partitions in (0, 3):
        topic = replace(name, local=f"{name.local}-{partitions}")
        pair.source.backend.create_topic(TopicInfo(topic, partitions), WAIT)
        publish(pair.source, Batch(topic, partitions - 1, [Message(b"x")]))
        with new_state(CopiedTopic(topic, topic, partitions)) as state:
            planner = CopyPlanner(
                pair.source.backend, pair.target.backend, state, WAIT, kind=pair.kinds[1]
            )
            infos = [i for i in pair.source.backend.list_topics(WAIT) if i.topic == topic]
            (planned,) = planner.plan(infos)
            assert (planned.made, planned.messages) == (False, 1)
            with ThreadPoolExecutor(1) as pool:
                stop = Event()
                context = CopyContext(
                    pair.source.backend,
                    pair.target.backend,
                    pair.kinds[1],
                    state,
                    CopyOptions(timeout=WAIT),
                    Figures(lambda sentence: None),
                    Throttle(0, stop),
                    pool,
                    stop,
                )
                made = planner.make(context, planned)
                copier = PartitionCopier(context, 1 << 20)
                copier.add(made, planned.fences())
                copier.run(lambda level: None, 0.05)
                assert copier.level
            assert pair.target.backend.partitions(topic, WAIT) == partitions
            stored_in(pair.target.backend, topic, partitions - 1, 1)
            (again,) = planner.plan(infos)
            assert again.made


@pytest.mark.java
@pytest.mark.timeout(300)
def test_topics_of_apache_pulsar_are_deduplicated(apache_pulsar: Pulsar, tmp_path: Path) -> None:
    """A copy turns deduplication on for its topics, whatever the namespace says."""
    apache_pulsar.ask("PUT", "namespaces/public/copied")
    with ExitStack() as stack:
        opened = open_apache(apache_pulsar, tmp_path, stack)
        backend = opened.backend
        assert isinstance(backend, PulsarBackend)
        topic = TopicName.parse("public/copied/orders")
        backend.create_topic(TopicInfo(topic, 2), WAIT)
        assert not backend.deduplicates(topic, WAIT)
        backend.deduplicate(topic, WAIT)
        assert backend.deduplicates(topic, WAIT)
        backend.deduplicate(topic, WAIT)


@pytest.mark.java
@pytest.mark.timeout(300)
def test_what_kafka_keeps_beside_messages_is_neither_copied_nor_missed(
    kafka: Kafka, on_kafka: Opened, admin: KafkaAdminClient, tmp_path: Path
) -> None:
    """Markers and aborted messages; and messages that retention took before they were copied."""
    with ExitStack() as stack:
        pair = Pair(on_kafka, open_with_node("embedded", tmp_path, stack))
        topic = pair.new_topic(0)
        name = topic.source.local
        with KafkaProducer(bootstrap_servers=kafka.address, transactional_id=name) as producer:
            producer.init_transactions()
            for number, end in enumerate(("abort", "commit", "abort", "commit", "abort")):
                producer.begin_transaction()
                producer.send(name, b"%d" % number)
                producer.flush(WAIT)
                getattr(producer, f"{end}_transaction")()
        with new_state(topic) as state:

            def copied(bound: int) -> list[bytes]:
                figures.append(pair.copy(state, topic, bound))
                verifier = Verifier(
                    on_kafka.backend, pair.target.backend, state, WAIT, lambda count: None
                )
                found = verifier.run([topic], "all", groups=False)
                assert found.ok, found.sentences()
                there = read_all(pair.target, topic.target)
                return [stored.message.value for stored in there]

            figures: list[Figures] = []
            assert copied(1) == [b"1", b"3"]
            for number in range(5, 9):
                publish(on_kafka, Batch(topic.source, NOT_PARTITIONED, [Message(b"%d" % number)]))
            kept = read_all(on_kafka, topic.source)[-1].position.entry
            admin.delete_records({TopicPartition(name, 0): kept})
            assert copied(2) == [b"1", b"3", b"8"]
            assert [dict(one.losses) for one in figures] == [{}, {DELETED: 1}]
