"""Plain reading and writing of topics at a broker with users: who is refused, and how soon."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructField, StructType

from router.backends.pulsar.extents import EntryPosition
from router.errors import CredentialsRefusedError, NotAllowedError
from router.model import NOT_PARTITIONED, Message, TopicInfo, TopicName
from router.pipelines.sinks.chunks import AppendChunk
from router.pipelines.sinks.publishing import PublisherIdentity, open_publisher
from router.pipelines.source.batch_reader import RouterBatchReader
from router.pipelines.source.offsets import Offset, Part
from router.pipelines.source.options import SourceOptions
from router.pipelines.source.ranges import Range
from router.pipelines.source.reading import batches
from router.pipelines.source.streams import RouterStreamReader
from router.pipelines.source.writing import publish, started
from tests.broker.guarded import Guarded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ROWS = StructType([StructField("value", StringType())])
TOPIC = TopicName.parse("orders.all")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with Guarded(tmp_path_factory.mktemp("guarded")) as guarded:
        yield guarded


def options(broker: Guarded, token: str, **texts: str) -> SourceOptions:
    return SourceOptions.of_texts({"url": broker.process.url, "pulsar.token": token, **texts})


def dead_letters(given: SourceOptions) -> None:
    """Publish as a pipeline's sinks do, those of dead letters too."""
    with given.opened() as backend:
        publisher = open_publisher(backend, PublisherIdentity("p", "dead-letters", "c"), 60.0)
        chunk = AppendChunk(TOPIC, NOT_PARTITIONED, 0, [Message(b"{")])
        publisher.publish(0, lambda: [chunk])


def task(given: SourceOptions) -> None:
    """Read as a task does, of which the driver knows what it reads."""
    place, stop = EntryPosition(1, 0), EntryPosition(1, 1)
    part = Part(str(TOPIC), NOT_PARTITIONED)
    list(batches(given, [Range(part, place, place, stop, ((1, 1),), True, 0)]))


@pytest.mark.parametrize(
    "enter",
    [
        lambda given: RouterBatchReader(given.of_reading()).partitions(),
        lambda given: RouterStreamReader(given.of_reading()).initialOffset(),
        lambda given: RouterStreamReader(given.of_reading()).latestOffset(
            Offset().json(), ReadAllAvailable()
        ),
        lambda given: started(given, ROWS),
        lambda given: publish(given, iter([pa.record_batch({"value": ["a"]})])),
        dead_letters,
        task,
        lambda given: task(replace(given, broker="met by the driver")),
    ],
    ids=["batch", "stream", "next", "write", "write-task", "dead-letters", "task", "met"],
)
def test_wrong_token_ends_reading_and_writing_at_once(
    broker: Guarded, enter: Callable[[SourceOptions], object]
) -> None:
    given = options(broker, "a.b.c", topics=TOPIC.local, topic=TOPIC.local)
    began = time.monotonic()
    with pytest.raises(CredentialsRefusedError) as refused:
        enter(given)
    # What may pass is waited for: 60 s.
    assert time.monotonic() - began < 30
    sentence = f"{broker.process.url} refuses the token of pulsar.token: unauthenticated: "
    assert str(refused.value).startswith(sentence)


def rows(given: SourceOptions) -> list[str]:
    """Read what there is as tasks do, and ask as streams do."""
    stream = RouterStreamReader(given.of_reading())
    begin = stream.initialOffset()
    end = stream.latestOffset(begin, stream.getDefaultReadLimit())
    assert stream.partitions(begin, end)
    assert stream.reportLatestOffset()["next"] == end["next"]
    stream.stop()
    reader = RouterBatchReader(given.of_reading())
    read = [batch for part in reader.partitions() for batch in reader.read(part)]
    return sorted(value.decode() for batch in read for value in batch.column("value").to_pylist())


def write(given: SourceOptions, *values: str) -> None:
    """Write as the driver and a task do."""
    publish(started(given, ROWS), iter([pa.record_batch({"value": list(values)})]))


def test_rights_to_publish_and_to_subscribe_are_enough(broker: Guarded) -> None:
    # The topic is made by its first use, and others are there that the readers may not see.
    write(options(broker, broker.token("writer"), topic="orders.new"), "a", "b", "c")
    with options(broker, broker.token("ops"), topics="any").opened() as backend:
        backend.create_topic(TopicInfo(TopicName.parse("payments.new"), 2), 60.0)
    reader = broker.token("reader")
    assert rows(options(broker, reader, topics="orders.new")) == ["a", "b", "c"]
    divided = {"minPartitions": "3", "max_rows": "1"}
    assert rows(options(broker, reader, topics="orders.new", **divided)) == ["a", "b", "c"]
    assert rows(options(broker, reader, pattern=r".*\.new")) == ["a", "b", "c"]


def test_rights_that_are_lacking_are_named(broker: Guarded) -> None:
    writer, reader = broker.token("writer"), broker.token("reader")
    write(options(broker, writer, topic="orders.mine"), "a")
    with pytest.raises(NotAllowedError, match=r"no right to subscribe orders\.mine"):
        rows(options(broker, writer, topics="orders.mine"))
    with pytest.raises(NotAllowedError, match=r"no right to publish orders\.mine"):
        write(options(broker, reader, topic="orders.mine"), "b")
    with pytest.raises(NotAllowedError, match=r"no right to publish orders\.other"):
        write(options(broker, reader, topic="orders.other"), "b")
    wide = {"topics.auto_partitions": "7"}
    with pytest.raises(NotAllowedError, match=r"topics\.auto_partitions"):
        write(options(broker, writer, topic="orders.wide", **wide), "b")


def test_sink_publishes_a_batch_once_with_the_right_to_publish(broker: Guarded) -> None:
    writer = options(broker, broker.token("writer"))
    dead_letters(writer)
    dead_letters(writer)
    assert rows(options(broker, broker.token("reader"), topics=TOPIC.local)) == ["{"]
