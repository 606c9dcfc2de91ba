"""Configurations against a real nats-server: what it takes, how it refuses, what it shows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings

from router.wire.nats.jetstream.config import ConsumerConfig, StreamConfig
from router.wire.nats.jetstream.consumer_rules import (
    addressed_consumer,
    check_consumer_update,
    check_new_consumer,
    checked_consumer,
)
from router.wire.nats.jetstream.errors import ErrorCode, JetStreamError
from router.wire.nats.jetstream.requests import ConsumerCreateRequest, StreamConfigRequest
from router.wire.nats.jetstream.stream_rules import (
    check_stream_create,
    check_stream_update,
    checked_stream,
    checked_stream_update,
)
from tests.nats.api_client import ApiClient
from tests.nats.strategies import (
    STREAM,
    consumer_bodies,
    consumer_configs,
    stream_bodies,
    stream_configs,
)
from tests.servers.nats import Nats

pytestmark = pytest.mark.slow

SECONDS = 30.0

many = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def server(nats_server: Nats) -> Iterator[ApiClient]:
    with ApiClient(nats_server.address) as client:
        yield client


def shown(reply: dict[str, Any]) -> object:
    """Return a server's answer as the model gives it: an error's code, or the configuration.

    Metadata of the server's own is not shown by the router, and times are shown in UTC.
    """
    if "error" in reply:
        return reply["error"]["err_code"]
    config = dict(reply["config"])
    metadata = config.pop("metadata", {})
    own = {key: value for key, value in metadata.items() if not key.startswith("_nats.")}
    return config | ({"metadata": own} if own else {})


def outcome(make: Callable[[], dict[str, Any]]) -> object:
    """Return what the model makes, or the code of its error."""
    try:
        return orjson.loads(orjson.dumps(make()))
    except JetStreamError as refused:
        return int(refused.err_code)


def create_stream(server: ApiClient, body: Any) -> dict[str, Any]:
    """Create the stream; nats-server removes the folder of the deleted one behind its answer."""
    until = time.monotonic() + SECONDS
    while True:
        reply = server.call(f"STREAM.CREATE.{STREAM}", body)
        failure = reply.get("error", {}).get("err_code")
        if failure != ErrorCode.STREAM_CREATE or time.monotonic() > until:
            return reply


@many
@given(body=stream_bodies)
@example(body={"name": "S", "allow_atomic": True, "persist_mode": "async"})
@example(body={"name": "S", "allow_batched": True, "persist_mode": "async"})
def test_a_stream_is_created_as_nats_server_does(server: ApiClient, body: dict[str, Any]) -> None:
    request = json.dumps(body).encode()
    server.call(f"STREAM.DELETE.{STREAM}")
    theirs = shown(create_stream(server, request))
    ours = outcome(lambda: check_stream_create(STREAM, StreamConfigRequest.read(request)).to_json())
    assert ours == theirs


@many
@given(old=stream_configs, body=stream_bodies)
def test_a_stream_is_updated_as_nats_server_does(
    server: ApiClient, old: StreamConfig, body: dict[str, Any]
) -> None:
    request = json.dumps(body).encode()
    server.call(f"STREAM.DELETE.{STREAM}")
    created = create_stream(server, old.to_json())
    stored = checked_stream(StreamConfig.from_json(shown(created)))

    def update() -> dict[str, Any]:
        new = StreamConfigRequest.read(request)
        checked = check_stream_update(STREAM, new)
        return checked_stream_update(stored, checked, pedantic=new.pedantic).to_json()

    assert outcome(update) == shown(server.call(f"STREAM.UPDATE.{STREAM}", request))


@many
@given(stream=stream_configs, body=consumer_bodies)
def test_a_consumer_is_created_as_nats_server_does(
    server: ApiClient, stream: StreamConfig, body: dict[str, Any]
) -> None:
    server.call(f"STREAM.DELETE.{STREAM}")
    created = create_stream(server, stream.to_json())
    assert "error" not in created, created
    stored = StreamConfig.from_json(shown(created))
    request = json.dumps({"stream_name": STREAM, "config": body}).encode()
    for subject in (
        f"CONSUMER.CREATE.{STREAM}.C",
        f"CONSUMER.CREATE.{STREAM}",
        f"CONSUMER.DURABLE.CREATE.{STREAM}.C",
        f"CONSUMER.CREATE.{STREAM}.C.s.a",
    ):
        theirs = server.call(subject, request)

        def create(subject: str = subject) -> dict[str, Any]:
            read = ConsumerCreateRequest.read(request)
            config = checked_consumer(addressed_consumer(subject, read), stored)
            check_new_consumer(config, stored)
            return config.to_json()

        assert outcome(create) == shown(theirs)
        if "name" in theirs:
            server.call(f"CONSUMER.DELETE.{STREAM}.{theirs['name']}")


@many
@given(old=consumer_configs, body=consumer_bodies)
def test_a_consumer_is_updated_as_nats_server_does(
    server: ApiClient, old: ConsumerConfig, body: dict[str, Any]
) -> None:
    server.call(f"STREAM.DELETE.{STREAM}")
    create_stream(server, {"name": STREAM, "subjects": ["s.>"]})
    stored = checked_stream(StreamConfig(name=STREAM, subjects=("s.>",)))
    subject = f"CONSUMER.CREATE.{STREAM}.C"
    first = replace(old, name="C", durable_name="C" if old.durable_name else "")
    created = shown(server.call(subject, {"stream_name": STREAM, "config": first.to_json()}))
    changed = {**first.to_json(), **body, "name": "C", "durable_name": first.durable_name}
    request = json.dumps({"stream_name": STREAM, "config": changed, "action": "update"}).encode()

    def update() -> dict[str, Any]:
        read = ConsumerCreateRequest.read(request)
        known = ConsumerConfig.from_json(created)
        # An update keeps the pause, which has a call of its own.
        given_config = replace(addressed_consumer(subject, read), pause_until=known.pause_until)
        config = checked_consumer(given_config, stored)
        check_consumer_update(known, config, is_bound=False)
        return config.to_json()

    assert outcome(update) == shown(server.call(subject, request))
