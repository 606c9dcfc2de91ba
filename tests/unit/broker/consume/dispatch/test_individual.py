"""Acknowledgements on a subscription that many consumers share."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.broker.consume import Consumer, Kind
from router.broker.storage import Ack
from tests.unit.broker.consume.dispatch.bench import Bench, on_a_partition


@pytest.mark.parametrize("kind", [Kind.SHARED, Kind.KEY_SHARED])
def test_only_the_consumer_that_holds_an_entry_is_looked_at_when_it_is_acknowledged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    asked: list[tuple[str, int]] = []
    release = Consumer.release

    def noted(consumer: Consumer, entry: int) -> bool:
        asked.append((consumer.name, entry))
        return release(consumer, entry)

    monkeypatch.setattr(Consumer, "release", noted)

    async def test(bench: Bench) -> None:
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

    on_a_partition(folder, test)
