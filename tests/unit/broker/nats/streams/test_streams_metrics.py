"""What is counted of streams."""

from __future__ import annotations

from pathlib import Path

from tests.unit.broker.nats.serving import Serving, run


async def figures(served: Serving) -> dict[str, float]:
    """Return the metrics of NATS as `/metrics` shows them, without their common prefix."""
    await served.server.counters.refresh()
    lines = served.server.counters.render().splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if line.startswith("router_nats_"))
    return {name.removeprefix("router_nats_"): float(value) for name, value in found.items()}


def test_streams_are_counted_once_they_are_used(tmp_path: Path) -> None:
    async def test(served: Serving) -> None:
        assert await figures(served) == {}
        await served.stream()
        await served.consumer("C")
        await served.consumer("D")
        await served.publish(b"1", b"2", b"3")
        await served.pull("C", 2)
        found = await figures(served)
        assert (found["streams"], found["pending_messages"]) == (1, 1 + 3)

    run(tmp_path, test)
