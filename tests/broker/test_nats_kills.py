"""Publishers and deleters of JetStream over kills of the broker.

What was confirmed is there once, what was deleted stays deleted, and bounds hold.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.errors import Error
from nats.js import JetStreamContext

from router.broker.storage.files import check
from tests.ports import free_port
from tests.processes import BrokerProcess

KILLS = 3
BETWEEN_KILLS = 200
PUBLISHERS = 16
BOUND = 50
KEYS = 7
SECONDS = 60.0


@dataclass
class Seen:
    """What was asked of the broker, and what it confirmed."""

    asked: int = 0
    # By the number in the payload: the sequence.
    stored: dict[int, int] = field(default_factory=dict)
    again: list[int] = field(default_factory=list)
    deleted: set[int] = field(default_factory=set)
    delete_asked: set[int] = field(default_factory=set)
    # By key: the newest number that was confirmed.
    keys: dict[int, int] = field(default_factory=dict)


async def connected(address: str) -> Client:
    return await nats.connect(
        f"nats://{address}",
        allow_reconnect=False,
        connect_timeout=SECONDS,
        error_cb=_ignored,
        pending_size=1 << 20,
    )


async def _ignored(_error: Exception) -> None:
    """Errors end the calls that meet them."""


async def publish(stream: JetStreamContext, seen: Seen) -> None:
    """Publish to all streams until the broker is gone; each number again if it is not sure."""
    while True:
        if seen.again:
            number = seen.again.pop()
        else:
            number, seen.asked = seen.asked, seen.asked + 1
        body, headers = b"%d" % number, {"Nats-Msg-Id": str(number)}
        try:
            ack = await stream.publish("all.x", body, timeout=SECONDS, headers=headers)
            seen.stored[number] = ack.seq
            await stream.publish("bounded.x", body, timeout=SECONDS, headers=headers)
            if number % 5 == 0:
                seen.delete_asked.add(ack.seq)
                await stream.delete_msg("all", ack.seq)
                seen.deleted.add(ack.seq)
        except (Error, TimeoutError, OSError, asyncio.CancelledError):
            if number not in seen.stored:
                seen.again.append(number)
            return


async def put(stream: JetStreamContext, seen: Seen, key: int) -> None:
    """Write ever newer values of a key."""
    number = seen.keys.get(key, -1)
    with suppress(Error, TimeoutError, OSError):
        while True:
            number += 1
            await stream.publish(f"kv.{key}", b"%d" % number, timeout=SECONDS)
            seen.keys[key] = number


async def work(address: str, seen: Seen, broker: BrokerProcess) -> None:
    """Work on all streams, and kill the broker in the middle."""
    connection = await connected(address)
    stream = connection.jetstream(timeout=SECONDS)
    if not seen.asked:
        await stream.add_stream(name="all", subjects=["all.>"], duplicate_window=100)
        await stream.add_stream(name="bounded", subjects=["bounded.>"], max_msgs=BOUND)
        await stream.add_stream(name="kv", subjects=["kv.>"], max_msgs_per_subject=1)
    goal = len(seen.stored) + BETWEEN_KILLS
    tasks = [asyncio.create_task(publish(stream, seen)) for _ in range(PUBLISHERS)]
    tasks += [asyncio.create_task(put(stream, seen, key)) for key in range(KEYS)]
    async with asyncio.timeout(3 * SECONDS):
        while len(seen.stored) < goal:  # noqa: ASYNC110 - what is waited for is the broker's doing
            await asyncio.sleep(0.005)
    broker.kill()
    await ended(tasks)
    with suppress(Error, TimeoutError, OSError):
        await connection.close()


async def ended(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel tasks, for which nats-py waits for answers that never come, until they have ended.

    Before Python 3.12 `wait_for` drops a cancellation that meets an answer, and the next publish
    waits.
    """
    async with asyncio.timeout(SECONDS):
        left = {*tasks}
        while left:
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=0.1)


async def verify(address: str, seen: Seen) -> None:
    connection = await connected(address)
    try:
        stream = connection.jetstream(timeout=SECONDS)
        await verify_all(stream, seen)
        state = (await stream.stream_info("bounded")).state
        assert (state.messages, state.last_seq - state.first_seq + 1) == (BOUND, BOUND)
        for sequence in range(state.first_seq, state.last_seq + 1):
            await stream.get_msg("bounded", sequence)
        state = (await stream.stream_info("kv")).state
        assert state.messages == KEYS
        for key, number in seen.keys.items():
            last = await stream.get_last_msg("kv", f"kv.{key}")
            assert last.data is not None
            # The one that was not confirmed may be there, too.
            assert int(last.data) in {number, number + 1}
    finally:
        await connection.close()


async def verify_all(stream: JetStreamContext, seen: Seen) -> None:
    """Check the stream that has no bounds: each message by its sequence."""
    state = (await stream.stream_info("all")).state
    found: dict[int, int] = {}
    for sequence in range(1, state.last_seq + 1):
        with suppress(nats.js.errors.NotFoundError):
            message = await stream.get_msg("all", sequence)
            assert message.data is not None
            found[sequence] = int(message.data)
    assert len(set(found.values())) == len(found) == state.messages
    assert not seen.deleted & found.keys()
    missing = {seq for seq in seen.stored.values() if seq not in found}
    assert missing <= seen.delete_asked
    assert all(found[seq] == n for n, seq in seen.stored.items() if seq in found)
    assert set(range(1, state.last_seq + 1)) - found.keys() <= seen.delete_asked


@pytest.mark.slow
@pytest.mark.timeout(10 * SECONDS)
def test_what_jetstream_confirmed_survives_kills(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    broker = BrokerProcess(tmp_path / "data", free_port(), broker_nats=address)
    seen = Seen()
    broker.start()
    for _ in range(KILLS):
        asyncio.run(work(address, seen, broker))
        broker.start()
        asyncio.run(verify(address, seen))
    assert broker.stop() == 0
    assert check(tmp_path / "data") == []
