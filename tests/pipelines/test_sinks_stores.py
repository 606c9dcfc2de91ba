"""Publishing staged rows to real stores: each once, killed and begun again, brokers restarted."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition

from router import settings as all_settings
from router.backends import Backend, Batch, embedded, kafka, memory, pulsar
from router.backends.kafka.backend import KafkaBackend
from router.backends.kafka.offsets import CommittedOffset, Offsets
from router.errors import FencedError, NotAllowedError, PublishRefusedError, SettingError
from router.model import Message, TopicName
from router.pipelines.declaration import SinkSpec
from router.pipelines.sinks import SinkContext
from router.pipelines.sinks.staging import StagingPlan
from router.pipelines.sinks.topic import TopicSink
from router.settings import Settings
from tests.pipelines.sinking import new_topic, stored
from tests.processes import BrokerProcess, wait_until
from tests.servers.kafka import Kafka
from tests.servers.pulsar import Pulsar
from tests.unit.pipelines.staged import CrashError, Row, writing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ROWS: list[Row] = [(b"%d" % (n % 7) if n % 3 else None, b"%d" % n) for n in range(200)]
SMALL = StagingPlan("", rows=7, window_rows=40)


class Cut:
    """A backend whose process ends after some appends; `numbered` is the real one's."""

    def __init__(self, backend: Backend, appends: int) -> None:
        self._backend = backend
        self._left = appends

    def __getattr__(self, name: str) -> object:
        return getattr(self._backend, name)

    def publish(self, batch: Batch, timeout: float) -> object:
        """Publish, and end."""
        receipt = self._backend.publish(batch, timeout)
        self._left -= 1
        if self._left == 0:
            raise CrashError
        return receipt


class Place:
    """A checkpoint, for one sink to a store."""

    def __init__(
        self, folder: Path, backend: Backend, settings: Settings, topic: TopicName
    ) -> None:
        self.folder = folder
        self.backend = backend
        self.settings = settings
        self.topic = topic
        self.options = {"patience": "60s"}
        self.new_checkpoint("first")

    def new_checkpoint(self, name: str) -> None:
        (self.folder / "check" / "s").mkdir(parents=True, exist_ok=True)
        (self.folder / "check" / "s" / "metadata").write_text(json.dumps({"id": name}))

    def sink(self, backend: Backend | None = None) -> TopicSink:
        context = SinkContext(
            "p", str(self.folder / "check"), backend or self.backend, self.settings
        )
        spec = SinkSpec(self.topic.local, "topic", topic=str(self.topic), options=self.options)
        folder = context.local_folder(spec.name)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metadata").write_text((self.folder / "check" / "s" / "metadata").read_text())
        return TopicSink(spec, context, limits=SMALL)

    def forget_done(self) -> None:
        """Lose what says that a batch is published, so that the store is asked again."""
        for path in (self.folder / "check").rglob("done.json"):
            path.unlink()

    def values(self) -> Counter[Row]:
        found = stored(self.backend, self.topic)
        return Counter((message.key, message.value) for message in found)


def settings_of(folder: Path, url: str, **flags: str) -> Settings:
    given = {"data.dir": str(folder / "data"), "backend.url": url, "broker.spawn": "no"}
    return all_settings.load(None, {}, given | flags)


@pytest.fixture
def place(folder: Path, broker: BrokerProcess) -> Iterator[Place]:
    """A topic of three partitions of an embedded broker."""
    settings = settings_of(folder, "embedded:")
    backend = embedded.open_backend("embedded:", settings, None)
    yield Place(folder, backend, settings, new_topic(backend, "out", 3))
    backend.close()


@pytest.mark.parametrize("appends", [1, 2, 9, 30])
def test_embedded_broker_has_each_row_once_when_the_run_ends_between_two_appends(
    place: Place, appends: int
) -> None:
    with pytest.raises(CrashError):
        place.sink(Cut(place.backend, appends)).run(0, writing(ROWS))  # type: ignore[arg-type]
    place.sink().run(0, writing(ROWS[::-1]))
    place.forget_done()
    place.sink().run(0, writing(ROWS[::-1]))
    place.sink().run(1, writing([(None, b"next")]))
    assert place.values() == Counter([*ROWS, (None, b"next")])


def test_embedded_broker_has_each_row_once_when_it_is_killed_and_restarted_meanwhile(
    place: Place, broker: BrokerProcess
) -> None:
    def restart() -> None:
        broker.kill()
        broker.start()

    for number in range(4):
        again = threading.Thread(target=restart)
        again.start()
        place.sink().run(number, writing([(key, b"%d " % number + value) for key, value in VALUED]))
        again.join()
        place.forget_done()
        place.sink().run(number, writing([]))
    expected = [(k, b"%d " % n + v) for n in range(4) for k, v in VALUED]
    assert place.values() == Counter(expected)


VALUED = [(key, value or b"") for key, value in ROWS]


def test_embedded_broker_that_is_down_fails_the_batch_and_has_it_when_it_is_back(
    place: Place, broker: BrokerProcess
) -> None:
    place.options["patience"] = "500ms"
    sink = place.sink()
    sink.run(0, writing([(None, b"before")]))
    broker.stop()
    with pytest.raises(PublishRefusedError, match="batch 1 could not be published"):
        sink.run(1, writing(ROWS))
    broker.start()
    place.sink().run(1, writing([]))
    assert place.values() == Counter([*ROWS, (None, b"before")])


@pytest.fixture
def on_kafka(folder: Path, kafka: Kafka) -> Iterator[Place]:
    """A topic of three partitions of a Kafka."""
    yield from kafka_place(folder, kafka.address, f"out-{folder.name}")


def kafka_place(folder: Path, address: str, name: str) -> Iterator[Place]:
    url = f"kafka://{address}"
    settings = settings_of(folder, url)
    backend = open_kafka(folder, address)
    yield Place(folder, backend, settings, new_topic(backend, name, 3))
    backend.close()


def open_kafka(folder: Path, address: str) -> KafkaBackend:
    url = f"kafka://{address}"
    settings = settings_of(folder, url)
    backend = kafka.open_backend(url, settings, memory.open_node(settings))
    assert isinstance(backend, KafkaBackend)
    return backend


def committed(address: str, topic: str) -> Counter[Row]:
    """Return what Kafka's own client reads of committed transactions."""
    consumer = KafkaConsumer(bootstrap_servers=[address], isolation_level="read_committed")
    found: Counter[Row] = Counter()
    with closing(consumer):
        places = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        ends = consumer.end_offsets(places)

        def complete() -> bool:
            for records in consumer.poll(timeout_ms=500).values():
                found.update((record.key, record.value) for record in records)
            return all(consumer.position(place) >= ends[place] for place in places)

        wait_until(complete)
    return found


def test_kafka_has_a_batch_once_when_it_is_published_again(on_kafka: Place, kafka: Kafka) -> None:
    for _ in range(3):
        on_kafka.sink().run(0, writing(ROWS))
        on_kafka.forget_done()
    sink = on_kafka.sink()
    sink.run(1, writing([(None, b"next")]))
    sink.run(2, writing([]))
    sink.run(3, writing([(None, b"last")]))
    expected = Counter([*ROWS, (None, b"next"), (None, b"last")])
    assert committed(kafka.address, on_kafka.topic.local) == expected
    assert on_kafka.values() == expected


def test_kafka_has_nothing_of_a_batch_that_is_broken_off_and_all_of_it_later(
    on_kafka: Place, kafka: Kafka
) -> None:
    dying = open_kafka(on_kafka.folder, kafka.address)
    sink = on_kafka.sink(dying)

    def appends() -> Iterator[Batch]:
        for number in range(20):
            yield Batch(on_kafka.topic, number % 3, [Message(b"never")] * 50)
        raise CrashError

    name = f"router-pipeline-p-{on_kafka.topic.local}"
    with suppress(CrashError):
        dying.numbered(name).store(0, "first", appends(), 20)
    sink.run(0, writing(ROWS))
    dying.close()
    assert committed(kafka.address, on_kafka.topic.local) == Counter(ROWS)


def test_kafka_fences_an_older_run_and_its_batch_is_undone(on_kafka: Place, kafka: Kafka) -> None:
    name = f"router-pipeline-p-{on_kafka.topic.local}"
    old = open_kafka(on_kafka.folder, kafka.address)
    numbered = old.numbered(name)
    assert numbered.store(0, "first", [Batch(on_kafka.topic, 0, [Message(b"zero")])], 20)

    def appends() -> Iterator[Batch]:
        yield Batch(on_kafka.topic, 1, [Message(b"never")])
        on_kafka.sink().run(1, writing(ROWS))
        yield Batch(on_kafka.topic, 1, [Message(b"never")])

    with pytest.raises(FencedError, match="Another run publishes"):
        numbered.store(1, "first", appends(), 20)
    with pytest.raises(FencedError, match="Another run publishes"):
        numbered.store(2, "first", [Batch(on_kafka.topic, 0, [Message(b"never")])], 20)
    old.close()
    assert committed(kafka.address, on_kafka.topic.local) == Counter([*ROWS, (None, b"zero")])


def test_kafka_is_not_asked_for_numbers_that_this_run_stored(
    on_kafka: Place, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = open_kafka(on_kafka.folder, kafka.address)
    numbered = backend.numbered(f"router-pipeline-p-{on_kafka.topic.local}")

    def store(number: int, owner: str = "first") -> bool:
        batch = Batch(on_kafka.topic, 0, [Message(b"%d" % number)])
        return numbered.store(number, owner, [batch], 20)

    assert [store(0), store(1)] == [True, True]
    asked: list[tuple[object, ...]] = []

    def settled(*given: object) -> dict[int, CommittedOffset]:
        asked.append(given)
        return {}

    monkeypatch.setattr(Offsets, "settled", settled)
    assert [store(1), store(2), store(2)] == [False, True, False]
    assert asked == []
    assert store(0, "second")
    assert len(asked) == 1
    backend.close()


def test_kafka_takes_batches_of_a_new_checkpoint_that_begin_at_0_again(
    on_kafka: Place, kafka: Kafka
) -> None:
    sink = on_kafka.sink()
    for number in range(3):
        sink.run(number, writing([(None, b"%d" % number)]))
    on_kafka.new_checkpoint("second")
    for path in (on_kafka.folder / "check").rglob("batch=*"):
        path.rename(on_kafka.folder / "gone")
    on_kafka.sink().run(0, writing([(None, b"fresh")]))
    values = [value for _, value in committed(kafka.address, on_kafka.topic.local)]
    assert sorted(value for value in values if value) == [b"0", b"1", b"2", b"fresh"]


def test_kafka_that_is_killed_and_restarted_has_each_row_once(
    folder: Path, new_kafka: Callable[[], Kafka]
) -> None:
    server = new_kafka()
    server.start()
    for place in kafka_place(folder, server.address, "out"):
        place.options["patience"] = "150s"
        sink = place.sink()

        def restart() -> None:
            server.kill()
            server.start()

        for number in range(2):
            again = threading.Thread(target=restart)
            again.start()
            sink.run(number, writing(ROWS))
            again.join()
        assert committed(server.address, "out") == Counter(ROWS + ROWS)


def test_apache_pulsar_is_refused_unless_it_drops_repeats_and_then_has_each_row_once(
    folder: Path, new_pulsar: Callable[..., Pulsar]
) -> None:
    server = new_pulsar()
    server.start()
    settings = settings_of(folder, server.backend)
    backend = pulsar.open_backend(server.backend, settings, None)
    place = Place(folder, backend, settings, new_topic(backend, "out", 3))
    with pytest.raises(SettingError, match="does not drop repeats"):
        place.sink()._place(place.topic)
    server.ask("POST", "namespaces/public/default/deduplication", body=True)
    with pytest.raises(CrashError):
        place.sink(Cut(backend, 5)).run(0, writing(ROWS))  # type: ignore[arg-type]
    place.sink().run(0, writing(ROWS[::-1]))
    place.forget_done()
    place.sink().run(0, writing(ROWS[::-1]))
    assert place.values() == Counter(ROWS)
    backend.close()


def test_apache_pulsar_is_refused_when_nobody_can_be_asked_whether_it_drops_repeats(
    folder: Path, apache_pulsar: Pulsar
) -> None:
    url = f"{apache_pulsar.url}/?admin=none"
    backend = pulsar.open_backend(url, settings_of(folder, url), None)
    with pytest.raises(NotAllowedError, match="admin"):
        backend.deduplicates(TopicName.parse("any"), 20)  # type: ignore[attr-defined]
    backend.close()
