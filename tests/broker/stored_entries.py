"""A broker on topics whose entries were written through the store, before it starts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from pathlib import Path

from router.broker.storage import Store, StoreOptions
from router.model.policies import Policies
from tests.ports import free_port
from tests.processes import BrokerProcess

Written = tuple[int, bytes, Sized]
"""An entry: its format, its payload and what is in it, one item a message."""


async def _write(
    folder: Path, topics: Sequence[str], entries: Sequence[Written], time_ms: int
) -> None:
    store = await Store.open(folder, StoreOptions(), lambda: time_ms / 1_000)
    for name in topics:
        record = await store.create_topic(f"persistent://public/default/{name}", 0, Policies(), {})
        ledger = store.ledger(record.ledger_ids[0])
        for tag, payload, messages in entries:
            ledger.append(payload, tag, len(messages), time_ms, lambda _: None)
    await store.close()


@contextmanager
def broker_on(
    folder: Path,
    topics: Sequence[str],
    entries: Sequence[Written],
    *,
    time_ms: int,
    kafka_address: str,
) -> Iterator[BrokerProcess]:
    """Write the entries to each topic, and run a broker with a Kafka listener on them."""
    folder.mkdir(mode=0o700)
    asyncio.run(_write(folder, topics, entries, time_ms))
    process = BrokerProcess(folder, free_port(), broker_kafka=kafka_address)
    process.start()
    yield process
    process.stop()
