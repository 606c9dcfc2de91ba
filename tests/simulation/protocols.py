"""What all clients of the simulation have in common, whatever protocol they speak."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from random import Random

from tests.simulation.workers import GoneError, World


class Client(ABC):
    """What all of them are: they connect, work, and begin again when the connection is gone."""

    def __init__(self, world: World, name: str, mean: float) -> None:
        self.world, self.name, self.mean = world, name, mean
        self.chance = Random(f"{world.seed}:{name}")
        self.empty_in_quiet = 0

    @property
    def has_work(self) -> bool:
        """Return whether it must go on though it is quiet."""
        return True

    async def run(self) -> None:
        while not self.world.is_quiet or self.has_work:
            try:
                await self.work()
            except GoneError:
                self.world.history.count(f"{type(self).__name__} reconnected")
            await asyncio.sleep(self.chance.uniform(0.01, 2))

    async def pause(self) -> None:
        """Wait until it goes on."""
        await self.world.pause(self.chance, self.mean, self.empty_in_quiet)

    @abstractmethod
    async def work(self) -> None:
        """Connect and work until the connection is gone."""


class Numbered(Client):
    """A publisher, which names its messages and repeats them until they are acknowledged."""

    def __init__(self, world: World, name: str, mean: float) -> None:
        super().__init__(world, name, mean)
        self.number = 0
        self.sent: list[str] = []

    @property
    def has_work(self) -> bool:
        return bool(self.sent)

    def next_messages(self, count: int) -> list[str]:
        first = self.number + 1
        self.number += count
        self.sent = [f"{self.name}:{number}" for number in range(first, first + count)]
        return self.sent


def frequent(mean: float, most: float) -> float:
    """Return the mean pause of clients that do more than others: `most` seconds, if those rest.

    Where others rest for very long they do, too, but do ten times as much.
    """
    return max(min(mean, most), mean / 10)


def value_of(name: str, chance: Random) -> bytes:
    return name.encode() + b" " + b"." * chance.choice((0, 10, 300))
