"""Acknowledgements that nothing waits for share a sync, and hold up nothing that is waited for."""

from __future__ import annotations

from pathlib import Path

from router.broker.storage import Ack, Store, StoreOptions, SubscriptionRecord, journal
from tests.unit.broker.storage.rig import (
    fill,
    killed,
    one_ledger,
    opened,
    run,
    synced,
    until,
)

ROOMY = StoreOptions(reserve=0)


async def subscribed(store: Store) -> SubscriptionRecord:
    """Return a subscription of a ledger with ten entries."""
    ledger = await one_ledger(store)
    await fill(store, ledger, [b"x"] * 10)
    return await store.create_subscription(ledger.id, "s", -1, {})


def syncs(store: Store) -> int:
    """Return how many commit groups were synced."""
    (*_, (_, _, total)) = store._journal.count_syncs().samples()
    return int(total)


def test_acknowledgements_that_nothing_waits_for_are_on_disk_soon_in_one_sync(
    tmp_path: Path,
) -> None:

    async def acknowledge() -> None:
        async with killed(tmp_path, ROOMY) as store:
            record = await subscribed(store)
            await synced(store)
            before = syncs(store)
            for entry in range(5):
                store.acknowledge(record, Ack(entry))
            assert store._journal.pending.parts
            await until(lambda: not store._journal.pending.parts)
            await until(lambda: syncs(store) > before)
            assert syncs(store) == before + 1
            await synced(store)

    async def look() -> None:
        async with opened(tmp_path, ROOMY) as store:
            (record,) = store.subscriptions((await one_ledger(store)).id)
            assert record.cursor.mark_delete == 4

    run(acknowledge())
    run(look())


def test_what_is_waited_for_takes_them_along_at_once(tmp_path: Path) -> None:
    linger = journal.LINGER_SECONDS
    journal.LINGER_SECONDS = 3_600.0  # type: ignore[misc]

    async def test() -> None:
        async with opened(tmp_path, ROOMY) as store:
            record = await subscribed(store)
            store.acknowledge(record, Ack(0))
            ledger = await one_ledger(store)
            await fill(store, ledger, [b"y"])
            assert not store._journal.pending.parts
            store.acknowledge(record, Ack(1))
            await synced(store)
            assert not store._journal.pending.parts
            # The end of the store leaves none behind.
            store.acknowledge(record, Ack(2))
        async with opened(tmp_path, ROOMY) as store:
            (record,) = store.subscriptions((await one_ledger(store)).id)
            assert record.cursor.mark_delete == 2

    try:
        run(test())
    finally:
        journal.LINGER_SECONDS = linger  # type: ignore[misc]
