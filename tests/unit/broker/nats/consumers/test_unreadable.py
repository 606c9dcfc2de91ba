"""Durable consumers on a disk that could not be read as they were restored."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.broker.consume.visible import Visible
from router.broker.nats.consumers import deliveries
from router.broker.nats.consumers.log import ConsumerLog
from router.broker.storage import partition_reader
from tests.unit.broker.nats.serving import payloads, serving
from tests.unit.broker.storage.rig import FailingDisk


@pytest.mark.parametrize("failures", [3, 1_000])
@pytest.mark.parametrize("retention", ["workqueue", "limits"])
async def test_what_could_not_be_read_is_not_taken_for_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retention: str, failures: int
) -> None:
    monkeypatch.setattr(partition_reader, "RETRY_SECONDS", (0.0, 0.0))
    async with serving(tmp_path) as served:
        await served.stream(retention=retention)
        for number in range(10):
            await served.publish(b"%d" % number)
        await served.consumer("c", ack_wait=60_000_000_000)
        taken = await served.pull("c", 6)
        await served.acknowledge(taken[0])
    disk, restore = FailingDisk(), ConsumerLog.restore

    async def failing(log: ConsumerLog, visible: Visible) -> list[int]:
        disk.failures = failures
        try:
            return await restore(log, visible)
        finally:
            disk.failures = 0

    async with serving(tmp_path, disk=disk) as served:
        with monkeypatch.context() as patched:
            patched.setattr(ConsumerLog, "restore", failing)
            reply = await served.call("STREAM.INFO.S")
            assert "cannot be restored" in reply["error"]["description"]
        assert (await served.info("c"))["num_ack_pending"] == 5
        kept = (await served.call("STREAM.INFO.S"))["state"]["messages"]
        assert kept == (9 if retention == "workqueue" else 10)
        assert payloads(await served.pull("c", 4)) == [b"6", b"7", b"8", b"9"]


@pytest.mark.parametrize("retention", ["workqueue", "interest", "limits"])
async def test_what_could_not_be_read_is_delivered_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retention: str
) -> None:
    monkeypatch.setattr(partition_reader, "RETRY_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(deliveries, "RETRY_SECONDS", 0.01)
    async with serving(tmp_path) as served:
        await served.stream(retention=retention)
        await served.consumer("c", ack_wait=60_000_000_000)
        for number in range(10):
            await served.publish(b"%d" % number)
    disk = FailingDisk()
    async with serving(tmp_path, disk=disk) as served:
        assert (await served.info("c"))["num_pending"] == 10
        disk.failures = 3
        assert payloads(await served.pull("c", 10)) == [b"%d" % number for number in range(10)]
        assert not disk.failures
