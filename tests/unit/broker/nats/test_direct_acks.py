"""Acknowledgements and deliveries of a client of the listener, several in one read or write.

The slow reference is a client that sends one operation with each read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.broker.nats.consumers.test_ack_requests import standing
from tests.unit.broker.nats.serving import Serving
from tests.unit.broker.nats.test_session import QUIET, NatsClient, listening, login, users

MESSAGES = 6


async def pulled(client: NatsClient, consumer: str, count: int = MESSAGES) -> list[str]:
    """Return the reply subjects of the messages that a client pulls, up to the last one."""
    request = json.dumps({"batch": count, "expires": 30_000_000_000})
    client.send(f"PUB $JS.API.CONSUMER.MSG.NEXT.S.{consumer} in.{consumer} {len(request)}", request)
    shown = await client.receive(str(MESSAGES - 1))
    return [line.split()[3] for line in shown if line.startswith("MSG")]


async def stored(served: Serving, **config: Any) -> None:
    await served.stream()
    await served.publish(*(b"%d" % number for number in range(MESSAGES)))
    await served.consumer("c", **config)


def pending(served: Serving, name: str = "c") -> int:
    """Return how many messages of a consumer are not acknowledged."""
    count: int = served.server.streams.find("S").consumers[name].state.num_pending_acks
    return count


def acks(*subjects: str, payload: str = "+ACK", reply: str = "") -> list[str]:
    """Return the lines that acknowledge."""
    middle = f"{reply} " if reply else ""
    return [line for one in subjects for line in (f"PUB {one} {middle}{len(payload)}", payload)]


@pytest.mark.parametrize("policy", ["explicit", "all"])
async def test_acknowledgements_of_one_read_leave_the_consumer_as_many_reads_do(
    tmp_path: Path, policy: str
) -> None:
    async with listening(tmp_path) as (served, connect):
        await stored(served, ack_policy=policy)
        await served.consumer("d", ack_policy=policy)
        client = connect()
        assert await client.ask(QUIET, "SUB in.> 1") == []
        of_c, of_d = await pulled(client, "c"), await pulled(client, "d")
        never = "$JS.ACK.S.{}.1.99.99.1700000000000000000.0"
        for order in ([1, 2, 1], [5, 0, 4]):
            assert await client.ask(*acks(*(of_c[at] for at in order), never.format("c"))) == []
            for at in order:
                assert await client.ask(*acks(of_d[at])) == []
        c, d = (served.server.streams.find("S").consumers[name] for name in "cd")
        assert standing(c) == standing(d)
        assert pending(served) < MESSAGES
        assert served.server.metrics.received_messages > 12


async def test_each_acknowledgement_is_confirmed_where_it_says(tmp_path: Path) -> None:
    async with listening(tmp_path) as (served, connect):
        await stored(served)
        client = connect()
        assert await client.ask(QUIET, "SUB in.> 1", "SUB done.* 2") == []
        found = await pulled(client, "c")
        lines = [*acks(found[0], reply="done.0"), *acks(found[1]), *acks(found[2], reply="done.2")]
        gone = "$JS.ACK.S.gone.1.1.1.1700000000000000000.0"
        never = "$JS.ACK.S.c.1.99.99.1700000000000000000.0"
        client.send(*lines, *acks(never, reply="done.no"), *acks(gone, reply="done.gone"))
        client.send(*acks(found[3], reply="done.last"))
        shown = await client.receive("MSG done.last 2 0")
        assert [line.split()[1] for line in shown if "MSG done" in line] == [
            "done.gone",  # is refused at once; the others wait for the disk
            "done.0",
            "done.2",
        ]
        assert pending(served) == MESSAGES - 4


async def test_other_subscribers_see_acknowledgements(tmp_path: Path) -> None:
    async with listening(tmp_path) as (served, connect):
        await stored(served)
        client, other = connect(), connect()
        assert await client.ask(QUIET, "SUB in.> 1") == []
        assert await other.ask(QUIET, "SUB $JS.ACK.> 1") == []
        found = await pulled(client, "c")
        assert await client.ask(*acks(*found[:2])) == []
        shown = await other.ask()
        assert [line.split()[1] for line in shown if line.startswith("MSG")] == found[:2]
        assert pending(served) == MESSAGES - 2


async def test_a_verbose_client_gets_a_confirmation_of_each(tmp_path: Path) -> None:
    async with listening(tmp_path) as (served, connect):
        await stored(served)
        client = connect()
        assert await client.ask('CONNECT {"verbose":true}', "SUB in.> 1") == ["+OK", "+OK"]
        found = await pulled(client, "c")
        assert await client.ask(*acks(*found[:3])) == ["+OK"] * 3
        assert pending(served) == MESSAGES - 3


async def test_a_client_without_the_right_acknowledges_nothing(tmp_path: Path) -> None:
    async with listening(tmp_path, **users(tmp_path)) as (served, connect):
        await stored(served)
        own = await served.pull("c")
        client = connect()
        assert await client.ask(login(), *acks(*(one.reply for one in own))) == []
        assert pending(served) == MESSAGES


async def test_the_first_acknowledgements_after_a_start_open_their_stream(tmp_path: Path) -> None:
    found: list[str] = []
    async with listening(tmp_path) as (served, connect):
        await stored(served)
        client = connect()
        assert await client.ask(QUIET, "SUB in.> 1") == []
        found.extend(await pulled(client, "c"))
    async with listening(tmp_path) as (served, connect):
        client = connect()
        assert await client.ask(QUIET, "SUB done 1") == []
        client.send(*acks(*found[:3]), *acks(found[3], reply="done"))
        await client.receive("MSG done 1 0")
        assert pending(served) == MESSAGES - 4


async def test_a_subscription_that_ends_within_a_run_loses_no_message(tmp_path: Path) -> None:
    async with listening(tmp_path) as (served, connect):
        await stored(served)
        client = connect()
        assert await client.ask(QUIET, "SUB warm.> 1", "SUB in.c 2", "UNSUB 2 3") == []
        request = json.dumps({"batch": MESSAGES, "expires": 30_000_000_000})
        line = f"PUB $JS.API.CONSUMER.MSG.NEXT.S.c in.c {len(request)}"
        client.send(line, request)
        [*_, last] = [one for one in await client.receive("2") if one.startswith("MSG")]
        assert last.split()[3].split(".")[5] == "3"
        assert pending(served) == 3
        assert await client.ask("SUB in.c 3") == []
        assert len(await pulled(client, "c", 3)) == 3


async def test_clients_that_pull_at_the_same_time_share_the_messages(tmp_path: Path) -> None:
    async with listening(tmp_path) as (served, connect):
        await served.stream()
        await served.consumer("c")
        clients = [connect(), connect()]
        request = json.dumps({"batch": 3, "expires": 30_000_000_000})
        for number, client in enumerate(clients):
            line = f"PUB $JS.API.CONSUMER.MSG.NEXT.S.c in.{number} {len(request)}"
            assert await client.ask(QUIET, f"SUB in.{number} 1", line, request) == []
        await served.publish(*(b"%d" % number for number in range(MESSAGES)))
        for last, client in zip("45", clients, strict=True):
            shown = await client.receive(last)
            assert [line for line in shown if line.isdecimal()] == [
                str(number) for number in range(int(last) % 2, int(last), 2)
            ]
