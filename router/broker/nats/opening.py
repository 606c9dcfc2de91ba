"""The NATS side of a broker, put together: server, streams, consumers, calls, sessions."""

from __future__ import annotations

import socket
from collections.abc import Callable
from itertools import count
from pathlib import Path

from router.broker.consume.membership.leases import Leases
from router.broker.context import BrokerContext
from router.broker.nats.archives.restores import Restores
from router.broker.nats.archives.snapshots import Snapshots
from router.broker.nats.consumers import api as consumer_api
from router.broker.nats.consumers.consumers import JetStreamConsumers
from router.broker.nats.consumers.services import NEXT_PREFIX
from router.broker.nats.other_dialects import OtherDialects
from router.broker.nats.protocol.api import JetStreamApi, cluster_apis
from router.broker.nats.server import NatsServer
from router.broker.nats.session import NatsSession
from router.broker.nats.streams.api import StreamApi
from router.broker.nats.streams.direct_get import DirectGet
from router.broker.nats.streams.log.messages import EntryCache
from router.broker.nats.streams.log.subject_index import SubjectBudget
from router.broker.nats.streams.publishing import PublishContext
from router.broker.nats.streams.stream import StreamContext
from router.broker.nats.streams.streams import Streams
from router.broker.nats.system import PREFIX, SystemService
from router.broker.topics.schemas import BrokerSchemas
from router.broker.transport.connection import ClientConnection
from router.broker.transport.handshakes import Greeting
from router.wire.nats import encode


def join_streams(server: NatsServer, schemas: BrokerSchemas, leases: Leases, folder: Path) -> None:
    """Give a server its streams and the calls of JetStream; `Streams.load` follows.

    `folder`: where the indexes of subjects are kept.
    """
    topics, store = server.topics, server.topics.store
    numbers = count(1)

    streams = Streams(
        topics,
        server.registry,
        StreamContext(
            store=store,
            transcoder=server.transcoder,
            cache=EntryCache(),
            budget=SubjectBudget(server.options.max_subjects),
            folder=folder,
            now_ms=topics.now_ms,
        ),
        PublishContext(
            store=store,
            hub=server.hub,
            clock=topics.clock,
            check_schema=schemas.check_without,
            new_producer_name=lambda: f"nats-{store.boot}-{next(numbers)}",
            tally=topics.tally,
        ),
        leases.forget,
    )
    api = JetStreamApi(server.hub)
    api.add(StreamApi(streams, lambda: (api.total, api.errors)).apis())
    api.add(cluster_apis())
    api.add(DirectGet(streams, server.hub).apis())
    consumers = JetStreamConsumers(server.hub, topics, streams, api)
    streams.consumers = server.consumers = consumers
    api.add(consumer_api.apis(streams, consumers))
    snapshots = Snapshots(server.hub, streams, consumers.now_ns, lambda: server.max_pending)
    restores = Restores(server.hub, streams, store, topics.options.max_groups)
    server.snapshots, server.restores = snapshots, restores
    api.add((*snapshots.apis(), *restores.apis()))
    server.other_dialects = OtherDialects(server.hub, streams, topics)
    server.streams, server.api = streams, api
    server.hub.serve(f"{PREFIX}>", SystemService(server).handle)
    if server.jetstream:
        server.hub.serve("$JS.API.>", api.handle)
        server.hub.serve(f"{NEXT_PREFIX}>", consumers.services.request)
        server.stream_for = streams.for_subject
    server.counters.observe(api.collect)
    server.counters.observe(consumers.collect)
    server.counters.observe(streams.collect)


def sessions(broker: BrokerContext) -> Callable[[ClientConnection], NatsSession]:
    """Return what opens a NATS session on a connection."""
    server = _server(broker)
    server.metrics.show()
    return lambda connection: NatsSession(connection, server)


def greetings(broker: BrokerContext) -> Callable[[socket.socket], Greeting]:
    """Return what makes the INFO of a client that begins TLS after it."""
    server = _server(broker)

    def greet(client: socket.socket) -> Greeting:
        number = server.new_client_id()
        host, port = client.getsockname()[:2]
        info = server.info(number, client.getpeername()[0], (host, port), secure=True)
        return Greeting(encode.info(info), number)

    return greet


def _server(broker: BrokerContext) -> NatsServer:
    if broker.nats is None:
        raise ValueError("a broker without a log serves no NATS clients")
    return broker.nats
