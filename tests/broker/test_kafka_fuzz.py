"""A broker that is sent hostile requests of Kafka serves all other clients as before."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from kafka import KafkaProducer

from tests.broker.kafka_attacks import attack
from tests.broker.test_fuzz import MEBIBYTES, memory
from tests.ports import free_port
from tests.processes import BrokerProcess
from tests.wire.mutating import SECONDS, SEED

WITNESS = "witness"
ANSWER_SECONDS = 10.0


@pytest.mark.timeout(90 + 2 * SECONDS)
def test_honest_clients_of_kafka_notice_nothing(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    address = f"127.0.0.1:{free_port()}"
    process = BrokerProcess(folder / "data", free_port(), broker_kafka=address)
    process.start()
    chance = random.Random(SEED)
    witness = KafkaProducer(bootstrap_servers=address)
    attacks = 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        attack(address, chance)
        produced = witness.send(WITNESS, b"%d" % attacks).get(ANSWER_SECONDS)
        assert produced.offset == attacks
        attacks += 1
    witness.close()
    held = memory(process.pid)
    assert process.stop() == 0
    said = capfd.readouterr()
    assert "Traceback" not in said.out + said.err, f"seed {SEED}: {said.err[-3000:]}"
    assert attacks > SECONDS
    assert held < MEBIBYTES
