"""A compacted topic of one partition over a real store, and what its log must hold by a dict."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from router.broker.compaction import Cleaner, Compactor, KeyIndexes, PartitionIndex
from router.broker.compaction.indexes import FOLDER
from router.broker.consume import Partition
from router.broker.consume.visible import Visible
from router.broker.entries import ENTRY_FORMATS, keep_messages, latest_time
from router.broker.storage import KAFKA_FORMAT, NATS_FORMAT, PULSAR_FORMAT, Store, StoreOptions
from router.broker.topics.topics import TopicOptions, Topics
from router.model import Message, TopicName
from router.model.policies import Policies

SMALL: Final = StoreOptions(
    segment=600, journal=20_000, cache=200, reserve=0, index_step=200, open_files=4
)
TOPIC: Final = TopicName("public", "default", "prices")
FORMATS: Final = (PULSAR_FORMAT, KAFKA_FORMAT, NATS_FORMAT)
NOW: Final = 1_700_000_000.0


@dataclass(frozen=True)
class Record:
    """A message as it was published; `value` None: a tombstone."""

    number: int
    key: bytes | None
    value: bytes | None
    time_ms: int


@dataclass
class History:
    """All that was published, whatever became of it, on a clock that the test moves."""

    now: float = NOW
    records: list[Record] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    @property
    def now_ms(self) -> int:
        return int(self.now * 1000)

    def newest(self) -> dict[bytes, Record]:
        """Return the last record of each key, tombstones included."""
        return {record.key: record for record in self.records if record.key is not None}

    def values(self) -> dict[bytes, bytes]:
        """Return the last value of each key."""
        return {key: r.value for key, r in self.newest().items() if r.value is not None}


class Log:
    """The open topic."""

    def __init__(self, folder: Path, store: Store, history: History) -> None:
        self.store = store
        self.history = history
        self.folder = folder
        self.topics = Topics(store, TopicOptions(), history.clock, ENTRY_FORMATS)
        self.killed = False
        self.indexes = KeyIndexes(store, folder, ENTRY_FORMATS, self._pause)
        self.compactor = Compactor(self.indexes)
        self.cleaner = Cleaner(self.topics, self.indexes, self.compactor)

    @property
    def partition(self) -> Partition:
        found = self.topics.opened(str(TOPIC))
        assert found is not None
        return found

    @property
    def index(self) -> PartitionIndex:
        return self.indexes.of(self.partition.visible)

    @property
    def index_file(self) -> Path:
        return self.folder / FOLDER / f"{self.partition.ledger.id}.db"

    async def publish(
        self, messages: Sequence[tuple[bytes | None, bytes | None]], form: int = PULSAR_FORMAT
    ) -> None:
        """Append one entry of these keys and values, on disk on return."""
        self.append(messages, form)
        await self.store.synced()

    def append(self, messages: Sequence[tuple[bytes | None, bytes | None]], form: int) -> None:
        """Append one entry of these keys and values."""
        history, ledger = self.history, self.partition.ledger
        made = [Message(value or b"", key, null=value is None) for key, value in messages]
        payload = ENTRY_FORMATS[form].from_messages(made, history.now_ms)
        first = ledger.next_index
        ledger.append(payload, form, len(made), history.now_ms, lambda _: None)
        history.records += [
            Record(first + place, key, value, history.now_ms)
            for place, (key, value) in enumerate(messages)
        ]

    async def flush(self) -> None:
        """Have all that was appended stand in segments."""
        ledger = self.partition.ledger
        await self.store.delete_before(ledger, ledger.first_number)

    async def read(self, visible: Visible | None = None) -> list[Record]:
        """Return what a reader from the start gets of what is visible to it."""
        visible, found = visible or self.partition.visible, []
        at = 0
        while entries := await visible.read(at, 100, 1 << 20):
            for entry in entries:
                live = visible.messages(entry)
                messages = ENTRY_FORMATS[entry.format].to_messages(entry.payload)
                first = entry.index + 1 - len(messages)
                assert len(messages) == entry.messages
                for place, message in enumerate(messages):
                    if live is None or live >> place & 1:
                        value = None if message.null else message.value
                        found.append(Record(first + place, message.key, value, entry.timestamp_ms))
            at = entries[-1].entry_id + 1
        return found

    @property
    def closed_end(self) -> int:
        """The number before which messages stand in closed segments."""
        segments = self.partition.ledger.segments[:-1]
        return segments[-1].next_index if segments else 0

    async def _pause(self) -> None:
        await asyncio.sleep(0)


@asynccontextmanager
async def opened(
    folder: Path,
    history: History,
    policies: Policies = Policies(cleanup_policy="compact"),  # noqa: B008 - a frozen value
    *,
    options: StoreOptions = SMALL,
) -> AsyncIterator[Log]:
    """Open the topic, made if there is none; of one that is `killed` nothing is brought to rest."""
    store = await Store.open(folder, options, history.clock, None, latest_time, keep_messages)
    log = Log(folder, store, history)
    try:
        if log.topics.find(str(TOPIC)) is None:
            await log.topics.create(TOPIC, policies=policies)
        yield log
    finally:
        await log.compactor.close()
        await log.indexes.close()
        if log.killed:
            store.fail(PermissionError(13, "killed"))
        await store.close()


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test with a deadline."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test

    asyncio.run(bounded())
