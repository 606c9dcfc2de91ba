"""Fetch sessions (KIP-227): what is named once is read on; what did not change is not answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from router.broker.kafka import fetch
from router.broker.kafka.batch_reader import Batches
from router.broker.kafka.client import KafkaRequest
from router.broker.kafka.failures import ErrorCode
from router.broker.kafka.fetch_sessions import (
    FIRST_EPOCH,
    LAST_EPOCH,
    FetchedPartition,
    FetchSession,
)
from router.model import TopicName
from tests.unit.broker.kafka.serving import KafkaClient, KafkaServer, with_server
from tests.unit.broker.kafka.test_fetch import LONG_MS, asked
from tests.unit.broker.kafka.test_group_rights import grant
from tests.unit.broker.kafka.test_produce import FULL, TOPIC, batch, produced
from tests.unit.broker.kafka.test_sasl import guarded_server, login

PARTITIONS = 3
BATCH = len(batch(1))


class Session:
    """A session of a client; calls return the partitions that are answered, with their bytes."""

    def __init__(self, client: KafkaClient) -> None:
        self.client = client
        self.id, self.epoch = 0, 0

    async def fetch(
        self, *indexes: int, forgets: tuple[int, ...] = (), offset: int = 0, **how: Any
    ) -> dict[int, int]:
        """Name partitions, read from an offset, and forget others."""
        answer = await self.answer(*indexes, forgets=forgets, offset=offset, **how)
        assert answer.error_code == 0
        self.id, self.epoch = answer.session_id, self.epoch + 1
        parts = [part for topic in answer.responses for part in topic.partitions]
        return {part.partition_index: len(part.records or b"") for part in parts}

    async def answer(
        self, *indexes: int, forgets: tuple[int, ...] = (), offset: int = 0, **how: Any
    ) -> Any:
        """Return the whole answer, and go on as if it had not come."""
        struct, request = self.client.struct, "FetchRequest"
        parts = [asked(self.client, offset, index=index) for index in indexes]
        topics = [struct(request, "FetchTopic", topic=TOPIC, partitions=parts)] if parts else []
        gone = [struct(request, "ForgottenTopic", topic=TOPIC, partitions=list(forgets))]
        fields = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "topics": topics}
        fields |= {"session_id": self.id, "session_epoch": self.epoch}
        return await self.client.ask(
            "Fetch", 11, **fields | how, forgotten_topics_data=gone if forgets else []
        )


def with_session(
    folder: Path, test: Callable[[KafkaServer, KafkaClient, Session], Awaitable[None]]
) -> None:
    async def run(server: KafkaServer) -> None:
        await server.topics.create(TopicName.parse(FULL), PARTITIONS)
        client = server.client()
        await test(server, client, Session(client))

    with_server(folder, run)


async def store(client: KafkaClient, index: int) -> None:
    assert (await produced(client, batch(1), index=index)).error_code == 0


def test_only_what_changed_is_answered(tmp_path: Path) -> None:
    async def test(_: KafkaServer, client: KafkaClient, session: Session) -> None:
        assert await session.fetch(0, 1, 2) == {0: 0, 1: 0, 2: 0}
        assert session.id > 0
        assert await session.fetch() == {}
        await store(client, 1)
        assert await session.fetch() == {1: BATCH}
        # Batches are answered until the client names the offset behind them.
        assert await session.fetch() == {1: BATCH}
        assert await session.fetch(1, offset=1) == {}
        await store(client, 1)
        await store(client, 2)
        assert await session.fetch(forgets=(1,)) == {2: BATCH}
        assert await session.fetch(2, offset=1) == {}
        # A partition that was forgotten is new again.
        assert await session.fetch(1, offset=2) == {1: 0}

    with_session(tmp_path, test)


def test_a_change_of_the_end_is_answered_without_batches(tmp_path: Path) -> None:
    async def test(_: KafkaServer, client: KafkaClient, session: Session) -> None:
        assert await session.fetch(0, 1) == {0: 0, 1: 0}
        await store(client, 0)
        await store(client, 1)
        # The response holds one batch; of the other partition it says that there is more.
        assert await session.fetch(max_bytes=1) == {0: BATCH, 1: 0}
        # Who was answered goes behind the other one.
        assert await session.fetch(max_bytes=1) == {1: BATCH}
        assert await session.fetch(max_bytes=1) == {0: BATCH}

    with_session(tmp_path, test)


def test_a_failure_is_answered_each_time_and_what_comes_behind_it(tmp_path: Path) -> None:
    async def test(server: KafkaServer, client: KafkaClient, session: Session) -> None:
        assert await session.fetch(0, 1) == {0: 0, 1: 0}
        assert await session.fetch(0, offset=9) == {0: 0}
        for _ in range(2):
            (topic,) = (await session.answer()).responses
            (part,) = topic.partitions
            assert part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            session.epoch += 1
        assert await session.fetch(0) == {0: 0}
        assert await session.fetch() == {}
        await server.topics.delete(TopicName.parse(FULL))
        assert await session.fetch() == {0: 0, 1: 0}
        await server.topics.create(TopicName.parse(FULL), PARTITIONS)
        assert await session.fetch() == {0: 0, 1: 0}
        assert await session.fetch() == {}

    with_session(tmp_path, test)


def test_a_session_is_of_its_client_and_in_order(tmp_path: Path) -> None:
    async def test(server: KafkaServer, client: KafkaClient, session: Session) -> None:
        await session.fetch(0, 1)
        session.epoch += 1
        answer = await session.answer()
        assert (answer.error_code, answer.session_id) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0)
        session.epoch -= 1
        assert await session.fetch() == {}
        other = Session(server.client())
        other.id, other.epoch = session.id, session.epoch
        assert (await other.answer()).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        # It ends with a request that names everything, or with the connection.
        before, session.epoch = session.id, 0
        assert await session.fetch(0) == {0: 0}
        assert session.id != before
        session.epoch = -1
        assert await session.fetch(0) == {0: 0}
        assert session.id == 0

    with_session(tmp_path, test)


@pytest.mark.parametrize("bound", ["MAX_PARTITIONS", "MAX_KEPT_PARTITIONS"])
def test_sessions_have_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(fetch, bound, 2)

    async def test(_: KafkaServer, client: KafkaClient, session: Session) -> None:
        assert await session.fetch(0, 1, 2) == {0: 0, 1: 0, 2: 0}
        assert session.id == session.epoch - 1 == 0
        session.epoch = 0
        assert await session.fetch(0, 1) == {0: 0, 1: 0}
        assert session.id
        assert (await session.answer(2)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert (await session.answer()).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    with_session(tmp_path, test)


def test_a_session_that_ends_leaves_its_share_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "MAX_KEPT_PARTITIONS", 2)

    async def test(server: KafkaServer, client: KafkaClient, session: Session) -> None:
        async def begins(other: Session) -> bool:
            other.epoch = 0
            assert await other.fetch(0, 1) == {0: 0, 1: 0}
            return other.id != 0

        other = Session(server.client())
        for _ in range(2):
            assert await begins(session)  # again, in the place of the one before
            assert not await begins(other)
        await session.fetch(forgets=(0, 1))
        assert await begins(other)
        assert not await begins(session)
        other.client.leave()
        assert await begins(session)

    with_session(tmp_path, test)


def test_a_session_has_names_or_ids_of_topics(tmp_path: Path) -> None:
    async def test(_: KafkaServer, client: KafkaClient, session: Session) -> None:
        await session.fetch(0)
        answer = await client.ask("Fetch", 13, session_id=session.id, session_epoch=session.epoch)
        assert answer.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        assert await session.fetch() == {}

    with_session(tmp_path, test)


def test_who_reads_nothing_does_not_wait(tmp_path: Path) -> None:
    async def test(_: KafkaServer, _client: KafkaClient, session: Session) -> None:
        await session.fetch(0)
        assert await session.fetch(forgets=(0,), max_wait_ms=LONG_MS) == {}
        # So a consumer of Apache Kafka ends its session.
        session.epoch = -1
        assert await session.fetch(max_wait_ms=LONG_MS) == {}

    with_session(tmp_path, test)


def test_a_session_does_not_keep_what_was_answered() -> None:
    session = FetchSession(1, committed=False, by_id=False)
    parts = [FetchedPartition(TOPIC, index, 0, 1, -1) for index in range(2)]
    for one in parts:
        session.put(one)
    parts[0].batches = Batches([b"a"], 1)
    session.rotate()
    assert [one.batches for one in parts] == [None, None]
    assert [index for _, index in session.partitions] == [1, 0]


def test_epochs_begin_again() -> None:
    session = FetchSession(1, committed=False, by_id=False, epoch=LAST_EPOCH - 1)
    session.advance()
    assert session.epoch == LAST_EPOCH
    session.advance()
    assert session.epoch == FIRST_EPOCH


async def test_a_session_follows_the_rights_of_its_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while a request waits, and without a look at each partition where they stay."""
    looked_up: list[FetchedPartition] = []
    look_up = fetch._look_up

    def noted(request: KafkaRequest, one: FetchedPartition) -> None:
        looked_up.append(one)
        look_up(request, one)

    async with guarded_server(tmp_path) as server:
        granted = f"reader {TOPIC} subscribe\nanna {TOPIC} publish"
        grant(tmp_path, granted)
        reader, writer = server.client(), server.client()
        await login(reader, "reader")
        await login(writer)
        session, refused = Session(reader), ErrorCode.TOPIC_AUTHORIZATION_FAILED
        await session.fetch(0)
        monkeypatch.setattr(fetch, "_look_up", noted)
        assert await session.fetch() == {}
        assert not looked_up
        grant(tmp_path, f"anna {TOPIC} publish")
        answer = await session.answer()
        assert [one.error_code for one in answer.responses[0].partitions] == [refused]
        session.epoch += 1
        grant(tmp_path, granted)
        assert await session.fetch() == {0: 0}
        waiting = asyncio.create_task(session.answer(max_wait_ms=LONG_MS))
        await asyncio.sleep(0)  # it is sent with the first step
        grant(tmp_path, f"anna {TOPIC} publish")
        await store(writer, 0)
        answer = await waiting
        (one,) = answer.responses[0].partitions
        assert (one.error_code, bool(one.records)) == (refused, False)


async def test_rights_that_change_while_a_session_begins_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = fetch._look_up
    async with guarded_server(tmp_path) as server:
        grant(tmp_path, f"reader {TOPIC} subscribe")
        reader = server.client()
        await login(reader, "reader")

        def revoked(request: KafkaRequest, one: FetchedPartition) -> None:
            look_up(request, one)
            monkeypatch.undo()
            grant(tmp_path, "")

        monkeypatch.setattr(fetch, "_look_up", revoked)
        session, refused = Session(reader), ErrorCode.TOPIC_AUTHORIZATION_FAILED
        answer = await session.answer(0)
        session.id, session.epoch = answer.session_id, 1
        answer = await session.answer()
        assert [one.error_code for one in answer.responses[0].partitions] == [refused]
