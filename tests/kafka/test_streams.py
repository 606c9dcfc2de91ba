"""Stream processors count words: repartition and changelog topics, and a state that is restored."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from tests.kafka.clients import SECONDS, Record
from tests.kafka.clients.confluent import topic_configs
from tests.kafka.clients.program import compiled
from tests.kafka.conftest import Clients
from tests.processes import wait_until
from tests.servers import maven
from tests.servers.environments import interpreter
from tests.servers.java import FAST_START

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]
PROGRAMS = Path(__file__).parent / "programs"
PARTITIONS = 2
LINES = ["to be or not to be", "that is the question", "to sleep no more"] * 5
MORE = ["to die to sleep", "no more"] * 3
COUNTED = Counter(" ".join(LINES).split())
COMPACTED = {"cleanup.policy": "compact"}


def streams(folder: Path) -> list[str]:
    """Return the command of the program with Kafka Streams."""
    jars = maven.classpath("kafka-streams")
    classes = compiled("WordCount", jars, folder / "classes")
    command = ["java", "-Xmx256m", *FAST_START, "-cp", f"{jars}:{classes}"]
    return [*command, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "WordCount"]


def quix(_: Path) -> list[str]:
    """Return the command of the program with Quix Streams."""
    return [str(interpreter("stream-processors")), str(PROGRAMS / "quix_count.py")]


COMMANDS: dict[str, tuple[Callable[[Path], list[str]], dict[str, dict[str, str]]]] = {
    "streams": (
        streams,
        {
            "{application}-counts-changelog": COMPACTED | {"min.cleanable.dirty.ratio": "0.01"},
            "{application}-words-repartition": {
                "cleanup.policy": "delete",
                "retention.ms": "-1",
                "segment.bytes": "52428800",
            },
        },
    ),
    "quix": (
        quix,
        {
            "changelog__{application}--repartition.{source}.words--default": COMPACTED,
            "repartition__{application}--{source}--words": {"cleanup.policy": "delete"},
        },
    ),
}
"""Programs, and some configs of the topics that each one creates."""


class WordCount:
    """A program as an application of its own, with the topics that it reads and writes."""

    def __init__(self, clients: Clients, command: list[str], folder: Path) -> None:
        self.application, self.source, self.target = (
            f"{end}-{uuid.uuid4()}" for end in ("app", "in", "out")
        )
        self._client = clients["confluent-kafka"]
        for topic in (self.source, self.target):
            self._client.create(topic, PARTITIONS)
        self._admin = AdminClient({"bootstrap.servers": clients.bootstrap})
        self._state, self._log = folder / "state", folder / "program.log"
        arguments = self.application, str(self._state), self.source, self.target
        self._command = [*command, clients.bootstrap, *arguments]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run it, and end it as an operator does."""
        with (
            self._log.open("ab") as log,
            subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            ) as process,
        ):
            self._process = process
            try:
                yield
                process.terminate()
                assert process.wait(2 * SECONDS) == 0, self._log.read_text()[-3000:]
            finally:
                process.kill()

    def say(self, lines: Sequence[str]) -> None:
        """Publish lines."""
        for number, line in enumerate(lines):
            record = Record(line.encode())
            self._client.produce(self.source, [record], partition=number % PARTITIONS)

    def wait_for(self, words: Counter[str]) -> None:
        """Wait until each word was counted, and see that no count is lost or doubled."""
        wait_until(lambda: self._ends() >= words.total() and self._all_committed(), 3 * SECONDS)
        found = {}
        for part in range(PARTITIONS):
            end = self._client.ends(self.target, part)[1]
            for one in self._client.read(self.target, 0, end, part):
                assert one.record.key is not None
                found[one.record.key.decode()] = int(one.record.value or b"0")
        assert found == words
        assert self._ends() == words.total()

    def forget(self) -> None:
        """Delete the state folder."""
        shutil.rmtree(self._state, ignore_errors=True)

    def _ends(self) -> int:
        assert self._process.poll() is None, self._log.read_text()[-3000:]
        return sum(self._client.ends(self.target, part)[1] for part in range(PARTITIONS))

    def _all_committed(self) -> bool:
        """Whether the group's positions are at the ends, so that a restart reads nothing twice."""
        request = ConsumerGroupTopicPartitions(self.application)
        (found,) = self._admin.list_consumer_group_offsets([request]).values()
        places = found.result(SECONDS).topic_partitions
        topics = [place.topic for place in places if place.offset >= 0]
        return topics.count(self.source) == PARTITIONS and all(
            place.offset < 0 or place.offset == self._client.ends(place.topic, place.partition)[1]
            for place in places
        )


@pytest.mark.parametrize("name", COMMANDS)
def test_words_are_counted_and_the_state_is_restored(
    clients: Clients, tmp_path: Path, name: str
) -> None:
    command, topics = COMMANDS[name]
    program = WordCount(clients, command(tmp_path), tmp_path)
    program.say(LINES)
    with program.running():
        program.wait_for(COUNTED)
    for topic, configs in topics.items():
        full = topic.format(application=program.application, source=program.source)
        assert topic_configs(clients.bootstrap, full).items() >= configs.items()
    program.forget()
    program.say(MORE)
    with program.running():
        program.wait_for(COUNTED + Counter(" ".join(MORE).split()))
