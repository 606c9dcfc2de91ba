"""Who gets which answer of `$SYS.REQ.>`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from router.broker.nats.protocol.authorization import NatsCaller, RequestIdentity
from router.broker.nats.system import duration
from router.model import Principal
from router.wire.nats.headers import status_code
from router.wire.nats.message import NatsMessage
from tests.unit.broker.nats.consumers.test_consumers import Restricted
from tests.unit.broker.nats.serving import DEADLINE, serving


class Client:
    """A connection of a user, as the server lists it."""

    def __init__(self, user: str) -> None:
        self.caller = NatsCaller(RequestIdentity(Principal(user), False, None))

    def describe(self) -> dict[str, Any]:
        return {"authorized_user": self.caller.name}


async def test_a_client_with_few_rights_sees_its_own_connections_and_no_server(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as served:
        caller = Restricted()
        served.server.clients |= {1: Client(caller.name), 2: Client("another")}

        async def request(subject: str) -> NatsMessage:
            message = NatsMessage(f"$SYS.REQ.{subject}")
            (reply,) = await served.request(caller, message, 1, DEADLINE)
            return reply

        data = json.loads((await request("USER.INFO")).payload)["data"]
        assert data == {"user": caller.name, "account": "$G", "account_name": "$G"}
        for subject in ("ACCOUNT.PING.CONNZ", "SERVER.PING.CONNZ"):
            data = json.loads((await request(subject)).payload)["data"]
            assert data["connections"] == [{"authorized_user": caller.name}]
        for subject in ("SERVER.PING", "SERVER.PING.VARZ", f"SERVER.{served.server.id}.JSZ", "X"):
            assert status_code((await request(subject)).headers) == 503
        caller.identity = RequestIdentity(Principal(caller.name), True, None)
        data = json.loads((await request("SERVER.PING.CONNZ")).payload)["data"]
        assert data["total"] == 2
        assert json.loads((await request(f"SERVER.{served.server.id}.JSZ")).payload)["data"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59, "59s"), (60, "1m0s"), (3_601, "1h0m1s"), (90_061, "1d1h1m1s")],
)
def test_a_duration_is_written_as_nats_server_writes_it(seconds: int, text: str) -> None:
    assert duration(seconds * 1_000_000_000 + 5) == text
