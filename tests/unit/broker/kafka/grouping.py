"""Requests of Kafka's group protocol, as the tests of groups send them by frames."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from router.broker.storage import PULSAR_FORMAT
from router.model import TopicName
from router.settings import load
from router.wire.kafka.error_codes import ErrorCode
from tests.unit.broker.kafka.serving import MESSAGES, KafkaClient, KafkaServer, with_server

TOPIC = TopicName.parse("persistent://public/default/orders")
NO_DELAY = {"ROUTER_BROKER_KAFKA_REBALANCE_DELAY": "0s"}


def run(folder: Path, test: Callable[[KafkaServer], Awaitable[None]], **environ: str) -> None:
    async def within(server: KafkaServer) -> None:
        await server.topics.create(TOPIC, 2)
        for partition in server.topics.pieces(TOPIC):
            for _ in range(5):
                partition.ledger.append(b"v", PULSAR_FORMAT, 2, 1, lambda _: None)
        await server.synced()
        await test(server)

    with_server(folder, within, settings=load(None, NO_DELAY | environ))


def subscription(*topics: str) -> bytes:
    message = MESSAGES.message("ConsumerProtocolSubscription")(topics=topics)
    return b"\0\0" + bytes(message.write(0))


def assignment(topic: str, *partitions: int) -> bytes:
    kind = MESSAGES.message("ConsumerProtocolAssignment")
    one = kind.STRUCTS["TopicPartition"](topic=topic, partitions=partitions)
    return b"\0\0" + bytes(kind(assigned_partitions=[one]).write(0))


def joining(client: KafkaClient, version: int, member: str = "", **fields: Any) -> None:
    protocol = client.struct(
        "JoinGroupRequest",
        "JoinGroupRequestProtocol",
        name="range",
        metadata=subscription("orders"),
    )
    given: dict[str, Any] = {
        "group_id": "g",
        "session_timeout_ms": 10_000,
        "member_id": member,
        "protocol_type": "consumer",
        "protocols": [protocol],
    }
    if version:
        given["rebalance_timeout_ms"] = 20_000
    client.send("JoinGroup", version, **given | fields)


async def join(client: KafkaClient, version: int = 5, **fields: Any) -> Any:
    """Return the answer to a join, with the id that a first one was given."""
    joining(client, version, **fields)
    answer = await client.receive()
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        joining(client, version, answer.member_id, **fields)
        answer = await client.receive()
    return answer


async def sync(
    client: KafkaClient, joined: Any, given: dict[str, bytes] | None = None, version: int = 3
) -> Any:
    return await client.ask(
        "SyncGroup",
        version,
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[
            client.struct(
                "SyncGroupRequest", "SyncGroupRequestAssignment", member_id=one, assignment=data
            )
            for one, data in (given or {}).items()
        ],
    )


async def alone(client: KafkaClient, **fields: Any) -> Any:
    """Have a client be the only member of the group, with both partitions."""
    joined = await join(client, **fields)
    await sync(client, joined, {joined.member_id: assignment("orders", 0, 1)})
    return joined


async def commit(
    client: KafkaClient,
    offsets: dict[int, int],
    version: int = 7,
    metadata: str = "",
    topic: str = "orders",
    **fields: Any,
) -> list[int]:
    partitions = [
        client.struct(
            "OffsetCommitRequest",
            "OffsetCommitRequestPartition",
            partition_index=number,
            committed_offset=offset,
            committed_metadata=metadata,
        )
        for number, offset in offsets.items()
    ]
    one = client.struct(
        "OffsetCommitRequest", "OffsetCommitRequestTopic", name=topic, partitions=partitions
    )
    answer = await client.ask(
        "OffsetCommit", version, **{"group_id": "g", "topics": [one]} | fields
    )
    return [partition.error_code for topic in answer.topics for partition in topic.partitions]


async def fetch(
    client: KafkaClient, version: int = 7, group: str = "g"
) -> dict[int, tuple[int, str]]:
    topic = client.struct(
        "OffsetFetchRequest", "OffsetFetchRequestTopic", name="orders", partition_indexes=(0, 1)
    )
    if version >= 8:
        topic = client.struct(
            "OffsetFetchRequest",
            "OffsetFetchRequestTopics",
            name="orders",
            partition_indexes=(0, 1),
        )
        asked = client.struct(
            "OffsetFetchRequest", "OffsetFetchRequestGroup", group_id=group, topics=[topic]
        )
        answer = await client.ask("OffsetFetch", version, groups=[asked])
        (found,) = answer.groups[0].topics
    else:
        answer = await client.ask("OffsetFetch", version, group_id=group, topics=[topic])
        (found,) = answer.topics
    return {p.partition_index: (p.committed_offset, p.metadata) for p in found.partitions}
