"""A broker that stops answers what it was sent."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

from router.broker.entries.workers import THREADS
from router.broker.kafka.session import sessions
from router.broker.transport.listener import ProtocolListener
from router.model import TopicName
from router.wire.kafka.compression import GZIP
from router.wire.kafka.frames import SIZE
from tests.unit.broker.kafka.serving import DEADLINE, serving
from tests.unit.broker.kafka.test_produce import FULL, batch, fields


async def test_what_is_proved_while_the_broker_stops_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.topics.create(TopicName.parse(FULL))
        partition = server.topics.opened(FULL)
        assert partition is not None
        context = server.context
        listener = ProtocolListener("kafka", context.transport, await sessions(context.broker))
        sock = socket.create_server(("127.0.0.1", 0))
        await listener.serve(sock)
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        gate = threading.Event()
        workers = context.broker.transcoder.workers
        held = [asyncio.create_task(workers.run(gate.wait)) for _ in range(THREADS)]
        client = server.client()
        first = client.request("ApiVersions", 0)
        writer.write(first + client.request("Produce", 9, **fields(client, batch(codec=GZIP))))
        async with asyncio.timeout(DEADLINE):
            # The answer to the first one says that both came.
            await reader.readexactly(SIZE.unpack(await reader.readexactly(SIZE.size))[0])

            async def stored() -> None:
                await server.synced()
                gate.set()

            await listener.drain(stored)
            await listener.close()
            answer = await reader.read()
        await asyncio.gather(*held)
        writer.close()
        assert partition.ledger.next_index == 3
        assert answer
        assert len(partition.producers) == 0
