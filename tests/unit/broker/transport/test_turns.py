"""How much of what one connection sent is handled at a time; over a transport in memory."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path

import pytest

from router.broker.transport import connection
from router.model import TopicName
from router.wire.pulsar import command, encode
from router.wire.pulsar import pulsar_pb2 as pb
from tests.unit.broker.pulsar.serving import Context
from tests.unit.broker.pulsar.test_connection import (
    CONNECT,
    PING,
    Client,
    opened_client,
)


def names(request_id: int) -> bytes:
    asked = command(
        pb.BaseCommand.GET_TOPICS_OF_NAMESPACE, namespace="public/default", request_id=request_id
    )
    return encode(asked)


def subscribe(number: int) -> bytes:
    asked = command(
        pb.BaseCommand.SUBSCRIBE,
        topic=f"persistent://public/default/t-{number}",
        subscription="s",
        subType=pb.CommandSubscribe.Shared,
        consumer_id=number,
        request_id=number,
    )
    return encode(asked)


async def make_topics(context: Context, count: int) -> None:
    for number in range(count):
        name = TopicName.parse(f"persistent://public/default/{'n' * 200}-{number}")
        await context.topics.create(name)


async def test_answers_are_not_made_while_others_wait_to_leave(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_UNSENT_BYTES", 50_000)
    async with opened_client(folder) as (client, context):
        await make_topics(context, 40)
        client.transport.waiting = 50_001
        client.send(*(names(number) for number in range(200)), PING)
        await client.settle()
        unread = sum(map(len, client.transport.writes))
        assert 50_000 < unread < 70_000
        assert not client.transport.reading
        client.transport.waiting = 0
        client.connection.resume_writing()
        await client.settle()
        _connected, *answers, pong = client.received()
        found = [answer.getTopicsOfNamespaceResponse.request_id for answer in answers]
        assert found == list(range(200))
        assert pong.type == pb.BaseCommand.PONG
        assert client.transport.reading


async def test_others_have_their_turn_before_all_that_one_client_asked_is_done(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_TURN_SECONDS", 0.0)
    async with opened_client(folder) as (client, context):
        await make_topics(context, 10)
        other = Client(context)
        client.send(*(names(number) for number in range(50)))
        other.send(CONNECT, PING)
        for _ in range(10):
            await asyncio.sleep(0)
        assert other.transport.writes
        answered = len(client.received()) - 1
        assert answered < 50
        await client.settle()
        assert answered + len(client.received()) == 50
        assert client.transport.reading
        other.connection.connection_lost(None)


async def test_requests_wait_for_each_other_when_they_are_too_many_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "BUSY_TASKS", 3)
    monkeypatch.setattr(connection, "MAX_TASKS", 3)
    async with opened_client(folder) as (client, _):
        client.send(*(subscribe(number) for number in range(20)), PING)
        assert not client.transport.reading
        await client.settle()
        assert sorted(client.kinds()) == ["CONNECTED", "PONG", *["SUCCESS"] * 20]
        assert client.transport.reading


async def test_nothing_more_is_handled_when_the_connection_is_lost(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "BUSY_TASKS", 1)
    async with opened_client(folder) as (_, context):
        lost = Client(context)
        lost.send(CONNECT, *(subscribe(number) for number in range(20)))
        lost.connection.connection_lost(None)
        await lost.settle()
        assert context.topics.count == 1


async def test_what_came_of_a_frame_is_let_go_when_the_connection_is_lost(folder: Path) -> None:
    async with opened_client(folder) as (_, context):
        lost = Client(context)
        lost.send(CONNECT)
        tracemalloc.start()
        try:
            lost.send((2_000_000).to_bytes(4) + bytes(1_000_000))
            assert tracemalloc.get_traced_memory()[0] > 900_000
            lost.connection.connection_lost(None)
            assert tracemalloc.get_traced_memory()[0] < 500_000
        finally:
            tracemalloc.stop()


async def test_client_that_takes_nothing_is_closed_though_it_is_not_read_from(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_UNSENT_BYTES", 1_000)
    async with opened_client(folder) as (client, context):
        await make_topics(context, 10)
        client.transport.waiting = 1_001
        client.send(*(names(number) for number in range(50)))
        await client.settle()
        now = asyncio.get_running_loop().time()
        client.connection.check_liveness(now + 11)
        assert not client.transport.ended
        client.connection.check_liveness(now + 22)
        assert client.transport.ended


async def test_own_processes_get_in_when_clients_are_too_many(folder: Path) -> None:
    async with opened_client(folder, connections=1) as (_, context):
        refused, own = Client(context), Client(context, "")
        assert (refused.transport.ended, own.transport.ended) == (True, False)
        own.send(CONNECT, PING)
        await own.settle()
        assert own.kinds() == ["CONNECTED", "PONG"]
        own.connection.connection_lost(None)
