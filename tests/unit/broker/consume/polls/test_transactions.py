"""A poll and what a transaction of another dialect acknowledged of its group."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.broker.consume.cursor.pending_acks import EntryPart
from router.broker.transactions import TransactionCoordinator
from router.model import Message
from tests.unit.broker.consume.polls.polling import GROUP, TOPIC, House


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("commit", [True, False])
async def test_a_poll_waits_at_a_message_that_an_open_transaction_acknowledged(
    tmp_path: Path, *, commit: bool, deleted: bool
) -> None:
    house = await House.open(tmp_path)
    for number in range(4):
        await house.publish([Message(b"%d" % number)])
    assert await house.poll(limit=1) == [b"0"]
    partition = house.topics.opened(TOPIC)
    assert partition is not None
    transactions = TransactionCoordinator(house.topics, house.leases.forget)
    transaction = transactions.begin("pulsar/1", 60_000)
    subscription = partition.subscriptions[GROUP]
    held = 2 if deleted else 1
    transactions.acknowledgements.add(transaction, subscription, [(held, EntryPart.of((), 0))])
    if deleted:
        house.topics.store.delete_messages(subscription.ledger, [(1, 1)])
    assert await house.poll() == []
    await transactions.decide(transaction, commit=commit)
    expected = [b"%d" % number for number in range(held + commit, 4)]
    assert await house.poll() == expected
    await transactions.close()
    await house.close()
