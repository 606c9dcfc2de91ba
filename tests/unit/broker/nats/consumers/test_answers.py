"""What a call of the API was answered is on disk: a crash right behind the answer keeps it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from router.broker.nats.streams.stream import Stream
from tests.unit.broker.nats.serving import CALLER, Serving, crash, payloads, run, serving

Step = Callable[[Serving], Awaitable[Any]]


async def left(served: Serving) -> int:
    """Return how many messages the stream has."""
    state = (await served.call("STREAM.INFO.S"))["state"]
    count: int = state["messages"]
    return count


async def config(served: Serving, subject: str) -> dict[str, Any]:
    """Return the configuration that a call shows."""
    found: dict[str, Any] = (await served.call(subject))["config"]
    return found


async def refusal(served: Serving, subject: str) -> int:
    """Return the code of the error that a call is answered with."""
    code: int = (await served.call(subject))["error"]["err_code"]
    return code


async def paused(served: Serving) -> bool:
    """Return whether the consumer is paused."""
    found: bool = (await served.info("c"))["paused"]
    return found


CALLS: list[tuple[str, dict[str, Any], Step, Any]] = [
    ("STREAM.PURGE.S", {}, left, 0),
    ("STREAM.PURGE.S", {"filter": "s.a"}, left, 1),
    ("STREAM.PURGE.S", {"seq": 3}, left, 2),
    ("STREAM.PURGE.S", {"keep": 1}, left, 1),
    ("STREAM.MSG.DELETE.S", {"seq": 2}, left, 3),
    ("STREAM.DELETE.S", {}, lambda served: refusal(served, "STREAM.INFO.S"), 10059),
    ("CONSUMER.DELETE.S.c", {}, lambda served: refusal(served, "CONSUMER.INFO.S.c"), 10014),
    (
        "CONSUMER.PAUSE.S.c",
        {"pause_until": "2100-01-01T00:00:00Z"},
        paused,
        True,
    ),
]


@pytest.mark.parametrize(("subject", "body", "look", "expected"), CALLS)
async def test_what_a_call_did_survives_a_crash(
    tmp_path: Path, subject: str, body: dict[str, Any], look: Step, expected: object
) -> None:
    async with serving(tmp_path / "a") as served:
        await served.stream()
        await served.consumer("c")
        await served.publish(b"1", b"2", b"3")
        await served.publish(b"4", subject="s.b")
        reply = await served.call(subject, **body)
        crash(tmp_path / "a", tmp_path / "b")
        assert "error" not in reply
    async with serving(tmp_path / "b") as served:
        assert await look(served) == expected


async def test_what_is_made_or_changed_survives_a_crash(tmp_path: Path) -> None:
    async with serving(tmp_path / "a") as served:
        await served.stream()
        await served.consumer("c", max_deliver=3)
        crash(tmp_path / "a", tmp_path / "b")
    async with serving(tmp_path / "b") as served:
        await served.publish(b"1", b"2")
        assert (await config(served, "CONSUMER.INFO.S.c"))["max_deliver"] == 3
        await served.call("STREAM.UPDATE.S", name="S", subjects=["s.>"], max_msgs=1)
        await served.consumer("c", max_deliver=4)
        crash(tmp_path / "b", tmp_path / "c")
    async with serving(tmp_path / "c") as served:
        assert (await config(served, "STREAM.INFO.S"))["max_msgs"] == 1
        assert (await config(served, "CONSUMER.INFO.S.c"))["max_deliver"] == 4
        assert payloads(await served.pull("c")) == [b"2"]


def test_a_call_is_answered_when_its_stream_is_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def before(served: Serving) -> None:
        await served.stream()

    async def open_long(_stream: Stream) -> None:
        await asyncio.Event().wait()

    async def after(served: Serving) -> None:
        monkeypatch.setattr(Stream, "_open", open_long)
        calls = [asyncio.create_task(served.call("STREAM.INFO.S")) for _ in range(2)]
        async with asyncio.timeout(10):
            while served.server.streams.find("S")._opening is None:  # noqa: ASYNC110
                await asyncio.sleep(0)
        await served.server.streams.delete("S", CALLER)
        for call in calls:
            assert (await call)["error"]["err_code"] == 10059

    run(tmp_path, before, after)
