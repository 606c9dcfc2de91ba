"""Addresses on the blacklist are served nothing by the broker's listener either."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from router.wire.node import node_pb2 as npb
from router.wire.pulsar import pulsar_pb2 as pb
from tests.broker.nats_raw import RawNats
from tests.broker.raw import RawClient
from tests.ports import free_port
from tests.processes import BrokerProcess


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data", free_port())
    process.start()
    yield process
    process.stop()


def test_clients_on_the_blacklist_are_refused_and_let_go(broker: BrokerProcess) -> None:
    first, second = RawClient(broker.url), RawClient(broker.url)
    for client in (first, second):
        client.shake_hands()
    record = npb.RegistryPut(kind="blacklist", name="127.0.0.0/8", value=b"{}")
    answer = second.ask("ADMIN", "ADMIN_RESPONSE", registry_put=record)
    assert not answer.code
    for client in (first, second):
        assert client.expect("ERROR").error == pb.AuthorizationError
        assert client.closed()
        client.close()
    refused = RawClient(broker.url)
    refused.send("CONNECT", client_version="raw", protocol_version=20)
    failure = refused.expect("ERROR")
    assert failure.error == pb.AuthorizationError
    assert "127.0.0.1" in failure.message
    assert refused.closed()
    refused.close()
    # The list is durable: it holds from the first connection on.
    broker.stop()
    broker.start()
    again = RawClient(broker.url)
    again.send("CONNECT", client_version="raw", protocol_version=20)
    assert again.expect("ERROR").error == pb.AuthorizationError
    again.close()


def test_nats_clients_on_the_blacklist_are_refused_and_let_go(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    broker = BrokerProcess(tmp_path / "data", free_port(), broker_nats=address)
    broker.start()
    admin = RawClient(broker.url)
    admin.shake_hands()
    with RawNats(address).connect() as client:
        record = npb.RegistryPut(kind="blacklist", name="127.0.0.0/8", value=b"{}")
        assert not admin.ask("ADMIN", "ADMIN_RESPONSE", registry_put=record).code
        assert client.lines() == ["-ERR 'Authorization Violation'", "closed"]
    with RawNats(address) as client:
        assert client.ask("PUB a 0", "") == ["-ERR 'Authorization Violation'", "closed"]
    admin.close()
    assert broker.stop() == 0
