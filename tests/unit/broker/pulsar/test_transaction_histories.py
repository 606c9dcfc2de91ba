"""Whatever transactions acknowledge, and in whatever order they end, beside a model of sets."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.wire.pulsar import pulsar_pb2 as pb
from tests.unit.broker.pulsar.serving import Context
from tests.unit.broker.pulsar.test_transactions import with_transactions
from tests.unit.broker.pulsar.transacting import Ids, Received, TransactionalClient

KINDS = [pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared, pb.CommandSubscribe.Exclusive]
BATCH = 2
MEMORY = Path("/dev/shm")
"""Files that cost no sync, where there are such."""
Place = tuple[int, int]
pick = st.integers(0, 99)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), pick, pick),
        st.tuples(st.just("begin"), pick, pick),
        st.tuples(st.sampled_from(["whole", "part", "whole", "part", "for good"]), pick, pick),
        st.tuples(st.sampled_from(["commit", "abort"]), pick, pick),
        st.tuples(st.just("reconnect"), pick, pick),
    ),
    max_size=30,
)


@dataclass
class Model:
    """Messages by entry and index: acknowledged for good, and in each open transaction."""

    entries: int = 0
    acked: set[Place] = field(default_factory=set)
    pending: list[set[Place]] = field(default_factory=list)

    @property
    def held(self) -> set[Place]:
        return set().union(*self.pending)

    @property
    def left(self) -> set[Place]:
        every = {(entry, index) for entry in range(self.entries) for index in range(BATCH)}
        return every - self.acked - self.held


@dataclass
class History:
    """One client, its open transactions, and what it was sent by place."""

    client: TransactionalClient
    kind: pb.CommandSubscribe.SubType
    model: Model = field(default_factory=Model)
    open: list[Ids] = field(default_factory=list)
    known: dict[Place, Received] = field(default_factory=dict)

    async def take(self, needed: set[Place]) -> None:
        """Take what comes, until this did; nothing comes that is acknowledged in any way."""
        seen = set[Place]()
        async with asyncio.timeout(20):
            while True:
                for one in await self.client.received():
                    place = one.place.entryId, one.index
                    seen.add(place)
                    self.known[place] = one
                assert seen <= self.model.left
                if needed <= seen:
                    return

    async def step(self, action: str, first: int, second: int) -> None:
        model, client = self.model, self.client
        needed = set[Place]()
        if action == "publish":
            values = [b"%d %d" % (model.entries, index) for index in range(BATCH)]
            await client.write(*values)
            needed = {(model.entries, index) for index in range(BATCH)}
            model.entries += 1
        elif action == "begin":
            self.open.append(await client.begin())
            model.pending.append(set())
        elif action == "reconnect":
            await self.reconnect()
            needed = model.left
        elif action in {"commit", "abort"} and self.open:
            at = first % len(self.open)
            ids, places = self.open.pop(at), model.pending.pop(at)
            if action == "commit":
                model.acked |= places
            needed = places - model.acked if action == "abort" else set()
            assert not (await client.end(ids, commit=action == "commit")).HasField("error")
        elif action in {"whole", "part", "for good"} and self.known:
            await self.acknowledge(action, first, second)
        await self.take(needed)

    async def acknowledge(self, action: str, first: int, second: int) -> None:
        model, places = self.model, sorted(self.known)
        place = places[first % len(places)]
        message, named = self.known[place], {place}
        if action != "part":
            named = {(place[0], index) for index in range(BATCH)}
        if action == "for good":
            model.acked |= named
            assert not (await self.client.acknowledge(message)).HasField("error")
            return
        if not self.open:
            return
        at = second % len(self.open)
        conflict = bool(named & model.held) or named <= model.acked
        one = message.alone(BATCH) if action == "part" else message
        answer = await self.client.acknowledge(one, ids=self.open[at])
        assert answer.HasField("error") is conflict
        assert not conflict or answer.error == pb.TransactionConflict
        if not conflict:
            model.pending[at] |= named

    async def reconnect(self) -> None:
        await self.client.ask("CLOSE_CONSUMER", consumer_id=0)
        await self.client.received()  # what came before
        await self.client.subscribe(self.kind)


@pytest.mark.parametrize("kind", KINDS, ids=pb.CommandSubscribe.SubType.Name)
@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(steps=STEPS)
def test_what_is_acknowledged_is_what_was_committed(
    kind: pb.CommandSubscribe.SubType, steps: list[tuple[str, int, int]]
) -> None:
    async def test(client: TransactionalClient, _: Context) -> None:
        await client.subscribe(kind)
        history = History(client, kind)
        for step in [("publish", 0, 0), ("begin", 0, 0), ("publish", 0, 0), *steps]:
            await history.step(*step)
        while history.open:
            await history.step("abort", 0, 0)
        await history.step("reconnect", 0, 0)

    in_memory = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=in_memory) as folder:
        with_transactions(Path(folder), test)
