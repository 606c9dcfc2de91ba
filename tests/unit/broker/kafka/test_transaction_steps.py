"""What follows from a decision is done in steps if it is much, and others are served between."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from router.broker.topics import steps
from router.broker.transactions import Transaction, coordinator
from router.model import TopicName
from tests.unit.broker.kafka.grouping import commit
from tests.unit.broker.kafka.serving import KafkaClient, KafkaServer, serving
from tests.unit.broker.kafka.test_produce import FULL, batch, produced
from tests.unit.broker.kafka.test_transactions import producers_of, values, with_producer
from tests.unit.broker.kafka.transacting import TransactionalClient, group_offset

OTHERS = b"\0" * 5


@pytest.mark.parametrize("commits", [True, False])
def test_messages_of_an_abort_are_deleted_in_steps_that_no_reader_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, commits: bool
) -> None:
    monkeypatch.setattr(steps, "PARTS_IN_STEP", 2)

    async def test(server: KafkaServer, client: KafkaClient, producer: TransactionalClient) -> None:
        for _ in range(5):
            assert await producer.write(b"a") == 0
            await produced(client, batch(1))
        transactions = producers_of(server).transactions
        (transaction,) = transactions.open
        partition = server.topics.opened(FULL)
        assert partition is not None
        ledger, counts = partition.ledger, [0]
        deciding = asyncio.create_task(transactions.decide(transaction, commit=commits))
        while not deciding.done():
            await asyncio.sleep(0)
            if ledger.deleted_numbers.count != counts[-1]:
                counts.append(ledger.deleted_numbers.count)
            assert counts[-1] == 5 or commits or ledger.undecided is not None
        await deciding
        assert counts == ([0] if commits else [0, 2, 4, 5])
        assert await values(client) == [b"a", OTHERS] * 5 if commits else [OTHERS] * 5

    with_producer(tmp_path, test)


def test_positions_that_were_set_before_a_restart_are_not_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "PARTS_IN_STEP", 1)
    groups = [f"g{number}" for number in range(4)]

    async def run() -> None:
        async with serving(tmp_path) as server:
            await server.topics.create(TopicName.parse(FULL))
            client, reached = server.client(), asyncio.Event()
            await produced(client, batch(5))
            producer = TransactionalClient(client, second=True)
            assert await producer.init() == 0
            for group in groups:
                assert await producer.commit_offset(group, 1) == 0

            async def cut_off(_: Transaction) -> None:
                reached.set()
                await asyncio.Event().wait()

            transactions = producers_of(server).transactions
            monkeypatch.setattr(transactions.acknowledgements, "begin_commit", cut_off)
            (transaction,) = transactions.open
            deciding = asyncio.create_task(transactions.decide(transaction, commit=True))
            await reached.wait()
            found = [await group_offset(client, group) for group in groups]
            assert found == [(0, -1), (0, 1), (0, 1), (0, 1)]
            assert await commit(client, {0: 4}, topic="t", group_id="g2") == [0]
            deciding.cancel()
        async with serving(tmp_path) as server:
            client = server.client()
            found = [await group_offset(client, group, stable=True) for group in groups]
            assert found == [(0, 1), (0, 1), (0, 4), (0, 1)]
            assert not producers_of(server).transactions.open

    asyncio.run(run())
