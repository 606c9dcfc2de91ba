"""Opening a stream, and what happens to it in the same turn of the event loop."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from errno import EIO
from pathlib import Path

import pytest

from router.broker.nats.streams import streams
from router.broker.nats.streams.stream import Stream
from router.model.policies import Policies
from tests.unit.broker.nats.serving import Inbox, payloads, serving


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


async def test_a_stream_that_could_not_be_read_at_the_start_is_opened_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its push consumers deliver, and its limits are enforced, though no client uses it."""
    monkeypatch.setattr(streams, "MAINTENANCE_INTERVAL_SECONDS", 0.01)
    async with serving(tmp_path) as served:
        await served.stream()
        await served.consumer("c", deliver_subject="out")
        await served.publish(b"1")
    opening, failures = Stream._open, [1, 2]

    async def failing(stream: Stream) -> None:
        if failures:
            failures.pop()
            raise OSError(EIO, "Input/output error")
        await opening(stream)

    monkeypatch.setattr(Stream, "_open", failing)
    async with serving(tmp_path) as served:
        inbox = Inbox()
        served.hub.subscribe("out", inbox)
        assert payloads(await inbox.until(1)) == [b"1"]
