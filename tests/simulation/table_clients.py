"""Clients of a compacted topic: publishers of keys, and readers that keep the newest of each key.

A scanner reads the log from its start to its end, a follower goes on where it was, and a viewer
reads the table view; all see the newest value of each key.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import Sequence
from random import Random
from typing import Any, Final

from router.model import Message
from router.wire.kafka.records import KafkaRecord, write_headers, write_record
from tests.simulation.history import PartitionName, name_of
from tests.simulation.kafka_clients import KafkaPeer, KafkaPublisher
from tests.simulation.protocols import Client, frequent
from tests.simulation.seeded import CLOCK
from tests.simulation.tables import NAME_HEADER, Keyed, Tables
from tests.simulation.workers import GoneError, Publisher, PulsarPeer, World

TOPIC: Final = "table"
MAX_PAUSE_SECONDS: Final = 4.0
EMPTY_ANSWERS: Final = 2
TOMBSTONE_ODDS: Final = 0.15
PAGE_KEYS: Final = (3, 50, 1000)
KEYS_PER_PUBLISHER: Final = (2, 15, 60)
READ_PER_SECOND: Final = 20
"""Of messages that are read again and again: a long log is read less often."""
FILLER_BYTES: Final = (10, 200, 1000)


def partition_of(topic: str, partition: int) -> PartitionName:
    return PartitionName(f"table:{topic}", partition)


class KeyChooser:
    """Chooses what a publisher says of which key."""

    def __init__(self, tables: Tables, publisher: str, chance: Random) -> None:
        self._tables, self._publisher, self._chance = tables, publisher, chance
        self._count = chance.choice(KEYS_PER_PUBLISHER)

    def next(self, partition: int, name: str) -> tuple[bytes, bytes | None]:
        """Return key and value of a message that is sent for the first time; None: a tombstone."""
        chance = self._chance
        key = f"{self._publisher}-{partition}-{int(chance.triangular(0, self._count, 0))}"
        filler = b"." * chance.choice(FILLER_BYTES)
        value = None if chance.random() < TOMBSTONE_ODDS else name.encode() + b" " + filler
        number = int(name.rpartition(":")[2])
        message = Keyed(key, number, value is None, len(key) + len(name) + len(value or b""))
        self._tables.sending(max(0, partition), name, message)
        return key.encode(), value


class KeyedProducer(KafkaPublisher):
    """An idempotent Kafka producer of records with keys."""

    def __init__(
        self, world: World, tables: Tables, name: str, partition: int, mean: float
    ) -> None:
        super().__init__(world, name, TOPIC, partition, frequent(mean, MAX_PAUSE_SECONDS))
        self._tables, self._chooser = tables, KeyChooser(tables, name, self.chance)

    def _record(self, place: int, name: str) -> bytes:
        key, value = self._chooser.next(self._partition, name)
        headers = write_headers([(NAME_HEADER.encode(), name.encode())])
        return write_record(place, 0, key, value, headers)

    def _published(self, at: float) -> None:
        super()._published(at)
        self._tables.published(self._partition, self.sent)


class KeyedWorker(Publisher):
    """A publisher of the node protocol, of messages with keys."""

    def __init__(
        self, world: World, tables: Tables, name: str, topic: tuple[str, int], mean: float
    ) -> None:
        super().__init__(world, name, *topic, frequent(mean, MAX_PAUSE_SECONDS))
        self._tables, self._chooser = tables, KeyChooser(tables, name, self._chance)

    def _messages(self, partition: int, names: Sequence[str]) -> list[Message]:
        messages = []
        for name in names:
            key, value = self._chooser.next(partition, name)
            properties = {NAME_HEADER: name}
            messages.append(Message(value or b"", key, properties, null=value is None))
        return messages

    def _published(self, partition: int, names: Sequence[str], at: float) -> None:
        super()._published(partition, names, at)
        self._tables.published(max(0, partition), names)


def name_in(record: KafkaRecord) -> str:
    """Return the name of a message, which its value has as well."""
    headers = {name: value or b"" for name, value in record.headers}
    name = bytes(headers[NAME_HEADER.encode()]).decode()
    if record.value is not None:
        found = name_of(bytes(record.value))
        assert found == name, f"{name} has the value of {found}"
    return name


async def records_from(
    peer: KafkaPeer, partition: int, position: int
) -> list[tuple[int, KafkaRecord]] | None:
    """Return records from an offset on, none: there are no more, None: that was refused.

    One answer without records may be that of a broker that had no time to read them.
    """
    for _ in range(EMPTY_ANSWERS):
        found = await peer.records(TOPIC, partition, position)
        if found or found is None:
            return found
    return []


class Scanner(Client):
    """Reads a partition from its first offset to its end, again and again."""

    def __init__(
        self, world: World, tables: Tables, name: str, partition: int, mean: float
    ) -> None:
        super().__init__(world, name, 5 * frequent(mean, MAX_PAUSE_SECONDS))
        self._tables, self._partition = tables, partition

    async def work(self) -> None:
        peer = await KafkaPeer.open(self.world)
        while True:
            began_at, floor = CLOCK.now, self._tables.newest(self._partition)
            found = await self._scan(peer)
            if found is None:
                self.world.history.count("scan refused")
                await asyncio.sleep(self.chance.uniform(0.1, 2))
                continue
            self._tables.scanned(self._partition, found, floor, began_at)
            self.world.history.count("scans")
            if self.world.is_quiet and self._tables.is_clean(self._partition, found):
                self.empty_in_quiet += 1
            seconds = self.chance.expovariate(1 / self.mean)
            await asyncio.sleep(seconds + len(found) / READ_PER_SECOND)

    async def _scan(self, peer: KafkaPeer) -> list[tuple[int, str]] | None:
        """Return offsets and names of all messages, None: a fetch was refused."""
        scanned: list[tuple[int, str]] = []
        position = 0
        while True:
            found = await records_from(peer, self._partition, position)
            if not found:
                return None if found is None else scanned
            scanned += [(offset, name_in(record)) for offset, record in found]
            position = found[-1][0] + 1


class Follower(Client):
    """Reads on where it was, also on another connection, and keeps the newest of each key."""

    def __init__(
        self, world: World, tables: Tables, name: str, partition: int, mean: float
    ) -> None:
        super().__init__(world, name, mean)
        self._tables, self._partition = tables, partition
        self._position = 0
        self._newest: dict[str, int] = {}

    async def work(self) -> None:
        peer = await KafkaPeer.open(self.world)
        while True:
            floor = self._tables.newest(self._partition)
            found = await records_from(peer, self._partition, self._position)
            if found:
                names = [(offset, name_in(record)) for offset, record in found]
                self._newest |= self._tables.fold(self._partition, names)
                self._position = names[-1][0] + 1
                continue
            if found is not None:
                self._tables.folded(self._partition, self._newest, floor, may_be_stale=True)
                self.empty_in_quiet += self.world.is_quiet
            await self.pause()


class Viewer(Client):
    """Reads the table view: pages of it, or one key."""

    def __init__(
        self, world: World, tables: Tables, name: str, topic: tuple[str, int], mean: float
    ) -> None:
        super().__init__(world, name, 5 * frequent(mean, MAX_PAUSE_SECONDS))
        self._tables = tables
        self._topic, partitions = topic
        self._partitions = range(max(1, partitions))

    async def work(self) -> None:
        peer = await PulsarPeer.open(self.world, "node")
        while True:
            floors = {one: self._tables.newest(one) for one in self._partitions}
            found = await self._view(peer)
            if found is not None:
                for partition, floor in floors.items():
                    newest = found.get(partition, {})
                    self._tables.folded(partition, newest, floor, leaves_out_deleted=True)
                self.world.history.count("table views")
                self.empty_in_quiet += self.world.is_quiet
                await asyncio.sleep(sum(map(len, found.values())) / READ_PER_SECOND)
            await self.pause()
            if self.chance.random() < 0.01:
                peer.stream.close()
                raise GoneError

    async def _view(self, peer: PulsarPeer) -> dict[int, dict[str, int]] | None:
        """Return the number of each key, by partition; None: it was refused."""
        limit, after = self.chance.choice(PAGE_KEYS), None
        found: dict[int, dict[str, int]] = {}
        while True:
            page = await self._call(peer, topic=self._topic, after=after, limit=limit)
            if page is None:
                return None
            for value in page["values"]:
                key, name = b64decode(value["key"]).decode(), name_of(b64decode(value["value"]))
                assert value["properties"] == {NAME_HEADER: name}
                number = int(name.rpartition(":")[2])
                found.setdefault(value["partition"], {})[key] = number
            if (after := page["next"]) is None:
                return found

    async def _call(self, peer: PulsarPeer, **arguments: Any) -> Any:
        call = {"name": "latest_values", "arguments": json.dumps(arguments).encode()}
        answer = await peer.admin(call=call)
        if answer.HasField("code"):
            self.world.history.count(f"table view: {answer.code}")
            return None
        return json.loads(answer.value)
