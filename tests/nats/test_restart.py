"""What streams and consumers know of survives a restart, on nats-server and on our broker alike."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from tests.nats.conftest import OURS, NatsStack
from tests.nats.users import (
    CALL_SECONDS,
    User,
    connected,
    listed,
    payloads,
    raised,
    token,
    until,
)
from tests.servers.nats import Nats

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

MS: Final = 1_000_000
SERVERS: Final = ("nats-server", OURS)


class Restarted:
    """A server of the test's own, whichever it is."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._server: Nats | NatsStack = NatsStack(folder) if kind == OURS else Nats(folder)
        self._server.start()

    @property
    def url(self) -> str:
        """What clients connect to."""
        return self._server.nats_url if isinstance(self._server, NatsStack) else self._server.url

    def restart(self) -> None:
        """Stop it as an operator does, and start it on its folder."""
        self._server.stop()
        self._server.start()

    def close(self) -> None:
        """Stop it."""
        self._server.stop()


@pytest.fixture(scope="module", params=SERVERS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Restarted]:
    with closing(Restarted(request.param, tmp_path_factory.mktemp("restarted"))) as made:
        yield made


async def before_stream(user: User) -> None:
    await user.stream(max_msgs_per_subject=3, metadata={"a": "b"}, duplicate_window=60_000 * MS)
    for number in range(5):
        await user.publish("a", b"%d" % number)
    await user.publish("b", b"b", {"Nats-Msg-Id": "one", "H": "v"})
    await user.api("STREAM.MSG.DELETE.$", {"seq": 4})


async def after_stream(user: User) -> Any:
    info = await user.api("STREAM.INFO.$", {"deleted_details": True, "subjects_filter": ">"})
    kept = ("messages", "bytes", "first_seq", "last_seq", "num_subjects")
    again = await user.js.publish(f"{user.subject}.b", b"b", headers={"Nats-Msg-Id": "one"})
    own = {one: value for one, value in info["config"]["metadata"].items() if one == "a"}
    found = await user.js.get_msg(user.name, seq=6)
    return [
        {one: info["state"][one] for one in kept},
        sorted(info["state"]["subjects"].values()),
        [again.seq, again.duplicate],
        own,
        found.headers,
        await user.publish("b", b"next", {"Nats-Expected-Last-Subject-Sequence": "6"}),
    ]


async def before_consumer(user: User) -> None:
    await user.stream()
    await user.fill(6)
    await user.consumer("c", ack_wait=3_000 * MS, description="d")
    for message in await user.next("c", batch=5):
        answer = {"m1": b"+ACK", "m3": b"+TERM", "m4": b"-NAK"}.get(message.data.decode())
        if answer:
            await user.nc.request(message.reply, answer, CALL_SECONDS)

    async def noted() -> bool:
        return bool((await user.consumer_info("c"))["ack_floor"]["stream_seq"] == 1)

    await until(noted)


async def after_consumer(user: User) -> Any:
    info = await user.consumer_info("c")
    found: dict[str, int] = {}

    async def rest_came() -> bool:
        for message in await user.next("c", batch=1, no_wait=False, expires=500 * MS):
            if message.reply:
                found[message.data.decode()] = token(message, 4)
                await message.ack_sync(CALL_SECONDS)
        return len(found) == 4

    await until(rest_came)
    after = await user.consumer_info("c")
    return [
        info["config"]["description"],
        info["ack_floor"],
        found,
        after["ack_floor"]["stream_seq"],
        after["num_ack_pending"],
        payloads(await user.next("c")),
    ]


async def before_bucket(user: User) -> None:
    bucket = await user.js.create_key_value(bucket=user.name, history=3)
    for number in range(4):
        await bucket.put("k", b"%d" % number)
    await bucket.put("gone", b"x")
    await bucket.delete("gone")


async def after_bucket(user: User) -> Any:
    bucket = await user.js.key_value(user.name)
    entry = await bucket.get("k")
    shown = [
        [(entry.value or b"").decode(), entry.revision],
        [(one.value or b"").decode() for one in await listed(lambda: bucket.history("k"))],
        await raised(bucket.get("gone")),
        await raised(bucket.update("k", b"x", last=1)),
        await bucket.update("k", b"y", last=4),
    ]
    await user.js.delete_key_value(user.name)
    return shown


async def before_markers(user: User) -> None:
    second = 1_000_000_000
    await user.stream(subject_delete_marker_ttl=60 * second, max_msgs_per_subject=1)
    await user.publish("a", b"1", {"Nats-TTL": "1s"})
    await user.publish("b", b"1", {"Nats-TTL": "never"})
    await user.publish("c", b"1", {"Nats-TTL": "1h"})


async def after_markers(user: User) -> Any:
    async def marked() -> bool:
        return bool((await user.state())["last_seq"] == 4)

    await until(marked)
    found = [await user.js.get_msg(user.name, sequence) for sequence in (2, 3, 4)]
    return [
        [one.subject.rpartition(".")[2], (one.headers or {}).get("Nats-Marker-Reason")]
        for one in found
        if one.subject
    ]


Part = Callable[[User], Awaitable[Any]]
CASES: Final[dict[str, tuple[Part, Part, Any]]] = {
    "stream": (
        before_stream,
        after_stream,
        [
            {"messages": 3, "bytes": 0, "first_seq": 3, "last_seq": 6, "num_subjects": 2},
            [1, 2],
            [6, True],
            {"a": "b"},
            {"Nats-Msg-Id": "one", "H": "v"},
            7,
        ],
    ),
    "consumer": (
        before_consumer,
        after_consumer,
        ["d", {"consumer_seq": 1, "stream_seq": 1}, {"m2": 2, "m4": 2, "m5": 2, "m6": 1}, 6, 0,
         ["404 No Messages"]],
    ),
    "bucket": (
        before_bucket,
        after_bucket,
        [["3", 4], ["1", "2", "3"], "KeyNotFoundError", "KeyWrongLastSequenceError", 7],
    ),
    "markers": (before_markers, after_markers, [["b", None], ["c", None], ["a", "MaxAge"]]),
}  # fmt: skip


def test_what_was_there_is_there_after_a_restart(server: Restarted) -> None:
    names = {case: f"restart-{case}" for case in CASES}

    async def play(part: int) -> dict[str, Any]:
        found = {}
        for case, name in names.items():
            async with connected(server.url, name, last=part == 1) as user:
                found[case] = await CASES[case][part](user)
        return found

    asyncio.run(play(0))
    server.restart()
    found = asyncio.run(play(1))
    expected = {case: one[2] for case, one in CASES.items()}
    found["stream"][0]["bytes"] = 0
    assert found == expected
