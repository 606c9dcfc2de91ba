"""Calls that come in any turn of the event loop, while tasks of a stream begin and end."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.unit.broker.nats.streaming import DEADLINE_SECONDS, streaming

TURNS = 40


async def test_settling_ends_whenever_it_begins(tmp_path: Path) -> None:
    async with streaming(tmp_path) as rig:
        stream = await rig.create("S", "s", retention="workqueue")
        for _ in range(3):
            await rig.publish("s", b"x")
        waiting = []
        for turn in range(TURNS):
            if turn in (0, 10, 20):
                stream.acknowledged(turn // 10 + 1)
            waiting.append(asyncio.create_task(stream.settle()))
            await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.gather(*waiting), DEADLINE_SECONDS)
        assert stream.log.messages == 0


async def test_the_last_message_of_a_subject_is_there_in_every_turn(tmp_path: Path) -> None:
    async with streaming(tmp_path) as rig:
        stream = await rig.create("S", "s.>", max_msgs_per_subject=1)
        await rig.publish("s.k", b"0")
        ending = asyncio.Event()

        async def read() -> int:
            count = 0
            while not ending.is_set():
                found = await stream.log.last_of_subject(("s.k",))
                assert found is not None
                count += 1
                await asyncio.sleep(0)
            return count

        readers = [asyncio.create_task(read()) for _ in range(4)]
        for number in range(1, TURNS):
            reply = rig.send("s.k", b"%d" % number)
            rig.publisher.flush()
            await asyncio.sleep(0)
            await rig.answer(reply)
        ending.set()
        assert min(await asyncio.gather(*readers)) > 0
