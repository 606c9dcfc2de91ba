"""Groups over time: sessions and rebalances end on the broker's own clock."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from router.wire.kafka.error_codes import ErrorCode
from tests.unit.broker.kafka.grouping import TOPIC, alone, join, joining, run
from tests.unit.broker.kafka.serving import KafkaServer

pytestmark = pytest.mark.slow


def test_a_silent_member_makes_room_for_other_protocols(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        client = server.client()
        await join(client, session_timeout_ms=1_000)
        live = server.topics.live_members
        assert live.of(str(TOPIC), "g")
        async with asyncio.timeout(20):
            while live.of(str(TOPIC), "g"):  # noqa: ASYNC110 - the broker's timer tells no test
                await asyncio.sleep(0.05)
        session: Any = client.connection.session
        assert session.context.coordinator.ids() == []

    run(tmp_path, test)


def test_a_rebalance_ends_without_a_member_that_does_not_join_again(tmp_path: Path) -> None:
    async def test(server: KafkaServer) -> None:
        first, second = server.client(), server.client()
        member = await alone(first, rebalance_timeout_ms=1_000)
        joining(second, 2, rebalance_timeout_ms=1_000)
        joined = await second.receive()
        assert (joined.error_code, joined.generation_id, len(joined.members)) == (0, 2, 1)
        beat = await first.ask(
            "Heartbeat", 3, group_id="g", generation_id=1, member_id=member.member_id
        )
        assert beat.error_code == ErrorCode.UNKNOWN_MEMBER_ID

    run(tmp_path, test)
