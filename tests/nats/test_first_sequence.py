"""A stream with `first_seq` numbers its messages as nats-server does, in each dialect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.kafka.clients.confluent import Confluent
from tests.nats.api_client import ApiClient
from tests.nats.conftest import NatsStack
from tests.servers.nats import Nats
from tests.system.traffic import ask

pytestmark = pytest.mark.slow

FIRST = 1_000
CONFIG = {"name": "LATE", "subjects": ["late.>"], "first_seq": FIRST}


@pytest.fixture
def clients(nats_server: Nats, nats_stack: NatsStack) -> Iterator[list[ApiClient]]:
    with ApiClient(nats_server.address) as theirs, ApiClient(nats_stack.nats) as ours:
        yield [theirs, ours]
        for client in (theirs, ours):
            client.call("STREAM.DELETE.LATE")


def places(reply: dict[str, Any]) -> tuple[int, ...]:
    state = reply["state"]
    return tuple(state[name] for name in ("messages", "first_seq", "last_seq"))


def test_sequences_begin_where_nats_server_begins(
    nats_stack: NatsStack, clients: list[ApiClient]
) -> None:
    shown = []
    for client in clients:
        steps: list[object] = [places(client.call("STREAM.CREATE.LATE", CONFIG))]
        steps.append(client.publish("late.a", b"1")["seq"])
        steps.append(client.publish("late.b", b"2")["seq"])
        steps.append(places(client.call("STREAM.INFO.LATE")))
        consumer = {"durable_name": "c", "ack_policy": "explicit", "deliver_policy": "all"}
        body = {"stream_name": "LATE", "config": consumer}
        steps.append(client.call("CONSUMER.CREATE.LATE.c", body)["num_pending"])
        steps.append(client.call("STREAM.MSG.GET.LATE", {"seq": FIRST + 1})["message"]["data"])
        steps.append(client.call("STREAM.MSG.GET.LATE", {"seq": 1})["error"]["err_code"])
        client.call("STREAM.PURGE.LATE", {"seq": FIRST + 1})
        steps.append(places(client.call("STREAM.INFO.LATE")))
        shown.append(steps)
    assert shown[0] == shown[1]
    assert shown[1][0] == (0, FIRST, FIRST - 1)
    assert (
        ask(nats_stack, "POST", "/events/LATE", b"by HTTP", {"Content-Type": "text/plain"}).status
        == 200
    )
    kafka = Confluent(nats_stack.kafka)
    assert [one.offset for one in kafka.read("LATE", FIRST, 2)] == [FIRST, FIRST + 1]
    kafka.close()
