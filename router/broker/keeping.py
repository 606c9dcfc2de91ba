"""Whether a broker keeps messages: in a log of its own, or, where another server has them, not."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from router.broker.admin import TopicRequests
from router.broker.counters import Counters
from router.broker.leases import Leases
from router.broker.ledger import Store, StoreOptions
from router.broker.listening import elsewhere, has_log
from router.broker.pulsar import LogMessages, Messages, NoMessages
from router.broker.registry import FileRegistry
from router.broker.topic_admin import TopicAdmin
from router.broker.topics import TopicOptions, Topics
from router.errors import NotAllowedError
from router.settings import Settings
from router.wire.pulsar import pulsar_pb2 as pb


class Served(NamedTuple):
    """What clients are given to do with messages and with topics."""

    messages: Messages
    topics: TopicRequests


class Keeping(Protocol):
    """The part of a broker that is about messages.

    `boot` counts its starts. `failed` ends with an error of the disk, after which the process
    should end.
    """

    boot: int
    failed: asyncio.Future[BaseException]

    def serve(self, leases: Leases, counters: Counters) -> Served:
        """Return what clients are served; called once."""
        ...

    def tended(self) -> AbstractAsyncContextManager[None]:
        """Do what has to be done from time to time while the block lasts."""
        ...

    async def close(self) -> None:
        """End, with nothing left for the next start to recover."""
        ...


async def open_keeping(folder: Path, settings: Settings, registry: FileRegistry) -> Keeping:
    """Return what the settings ask for; raise StoreError."""
    if has_log(settings):
        options = StoreOptions.from_settings(settings)
        # The clock that is passed around starts here.
        store = await Store.open(folder, options, time.time)  # noqa: TID251
        return Log(store, TopicOptions.from_settings(settings))
    return NoLog(await registry.next_boot(), elsewhere(settings))


class Log:
    """The log of the data folder."""

    def __init__(self, store: Store, options: TopicOptions) -> None:
        self._store = store
        self._topics = Topics(store, options, time.time)  # noqa: TID251 - see above
        self.boot = store.boot
        self.failed = store.failed

    def serve(self, leases: Leases, counters: Counters) -> Served:
        """Serve the topics of the log."""
        return Served(
            LogMessages(self._topics, leases, counters.watch),
            TopicAdmin(self._topics, counters, leases),
        )

    @contextlib.asynccontextmanager
    async def tended(self) -> AsyncIterator[None]:
        """Apply retention while the block lasts."""
        tending = asyncio.create_task(self._topics.tend_for_ever())
        try:
            yield
        finally:
            tending.cancel()

    async def close(self) -> None:
        """Close the store."""
        try:
            await self._store.close()
        except Exception:
            # Of a store that has failed only the threads had to end.
            if not self.failed.done():
                raise


class NoLog:
    """No log: messages live in another server, and what is asked about them here is refused."""

    def __init__(self, boot: int, where: str) -> None:
        self.boot = boot
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._sentence = f"this node's broker keeps no messages: they live in {where}"

    def serve(self, leases: Leases, counters: Counters) -> Served:
        """Refuse what is asked about messages and topics."""
        del leases, counters
        return Served(NoMessages(self._sentence), self)

    async def answer(self, asked: pb.CommandAdmin, response: pb.CommandAdminResponse) -> None:
        """Refuse a request about topics."""
        raise NotAllowedError(self._sentence)

    def count(self) -> None:
        """Count nothing."""

    @contextlib.asynccontextmanager
    async def tended(self) -> AsyncIterator[None]:
        """Do nothing."""
        yield

    async def close(self) -> None:
        """Do nothing."""
