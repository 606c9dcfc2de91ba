"""Idempotent producers over kills of the broker: nothing is lost, doubled or out of order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka import KafkaConsumer, TopicPartition

from tests.ports import free_port
from tests.processes import BrokerProcess, wait_until

KILLS = 3
BETWEEN_KILLS = 3_000
TOPIC = "orders"
SECONDS = 120


@pytest.mark.slow
@pytest.mark.timeout(4 * SECONDS)
def test_an_idempotent_producer_survives_kills(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    broker = BrokerProcess(tmp_path / "data", free_port(), broker_kafka=address)
    broker.start()
    delivered: list[tuple[int, int]] = []
    failures: list[Any] = []

    def on_delivery(number: int) -> Any:
        def call(error: Any, message: Any) -> None:
            if error is None:
                delivered.append((number, message.offset()))
            else:
                failures.append(error)

        return call

    producer = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "linger.ms": 1,
            "batch.num.messages": 50,
            "message.timeout.ms": SECONDS * 1_000,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 50,
        }
    )
    sent = 0
    for kill in range(KILLS + 1):
        goal = len(delivered) + BETWEEN_KILLS // 2
        for number in range(sent, sent + BETWEEN_KILLS):
            producer.produce(TOPIC, b"%d" % number, on_delivery=on_delivery(number))
            producer.poll(0)
        sent += BETWEEN_KILLS
        if kill < KILLS:
            # The other half is in flight or waits.
            wait_until(lambda goal=goal: bool(producer.poll(0.01)) and len(delivered) >= goal)  # type: ignore[misc] # a default
            broker.kill()
            broker.start()
    assert producer.flush(SECONDS) == 0
    assert failures == []
    assert [number for number, _ in delivered] == list(range(sent))
    consumer = KafkaConsumer(
        bootstrap_servers=address,
        auto_offset_reset="earliest",
        consumer_timeout_ms=SECONDS * 1_000,
    )
    consumer.assign([TopicPartition(TOPIC, 0)])
    values: list[int] = []
    for record in consumer:
        assert record.offset == len(values)
        values.append(int(record.value))
        if len(values) == sent:
            break
    assert values == list(range(sent))
    assert consumer.end_offsets([TopicPartition(TOPIC, 0)]) == {TopicPartition(TOPIC, 0): sent}
    consumer.close()
    broker.stop()
