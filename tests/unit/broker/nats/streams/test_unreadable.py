"""What requests to a stream are answered while the disk cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from router.broker.storage import partition_reader
from router.wire.nats.headers import status_code
from router.wire.nats.message import NatsMessage
from tests.unit.broker.nats.serving import CALLER, DEADLINE, Serving, serving
from tests.unit.broker.storage.rig import FailingDisk


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_reader, "RETRY_SECONDS", (0.0, 0.0))


async def asked(served: Serving, subject: str, body: bytes) -> NatsMessage:
    """Return the first answer to a request."""
    message = NatsMessage(f"$JS.API.{subject}", payload=body)
    return (await served.request(CALLER, message, 1, DEADLINE))[0]


@pytest.mark.parametrize(
    ("subject", "body"),
    [
        ("DIRECT.GET.S", {"seq": 2}),
        ("DIRECT.GET.S", {"seq": 2, "batch": 2}),
        ("DIRECT.GET.S", {"multi_last": ["s.>"]}),
        ("DIRECT.GET.S.s.a", None),
        ("STREAM.MSG.GET.S", {"seq": 2}),
    ],
)
async def test_a_message_that_cannot_be_read_is_a_failure_and_not_missing(
    tmp_path: Path, subject: str, body: dict[str, object] | None
) -> None:
    request = b"" if body is None else json.dumps(body).encode()
    async with serving(tmp_path) as served:
        await served.stream(allow_direct=True)
        for number in range(3):
            await served.publish(b"%d" % number)
    disk = FailingDisk()
    async with serving(tmp_path, disk=disk) as served:
        await served.call("STREAM.INFO.S")
        disk.failures = 1_000
        found = await asked(served, subject, request)
        code = status_code(found.headers)
        assert 500 in {code, json.loads(found.payload or b"{}").get("error", {}).get("code")}
        assert code or b"Input/output error" in found.payload
        disk.failures = 0
        found = await asked(served, subject, request)
        assert not status_code(found.headers)


async def test_a_pull_is_answered_where_its_stream_cannot_be_opened(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.stream(duplicate_window=3_600_000_000_000)
        await served.consumer("c")
        await served.publish(b"0")
    disk = FailingDisk()
    async with serving(tmp_path, disk=disk) as served:
        disk.failures = 1_000
        found = await asked(served, "CONSUMER.MSG.NEXT.S.c", b"")
        assert status_code(found.headers) == 503
        disk.failures = 0
        assert (await asked(served, "CONSUMER.MSG.NEXT.S.c", b"")).payload == b"0"
