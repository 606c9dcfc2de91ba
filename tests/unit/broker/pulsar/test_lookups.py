"""Where lookups send clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.settings import load
from router.wire.pulsar import command, encode
from router.wire.pulsar import pulsar_pb2 as pb
from tests.unit.broker.pulsar.test_connection import TOPIC, opened_client

LOOKUP = encode(command(pb.BaseCommand.LOOKUP, topic=TOPIC, request_id=1))


@pytest.mark.parametrize(
    ("advertised", "plain", "tls"),
    [
        ("", "pulsar://127.0.0.1:2", ""),
        ("pulsar://b:1,pulsar+ssl://b:2", "pulsar://b:1", "pulsar+ssl://b:2"),
        ("pulsar+ssl://b:2", "", "pulsar+ssl://b:2"),
    ],
)
async def test_lookup_answers_what_is_advertised_else_the_way_that_the_client_came(
    folder: Path, advertised: str, plain: str, tls: str
) -> None:

    settings = load(None, {}, {"broker.advertised": advertised})
    async with opened_client(folder, settings=settings) as (client, _):
        client.send(LOOKUP)
        await client.settle()
        answer = client.received()[-1].lookupTopicResponse
        assert (answer.brokerServiceUrl, answer.brokerServiceUrlTls) == (plain, tls)
        assert answer.response == pb.CommandLookupTopicResponse.Connect
        assert answer.proxy_through_service_url
