"""What clients ask the system account of: members and figures are those of nats-server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import nats
import pytest

from tests.nats.conftest import NatsStack
from tests.servers.nats import Nats

pytestmark = pytest.mark.slow

SECONDS = 20.0
OF_ACCOUNTS = ["USER.INFO", "ACCOUNT.PING.CONNZ", "ACCOUNT.PING.STATZ", "SERVER.PING.CONNZ"]
OF_SERVERS = [
    ("SERVER.PING", "statsz"),
    ("SERVER.PING.STATSZ", "statsz"),
    ("SERVER.PING.VARZ", "data"),
    ("SERVER.PING.JSZ", "data"),
    ("SERVER.PING.HEALTHZ", "data"),
]


def requested(url: str, *subjects: str) -> list[dict[str, Any]]:
    """Return the replies that a client with a subscription gets."""

    async def request() -> list[dict[str, Any]]:
        connection = await nats.connect(url, name="one that asks")
        try:
            await connection.subscribe("something")
            replies = [
                await connection.request(f"$SYS.REQ.{subject}", b"", timeout=SECONDS)
                for subject in subjects
            ]
        finally:
            await connection.close()
        return [json.loads(reply.data) for reply in replies]

    return asyncio.run(request())


@pytest.mark.parametrize("subject", OF_ACCOUNTS)
def test_a_client_is_told_what_nats_server_tells(
    nats_stack: NatsStack, nats_server: Nats, subject: str
) -> None:
    (ours,), (theirs,) = (
        requested(nats_stack.nats_url, subject),
        requested(nats_server.url, subject),
    )
    assert ours.keys() == theirs.keys()
    assert ours["server"].keys() <= theirs["server"].keys()
    assert ours["data"].keys() == theirs["data"].keys()
    if subject == "USER.INFO":
        assert ours["data"] == theirs["data"]
    if subject.endswith("CONNZ"):
        (found,) = (
            one for one in ours["data"]["connections"] if one.get("name") == "one that asks"
        )
        (expected,) = theirs["data"]["connections"]
        assert found.keys() - {"authorized_user"} <= expected.keys()
        for name in ("kind", "type", "ip", "lang", "name", "version", "in_msgs"):
            assert found[name] == expected[name]
    if subject.endswith("STATZ"):
        (found,), (expected,) = ours["data"]["account_statz"], theirs["data"]["account_statz"]
        assert found.keys() == expected.keys()
        assert found["conns"] >= 1
        assert found["received"]["msgs"] >= 1


@pytest.mark.parametrize(("subject", "member"), OF_SERVERS)
def test_a_client_without_restrictions_is_told_of_the_server(
    nats_stack: NatsStack, subject: str, member: str
) -> None:
    (found,) = requested(nats_stack.nats_url, subject)
    direct = subject.replace("SERVER.PING", f"SERVER.{found['server']['id']}")
    if direct.count(".") == 2:
        assert requested(nats_stack.nats_url, direct)[0][member].keys() == found[member].keys()
    assert found[member]


def test_what_is_not_served_has_no_responders(nats_stack: NatsStack) -> None:
    for subject in ("SERVER.PING.NONE", "ACCOUNT.X.INFO", "NONE"):
        with pytest.raises(nats.errors.NoRespondersError):
            requested(nats_stack.nats_url, subject)
