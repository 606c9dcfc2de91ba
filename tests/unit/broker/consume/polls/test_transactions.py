"""A poll and what a transaction of another dialect acknowledged of its group."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from router.broker.consume.cursor.pending_acks import EntryPart
from router.broker.transactions import Transactions
from router.model import Message
from tests.unit.broker.consume.polls.polling import GROUP, TOPIC, House


@pytest.mark.parametrize("commit", [True, False])
def test_a_poll_waits_at_a_message_that_an_open_transaction_acknowledged(
    tmp_path: Path, *, commit: bool
) -> None:
    async def story() -> None:
        house = await House.open(tmp_path)
        for number in range(3):
            await house.publish([Message(b"%d" % number)])
        assert await house.poll(limit=1) == [b"0"]
        partition = house.topics.opened(TOPIC)
        assert partition is not None
        transactions = Transactions(house.topics, house.leases.forget)
        transaction = transactions.begin("pulsar/1", 60_000)
        subscription = partition.subscriptions[GROUP]
        transactions.acknowledgements.add(transaction, subscription, [(1, EntryPart.of((), 0))])
        assert await house.poll() == []
        await transactions.decide(transaction, commit=commit)
        assert await house.poll() == ([b"2"] if commit else [b"1", b"2"])
        await transactions.close()
        await house.close()

    asyncio.run(story())
