"""The NATS listener, as clients see it that speak the protocol by hand."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.nats_raw import RawNats, connect
from tests.ports import free_port
from tests.processes import BrokerProcess, wait_until

MAX_PAYLOAD = 4096


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a broker with small limits serves NATS clients."""
    address = f"127.0.0.1:{free_port()}"
    process = BrokerProcess(
        tmp_path_factory.mktemp("nats") / "data",
        free_port(),
        broker_nats=address,
        broker_ping="3s",
        nats_max_payload=str(MAX_PAYLOAD),
        nats_max_subscriptions="20",
        nats_max_pending="64K",
        broker_nats_advertised="nats://nats.example:4222",
    )
    process.start()
    yield address
    assert process.stop() == 0


def test_info_comes_first_and_names_the_limits(address: str) -> None:
    with RawNats(address) as one, RawNats(address) as other:
        assert one.info["max_payload"] == MAX_PAYLOAD
        assert one.info["headers"] is True
        assert one.info["proto"] == 1
        assert one.info["connect_urls"] == ["nats.example:4222"]
        assert "auth_required" not in one.info
        assert one.info["server_id"] == other.info["server_id"]
        assert one.info["client_id"] != other.info["client_id"]


def test_a_client_that_never_connects_is_served_and_confirmed(address: str) -> None:
    with RawNats(address) as client:
        assert client.ask("PUB a.b 5", "hello") == ["+OK"]
        assert client.ask("SUB a.b 1", "UNSUB 1") == ["+OK", "+OK"]


def test_verbose_is_what_connect_does_not_leave_out(address: str) -> None:
    with RawNats(address) as client:
        assert client.ask("CONNECT {}", "SUB v 1", "PUB v 1", "x") == [
            *("+OK", "+OK", "+OK"),
            *("MSG v 1 1", "x"),
        ]


def test_of_a_queue_group_one_member_receives_each_message(address: str) -> None:
    with RawNats(address).connect() as one, RawNats(address).connect() as other:
        one.ask("SUB jobs.* workers 1", "SUB jobs.> 2")
        other.ask("SUB jobs.* workers 1")
        sent = [line for number in range(200) for line in ("PUB jobs.a 3", f"{number:03}")]
        with RawNats(address).connect() as publisher:
            publisher.ask(*sent)
        shown, also = one.ask(), other.ask()
        assert shown.count("MSG jobs.a 2 3") == 200
        shares = shown.count("MSG jobs.a 1 3"), also.count("MSG jobs.a 1 3")
        assert sum(shares) == 200
        assert min(shares) > 50


def test_a_subscription_ends_after_its_maximum(address: str) -> None:
    with RawNats(address).connect() as client:
        sent = [line for number in range(4) for line in ("PUB m 1", str(number))]
        assert client.ask("SUB m 1", "UNSUB 1 2", *sent) == ["MSG m 1 1", "0", "MSG m 1 1", "1"]
        assert client.ask("SUB n 2", "PUB n 1", "x", "UNSUB 2 1", "PUB n 1", "y") == [
            *("MSG n 2 1", "x")
        ]


def test_headers_reach_only_clients_that_know_them(address: str) -> None:
    with (
        RawNats(address).connect() as one,
        RawNats(address).connect(headers=False, no_responders=False) as other,
    ):
        for client in (one, other):
            client.ask("SUB h 1")
        one.ask("HPUB h 18 20", "NATS/1.0\r\nA: b\r\n\r\nhi")
        assert one.ask() == []  # they came before
        assert other.ask() == ["MSG h 1 2", "hi"]


def test_a_request_without_a_receiver_is_answered_by_503(address: str) -> None:
    with RawNats(address).connect() as client:
        shown = client.ask("SUB in 1", "PUB no.such in 0", "")
        assert shown[0].startswith("HMSG in 1 ")
        assert shown[1] == "NATS/1.0 503"
    with RawNats(address).connect(no_responders=False) as client:
        assert client.ask("SUB in 1", "PUB no.such in 0", "") == []


def test_too_many_subscriptions_are_refused_one_by_one(address: str) -> None:
    with RawNats(address).connect() as client:
        shown = client.ask(*(f"SUB s.{number} {number}" for number in range(22)))
        assert shown == ["-ERR 'maximum subscriptions exceeded'"] * 2
        assert client.ask("UNSUB 3", "SUB s.22 22", "PUB s.22 1", "x") == ["MSG s.22 22 1", "x"]


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (["PUB a 4097"], "Maximum Payload Violation"),
        (["SUB " + "a" * 5000 + " 1"], "maximum control line exceeded"),
        (["NOP"], "Unknown Protocol Operation"),
        (['CONNECT {"verbose": 1}'], "Parser Error"),
        (["CONNECT []"], "Unknown Protocol Operation"),
        (['CONNECT {"no_responders": true}'], "no responders requires headers support"),
    ],
)
def test_what_breaks_the_protocol_ends_the_connection(
    address: str, lines: list[str], error: str
) -> None:
    with RawNats(address) as client:
        assert client.ask(*lines) == [f"-ERR '{error}'", "closed"]


def test_a_client_that_does_not_read_is_cut_off(address: str) -> None:
    with (
        RawNats(address).connect() as slow,
        RawNats(address).connect() as quick,
        RawNats(address).connect() as publisher,
    ):
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        for client in (slow, quick):
            client.ask("SUB flood 1")
        block = [line for _ in range(50) for line in ("PUB flood 4000", "x" * 4000)]

        for _ in range(40):
            publisher.ask(*block)
            assert quick.ask().count("MSG flood 1 4000") == 50
        shown = slow.lines()
        assert shown[-1] == "closed"
        assert shown.count("MSG flood 1 4000") < 2_000


def test_a_silent_client_is_pinged_and_then_let_go(address: str) -> None:
    with RawNats(address).connect() as client:
        assert client.line(answer_pings=False) == "PING"
        client.send("PONG")
        shown = [client.line(answer_pings=False) for _ in range(3)]
        assert shown == ["PING", "-ERR 'Stale Connection'", ""]


def test_operations_cut_anywhere_are_understood(address: str) -> None:
    with RawNats(address) as client:
        for byte in f"{connect()}\r\nSUB c 1\r\nPUB c 3\r\nx\r\n\r\nPING\r\n".encode():
            client.socket.sendall(bytes([byte]))
        assert client.lines() == ["MSG c 1 3", "x", ""]


def test_a_client_that_leaves_is_no_receiver(address: str) -> None:
    with RawNats(address).connect() as client:
        with RawNats(address).connect() as other:
            other.ask("SUB gone 1")
        wait_until(lambda: "NATS/1.0 503" in client.ask("SUB in 1", "PUB gone in 0", ""))


def test_without_jetstream_subjects_are_plain(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    process = BrokerProcess(
        tmp_path / "data", free_port(), broker_nats=address, jetstream_enabled="no"
    )
    process.start()
    with RawNats(address).connect() as client:
        assert "jetstream" not in client.info
        client.ask("SUB in 1")
        for subject in ("$JS.API.INFO", "ORDERS"):
            assert "NATS/1.0 503" in client.ask(f"PUB {subject} in 0", "")
    assert process.stop() == 0
