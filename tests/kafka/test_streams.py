"""Kafka Streams counts words: repartition and changelog topics, and a state that is restored."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.kafka.clients import SECONDS, Record
from tests.kafka.clients.confluent import topic_configs
from tests.kafka.clients.program import compiled
from tests.kafka.conftest import Clients
from tests.processes import wait_until
from tests.servers import maven
from tests.servers.java import FAST_START

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]
PARTITIONS = 2
DIRTY_RATIO = "min.cleanable.dirty.ratio", "0.01"
LINES = ["to be or not to be", "that is the question", "to sleep no more"] * 5
MORE = ["to die to sleep", "no more"] * 3


class WordCount:
    """The program as one application on a state folder; it runs within the context."""

    def __init__(self, clients: Clients, folder: Path, topics: Sequence[str]) -> None:
        self.application = topics[0].replace("in-", "app-")
        self._state = folder / "state"
        self._log = folder / "streams.log"
        jars = maven.classpath("kafka-streams")
        classes = compiled("WordCount", jars, folder / "classes")
        self._command = [
            *("java", "-Xmx256m", *FAST_START, "-cp", f"{jars}:{classes}"),
            *("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "WordCount"),
            *(clients.bootstrap, self.application, str(self._state), *topics),
        ]

    @contextlib.contextmanager
    def running(self) -> Iterator[list[int]]:
        """Run it; gives how many records each store was restored from, when it runs."""
        with (
            self._log.open("ab") as log,
            subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            ) as process,
        ):
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                restored = []
                for line in process.stdout:
                    name, _, count = line.strip().partition(" ")
                    assert name in {"restored", "running"}, line
                    if name == "running":
                        break
                    restored.append(int(count))
                else:
                    pytest.fail(self._log.read_text()[-3000:])
                yield restored
                process.stdin.close()
                assert process.wait(2 * SECONDS) == 0
            finally:
                process.kill()

    def forget(self) -> None:
        """Delete the state folder."""
        shutil.rmtree(self._state)


def test_words_are_counted_and_the_state_is_restored(clients: Clients, tmp_path: Path) -> None:
    client = clients["confluent-kafka"]
    source, target = topics = [f"{end}-{uuid.uuid4()}" for end in ("in", "out")]
    for topic in topics:
        client.create(topic, PARTITIONS)
    program = WordCount(clients, tmp_path, topics)

    def say(lines: Sequence[str]) -> None:
        for number, line in enumerate(lines):
            client.produce(source, [Record(line.encode())], partition=number % PARTITIONS)

    def wait_for(words: Counter[str]) -> None:
        """Wait until each word was counted, and see that no count is lost or doubled."""
        expected = sum(words.values())

        def ends() -> int:
            return sum(client.ends(target, part)[1] for part in range(PARTITIONS))

        wait_until(lambda: ends() >= expected, 2 * SECONDS)
        found = {}
        for part in range(PARTITIONS):
            for one in client.read(target, 0, client.ends(target, part)[1], part):
                assert one.record.key is not None
                found[one.record.key.decode()] = int(one.record.value or b"0")
        assert found == words
        assert ends() == expected

    words = Counter(" ".join(LINES).split())
    say(LINES)
    with program.running() as restored:
        assert sum(restored) == 0
        wait_for(words)
    changelog = topic_configs(clients.bootstrap, f"{program.application}-counts-changelog")
    repartition = topic_configs(clients.bootstrap, f"{program.application}-words-repartition")
    assert changelog.items() >= {("cleanup.policy", "compact"), DIRTY_RATIO}
    assert repartition.items() >= {
        ("cleanup.policy", "delete"),
        ("retention.ms", "-1"),
        ("segment.bytes", "52428800"),
        DIRTY_RATIO,
    }
    program.forget()
    say(MORE)
    with program.running() as restored:
        # At least the newest value of each word; all of them where nothing was cleaned.
        assert len(words) <= sum(restored) <= words.total()
        wait_for(words + Counter(" ".join(MORE).split()))
