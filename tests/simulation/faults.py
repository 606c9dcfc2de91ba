"""The faults of a run: which strikes next, where, and the end of all of them."""

from __future__ import annotations

import asyncio
import errno
from random import Random
from typing import Final

from tests.simulation.broker import Node
from tests.simulation.plan import Plan
from tests.simulation.seeded import CLOCK
from tests.simulation.workers import World

PLENTY_BYTES: Final = 1 << 40


class Faults:
    """Strikes a node and the network around it, at times that the plan's seed chooses."""

    def __init__(self, plan: Plan, world: World, node: Node) -> None:
        self._plan, self._world, self._node = plan, world, node
        self._chance = Random(f"{plan.seed}:faults")
        self._cut: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Strike until the world is quiet."""
        history = self._world.history
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / self._plan.fault_seconds))
            if self._world.is_quiet:
                return
            fault = self._chance.choice(self._plan.faults)
            history.count(f"fault: {fault}")
            history.trace("fault", fault)
            self._strike(fault)

    def heal(self) -> None:
        """End all faults that last."""
        self._free_space()
        node = self._node
        node.latency.factor, node.latency.stall, node.latency.on_stall = 1.0, 0.0, None
        if self._cut is not None:
            self._cut.cancel()
        node.disk.fail_at = node.disk.cut_at = 0
        node.disk.unreadable_until = 0.0
        node.disk.rewrite_fault = None
        for link in self._world.network.links.values():
            link.held_until = 0.0

    def _strike(self, fault: str) -> None:  # noqa: C901 - one case for each fault
        node, chance = self._node, self._chance
        links = list(self._world.network.links.values())
        link = chance.choice(links) if links else None
        match fault:
            case "kill":
                node.kill()
            case "power cut":
                node.cut_power()
            case "power cut at an operation":
                node.disk.cut_at = node.disk.count + chance.randint(1, 60)
            case "power cut in a start":
                node.cut_power()
                node.disk.cut_at = node.disk.count + chance.randint(1, 80)
            case "stop":
                node.stop()
            case "pause":
                node.pause(chance.choice((0.1, 3.0, 40.0)))
            case "reset" if link is not None:
                link.reset()
            case "cut at a byte" if link is not None:
                link.cut_in = chance.randint(1, 2000)
            case "silence" if link is not None:
                link.silence()
            case "partition":
                until = CLOCK.now + chance.choice((1.0, 10.0, 100.0))
                for one in chance.sample(links, chance.randint(0, len(links))):
                    one.held_until = until
            case "slow disk":
                node.latency.factor = chance.choice((1.0, 10.0, 100.0))
            case "stalled sync":
                node.latency.stall = chance.choice((0.5, 5.0, 30.0))
            case "power cut in a stalled sync":
                node.latency.stall = chance.choice((0.5, 5.0, 30.0))
                node.latency.on_stall = self._cut_within
            case "full disk":
                node.disk.space = 1000
                self._world.loop.call_later(chance.uniform(1, 60), self._free_space)
            case "failed read":
                self._fail_reads(chance.choice((0.0, 0.5, 5.0, 30.0)))
            case "failed write":
                self._fail(errno.EIO, ("sync_data", "write", "sync_folder", "sync_all"))
            case "no space at a write":
                self._fail(errno.ENOSPC, ("write", "sync_data"))
            case "power cut in a rewrite":
                node.disk.rewrite_fault = self._cut_soon
            case "failed rewrite":
                node.disk.rewrite_fault = self._fail_soon
            case "bit flip":
                node.disk.flip(chance)

    def _cut_soon(self) -> None:
        self._node.disk.cut_at = self._node.disk.count + self._chance.randint(0, 30)

    def _cut_within(self, seconds: float) -> None:
        after = self._chance.uniform(0, seconds)
        self._cut = self._world.loop.call_later(after, self._node.cut_power)

    def _fail_soon(self) -> None:
        names = ("open", "open to read", "write", "sync_data", "sync_folder", "unlink")
        self._fail(self._chance.choice((errno.EIO, errno.ENOSPC)), names, within=12)

    def _fail(self, error: int, names: tuple[str, ...], within: int = 60) -> None:
        disk = self._node.disk
        disk.fail_at, disk.fail_with = disk.count + self._chance.randint(1, within), error
        disk.fails_on = names

    def _fail_reads(self, seconds: float) -> None:
        """Fail one read, or all of a folder or of the disk for so long.

        The longest outlast what the storage tries again, so that its callers meet the error.
        """
        disk, chance = self._node.disk, self._chance
        if not seconds:
            self._fail(errno.EIO, (chance.choice(("open to read", "pread")),))
            return
        folders = sorted({path.parent for path, one in disk.names.items() if one is not None})
        disk.unreadable = chance.choice([None, chance.choice(folders or [None])])
        disk.unreadable_until = CLOCK.now + seconds

    def _free_space(self) -> None:
        self._node.disk.space = PLENTY_BYTES
