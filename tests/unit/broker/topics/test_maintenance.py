"""The periodic task of the log: when it ends."""

from __future__ import annotations

import asyncio
from typing import Any

from router.broker.disk.faults import StoreError
from router.broker.topics.maintenance import Maintenance

DEADLINE = 10.0


class ClosedStore:
    """A store that takes no more work."""

    async def retain(self, now_ms: int) -> None:
        raise StoreError("the store failed or is closed")


class TopicsOfClosedStore:
    store = ClosedStore()

    def now_ms(self) -> int:
        return 0


async def test_maintenance_ends_without_a_traceback_once_the_store_is_closed() -> None:
    topics: Any = TopicsOfClosedStore()
    await asyncio.wait_for(Maintenance(topics).run(every=0), DEADLINE)
