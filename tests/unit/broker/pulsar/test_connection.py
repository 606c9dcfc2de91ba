"""What one connection writes, and when it stops reading; over a transport in memory."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from router.broker.disk.files import Disk
from router.broker.entries import ENTRY_FORMATS
from router.broker.node.registry import FileRegistry
from router.broker.pulsar import consuming, producers, producing
from router.broker.pulsar.positions import NO_POSITION
from router.broker.pulsar.session import PulsarSession
from router.broker.storage import Store, StoreOptions
from router.broker.topics.topics import TopicOptions, Topics
from router.broker.transport import connection
from router.broker.transport.context import TransportContext, TransportOptions
from router.model import Message, TopicName
from router.settings import Settings
from router.wire import node
from router.wire.node import node_pb2 as npb
from router.wire.pulsar import PulsarFrameReader, command, encode, join_payload, pack
from router.wire.pulsar import pulsar_pb2 as pb
from tests.unit.broker.pulsar.serving import NO_SETTINGS, Context, context_of
from tests.unit.broker.storage.disks import HeldDisk

TOPIC = "persistent://public/default/t"
SMALL_CACHE = StoreOptions(cache=1 << 20)


class UnixPeer:
    """The socket of a process that connected over a unix socket."""

    family = socket.AF_UNIX

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_PEERCRED)
        return struct.pack("3i", 4711, 0, 0)[:size]


class MemoryTransport(asyncio.Transport):
    """Keeps what is written; says that so much of it is waiting as the test wants."""

    def __init__(self, peer: object = ("127.0.0.1", 1)) -> None:
        extra = {"peername": peer, "sockname": ("127.0.0.1", 2), "socket": UnixPeer()}
        super().__init__(extra)
        self.writes: list[bytes] = []
        self.waiting = 0
        self.reading = True
        self.ended = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = (high, low)

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def close(self) -> None:
        self.ended = True

    abort = close


class Client:
    """The other end of a connection in memory."""

    def __init__(self, context: Context, peer: object = ("127.0.0.1", 1)) -> None:
        self.transport = MemoryTransport(peer)
        self.connection = context.connection()
        self.connection.connection_made(self.transport)
        self.store = context.topics.store

    def send(self, *frames: bytes) -> None:
        self.connection.data_received(b"".join(frames))

    async def settle(self) -> None:
        """Wait until everything is stored and everything that follows is written."""
        await self.connection.settled()
        done = asyncio.Event()
        self.store.after_sync(done.set)
        await done.wait()
        await self.idle()

    async def idle(self) -> None:
        """Wait until everything is written that waits for nothing but the event loop."""
        for _ in range(5):
            await asyncio.sleep(0)

    async def silent_until_synced(self, disk: HeldDisk, *frames: bytes) -> None:
        """Send frames while the disk holds its syncs; demand that nothing comes before they end."""
        self.transport.writes = []
        disk.hold()
        try:
            self.send(*frames)
            async with asyncio.timeout(20):
                await asyncio.to_thread(disk.held.wait)
            await self.idle()
            assert self.kinds() == []
        finally:
            disk.release()
        await self.settle()

    async def answers(self, count: int) -> list[pb.BaseCommand]:
        """Wait until so many commands came; return them."""
        found = list[pb.BaseCommand]()
        async with asyncio.timeout(20):
            while len(found) < count:
                await self.settle()
                found += self.received()
        return found

    def received(self) -> list[pb.BaseCommand]:
        """What was written since the last call."""
        data, self.transport.writes = b"".join(self.transport.writes), []
        return [frame.command for frame in PulsarFrameReader().receive(data)]

    def kinds(self) -> list[str]:
        return [pb.BaseCommand.Type.Name(command.type) for command in self.received()]


CONNECT = encode(command(pb.BaseCommand.CONNECT, client_version="test", protocol_version=20))
PRODUCER = encode(command(pb.BaseCommand.PRODUCER, topic=TOPIC, producer_id=0, request_id=1))
SUBSCRIBE = encode(
    command(
        pb.BaseCommand.SUBSCRIBE,
        topic=TOPIC,
        subscription="s",
        subType=pb.CommandSubscribe.Exclusive,
        consumer_id=0,
        request_id=2,
    )
)
EARLIEST = encode(
    command(
        pb.BaseCommand.SUBSCRIBE,
        topic=TOPIC,
        subscription="s",
        subType=pb.CommandSubscribe.Exclusive,
        consumer_id=0,
        request_id=2,
        initialPosition=pb.CommandSubscribe.Earliest,
    )
)
LAST = encode(command(pb.BaseCommand.GET_LAST_MESSAGE_ID, consumer_id=0, request_id=9))
PING = encode(command(pb.BaseCommand.PING))


def producer(number: int) -> bytes:
    return encode(
        command(pb.BaseCommand.PRODUCER, topic=TOPIC, producer_id=number, request_id=number)
    )


def send(sequence_id: int, value: bytes = b"v", number: int = 0) -> bytes:
    payload = pack([Message(value)], "p", sequence_id, 1)
    sent = command(pb.BaseCommand.SEND, producer_id=number, sequence_id=sequence_id)
    return encode(sent, payload)


def appends(*sequences: int, value: bytes = b"v", number: int = 0) -> bytes:
    payloads = [pack([Message(value)], "p", sequence, 1) for sequence in sequences]
    sent = command(
        pb.BaseCommand.APPENDS,
        request_id=7,
        producer_ids=[number] * len(sequences),
        sequence_ids=sequences,
        sizes=map(len, payloads),
    )
    return encode(sent, b"".join(payloads))


def append(sequence: int, value: bytes) -> bytes:
    return appends(sequence, value=value)


def flow(permits: int) -> bytes:
    return encode(command(pb.BaseCommand.FLOW, consumer_id=0, messagePermits=permits))


@asynccontextmanager
async def opened_client(
    folder: Path,
    peer: object = ("127.0.0.1", 1),
    connections: int = 10,
    options: StoreOptions = SMALL_CACHE,
    disk: Disk | None = None,
    settings: Settings = NO_SETTINGS,
) -> AsyncIterator[tuple[Client, Context]]:
    store = await Store.open(folder, options, lambda: 1_000.0, disk)
    topics = Topics(store, TopicOptions(), lambda: 1_000.0, ENTRY_FORMATS)
    registry = await FileRegistry.open(folder)
    later = asyncio.get_running_loop().call_later
    transport = TransportContext(TransportOptions(connections, 10.0))
    context = context_of(topics, registry, later, transport, settings)
    client = Client(context, peer)
    client.send(CONNECT)
    try:
        yield client, context
    finally:
        client.connection.connection_lost(None)
        await store.close()
        await registry.close()


async def open_both(client: Client) -> None:
    client.send(PRODUCER, SUBSCRIBE)
    await client.settle()
    assert client.kinds() == ["CONNECTED", "PRODUCER_SUCCESS", "SUCCESS"]


async def test_receipts_of_a_round_leave_in_one_write(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine a turn may end before all frames are handled, and the next is a round more.
    monkeypatch.setattr(connection, "MAX_TURN_SECONDS", 60.0)
    async with opened_client(folder) as (client, _):
        await open_both(client)
        client.send(*(send(n) for n in range(50)))
        await client.settle()
        assert len(client.transport.writes) == 1
        assert [c.send_receipt.sequence_id for c in client.received()] == list(range(50))


async def test_nothing_is_answered_before_it_is_stored(folder: Path) -> None:
    disk = HeldDisk()
    async with opened_client(folder, disk=disk) as (client, _):
        await open_both(client)
        await client.silent_until_synced(disk, flow(10), send(0))
        assert client.kinds() == ["SEND_RECEIPT", "MESSAGE"]


async def test_no_joint_append_is_answered_before_what_it_holds_is_stored_or_known_to_be(
    folder: Path,
) -> None:
    disk = HeldDisk()
    deduplicated = [pb.KeyValue(key="router-dedup", value="true")]
    opened = command(
        pb.BaseCommand.PRODUCER, topic=TOPIC, producer_id=0, request_id=1, metadata=deduplicated
    )
    async with opened_client(folder, disk=disk) as (client, context):
        client.send(encode(opened))
        await client.settle()
        await client.silent_until_synced(disk, appends(0, 1, 1), appends(1, 0), appends(1))
        assert client.kinds() == ["APPENDS_RESPONSE"] * 3
        (topic,) = context.topics.store.topics()
        assert context.topics.store.ledger(topic.ledger_ids[0]).next_entry == 2
        # What is refused as a whole waits for nothing.
        disk.hold()
        try:
            client.send(send(2), appends(0, 1, number=5))
            await client.idle()
            (response,) = client.received()
            assert [one.entry for one in response.appendsResponse.failures] == [0, 1]
        finally:
            disk.release()
        await client.settle()


async def test_a_refusal_on_a_topic_that_is_not_persistent_waits_for_no_disk(folder: Path) -> None:
    disk = HeldDisk()
    topic = TOPIC.replace("persistent", "non-persistent")
    opened = command(pb.BaseCommand.PRODUCER, topic=topic, producer_id=1, request_id=2)
    good = send(2, number=1)
    bad = good[:-1] + bytes([good[-1] ^ 1])
    async with opened_client(folder, disk=disk) as (client, _):
        client.send(PRODUCER, encode(opened))
        await client.settle()
        assert client.kinds() == ["CONNECTED", "PRODUCER_SUCCESS", "PRODUCER_SUCCESS"]
        disk.hold()
        try:
            client.send(send(0), bad, good)
            await client.idle()
            # In the order of the sends: a client closes the connection on another one.
            assert client.kinds() == ["SEND_ERROR", "SEND_RECEIPT"]
        finally:
            disk.release()
        await client.settle()
        assert client.kinds() == ["SEND_RECEIPT"]


async def test_metrics_of_the_log_leave_out_topics_that_are_not_persistent(folder: Path) -> None:
    topic = TOPIC.replace("persistent", "non-persistent")
    async with opened_client(folder) as (client, context):
        client.send(
            encode(command(pb.BaseCommand.PRODUCER, topic=topic, producer_id=0, request_id=1)),
            encode(
                command(
                    pb.BaseCommand.SUBSCRIBE,
                    topic=topic,
                    subscription="s",
                    subType=pb.CommandSubscribe.Exclusive,
                    consumer_id=0,
                    request_id=2,
                )
            ),
            flow(10),
            send(0),
        )
        await client.settle()
        assert client.kinds()[-2:] == ["MESSAGE", "SEND_RECEIPT"]
        tally = context.topics.tally
        assert (tally.entries, tally.dispatched) == (0, 0)


DEDUPLICATED = encode(
    command(
        pb.BaseCommand.PRODUCER,
        topic=TOPIC,
        producer_id=0,
        request_id=1,
        producer_name="p",
        user_provided_producer_name=True,
        metadata=[pb.KeyValue(key=producers.DEDUPLICATE, value="true")],
    )
)


async def test_a_repeated_send_is_answered_when_the_first_is_stored_and_not_before(
    folder: Path,
) -> None:
    disk = HeldDisk()
    async with opened_client(folder, disk=disk) as (client, _):
        client.send(DEDUPLICATED)
        await client.settle()
        await client.silent_until_synced(disk, send(5), send(5), send(4))
        receipts = [received.send_receipt for received in client.received()]
        assert [receipt.sequence_id for receipt in receipts] == [5, 5, 4]
        assert [receipt.message_id.entryId for receipt in receipts] == [0, 0, NO_POSITION]


async def test_chunks_of_a_message_share_a_number_and_are_no_repeats_of_each_other(
    folder: Path,
) -> None:
    def chunk(number: int, sequence_id: int) -> bytes:
        metadata = pb.MessageMetadata(
            producer_name="p",
            sequence_id=sequence_id,
            publish_time=1,
            uuid="u",
            num_chunks_from_msg=3,
            chunk_id=number,
            total_chunk_msg_size=3,
        )
        sent = command(pb.BaseCommand.SEND, producer_id=0, sequence_id=sequence_id)
        return encode(sent, join_payload(metadata, b"v"))

    async with opened_client(folder) as (client, _):
        client.send(DEDUPLICATED)
        await client.settle()
        client.received()
        # The connection breaks off before the last one; the client sends all of them again.
        client.send(chunk(0, 5), chunk(1, 5))
        client.send(*(chunk(number, 5) for number in range(3)))
        client.send(*(chunk(number, 5) for number in range(3)), send(6))
        receipts = [one.send_receipt for one in await client.answers(9)]
        stored = [receipt.message_id.entryId for receipt in receipts]
        assert stored == [0, 1, 2, 3, 4, 4, 4, 4, 5]


async def test_a_producer_that_comes_back_is_told_what_is_stored_when_it_is(folder: Path) -> None:
    """Its client forgets what it is told is stored."""
    disk = HeldDisk()
    async with opened_client(folder, disk=disk) as (client, context):
        lost = Client(context)
        lost.send(CONNECT, DEDUPLICATED)
        await lost.settle()
        disk.hold()
        lost.send(send(6))
        lost.connection.connection_lost(None)
        await client.silent_until_synced(disk, DEDUPLICATED)
        (opened,) = client.received()
        assert opened.producer_success.last_sequence_id == 6


def ack(request_id: int, *places: pb.MessageIdData, cumulative: bool = False) -> bytes:
    kind = pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual
    asked = command(
        pb.BaseCommand.ACK,
        consumer_id=0,
        ack_type=kind,
        message_id=list(places),
        request_id=request_id,
    )
    return encode(asked)


@pytest.mark.parametrize("cumulative", [False, True])
async def test_an_acknowledgement_is_answered_when_it_is_on_disk(
    folder: Path, cumulative: bool
) -> None:
    disk = HeldDisk()
    async with opened_client(folder, disk=disk) as (client, _):
        await open_both(client)
        client.send(flow(10), send(0), send(1))
        await client.settle()
        received = [one.message.message_id for one in client.received() if one.HasField("message")]
        # The second of these acknowledges nothing new; what it repeats is not on disk yet.
        acks = [ack(number, received[1], cumulative=cumulative) for number in (7, 8)]
        await client.silent_until_synced(disk, *acks)
        answers = [one.ackResponse for one in client.received()]
        assert [answer.request_id for answer in answers] == [7, 8]
        assert not any(answer.HasField("error") for answer in answers)


async def test_an_acknowledgement_of_another_ledger_acknowledges_nothing(folder: Path) -> None:
    async with opened_client(folder) as (client, _):
        await open_both(client)
        client.send(flow(10), send(0))
        await client.settle()
        (message,) = [one.message for one in client.received() if one.HasField("message")]
        (topic,) = client.store.topics()
        (ledger,) = topic.ledger_ids
        (record,) = client.store.subscriptions(ledger)
        place = message.message_id
        for named, acknowledged in ((ledger + 1, False), (ledger, True)):
            place.ledgerId = named
            client.send(ack(7, place))
            (answer,) = await client.answers(1)
            assert not answer.ackResponse.HasField("error")
            assert record.cursor.is_acked(0) == acknowledged


async def test_an_acknowledgement_under_an_older_claim_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened_client(folder) as (client, context):
        await open_both(client)
        client.send(flow(10), send(0))
        await client.settle()
        (message,) = [one.message for one in client.received() if one.HasField("message")]
        monkeypatch.setattr(context.broker.leases, "generation", lambda *_: 5)
        refused = []
        for generation in (4, 5, 6):
            asked = command(
                pb.BaseCommand.ACK,
                consumer_id=0,
                ack_type=pb.CommandAck.Cumulative,
                message_id=[message.message_id],
                request_id=7,
                properties=[pb.KeyLongValue(key=consuming.GENERATION, value=generation)],
            )
            client.send(encode(asked))
            (answer,) = await client.answers(1)
            refused.append(answer.ackResponse.message.partition(":")[0])
        assert refused == ["fenced", "", ""]


async def test_a_cumulative_acknowledgement_names_one_message(folder: Path) -> None:
    async with opened_client(folder) as (client, _):
        await open_both(client)
        client.send(flow(10), send(0), send(1))
        await client.settle()
        places = [one.message.message_id for one in client.received() if one.HasField("message")]
        client.send(ack(7, *places, cumulative=True), ack(8, *places))
        first, second = await client.answers(2)
        assert first.ackResponse.error == pb.NotAllowedError
        assert not second.ackResponse.HasField("error")


async def test_permits_are_bounded(folder: Path) -> None:
    async with opened_client(folder) as (client, context):
        await open_both(client)
        client.send(*[flow(2**32 - 1)] * 3)
        partition = context.topics.opened(TOPIC)
        assert partition is not None
        (consumer,) = partition.subscriptions["s"].consumers
        assert consumer.permits == consuming.MAX_PERMITS


@pytest.mark.parametrize("excess", [0, 1])
async def test_an_acknowledgement_names_as_many_messages_as_a_batch_may_have_and_no_more(
    folder: Path, excess: int
) -> None:
    async with opened_client(folder) as (client, _):
        await open_both(client)
        client.send(flow(10), send(0))
        await client.settle()
        (message,) = [one.message for one in client.received() if one.HasField("message")]
        place = message.message_id
        place.ack_set.extend([-1] * (consuming.MAX_ACK_SET + excess))
        client.send(ack(7, place))
        (answer,) = await client.answers(1)
        assert answer.ackResponse.HasField("error") == bool(excess)


async def test_a_send_is_refused_when_the_topic_was_terminated_and_behind_earlier_receipts(
    folder: Path,
) -> None:
    async with opened_client(folder) as (client, context):
        await open_both(client)
        store = context.topics.store
        (topic,) = store.topics()
        ledger = store.ledger(topic.ledger_ids[0])
        client.send(send(0))
        # The producer is there still, as it is while its connection is being told.
        ledger.terminated = True
        client.send(send(1), send(2))
        await client.settle()
        receipt, *refused = client.received()
        assert receipt.send_receipt.sequence_id == 0
        assert [one.send_error.sequence_id for one in refused] == [1, 2]
        assert {one.send_error.error for one in refused} == {pb.TopicTerminatedError}
        assert ledger.next_entry == 1


@pytest.mark.parametrize("frame", [send, append])
async def test_reading_pauses_until_what_was_sent_is_stored(
    folder: Path, monkeypatch: pytest.MonkeyPatch, frame: Callable[[int, bytes], bytes]
) -> None:
    monkeypatch.setattr(producing, "MAX_PENDING_BYTES", 3_000)
    async with opened_client(folder) as (client, context):
        await open_both(client)
        (topic,) = context.topics.store.topics()
        ledger = context.topics.store.ledger(topic.ledger_ids[0])
        # What is refused counts neither as sent nor as stored.
        ledger.terminated = True
        client.send(frame(0, b"v" * 1_000))
        ledger.terminated = False
        client.send(frame(0, b"v" * 1_000))
        assert client.transport.reading
        client.send(frame(1, b"v" * 1_000))
        held = not client.transport.reading
        await client.settle()
        assert (held, client.transport.reading) == (True, True)


async def test_all_connections_together_are_held_back_while_the_disk_stands_still(
    folder: Path,
) -> None:
    disk, value, most = HeldDisk(), b"v" * 10_000, 200_000
    options = StoreOptions(cache=1 << 20, unsynced=most)
    async with opened_client(folder, options=options, disk=disk) as (_, context):
        clients = [Client(context) for _ in range(9)]
        for client in clients:
            client.send(CONNECT, PRODUCER)
            await client.settle()
            client.received()
        disk.hold()
        sent = 0
        try:
            while reading := [client for client in clients if client.transport.reading]:
                for client in reading:
                    client.send(send(sent, value))
                    sent += 1
                assert sent * len(value) < most + 2 * len(clients) * len(value)
        finally:
            disk.release()
        for client in clients:
            await client.settle()
        receipts = [one for client in clients for one in client.received()]
        assert len(receipts) == sent
        assert all(client.transport.reading for client in clients)
        for client in clients:
            client.connection.connection_lost(None)


async def test_reading_pauses_while_the_client_does_not_take_its_answers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_UNSENT_BYTES", 1_000)
    async with opened_client(folder) as (client, _):
        client.transport.waiting = 1_001
        client.send(PING)
        await client.settle()
        held = not client.transport.reading
        client.connection.resume_writing()
        assert (held, client.transport.reading) == (True, True)


async def test_entries_wait_while_the_client_does_not_read(folder: Path) -> None:
    async with opened_client(folder) as (client, _):
        await open_both(client)
        client.connection.pause_writing()
        client.send(flow(10), send(0), send(1))
        await client.settle()
        assert client.kinds() == ["SEND_RECEIPT", "SEND_RECEIPT"]
        client.connection.resume_writing()
        await client.settle()
        assert client.kinds() == ["MESSAGE", "MESSAGE"]


async def test_entries_are_handed_over_in_portions(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HIGH_WATER_BYTES", 2_500)
    async with opened_client(folder) as (client, _):
        await open_both(client)
        client.send(*(send(n, b"v" * 1_000) for n in range(9)))
        await client.settle()
        client.received()
        client.send(flow(100))
        await client.settle()
        assert max(map(len, client.transport.writes)) < 4_000
        assert client.kinds() == ["MESSAGE"] * 9


@pytest.mark.parametrize(("size", "vectored"), [(100, False), (100_000, True)])
async def test_large_parts_are_handed_over_without_being_joined(
    folder: Path, monkeypatch: pytest.MonkeyPatch, size: int, vectored: bool
) -> None:
    handed_over: list[list[bytes]] = []
    async with opened_client(folder) as (client, _):
        await client.idle()
        client.transport.writes = []
        monkeypatch.setattr(client.transport, "writelines", handed_over.append)
        parts = [b"head", bytes(size)]
        client.connection.write(*parts)
        await client.idle()
        assert handed_over == ([parts] if vectored else [])
        assert client.transport.writes == ([] if vectored else [b"".join(parts)])


async def test_broker_lets_go_of_everything_when_the_connection_is_lost(folder: Path) -> None:
    async with opened_client(folder) as (client, context):
        await open_both(client)
        partition = context.topics.opened(TOPIC)
        assert partition is not None
        assert len(partition.producers) == len(partition.dispatchers) == 1
        client.send(send(0))
        client.connection.connection_lost(None)
        await client.settle()
        assert (len(partition.producers), partition.dispatchers) == (0, [])
        assert partition.ledger.durable_entry == 1
        assert not context.members


async def test_consumer_is_not_attached_when_its_connection_was_lost_meanwhile(
    folder: Path,
) -> None:
    async with opened_client(folder) as (client, context):
        client.send(SUBSCRIBE)
        client.connection.connection_lost(None)
        await client.settle()
        partition = context.topics.opened(TOPIC)
        assert partition is not None
        assert partition.dispatchers == []


async def test_connection_closes_when_it_is_one_too_many(folder: Path) -> None:
    async with opened_client(folder, connections=1) as (_, context):
        second = Client(context)
        assert second.transport.ended
        assert len(context.members) == 1


@pytest.mark.parametrize(
    ("peer", "allowed"),
    [(("127.0.0.1", 1), True), (("::1", 1, 0, 0), True), ("", True), (("192.0.2.1", 1), False)],
)
async def test_administration_is_refused_to_clients_of_other_machines(
    folder: Path, peer: object, allowed: bool
) -> None:
    async with opened_client(folder, peer) as (client, _):
        client.send(
            node.frame(admin=npb.CommandAdmin(request_id=1, list_namespaces=npb.ListNames())),
            node.frame(
                claim=npb.CommandClaim(
                    claim_id=1, topic=TOPIC, subscription="s", consumer="c", partitions=0
                )
            ),
        )
        await client.settle()
        found = [node.read(c.extension) for c in client.received() if c.HasField("extension")]
        codes = {
            one.WhichOneof("body"): getattr(one, str(one.WhichOneof("body"))).code for one in found
        }
        expected = "" if allowed else "not-allowed"
        assert codes == {"admin_response": expected, "claim_update": expected}


async def test_names_of_topics_are_told_to_clients_of_other_machines(folder: Path) -> None:
    async with opened_client(folder, ("192.0.2.1", 1)) as (client, _):
        client.send(SUBSCRIBE)
        await client.settle()
        client.send(node.frame(admin=npb.CommandAdmin(request_id=1, list_topics=npb.ListTopics())))
        await client.settle()
        (found,) = [node.read(c.extension) for c in client.received() if c.HasField("extension")]
        answer = found.admin_response
        assert (answer.code, [one.topic for one in answer.topics]) == ("", [TOPIC])


async def test_silent_client_is_pinged_then_closed(folder: Path) -> None:
    async with opened_client(folder) as (client, _):
        heard = client.connection.last_read
        client.connection.check_liveness(heard + 9)
        client.connection.check_liveness(heard + 11)
        client.connection.check_liveness(heard + 12)
        await client.settle()
        assert client.kinds() == ["CONNECTED", "PING"]
        kept = not client.transport.ended
        client.connection.check_liveness(heard + 25)
        assert (kept, client.transport.ended) == (True, True)


async def test_client_is_not_called_silent_while_the_broker_does_not_listen(folder: Path) -> None:
    async with opened_client(folder) as (client, _):
        client.connection.hold_reading("producing")
        for seconds in range(0, 100, 5):
            client.connection.check_liveness(client.connection.last_read + seconds)
        assert not client.transport.ended


async def test_client_that_never_greets_is_closed(folder: Path) -> None:
    async with opened_client(folder) as (_, context):
        mute = Client(context)
        mute.connection.check_liveness(mute.connection.last_read + 11)
        assert mute.transport.ended


async def test_frame_that_breaks_the_protocol_ends_what_follows_it(folder: Path) -> None:
    async with opened_client(folder) as (client, _):
        client.send(send(0), PING)
        assert client.kinds() == ["CONNECTED"]
        assert client.transport.ended


def spoil_segment(folder: Path) -> None:
    (segment,) = folder.rglob("*.seg")
    segment.write_bytes(b"\xff" * segment.stat().st_size)


async def test_reading_failure_is_told_to_who_asks_for_the_last_message(folder: Path) -> None:
    async with opened_client(folder) as (client, _):
        client.send(PRODUCER)
        client.send(*(send(n) for n in range(5)))
        await client.settle()
    spoil_segment(folder)
    async with opened_client(folder, options=StoreOptions(cache=0)) as (client, _):
        client.send(EARLIEST, flow(10), LAST)
        *_before, error = await client.answers(3)
        assert (error.error.request_id, error.error.error) == (9, pb.PersistenceError)
        assert error.error.message.startswith("read-failed: ")


async def test_last_message_is_read_from_disk_when_memory_does_not_have_it(folder: Path) -> None:
    async with opened_client(folder) as (client, _):
        client.send(PRODUCER)
        payload = pack([Message(b"a"), Message(b"b")], "p", 0, 1)
        client.send(encode(command(pb.BaseCommand.SEND, producer_id=0, sequence_id=0), payload))
        await client.settle()
    async with opened_client(folder, options=StoreOptions(cache=0)) as (client, _):
        client.send(EARLIEST, LAST)
        *_before, answer = await client.answers(3)
        last = answer.getLastMessageIdResponse.last_message_id
        assert (last.entryId, last.batch_index) == (0, 1)


@pytest.mark.parametrize(("client_version", "last"), [("Pulsar-CPP", 3), ("router/1", 1)])
async def test_router_is_told_the_last_message_that_it_will_get(
    folder: Path, client_version: str, last: int
) -> None:
    """It waits for that one; others ask what the topic holds."""
    async with opened_client(folder) as (client, _):
        session = client.connection.session
        assert isinstance(session, PulsarSession)
        session.version = client_version
        client.send(PRODUCER)
        client.send(*(send(n) for n in range(4)))
        await client.settle()
        client.send(EARLIEST, flow(10))
        await client.settle()
        ledger = client.received()[-1].message.message_id.ledgerId
        places = [pb.MessageIdData(ledgerId=ledger, entryId=n) for n in (2, 3)]
        ack = command(pb.BaseCommand.ACK, consumer_id=0, ack_type=0, message_id=places)
        client.send(encode(ack), LAST)
        await client.settle()
        answer = client.received()[-1]
        assert answer.getLastMessageIdResponse.last_message_id.entryId == last


@pytest.mark.parametrize(
    ("ledger", "entry", "start"),
    [
        (0, 3, 0),
        (-1, -1, 0),
        (2**63 - 1, 2**63 - 1, 4),
        (1, 2, 2),
        (1, -1, 0),
        (1, 99, 4),
        (9, 0, 4),
    ],
)
async def test_seek_goes_to_an_entry_that_there_is(
    folder: Path, ledger: int, entry: int, start: int
) -> None:
    async with opened_client(folder) as (client, context):
        client.send(PRODUCER)
        client.send(*(send(n) for n in range(4)))
        client.send(EARLIEST)
        await client.settle()
        client.received()
        place = pb.MessageIdData(ledgerId=ledger % 2**64, entryId=entry % 2**64)
        client.send(
            encode(command(pb.BaseCommand.SEEK, consumer_id=0, request_id=5, message_id=place))
        )
        await client.settle()
        assert client.kinds() == ["CLOSE_CONSUMER", "SUCCESS"]
        partition = context.topics.opened(TOPIC)
        assert partition is not None
        assert partition.subscriptions["s"].cursor.mark_delete == start - 1


async def test_publishing_is_refused_when_the_disk_is_full(folder: Path) -> None:
    async with opened_client(folder) as (client, _):
        await open_both(client)
        client.store.full = True
        client.send(send(0))
        await client.settle()
        (refused,) = client.received()
        assert refused.send_error.error == pb.PersistenceError
        assert refused.send_error.message.startswith("disk-full: ")


@pytest.mark.parametrize(
    ("peer", "version", "name"),
    [
        ("", "router/1.0.0+abc", "worker pid 4711"),
        ("", "Pulsar-CPP-v3", "Pulsar-CPP-v3 at pid 4711"),
        (("127.0.0.1", 1), "router/1.0.0+abc", "worker 127.0.0.1:1"),
        (("127.0.0.1", 1), "Pulsar-CPP-v3", "Pulsar-CPP-v3 at 127.0.0.1:1"),
    ],
)
async def test_connection_is_named_by_whose_it_is(
    folder: Path, peer: object, version: str, name: str
) -> None:
    async with opened_client(folder) as (_, context):
        client = Client(context, peer)
        client.send(
            encode(command(pb.BaseCommand.CONNECT, client_version=version, protocol_version=20))
        )
        assert client.connection.session.name == name
        client.connection.connection_lost(None)


async def test_sends_are_dropped_when_the_broker_closed_their_producer(folder: Path) -> None:
    """The client does not know it yet; it opens the producer again, and sends again."""
    async with opened_client(folder) as (client, context):
        await open_both(client)
        await context.topics.delete(TopicName.parse(TOPIC))
        client.send(send(0), send(1), PING)
        await client.settle()
        assert client.kinds() == ["CLOSE_PRODUCER", "CLOSE_CONSUMER", "PONG"]
        client.send(PRODUCER, send(0))
        await client.settle()
        assert client.kinds() == ["PRODUCER_SUCCESS", "SEND_RECEIPT"]


async def test_only_so_many_closed_producers_are_remembered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "MAX_PRODUCERS", 2)
    async with opened_client(folder) as (client, context):
        for number in range(3):
            client.send(producer(number))
            await client.settle()
            await context.topics.delete(TopicName.parse(TOPIC))
        client.send(send(0, number=1), send(0, number=2))
        assert not client.transport.ended
        client.send(send(0, number=0))
        assert client.transport.ended


async def test_connection_closes_when_too_much_is_sent_to_what_is_being_opened(
    folder: Path,
) -> None:
    async with opened_client(folder) as (client, _):
        client.send(SUBSCRIBE, *([flow(1)] * 300))
        assert client.transport.ended
        await client.settle()
