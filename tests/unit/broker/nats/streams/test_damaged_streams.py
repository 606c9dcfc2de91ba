"""A stream with damaged entries: they appear as deleted, and everything else is served."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.unit.broker.nats.streaming import everything, recount, streaming


def test_damaged_entries_of_a_stream_are_passed_over(tmp_path: Path) -> None:
    async def run() -> None:
        async with streaming(tmp_path) as rig:
            await rig.create("S", "s.>")
            for place in range(40):
                await rig.publish(
                    f"s.{place % 3}", b"%02d" % place * 50, {"Nats-Msg-Id": f"{place}"}
                )
        for file in (tmp_path / "data" / "subjects").iterdir():
            file.unlink()
        segment = min((tmp_path / "data" / "ledgers").rglob("*.seg"))
        data = segment.read_bytes()
        assert data.count(b"05" * 50) == 1
        segment.write_bytes(data.replace(b"05" * 50, b"xx" * 50))
        async with streaming(tmp_path) as rig:
            stream = await rig.streams.open("S")
            messages = await everything(stream)
            left = [place for place in range(40) if place != 5]
            assert [one.sequence for one in messages] == [place + 1 for place in left]
            assert stream.log.index is not None
            assert {
                subject: state.count for subject, state in stream.log.index.subjects.items()
            } == {subject: count for subject, (count, _, _) in (await recount(stream)).items()}
            assert (await rig.publish("s.0"))["seq"] == 41
            assert (await rig.publish("s.0", b"", {"Nats-Msg-Id": "39"})).get("duplicate")
            info = await stream.info()
            assert (info.state.messages, info.state.last_seq) == (40, 41)
            assert info.state.num_deleted == 1
            assert await stream.log.delete_range(1, 41) == 40

    asyncio.run(run())
