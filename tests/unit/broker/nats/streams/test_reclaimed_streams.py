"""A stream of which deleted messages were reclaimed is read by sequence and subject as before."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from tests.unit.broker.nats.streaming import SMALL, check_index, everything, streaming

OPTIONS = replace(SMALL, cache=0, reclaim_bytes=1)


def test_newest_message_of_each_subject_is_left_and_the_rest_gives_its_space_back(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with streaming(tmp_path, options=OPTIONS) as rig:
            stream = await rig.create("S", "s.>", max_msgs_per_subject=1)
            for round_number in range(30):
                for place in range(10):
                    # Of some subjects the newest message is an old one.
                    if place < 7 or round_number < 3 * place:
                        rig.send(f"s.{place}", b"%d-%d" % (round_number, place) * 20)
                rig.publisher.flush()
                await rig.answered()
            await rig.append_foreign(stream, "s.7", "s.20", "s.0")
            await stream.settle()
            before = await everything(stream)
            assert len(before) == 11
            await rig.store._checkpointer.checkpoint()
            size = stream.ledger.size_bytes
            assert await rig.store.reclaim(stream.ledger) > 0
            assert stream.ledger.size_bytes < size // 2
            assert await everything(stream) == before
            await check_index(stream)
        for file in (tmp_path / "data" / "subjects").iterdir():
            file.unlink()
        async with streaming(tmp_path, options=OPTIONS) as rig:
            stream = await rig.streams.open("S")
            assert await everything(stream) == before
            await check_index(stream)
            assert (await rig.publish("s.9", b"new"))["seq"] == before[-1].sequence + 1

    asyncio.run(run())
