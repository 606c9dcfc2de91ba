"""Who is asked whether they are still there, because another wants their place; in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from router.broker.transport import connection
from router.wire.pulsar import command, encode
from router.wire.pulsar import pulsar_pb2 as pb
from tests.unit.broker.pulsar.serving import Context
from tests.unit.broker.pulsar.test_connection import CONNECT, SUBSCRIBE, Client, opened_client
from tests.unit.broker.storage.rig import until

PONG = encode(command(pb.BaseCommand.PONG))


async def rival(client: Client, context: Context) -> Client:
    """Let another client ask for the place that the client has."""
    client.send(SUBSCRIBE)
    await client.settle()
    other = Client(context)
    other.send(CONNECT, SUBSCRIBE)
    await other.settle()
    assert other.kinds() == ["CONNECTED", "ERROR"]
    await client.settle()
    assert client.kinds() == ["CONNECTED", "SUCCESS", "PING"]
    return other


async def test_place_of_a_client_that_is_gone_is_free_soon(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PROBE_SECONDS", 0.05)
    async with opened_client(folder) as (client, context):
        other = await rival(client, context)
        await until(lambda: client.transport.ended)
        client.connection.connection_lost(None)
        other.send(SUBSCRIBE)
        await other.settle()
        assert other.kinds() == ["SUCCESS"]
        other.connection.connection_lost(None)


@pytest.mark.parametrize("slow", [False, True])
async def test_place_of_a_router_that_lost_its_lease_is_free_at_once_for_the_one_that_holds_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    monkeypatch.setattr(connection, "PROBE_SECONDS", 60.0)
    monkeypatch.setattr(connection, "LEASED_PROBE_SECONDS", 0.05)
    async with opened_client(folder) as (client, context):
        other = await rival(client, context)
        if slow:
            client.connection.pause_writing()
        other.send(leased())
        await other.settle()
        await until(lambda: client.transport.ended)
        client.connection.connection_lost(None)
        other.send(leased())
        await other.settle()
        assert other.kinds() == ["ERROR", "SUCCESS"]
        other.connection.connection_lost(None)


def leased() -> bytes:
    """Return a SUBSCRIBE of a router that holds the lease."""
    asked = pb.BaseCommand.FromString(SUBSCRIBE[8:])
    asked.subscribe.metadata.add(key="router-leased", value="true")
    return encode(asked)


@pytest.mark.slow
@pytest.mark.parametrize("excuse", ["answers", "is not listened to", "takes long"])
async def test_client_that_is_there_keeps_its_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch, excuse: str
) -> None:
    monkeypatch.setattr(connection, "PROBE_SECONDS", 1.0)
    async with opened_client(folder) as (client, context):
        other = await rival(client, context)
        if excuse == "answers":
            client.send(PONG)
        elif excuse == "is not listened to":
            client.connection.hold_reading("producing")
        else:
            client.connection.pause_writing()
        await asyncio.sleep(1.5)
        assert not client.transport.ended
        other.connection.connection_lost(None)
