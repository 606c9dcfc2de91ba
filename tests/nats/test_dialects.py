"""One log for all dialects: what each publishes, all read with all that they can show.

`dialects.WRITERS` and `dialects.READERS` are the table of documented losses: what a dialect has no
way to say is not among what it carries or shows. A Kafka record without a time of its own has that
of its storing, so that one time is only held to be recent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from uuid import uuid4

import pulsar
import pytest

from tests.kafka.clients.confluent import Confluent
from tests.kafka.scenarios import T0
from tests.nats.conftest import NatsStack
from tests.nats.dialects import READERS, WHOLE, WRITERS, Place, Sent

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

SAMPLES = {
    "everything": Sent('{"n": 1, "ü": "x"}', "key", {"a": "1", "Two-b": "zwei"}, T0),
    "value alone": Sent("{}"),
    "other letters": Sent('{"a": "日本"}', "schlüssel", {"größe": "groß", "line": "a\nb"}, T0 + 1),
    "null": Sent(None, "gone", {"a": "1"}, T0 + 2),
}
CASES = [
    (writer, sample)
    for writer, one in WRITERS.items()
    for sample, sent in SAMPLES.items()
    if sent.value is not None or "null" in one.carried
]


@dataclass
class Log:
    """The topic with all messages of CASES, in order, and what readers found in it."""

    place: Place
    read: dict[str, list[Sent]] = field(default_factory=dict)

    def seen(self, reader: str, writer: str, sample: str) -> Sent:
        """Return what a reader saw of a message."""
        if reader not in self.read:
            self.read[reader] = READERS[reader].read(self.place, len(CASES))
        assert len(self.read[reader]) == len(CASES)
        return self.read[reader][CASES.index((writer, sample))]


@pytest.fixture(scope="module")
def log(nats_stack: NatsStack) -> Iterator[Log]:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(nats_stack.folder / "pulsar.log"))
    client = pulsar.Client(f"pulsar://{nats_stack.pulsar}", logger=logger)
    topic = f"dialects-{uuid4().hex[:8]}"
    with closing(client), closing(Confluent(nats_stack.kafka)) as kafka:
        place = Place(nats_stack, kafka, client, topic)
        config = {"name": topic, "subjects": [topic, f"{topic}.>"]}
        assert "error" not in place.json(f"/jetstream/api/STREAM.CREATE.{topic}", config)
        for writer, sample in CASES:
            WRITERS[writer].write(place, SAMPLES[sample])
        yield Log(place)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("writer", "sample"), CASES)
def test_what_one_dialect_publishes_each_reads(
    log: Log, writer: str, sample: str, reader: str
) -> None:
    stored = WRITERS[writer].published(SAMPLES[sample], log.place.topic)
    expected, seen = READERS[reader].seen(stored), log.seen(reader, writer, sample)
    if "Kafka" in (reader, writer) and "time" in READERS[reader].shown and not expected.time:
        assert seen.time > T0
        seen = replace(seen, time=0)
    # the headers as they were, where a NATS client wrote others than the router would
    properties = {name: one for name, one in seen.properties.items() if name != WHOLE}
    assert replace(seen, properties=properties) == expected
