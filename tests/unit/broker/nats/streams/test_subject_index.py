"""The index of subjects equals a plain recount, whatever was stored, deleted and restarted."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from router.broker.nats.streams.stream import Stream
from router.wire.nats.subjects import matches
from tests.unit.broker.nats.streaming import Clock, Rig, check_index, everything, streaming

SUBJECTS = ("s.a", "s.b", "s.c.d", "s.e")
FOREIGN = (*SUBJECTS, "", "elsewhere", "s.*")
OWN = "S"


class History(RuleBasedStateMachine):
    """A stream through publishes of all dialects, deletions, purges, limits and restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = TemporaryDirectory()
        self.stack = AsyncExitStack()
        self.clock = Clock()
        self.rig: Rig
        self.stream: Stream

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    async def open(self) -> None:
        entered = streaming(Path(self.folder.name), self.clock, killed=self.killed)
        self.rig = await self.stack.enter_async_context(entered)

    async def restart(self, *, killed: bool) -> None:
        await self.stack.aclose()
        self.killed = killed
        await self.open()
        self.stream = await self.rig.streams.open("S")

    @initialize(
        per_subject=st.sampled_from([-1, 1, 3]),
        max_msgs=st.sampled_from([-1, 7, 30]),
        killed=st.booleans(),
    )
    def begin(self, per_subject: int, max_msgs: int, killed: bool) -> None:
        self.killed = killed

        async def work() -> None:
            await self.open()
            self.stream = await self.rig.create(
                "S", "s.>", max_msgs_per_subject=per_subject, max_msgs=max_msgs
            )

        self.run(work())

    @rule(subjects=st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=15), wait=st.booleans())
    def publish(self, subjects: list[str], wait: bool) -> None:
        async def work() -> None:
            replies = [self.rig.send(subject, subject.encode()) for subject in subjects]
            self.rig.publisher.flush()
            for reply in replies if wait else ():
                assert "error" not in await self.rig.answer(reply)

        self.run(work())

    @rule(
        subjects=st.lists(st.sampled_from(FOREIGN), min_size=1, max_size=3),
        wait=st.booleans(),
        size=st.sampled_from([1, 900]),
    )
    def append_of_another_dialect(self, subjects: list[str], wait: bool, size: int) -> None:
        self.run(self.rig.append_foreign(self.stream, *subjects, value=b"v" * size, deliver=wait))

    @rule(share=st.floats(0, 1))
    def delete_one(self, share: float) -> None:
        async def work() -> None:
            await self.rig.answered()
            await self.stream.settle()
            found = await self.stream.read(round(share * self.stream.log.last_sequence))
            if found is not None:
                self.stream.log.delete_messages([found])

        self.run(work())

    @rule(
        pattern=st.sampled_from(["s.a", "s.*", "s.>", OWN]),
        count=st.integers(0, 5),
        share=st.floats(0, 1),
    )
    def purge(self, pattern: str, count: int, share: float) -> None:
        async def work() -> None:
            await self.rig.answered()
            await self.stream.settle()
            before = round(share * self.stream.log.last_sequence) + 1
            expected = [
                message.sequence
                for message in await everything(self.stream)
                if message.sequence < before
                and await self.stream.log.count_from(message.sequence, (pattern,))
                and matches(pattern, message.subject)
            ][:count]
            assert await self.stream.log.delete_matching((pattern,), before, count) == len(expected)
            assert not [one for one in expected if self.stream.contains(one)]

        self.run(work())

    @rule()
    def purge_all(self) -> None:
        async def work() -> None:
            await self.stream.log.delete_all()
            assert self.stream.log.messages == 0

        self.run(work())

    @rule()
    def drop_segments(self) -> None:
        async def work() -> None:
            await self.rig.answered()
            await self.stream.settle()
            first, last = self.stream.ledger.first_number, self.stream.ledger.durable_number
            await self.rig.store.delete_before(self.stream.ledger, (first + last) // 2)

        self.run(work())

    @rule()
    def save(self) -> None:
        self.run(self.stream.save(min_growth_entries=0))

    @rule(killed=st.booleans())
    def start_again(self, killed: bool) -> None:
        async def work() -> None:
            # What was not on disk may be lost by a kill, which is another test's business.
            await self.rig.answered()
            await self.stream.settle()
            await self.restart(killed=killed)

        self.run(work())

    @rule()
    def check(self) -> None:
        self.run(self.compare())

    async def compare(self) -> None:
        await self.rig.answered()
        await check_index(self.stream)

    @rule(pattern=st.sampled_from(["s.a", "s.*", ">"]), share=st.floats(0, 1))
    def count(self, pattern: str, share: float) -> None:
        async def work() -> None:
            await self.rig.answered()
            await self.stream.settle()
            first = round(share * self.stream.log.last_sequence)
            expected = [
                message.sequence
                for message in await everything(self.stream)
                if message.sequence >= first and matches(pattern, message.subject)
            ]
            assert await self.stream.log.count_from(first, (pattern,)) == len(expected)
            found = await self.stream.next_of_subject(first, (pattern,))
            assert (found.sequence if found else 0) == (expected[0] if expected else 0)
            found = await self.stream.log.last_of_subject((pattern,))
            last = found.sequence if found else 0
            assert last == (expected[-1] if expected else last)

        self.run(work())

    def teardown(self) -> None:
        try:
            if hasattr(self, "stream"):
                self.run(self.compare())
        finally:
            self.run(self.stack.aclose())
            self.runner.close()
            self.folder.cleanup()


@pytest.mark.slow
def test_the_index_is_a_recount_after_any_history() -> None:
    run_state_machine_as_test(
        History, settings=settings(max_examples=12, stateful_step_count=20, deadline=None)
    )
