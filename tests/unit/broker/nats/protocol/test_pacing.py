"""Calls that compute for long leave time for everything else on the loop."""

from __future__ import annotations

import asyncio
import time

import pytest

from router.broker.nats.protocol.pacing import MAX_TURN_SECONDS, WorkPace


def test_others_have_half_of_the_time() -> None:
    """Of calls that come at once only a few are made before others get their turn."""

    async def test() -> None:
        pace, done = WorkPace(), 0

        async def long() -> int:
            nonlocal done
            for _ in range(3):
                time.sleep(MAX_TURN_SECONDS / 2)  # noqa: ASYNC251 - work that computes
                await asyncio.sleep(0)
            done += 1
            return done

        tasks = [asyncio.create_task(pace.run(long())) for _ in range(10)]
        gaps, before = [], time.monotonic()
        while done < len(tasks):
            await asyncio.sleep(0.001)
            gaps.append(time.monotonic() - before)
            before = time.monotonic()
        assert sorted(await asyncio.gather(*tasks)) == list(range(1, 11))
        # Without turns all ten compute between two steps of this loop.
        assert sorted(gaps)[len(gaps) // 2] < MAX_TURN_SECONDS
        assert len(gaps) > 15

    asyncio.run(test())


async def test_failures_and_cancellations_reach_the_work() -> None:
    pace, ended = WorkPace(), []

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("so")

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    with pytest.raises(ValueError, match="so"):
        await pace.run(fails())
    for pause in (0.0, 1.0):
        task = asyncio.create_task(pace.run(waits()))
        await asyncio.sleep(0)
        pace.used(pause)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert ended == ["cancelled", "cancelled"]
    task = asyncio.create_task(pace.run(fails()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
