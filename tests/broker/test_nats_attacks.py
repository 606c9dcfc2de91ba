"""A broker whose NATS clients are hostile serves all others as before, in bounded memory."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.broker.nats_attacks import attack
from tests.broker.nats_raw import RawNats, connect
from tests.broker.test_fuzz import memory
from tests.ports import free_port
from tests.processes import BrokerProcess
from tests.wire.mutating import SECONDS, SEED

SPARE_MEBIBYTES = 100
"""What a broker may take besides that which its settings allow."""
FUZZ_SECONDS = SECONDS / 2


class Victim:
    """A broker that is attacked, and an honest client of it."""

    def __init__(self, folder: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.process = BrokerProcess(folder / "data", free_port(), broker_nats=self.address)
        self.process.start()
        self.witness = RawNats(self.address).connect()
        body = json.dumps({"name": "WITNESS", "subjects": ["witness.>"]})
        self.witness.send("SUB witness.plain 1", "SUB in.* 2", "SUB witness.stored 3")
        self.witness.send(f"PUB $JS.API.STREAM.CREATE.WITNESS in.1 {len(body)}", body)
        assert self.witness.line().startswith("MSG in.1 2 ")
        assert json.loads(self.witness.line())["config"]["name"] == "WITNESS"
        self.seen = 0
        self._resident = memory(self.process.pid)

    def look(self) -> None:
        """Have the honest client publish and receive, and store a message."""
        self.seen += 1
        value = str(self.seen)
        self.witness.send(f"PUB witness.stored in.2 {len(value)}", value)
        assert self.witness.line() == f"MSG witness.stored 3 in.2 {len(value)}"
        assert self.witness.line() == value
        assert self.witness.line().startswith("MSG in.2 2 ")
        assert json.loads(self.witness.line()) == {"stream": "WITNESS", "seq": self.seen}

    def check_memory(self, allowed: int = 0) -> None:
        """Compare what the attack brought with the MiB that settings allow."""
        assert memory(self.process.pid) - self._resident < allowed + SPARE_MEBIBYTES


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    # One for each attack: freed memory is not all given back at once.
    victim = Victim(tmp_path)
    yield victim
    victim.witness.socket.close()
    assert victim.process.stop() == 0


@pytest.mark.timeout(90 + 2 * SECONDS)
def test_honest_clients_notice_nothing_of_hostile_lines(
    victim: Victim, capfd: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(SEED)
    attacks = 0
    end = time.monotonic() + FUZZ_SECONDS
    while time.monotonic() < end:
        attack(victim.address, chance)
        victim.look()
        attacks += 1
    said = capfd.readouterr()
    assert "Traceback" not in said.out + said.err, f"seed {SEED}: {said.err[-3000:]}"
    assert attacks > FUZZ_SECONDS
    victim.check_memory()


def test_clients_that_never_read_are_cut_off(victim: Victim) -> None:
    block = b"".join(b"PUB flood 100000\r\n%b\r\n" % (b"x" * 100_000) for _ in range(10))
    with ExitStack() as kept, RawNats(victim.address).connect() as publisher:
        for _ in range(10):
            kept.enter_context(RawNats(victim.address).connect()).ask("SUB flood 1")
        for _ in range(60):
            publisher.send(block + b"PING")
            assert publisher.lines() == []
        victim.look()
        victim.check_memory(10 * 32)
        publisher.send("SUB in 1", "PUB flood in 1", "x")
        assert publisher.line().startswith("HMSG in 1 ")


def test_unread_answers_and_acknowledgements_are_bounded(victim: Victim) -> None:
    host, _, port = victim.address.rpartition(":")
    sent = 0
    with socket.create_connection((host, int(port)), 5) as client:
        client.settimeout(1.0)
        with suppress(OSError):  # it is not read from, or cut off
            client.sendall(connect().encode() + b"\r\nSUB mine.> 1\r\n")
            block = b"PUB $JS.API.STREAM.INFO.WITNESS mine.1 0\r\n\r\nPING\r\n" * 200
            while sent < 2_000:
                client.sendall(block)
                sent += 1
    victim.look()
    victim.check_memory(32)


def test_halves_of_large_messages_are_bounded(victim: Victim) -> None:
    with ExitStack() as kept:
        clients = [kept.enter_context(RawNats(victim.address).connect()) for _ in range(300)]
        for client in clients:
            client.socket.settimeout(0.2)
            # The rest is not read before there is room for it.
            with suppress(OSError):
                client.send("PUB half 1048576")
                client.socket.sendall(b"x" * 1_000_000)
        victim.look()
        victim.check_memory(64)


def test_many_subscriptions_are_bounded(victim: Victim) -> None:
    deep = ".".join("a" * 1_900)
    with RawNats(victim.address).connect() as client, RawNats(victim.address).connect() as other:
        shown = client.ask(*(f"SUB s.{number}.* {number}" for number in range(12_000)))
        assert shown == ["-ERR 'maximum subscriptions exceeded'"] * 2_000
        shown = other.ask(*(f"SUB {number}.{deep} {number}" for number in range(200)))
        assert set(shown) == {"-ERR 'maximum subscriptions exceeded'"}
        victim.look()
        victim.check_memory()


def test_stored_messages_that_wait_for_the_disk_are_bounded(victim: Victim) -> None:
    body = json.dumps({"name": "FLOOD", "subjects": ["stored"], "max_bytes": 1 << 20})
    block = b"".join(b"PUB stored 1000000\r\n%b\r\n" % (b"x" * 1_000_000) for _ in range(10))
    with RawNats(victim.address).connect() as client:
        client.ask(f"PUB $JS.API.STREAM.CREATE.FLOOD {len(body)}", body)
        for _ in range(40):
            client.socket.sendall(block)
        victim.look()
        assert client.ask() == []
        victim.check_memory(64 + 32)
