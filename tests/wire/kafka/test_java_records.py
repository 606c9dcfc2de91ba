"""Record batches beside Apache's own classes, those of the newest client of Kafka 3."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from router.wire.kafka.record_batches import (
    PREFIX_BYTES,
    TRANSACTIONAL,
    check_batch,
    empty_batch,
    open_batch,
    read_header,
)
from router.wire.kafka.records import KafkaRecord, read_records
from tests.servers import maven
from tests.wire.kafka.batches import batch_prefix
from tests.wire.kafka.records_of import CODECS, NOW, batch_of, record_lists

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]
SOURCE = Path(__file__).with_name("RecordsOracle.java")


class Oracle:
    """Apache's classes in a process of their own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, **given: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(given), file=self._process.stdin, flush=True)
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def read(self, data: bytes) -> Any:
        """Return the batches that Apache's classes find."""
        found = self.ask(hex=data.hex())
        assert "error" not in found, found
        return found["batches"]

    def write(self, records: Sequence[KafkaRecord], codec: int, magic: int = 2) -> bytes:
        """Return the batch that Apache's classes write."""
        found = self.ask(
            magic=magic,
            codec=codec,
            appendTime=False,
            base=0,
            now=NOW,
            records=[in_json(record) for record in records],
        )
        assert "error" not in found, found
        return bytes.fromhex(found["hex"])


def in_json(record: KafkaRecord) -> dict[str, Any]:
    """Return a record as the oracle reads and writes it."""
    offset, timestamp, key, value, headers = record
    return {
        "offset": offset,
        "timestamp": NOW + timestamp,
        "key": None if key is None else key.hex(),
        "value": None if value is None else value.hex(),
        "headers": [
            [name.decode(), None if content is None else content.hex()] for name, content in headers
        ],
    }


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    classes = tmp_path_factory.mktemp("classes")
    jars = maven.classpath("kafka-clients-3")
    command = ["javac", "-nowarn", "-cp", jars, "-d", str(classes), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    process = subprocess.Popen(
        ["java", "-Xmx128m", "-XX:+UseSerialGC", "-cp", f"{jars}:{classes}", "RecordsOracle"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
    )
    with process:
        try:
            yield Oracle(process)
        finally:
            process.kill()


def test_apache_reads_what_is_written(oracle: Oracle) -> None:
    @settings(max_examples=40)
    @given(records=record_lists())
    def test(records: list[KafkaRecord]) -> None:
        for codec in CODECS:
            data = batch_of(records, codec, producer=(7, 3, 40), attributes=TRANSACTIONAL)
            placed = batch_prefix(read_header(data), 1 << 33, 5) + data[PREFIX_BYTES:]
            (batch,) = oracle.read(placed)
            found = batch.pop("records")
            base = {"base": 1 << 33, "next": (1 << 33) + len(records), "epoch": 5}
            latest = NOW + max(record.timestamp for record in records)
            producer = {"producer": 7, "producerEpoch": 3, "sequence": 40}
            assert batch == {
                **base,
                **producer,
                "codec": codec,
                "transactional": True,
                "latest": latest,
            }
            assert found == [
                in_json(record._replace(offset=(1 << 33) + record.offset)) for record in records
            ]

    test()


def test_what_apache_writes_is_read_and_the_same_bytes(oracle: Oracle) -> None:
    @settings(max_examples=40)
    @given(records=record_lists())
    def test(records: list[KafkaRecord]) -> None:
        for codec in CODECS:
            data = oracle.write(records, codec)
            header = check_batch(data)
            found = list(read_records(open_batch(header, data, 1 << 22), header.records))
            assert [in_json(record) for record in found] == [in_json(one) for one in records]
        assert batch_of(records, leader_epoch=-1) == oracle.write(records, 0)

    test()


def test_apache_finds_nothing_in_an_empty_batch_and_goes_on_behind_it(oracle: Oracle) -> None:
    (batch,) = oracle.read(empty_batch(7, NOW))
    assert (batch["records"], batch["base"], batch["next"]) == ([], 0, 7)
