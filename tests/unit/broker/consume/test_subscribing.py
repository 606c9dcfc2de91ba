"""Making a subscription that another caller wants in another way at the same moment."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from router.broker.consume import PartitionSubscription
from router.broker.entries import ENTRY_FORMATS
from router.broker.storage import Store
from router.broker.topics.topics import TopicOptions, Topics
from tests.unit.broker.storage.rig import SMALL, clock


async def test_a_subscription_is_activated_in_the_moment_in_which_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task that made it has ended then, and nothing was called that waited for it."""
    store = await Store.open(tmp_path, SMALL, clock)
    topics = Topics(store, TopicOptions(max_groups=3), clock, ENTRY_FORMATS)
    partition = await topics.open("t", create=True)
    make, activating = store.create_subscription, list[asyncio.Task[PartitionSubscription]]()

    async def making(*given: Any, **named: Any) -> Any:
        made = await make(*given, **named)
        activating.append(asyncio.create_task(partition.subscribe("g", 0)))
        return made

    monkeypatch.setattr(store, "create_subscription", making)
    await partition.subscribe("g", 0, passive=True)
    assert not (await asyncio.wait_for(activating[0], 30)).passive
    await store.close()
