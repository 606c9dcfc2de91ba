"""Acknowledgements on a subscription that many consumers share."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.broker.consume import ClientConsumer, SubscriptionType
from router.broker.consume.dispatch import individual
from router.broker.storage import Ack
from tests.unit.broker.consume.dispatch.bench import on_a_partition


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
async def test_only_the_consumer_that_holds_an_entry_is_looked_at_when_it_is_acknowledged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: SubscriptionType
) -> None:
    asked: list[tuple[str, int]] = []
    release = ClientConsumer.release

    def noted(consumer: ClientConsumer, entry: int) -> int:
        asked.append((consumer.name, entry))
        return release(consumer, entry)

    monkeypatch.setattr(ClientConsumer, "release", noted)
    async with on_a_partition(folder) as bench:
        await bench.publish(100)
        subscription = await bench.subscription()
        idle = [bench.consumer(subscription, f"idle-{n}", kind) for n in range(20)]
        for consumer in idle:
            subscription.flow(consumer, 2)
        held = {entry: name for name, entry, _ in bench.notes.got}
        assert held
        subscription.acknowledge(idle[0], [Ack(entry) for entry in range(100)], None)
        assert sorted(asked) == sorted((name, entry) for entry, name in held.items())
        assert not any(consumer.held_messages for consumer in idle)


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
async def test_batches_that_are_acknowledged_are_not_held_any_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: SubscriptionType
) -> None:
    monkeypatch.setattr(individual, "MAX_HELD_BY_ALL", 10)
    async with on_a_partition(folder) as bench:
        await bench.publish(20, batch=5)
        subscription = await bench.subscription()
        consumer = bench.consumer(subscription, "a", kind, permits=1_000)
        for entry in range(20):
            assert bench.notes.entries() == list(range(min(entry + 2, 20)))
            subscription.acknowledge(consumer, [Ack(entry)], None)
        assert consumer.held_messages == 0
