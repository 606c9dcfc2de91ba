"""A broker that is sent damaged frames, and commands by chance, serves everybody else as before."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from pathlib import Path

import pytest

from router.wire.pulsar import ProtocolError, PulsarFrameReader
from router.wire.pulsar import pulsar_pb2 as pb
from tests.broker.conftest import greeted
from tests.broker.raw import RawClient
from tests.ports import free_port
from tests.processes import BrokerProcess
from tests.wire.mutating import SECONDS, SEED, TOPICS, command_by_chance, damaged, golden_frames

MEBIBYTES = 500
WITNESS = "persistent://public/default/witness"


class Witness:
    """An honest client, which publishes and receives while others misbehave."""

    def __init__(self, url: str) -> None:
        self._client = greeted(RawClient(url))
        self._client.producer(WITNESS)
        self._client.subscribe(WITNESS)
        self._client.send("FLOW", consumer_id=0, messagePermits=1_000_000)
        self.seen = 0

    def look(self) -> None:
        """Publish a message and receive it."""
        self._client.send_entry(b"%d" % self.seen, sequence_id=self.seen)
        kinds = {self._next(), self._next()}
        assert kinds == {pb.BaseCommand.SEND_RECEIPT, pb.BaseCommand.MESSAGE}
        self.seen += 1

    def close(self) -> None:
        self._client.close()

    def _next(self) -> int:
        frame = self._client.read()
        assert frame is not None, "the broker closed the connection of an honest client"
        return frame.command.type


def attack(url: str, chance: random.Random, frames: list[bytes], payloads: list[bytes]) -> None:
    """Misbehave on one connection until the broker closes it, or nothing is left to say."""
    client = RawClient(url)
    try:
        if chance.random() < 0.9:
            client.shake_hands()
        if chance.random() < 0.7:
            topic = chance.choice(TOPICS)
            client.send("PRODUCER", topic=topic, producer_id=0, request_id=1)
            client.send(
                "SUBSCRIBE",
                topic=topic,
                subscription="s",
                subType=chance.choice(pb.CommandSubscribe.SubType.values()),
                consumer_id=0,
                request_id=2,
            )
        for _ in range(20):
            if chance.random() < 0.6:
                client.send_bytes(command_by_chance(chance, payloads))
            else:
                client.send_bytes(damaged(chance, frames))
        while (frame := client.read(0.05)) is not None:
            assert "internal error" not in frame.command.error.message
    except (OSError, TimeoutError, ProtocolError):
        pass  # closed, or nothing more to say
    finally:
        client.close()


def memory(pid: int) -> int:
    """Return how much of the memory a process holds, in MiB."""
    (line,) = [
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmRSS")
    ]
    return int(line.split()[1]) // 1024


@pytest.mark.timeout(90 + 2 * SECONDS)
def test_honest_clients_notice_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    process = BrokerProcess(folder / "data", free_port())
    process.start()
    chance, frames = random.Random(SEED), golden_frames()
    payloads = [frame.payload for data in frames for frame in PulsarFrameReader().receive(data)]
    payloads = [payload for payload in payloads if payload]
    witness = Witness(process.url)
    attacks = 0
    end = time.monotonic() + 2 * SECONDS
    while time.monotonic() < end:
        attack(process.url, chance, frames, payloads)
        witness.look()
        attacks += 1
    witness.close()
    held = memory(process.pid)
    with suppress(OSError):
        assert process.stop() == 0
    said = capfd.readouterr()
    assert "Traceback" not in said.out + said.err, f"seed {SEED}: {said.err[-3000:]}"
    assert attacks > SECONDS
    assert held < MEBIBYTES
