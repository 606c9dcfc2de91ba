"""A client that creates and deletes topics, and looks whether deleted ones come back."""

from __future__ import annotations

from typing import Final

from tests.simulation.protocols import Client
from tests.simulation.workers import PulsarPeer, World

NOT_FOUND: Final = "topic-not-found"
EXISTS: Final = "topic-exists"
LOOKS_AT: Final = 5
"""Deleted topics that are looked for after each deletion."""


class Administrator(Client):
    """Creates a topic with a group, deletes it, and does not expect to see it again."""

    def __init__(self, world: World, name: str, mean: float) -> None:
        super().__init__(world, name, mean)
        self._number = 0
        self._deleted: list[str] = []

    async def work(self) -> None:
        peer = await PulsarPeer.open(self.world, "node")
        while not self.world.is_quiet:
            topic = f"persistent://public/default/{self.name}-{self._number}"
            if await self._create(peer, topic) and await self._delete(peer, topic):
                self._number += 1
                self._deleted.append(topic)
                self.world.history.count("topics deleted")
            for gone in self.chance.sample(self._deleted, min(LOOKS_AT, len(self._deleted))):
                await self._look_for(peer, gone)
            await self.world.pause(self.chance, 5 * self.mean)
        for gone in self._deleted:
            await self._look_for(peer, gone)
        self.empty_in_quiet += 1
        peer.stream.close()

    async def _create(self, peer: PulsarPeer, topic: str) -> bool:
        answer = await peer.admin(create_topic={"topic": topic, "partitions": 2})
        if answer.HasField("code") and answer.code != EXISTS:
            return False
        group = {"topic": topic, "subscription": "g", "earliest": True}
        return not (await peer.admin(create_subscription=group)).HasField("code")

    async def _delete(self, peer: PulsarPeer, topic: str) -> bool:
        answer = await peer.admin(delete_topic={"topic": topic})
        return not answer.HasField("code") or answer.code == NOT_FOUND

    async def _look_for(self, peer: PulsarPeer, topic: str) -> None:
        answer = await peer.admin(describe_topic={"topic": topic})
        if not answer.HasField("code"):
            self.world.history.violation("a deleted topic came back", topic)
