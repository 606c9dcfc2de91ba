"""Slices of a batch some of whose messages are gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.broker.storage import KAFKA_FORMAT, NATS_FORMAT, PULSAR_FORMAT, Ack
from router.model import Message
from router.wire.pulsar.pulsar_pb2 import LZ4, NONE, CompressionType
from tests.unit.broker.consume.polls.polling import GROUP, House

MESSAGES = [b"a", b"b" * 100, b"gone", b"c"]


async def test_message_that_fits_does_not_go_before_one_that_did_not(tmp_path: Path) -> None:
    house = await House.open(tmp_path)
    assert await house.poll() == []
    await house.publish([Message(value) for value in MESSAGES])
    subscription = house.partition(-1).subscriptions[GROUP]
    subscription.cursor.apply(Ack(0, ack_set=(0b1011,)))
    found: list[bytes] = []
    for _ in range(3):
        found += await house.poll(max_bytes=60)
    assert found == [b"a", b"b" * 100, b"c"]
    await house.close()


@pytest.mark.parametrize("tag", [PULSAR_FORMAT, KAFKA_FORMAT, NATS_FORMAT])
@pytest.mark.parametrize("compression", [NONE, LZ4])
async def test_polls_get_what_is_left_of_batches_of_which_messages_were_reclaimed(
    tmp_path: Path, tag: int, compression: CompressionType
) -> None:
    house = await House.open(tmp_path, segment=1_000, cache=0, reserve=0, reclaim_bytes=1)
    assert await house.poll() == []
    values = [b"%03d" % n + b"x" * (n * 7 % 30) for n in range(120)]
    for first in range(0, 120, 6):
        batch = [Message(value, b"k") for value in values[first : first + 6]]
        await house.publish(batch, tag=tag, compression=compression)
    ledger, store = house.partition(-1).ledger, house.store
    gone = [n for n in range(120) if n % 7 in {0, 1, 4, 6} or 40 < n < 60]
    store.delete_messages(ledger, [(n, n) for n in gone])
    await store._checkpointer.checkpoint()
    assert await store.reclaim(ledger) > 0
    found: list[bytes] = []
    while more := await house.poll(limit=5):
        found += more
    assert found == [values[n] for n in range(120) if n not in gone]
    await house.close()
