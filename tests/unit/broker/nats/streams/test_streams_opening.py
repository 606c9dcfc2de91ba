"""Opening a stream, and what happens to it in the same turn of the event loop."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from router.broker.nats.streams.stream import Stream
from router.model.policies import Policies
from tests.unit.broker.nats.serving import serving


async def test_a_stream_is_configured_in_the_moment_in_which_it_was_opened(tmp_path: Path) -> None:
    """The task that opened it has ended then, and nothing was called that waited for it."""
    async with serving(tmp_path) as served:
        await served.topics.create(served.topics.parse("S"), 0, Policies(), {})
        stream = served.server.streams.find("S")
        load, configuring = stream.loader, list[asyncio.Task[None]]()
        assert load is not None

        async def loading(opened: Stream) -> None:
            await load(opened)
            record = replace(stream.record, configured=True)
            configuring.append(asyncio.create_task(stream.configure(record)))

        stream.loader = loading
        await stream.open()
        await asyncio.wait_for(configuring[0], 30)
        assert stream.opened
        assert stream.log.indexer is not None
