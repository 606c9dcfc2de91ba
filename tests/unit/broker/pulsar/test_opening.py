"""Producers, schemas and lists of topics that one connection opens, over a transport in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from router.broker.storage import DamagedError, Ledger
from router.broker.transport import connection
from router.model import TopicName
from router.wire.pulsar import command, encode
from router.wire.pulsar import pulsar_pb2 as pb
from tests.unit.broker.pulsar.test_connection import (
    CONNECT,
    SUBSCRIBE,
    TOPIC,
    Client,
    opened_client,
)

LARGE = pb.Schema(name="R", schema_data=b" " * 100_000, type=pb.Schema.Avro)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (
            command(pb.BaseCommand.GET_OR_CREATE_SCHEMA, topic=TOPIC, request_id=2, schema=LARGE),
            "GET_OR_CREATE_SCHEMA_RESPONSE",
        ),
        (
            command(
                pb.BaseCommand.PRODUCER, topic=TOPIC, producer_id=0, request_id=2, schema=LARGE
            ),
            "ERROR",
        ),
    ],
)
async def test_schema_that_is_far_too_large_waits_for_nothing(
    folder: Path, asked: pb.BaseCommand, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine the turn may end between the commands; then the first is answered first.
    monkeypatch.setattr(connection, "MAX_TURN_SECONDS", 60.0)
    get = command(pb.BaseCommand.GET_SCHEMA, topic=TOPIC, request_id=1)
    async with opened_client(folder) as (client, _):
        client.send(encode(get), encode(asked))
        await client.settle()
        assert client.kinds() == ["CONNECTED", answer, "GET_SCHEMA_RESPONSE"]


async def test_turn_of_a_producer_passes_on_when_its_connection_has_too_much_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exclusive(number: int) -> bytes:
        return encode(
            command(
                pb.BaseCommand.PRODUCER,
                topic=TOPIC,
                producer_id=number,
                request_id=number,
                producer_access_mode=pb.WaitForExclusive,
            )
        )

    async with opened_client(folder) as (client, context):
        client.send(exclusive(0))
        await client.settle()
        busy, patient = Client(context), Client(context)
        for waiting in (busy, patient):
            waiting.send(CONNECT, exclusive(1))
            await waiting.settle()
            waiting.received()
        monkeypatch.setattr(connection, "MAX_TASKS", 0)
        close = command(pb.BaseCommand.CLOSE_PRODUCER, producer_id=0, request_id=5)
        with monkeypatch.context() as room:
            room.setattr(patient.connection, "spawn", asyncio.ensure_future)
            client.send(encode(close))
            await client.settle()
            assert busy.transport.ended
            for _ in range(200):
                await asyncio.sleep(0.01)
                if patient.transport.writes:
                    break
        assert patient.kinds() == ["PRODUCER_SUCCESS"]
        for waiting in (busy, patient):
            waiting.connection.connection_lost(None)


async def test_watcher_that_is_not_told_for_long_has_nothing_coming_of_what_came_and_went(
    folder: Path,
) -> None:
    watched = command(
        pb.BaseCommand.WATCH_TOPIC_LIST,
        request_id=1,
        watcher_id=7,
        namespace="public/default",
        topics_pattern="public/default/.*",
    )
    async with opened_client(folder) as (client, context):
        topics = context.topics
        there = TopicName.parse(TOPIC)
        await topics.create(there)
        client.send(encode(watched))
        await client.settle()
        client.received()
        client.connection.pause_writing()
        for number in range(5):
            name = TopicName("public", "default", f"passing-{number}")
            await topics.create(name)
            await topics.delete(name)
        await topics.delete(there)
        await topics.create(there)
        await topics.create(TopicName("public", "default", "new"))
        await asyncio.sleep(0.2)
        assert client.kinds() == []
        client.connection.resume_writing()
        (told,) = await client.answers(1)
        update = told.watchTopicUpdate
        assert list(update.new_topics) == [TOPIC, "persistent://public/default/new"]
        assert list(update.deleted_topics) == []


async def test_damage_refuses_a_request_that_meets_it_and_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def damaged(ledger: Ledger, _timestamp_ms: int) -> int:
        raise DamagedError(ledger.id, folder, 0, 1, 0, 1)

    seek = command(pb.BaseCommand.SEEK, consumer_id=0, request_id=5, message_publish_time=1)
    back = command(
        pb.BaseCommand.SUBSCRIBE,
        topic=TOPIC,
        subscription="back",
        subType=pb.CommandSubscribe.Exclusive,
        consumer_id=1,
        request_id=6,
        start_message_rollback_duration_sec=5,
    )

    async with opened_client(folder) as (client, _):
        client.send(SUBSCRIBE)
        await client.settle()
        client.received()
        monkeypatch.setattr(Ledger, "find_time", damaged)
        client.send(encode(seek), encode(back))
        await client.settle()
        assert [told.error.error for told in client.received()] == [pb.PersistenceError] * 2
        assert not client.transport.ended
