"""Topics that grow: new partitions, with the subscriptions of the others, for good."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from router.broker.consume import StartPosition
from router.broker.entries import ENTRY_FORMATS
from router.broker.storage import PULSAR_FORMAT, Store, StoreOptions
from router.broker.topics.changes import grow, terminate
from router.broker.topics.groups import TopicSubscriptions
from router.broker.topics.topics import TopicOptions, Topics
from router.errors import (
    BadRequestError,
    NotAllowedError,
    RouterError,
    TopicNotFoundError,
    TopicTerminatedError,
)
from router.model import TopicName

T = TopicName("public", "default", "t")


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Topics]:
    store = await Store.open(folder, StoreOptions(), lambda: 1_000.0)
    try:
        yield Topics(store, TopicOptions(), lambda: 1_000.0, ENTRY_FORMATS)
    finally:
        await store.close()


async def test_new_partitions_have_all_subscriptions_at_their_beginning_also_after_a_restart(
    folder: Path,
) -> None:

    def look(topics: Topics) -> None:
        partitions = topics.pieces(T)
        assert [partition.index for partition in partitions] == [0, 1, 2, 3]
        assert len({partition.ledger.id for partition in partitions}) == 4
        for partition in partitions[2:]:
            assert {
                name: subscription.cursor.mark_delete
                for name, subscription in partition.subscriptions.items()
            } == {"g": -1, "only-there": -1}
            record = partition.subscriptions["only-there"].record
            assert record is not None
            assert record.properties == {"p": "1"}

    async with opened(folder) as topics:
        await topics.create(T, 2)
        await TopicSubscriptions(topics).subscribe(T, "g", StartPosition())
        await topics.pieces(T.partition(1))[0].subscribe("only-there", 0, {"p": "1"})
        topics.pieces(T.partition(0))[0].read_from("reader", 0)
        await grow(topics, T, 4)
        look(topics)
        assert topics.loaded()[0].topic.partitions == 4
    async with opened(folder) as topics:
        look(topics)
        await grow(topics, T, 4)
        assert len(topics.pieces(T)) == 4


async def test_new_partitions_keep_what_is_stored_in_them(folder: Path) -> None:
    async with opened(folder) as topics:
        await topics.create(T, 1)
        await grow(topics, T, 2)
        stored = asyncio.Event()
        (partition,) = topics.pieces(T.partition(1))
        partition.ledger.append(b"v", PULSAR_FORMAT, 1, 1, lambda _: stored.set())
        await stored.wait()
    async with opened(folder) as topics:
        assert [partition.ledger.next_entry for partition in topics.pieces(T)] == [0, 1]
        await topics.delete(T)
        assert topics.names("public/default") == []


async def test_watchers_are_told_of_new_partitions_only(folder: Path) -> None:
    async with opened(folder) as topics:
        await topics.create(T, 1)
        told: list[tuple[str, list[str], list[str]]] = []
        topics.observers.add(lambda name, new, gone: told.append((name, list(new), list(gone))))
        await grow(topics, T, 3)
        assert told == [(str(T), [str(T.partition(1)), str(T.partition(2))], [])]


@pytest.mark.parametrize(
    ("partitions", "wanted", "error"),
    [
        (0, 2, NotAllowedError),
        (3, 2, NotAllowedError),
        (2, 1_001, BadRequestError),
        (None, 2, TopicNotFoundError),
    ],
)
async def test_topic_does_not_grow_when_it_may_not(
    folder: Path, partitions: int | None, wanted: int, error: type[RouterError]
) -> None:
    async with opened(folder) as topics:
        if partitions is not None:
            await topics.create(T, partitions)
        with pytest.raises(error):
            await grow(topics, T, wanted)
        if partitions is not None:
            assert topics.known(T).partitions == partitions


async def test_topic_that_is_terminated_does_not_grow(folder: Path) -> None:
    async with opened(folder) as topics:
        await topics.create(T, 1)
        await topics.pieces(T)[0].terminate()
        with pytest.raises(TopicTerminatedError):
            await grow(topics, T, 2)


async def test_topic_grows_once_when_many_ask_together(folder: Path) -> None:
    async with opened(folder) as topics:
        await topics.create(T, 1)
        await asyncio.gather(*(grow(topics, T, 5) for _ in range(5)))
        assert len(topics.known(T).ledger_ids) == 5


async def test_topic_that_is_terminated_while_it_grows_is_terminated_whole(folder: Path) -> None:
    async with opened(folder) as topics:
        await topics.create(T, 1)
        growing = asyncio.create_task(grow(topics, T, 3))
        await asyncio.sleep(0)
        assert len(await terminate(topics, T)) == 3
        await growing
        assert all(partition.ledger.terminated for partition in topics.pieces(T))


async def test_partition_is_terminated_alone_when_it_is_named(folder: Path) -> None:
    async with opened(folder) as topics:
        await topics.create(T, 2)
        (last,) = await terminate(topics, T.partition(1))
        assert (last.entry, last.partition) == (-1, 1)
        assert [partition.ledger.terminated for partition in topics.pieces(T)] == [False, True]
        with pytest.raises(TopicNotFoundError):
            await terminate(topics, T.partition(2))
