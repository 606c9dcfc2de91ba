from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from router.backends.pulsar import open_backend
from router.backends.pulsar.address import ADMIN_PORTS, PulsarAddress
from router.backends.pulsar.routes import LookupRoutes
from router.backends.pulsar.schemas import PulsarSchemas
from router.errors import BackendUnavailableError, NotAllowedError, TopicNotFoundError
from router.model import Schema, SchemaType, TopicName
from router.settings import load
from router.wire.pulsar import pulsar_pb2 as pb
from tests.unit.pulsar_client.fake_broker import WAIT, FakeBroker, Side, T

Lookup = pb.CommandLookupTopicResponse


class Listening(FakeBroker):
    """A fake broker on a port, which answers lookups as it is told."""

    def __init__(self, server_version: str = "Pulsar Server4.2.4") -> None:
        super().__init__(server_version)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"pulsar://127.0.0.1:{self.listener.getsockname()[1]}"
        self.answer: dict[str, Any] = {}
        self.on[T.LOOKUP] = self._lookup
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):  # closed by the test already
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for side in self.sides:
            side.cut()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            Side(self, peer)

    def _lookup(self, side: Side, command: Any, _payload: bytes) -> None:
        request_id = command.lookupTopic.request_id
        answer = Lookup(request_id=request_id, **self.answer)
        side.send(T.LOOKUP_RESPONSE, lookupTopicResponse=answer)


@pytest.fixture
def brokers() -> Iterator[list[Listening]]:
    found = [Listening(), Listening()]
    yield found
    for broker in found:
        broker.close()


@pytest.fixture
def routes(brokers: list[Listening]) -> Iterator[LookupRoutes]:
    routes = LookupRoutes(PulsarAddress.parse(brokers[0].url))
    yield routes
    routes.close()


def soon() -> float:
    return time.monotonic() + WAIT


def test_a_broker_of_ours_is_not_asked(brokers: list[Listening], routes: LookupRoutes) -> None:
    brokers[0].server_version = "dragoman x"
    assert routes.connection("t", soon()) is routes.service.connection(soon())
    assert brokers[0].of(T.LOOKUP) == []


def test_a_topic_is_reached_at_the_broker_that_the_lookup_names(
    brokers: list[Listening], routes: LookupRoutes
) -> None:
    brokers[0].answer = {"response": Lookup.Connect, "brokerServiceUrl": brokers[1].url}
    routes.connection("t", soon())
    assert len(brokers[1].sides) == 1


def test_a_redirected_lookup_is_followed(brokers: list[Listening], routes: LookupRoutes) -> None:
    brokers[0].answer = {
        "response": Lookup.Redirect,
        "brokerServiceUrl": brokers[1].url,
        "authoritative": True,
    }
    brokers[1].answer = {"response": Lookup.Connect, "brokerServiceUrl": brokers[1].url}
    routes.connection("t", soon())
    (asked,) = brokers[1].of(T.LOOKUP)
    assert asked.lookupTopic.authoritative


def test_lookups_in_circles_end(brokers: list[Listening], routes: LookupRoutes) -> None:
    brokers[0].answer = {"response": Lookup.Redirect, "brokerServiceUrl": brokers[0].url}
    with pytest.raises(BackendUnavailableError, match="circles"):
        routes.connection("t", soon())


def test_a_broker_behind_a_proxy_is_named_to_the_proxy(
    brokers: list[Listening], routes: LookupRoutes
) -> None:
    brokers[0].answer = {
        "response": Lookup.Connect,
        "brokerServiceUrl": "pulsar://inside:6650",
        "proxy_through_service_url": True,
    }
    routes.connection("t", soon())
    assert [c.connect.proxy_to_broker_url for c in brokers[0].of(T.CONNECT)] == ["", "inside:6650"]


def test_a_proxy_to_itself_is_the_same_connection(
    brokers: list[Listening], routes: LookupRoutes
) -> None:
    brokers[0].answer = {
        "response": Lookup.Connect,
        "brokerServiceUrl": brokers[0].url,
        "proxy_through_service_url": True,
    }
    assert routes.connection("t", soon()) is routes.service.connection(soon())


def test_a_failed_lookup_is_raised_and_not_remembered(
    brokers: list[Listening], routes: LookupRoutes
) -> None:
    brokers[0].answer = {"response": Lookup.Failed, "error": pb.TopicNotFound, "message": "no"}
    with pytest.raises(TopicNotFoundError):
        routes.connection("t", soon())
    brokers[0].answer = {"response": Lookup.Connect, "brokerServiceUrl": brokers[1].url}
    routes.connection("t", soon())


def test_an_answer_is_remembered_until_forgotten(
    brokers: list[Listening], routes: LookupRoutes
) -> None:
    brokers[0].answer = {"response": Lookup.Connect, "brokerServiceUrl": brokers[1].url}
    for _ in range(3):
        routes.connection("t", soon())
    assert len(brokers[0].of(T.LOOKUP)) == 1
    routes.forget("t")
    routes.connection("t", soon())
    assert len(brokers[0].of(T.LOOKUP)) == 2


def test_an_answer_is_forgotten_with_the_connection_it_led_to(
    brokers: list[Listening], routes: LookupRoutes
) -> None:
    brokers[0].answer = {"response": Lookup.Connect, "brokerServiceUrl": brokers[1].url}
    first = routes.connection("t", soon())
    first.close()
    assert routes.connection("t", soon()) is not first
    assert len(brokers[0].of(T.LOOKUP)) == 2


def test_the_next_host_is_tried_when_one_is_not_there(brokers: list[Listening]) -> None:
    port = brokers[0].url.rpartition(":")[2]
    routes = LookupRoutes(PulsarAddress.parse(f"pulsar://127.0.0.1:1,127.0.0.1:{port}"))
    routes.service.connection(soon())
    routes.close()


def test_an_address_without_administration_publishes_and_polls_only(
    brokers: list[Listening],
) -> None:
    backend = open_backend(f"{brokers[0].url}/?admin=none", load(None, {}), None)
    with pytest.raises(NotAllowedError, match="admin=none"):
        backend.list_topics(WAIT)
    backend.close()


def test_administration_that_is_not_at_its_default_address_is_named(
    brokers: list[Listening], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ADMIN_PORTS, "http", 1)
    backend = open_backend(brokers[0].url, load(None, {}), None)
    with pytest.raises(BackendUnavailableError, match=r"http://127\.0\.0\.1:1 cannot"):
        backend.list_topics(WAIT)
    backend.close()


def test_a_topic_is_served_on_while_the_service_address_is_away(
    brokers: list[Listening], routes: LookupRoutes
) -> None:
    brokers[0].answer = {"response": Lookup.Connect, "brokerServiceUrl": brokers[1].url}
    known = routes.connection("t", soon())
    asked = routes.service.connection(soon())
    brokers[0].close()
    deadline = soon()
    while asked.error is None and time.monotonic() < deadline:
        time.sleep(0.002)
    assert routes.connection("t", time.monotonic() + 0.5) is known


@pytest.mark.parametrize("response", [Lookup.Connect, Lookup.Redirect])
def test_a_lookup_that_names_a_dead_broker_is_asked_again(
    brokers: list[Listening], routes: LookupRoutes, response: int
) -> None:
    brokers[0].answer = {"response": response, "brokerServiceUrl": "pulsar://127.0.0.1:1"}
    moved = {"response": Lookup.Connect, "brokerServiceUrl": brokers[1].url}

    def move() -> None:
        brokers[0].wait_for(T.LOOKUP)
        brokers[0].answer = moved

    mover = threading.Thread(target=move)
    mover.start()
    routes.connection("t", soon())
    mover.join(WAIT)
    assert len(brokers[1].sides) == 1


def test_a_broker_that_nobody_can_reach_is_said_to_be_away(
    brokers: list[Listening], routes: LookupRoutes
) -> None:
    brokers[0].answer = {"response": Lookup.Connect, "brokerServiceUrl": "pulsar://127.0.0.1:1"}
    with pytest.raises(BackendUnavailableError, match=r"127\.0\.0\.1:1 cannot be reached"):
        routes.connection("t", time.monotonic() + 0.5)
    assert len(brokers[0].of(T.LOOKUP)) <= 10


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:8080", "pulsar://127.0.0.1:none"])
def test_a_lookup_that_names_no_broker_is_unavailability(
    brokers: list[Listening], routes: LookupRoutes, url: str
) -> None:
    brokers[0].answer = {"response": Lookup.Connect, "brokerServiceUrl": url}
    with pytest.raises(BackendUnavailableError, match="names no broker"):
        routes.connection("t", time.monotonic() + 0.2)


def test_a_schema_is_put_where_its_topic_went(
    brokers: list[Listening], routes: LookupRoutes
) -> None:
    here = {"response": Lookup.Connect, "brokerServiceUrl": brokers[0].url}
    brokers[0].answer = {"response": Lookup.Connect, "brokerServiceUrl": brokers[1].url}

    def partitions(side: Side, command: Any, _payload: bytes) -> None:
        answer = pb.CommandPartitionedTopicMetadataResponse(
            request_id=command.partitionMetadata.request_id
        )
        side.send(T.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=answer)

    def unload(side: Side, command: Any, _payload: bytes) -> None:
        brokers[0].answer = here
        answer = pb.CommandGetOrCreateSchemaResponse(
            request_id=command.getOrCreateSchema.request_id,
            error_code=pb.ServiceNotReady,
            error_message="Namespace bundle for topic is not served by this instance",
        )
        side.send(T.GET_OR_CREATE_SCHEMA_RESPONSE, getOrCreateSchemaResponse=answer)

    def put(side: Side, command: Any, _payload: bytes) -> None:
        answer = pb.CommandGetOrCreateSchemaResponse(
            request_id=command.getOrCreateSchema.request_id, schema_version=bytes(8)
        )
        side.send(T.GET_OR_CREATE_SCHEMA_RESPONSE, getOrCreateSchemaResponse=answer)

    brokers[0].on[T.PARTITIONED_METADATA] = partitions
    brokers[0].on[T.GET_OR_CREATE_SCHEMA] = put
    brokers[1].on[T.GET_OR_CREATE_SCHEMA] = unload
    schema = Schema(SchemaType.STRING)
    assert PulsarSchemas(routes).put(TopicName.parse("t"), schema, WAIT) == bytes(8)
