"""Many requests at once, and clients that read slowly: nothing of it grows without a bound."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from router.broker.consume import Producer, ProducerAccess
from router.broker.entries.workers import THREADS
from router.broker.kafka.failures import ErrorCode
from router.broker.kafka.session import MAX_ELEMENTS
from router.broker.storage import Store
from router.model import TopicName
from router.wire.kafka.compression import GZIP
from router.wire.kafka.primitives import uvarint
from tests.unit.broker.kafka.serving import serving
from tests.unit.broker.kafka.test_produce import (
    FULL,
    batch,
    fields,
    idempotent,
    produced,
    with_topic,
)

REQUESTS = 200
MAX_UNSENT_BYTES = 2 << 20


async def test_duplicates_for_many_partitions_are_answered_together(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        for number in range(2):
            await server.topics.create(TopicName.parse(f"wide-{number}"), 600)
        client = server.client()
        sent = idempotent(0)
        parts = [
            client.struct("ProduceRequest", "PartitionProduceData", index=index, records=sent)
            for index in range(600)
        ]
        data = [
            client.struct(
                "ProduceRequest", "TopicProduceData", name=f"wide-{number}", partition_data=parts
            )
            for number in range(2)
        ]
        for _ in range(2):
            answer = await client.ask("Produce", 9, acks=-1, timeout_ms=1_000, topic_data=data)
            found = [part for topic in answer.responses for part in topic.partition_responses]
            assert {(part.error_code, part.base_offset) for part in found} == {(0, 0)}
            assert len(found) == 1_200


async def test_requests_that_waited_for_another_are_proved_in_turns(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = await with_topic(server)
        made = batch(1, codec=GZIP)
        frames = [client.request("Metadata", 9, topics=None)]
        frames += [client.request("Produce", 9, **fields(client, made)) for _ in range(1_500)]
        client.connection.data_received(b"".join(frames))
        await client.receive()
        for number in range(1_500):
            part = (await client.receive()).responses[0].partition_responses[0]
            assert (part.error_code, part.base_offset) == (0, number)


async def test_a_client_that_does_not_read_has_few_answers_made(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.topics.create(TopicName.parse("wide"), 1_000)
        client = server.client()
        frames = [client.request("Metadata", 9, topics=None) for _ in range(REQUESTS)]
        client.connection.pause_writing()
        client.connection.data_received(b"".join(frames))
        for _ in range(3 * REQUESTS):
            await asyncio.sleep(0)
        await server.synced()
        assert sum(map(len, client.transport.writes)) < MAX_UNSENT_BYTES
        client.connection.resume_writing()
        for _ in range(REQUESTS):
            await client.receive_frame()


async def test_a_request_without_acknowledgement_is_never_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = await with_topic(server)
        client.send("Produce", 9, **fields(client, batch(), acks=0, topic="missing"))
        assert client.take() == []
        assert client.connection.closed


async def test_a_batch_is_refused_whose_producer_was_closed_while_it_was_proved(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        client, other = await with_topic(server), server.client()
        assert (await produced(client, batch())).error_code == 0
        partition = server.topics.opened(FULL)
        assert partition is not None
        for acks, leaves in ((-1, False), (0, False), (0, True)):
            sender = other if leaves else client
            gate = threading.Event()
            workers = server.context.broker.transcoder.workers
            held = [asyncio.create_task(workers.run(gate.wait)) for _ in range(THREADS)]
            await asyncio.sleep(0)
            end = partition.ledger.next_index
            sender.send("Produce", 9, **fields(sender, batch(codec=GZIP), acks=acks))
            holder = Producer(
                link=next(iter(partition.producers)).link,
                producer_id=1,
                name="holder",
                epoch=0,
                generated=False,
                deduplicated=False,
                access=ProducerAccess.EXCLUSIVE_WITH_FENCING,
            )
            if leaves:
                sender.leave()
            assert partition.producers.add(holder)
            gate.set()
            await asyncio.gather(*held)
            if acks:
                part = (await sender.receive()).responses[0].partition_responses[0]
                assert part.error_code == ErrorCode.POLICY_VIOLATION
            else:
                await sender.connection.settled()
                assert sender.connection.closed
            assert partition.ledger.next_index == end
            partition.producers.remove(holder)
            if acks:
                assert (await produced(client, batch())).error_code == 0
            else:
                client = server.client()
                assert (await produced(client, batch())).error_code == 0
        assert len(partition.producers) == 1


async def test_what_came_before_the_end_of_its_connection_is_stored(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = await with_topic(server)
        client.send("Produce", 9, **fields(client, batch(codec=GZIP), acks=0))
        client.leave()
        await client.connection.settled()
        partition = server.topics.opened(FULL)
        assert partition is not None
        assert partition.ledger.next_index == 3
        assert len(partition.producers) == 0


@pytest.mark.parametrize("where", ["array", "tags", "header"])
async def test_a_request_of_many_elements_closes_its_connection(tmp_path: Path, where: str) -> None:
    async with serving(tmp_path) as server:
        client = await with_topic(server)
        count = MAX_ELEMENTS + 1
        tags = b"".join(uvarint(tag) + b"\0" for tag in range(100, 100 + count))
        tags = uvarint(count) + tags
        # No transactional id, acks, and the time limit.
        body = b"\0" + (-1).to_bytes(2, signed=True) + bytes(4)
        if where == "array":
            # Each without a topic's name and partitions.
            body += uvarint(count + 1) + b"\1\1\0" * count + b"\0"
        else:
            body += b"\1" + (tags if where == "tags" else b"\0")
        frame = client.frame("Produce", 9, body)
        if where == "header":
            assert frame.endswith(b"\0" + body)
            content = frame[4 : -len(body) - 1] + tags + body
            frame = len(content).to_bytes(4) + content
        client.connection.data_received(frame)
        assert client.connection.closed
        assert client.take() == []


async def test_a_request_may_have_so_many_elements(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = server.client()
        part = client.struct("ListOffsetsRequest", "ListOffsetsPartition", timestamp=-1)
        topic = client.struct("ListOffsetsRequest", "ListOffsetsTopic", name="none")
        topic.partitions = [part] * (MAX_ELEMENTS - 1)
        answer = await client.ask("ListOffsets", 7, topics=[topic])
        assert len(answer.topics[0].partitions) == MAX_ELEMENTS - 1


async def test_batches_wait_until_the_disk_has_caught_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = [True]
    monkeypatch.setattr(Store, "congested", property(lambda _store: bool(slow)))
    async with serving(tmp_path) as server:
        client = await with_topic(server)
        gone, pressure = server.client(), server.topics.store.pressure
        for publisher in (client, gone):
            publisher.send("Produce", 9, **fields(client, batch()))
        assert len(pressure) == 2
        gone.connection.connection_lost(None)
        assert len(pressure) == 1
        partition = server.topics.opened(FULL)
        assert partition is None or partition.ledger.next_entry == 0
        slow.clear()
        for listener in tuple(pressure):
            listener()
        answer = await client.receive()
        assert answer.responses[0].partition_responses[0].base_offset == 0
        assert not pressure
