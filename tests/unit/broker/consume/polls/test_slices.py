"""Slices of a batch some of whose messages are gone."""

from __future__ import annotations

import asyncio
from pathlib import Path

from router.broker.storage import Ack
from router.model import Message
from tests.unit.broker.consume.polls.polling import GROUP, House

MESSAGES = [b"a", b"b" * 100, b"gone", b"c"]


def test_message_that_fits_does_not_go_before_one_that_did_not(tmp_path: Path) -> None:
    async def story() -> None:
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

    asyncio.run(story())
