"""Nodes over one Kafka and one ZooKeeper: their brokers as they ship, and Kafka in a few words.

A node's broker has no log: it has the node's leases, which the node's workers claim. What a worker
does with Kafka is simulated here at its requests: reading, and committing what a group has read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from router.broker.consume.membership.leases import Leases
from router.broker.listeners import LISTENERS
from router.broker.running import RunningBroker
from router.broker.transport.listener import Listeners
from router.coordination import Lease
from router.coordination.zookeeper.names import LEASES, lease_path, place
from router.settings import Settings, load
from tests.simulation import seeded
from tests.simulation.broker import RESTART_SECONDS
from tests.simulation.disk import Latency, SimulatedDisk
from tests.simulation.history import History
from tests.simulation.loop import ProcessLoop, Scheduler
from tests.simulation.network import Network
from tests.simulation.seeded import CLOCK
from tests.simulation.workers import GoneError, World
from tests.simulation.zookeeper import Ensemble, Place

TOPIC: Final = "persistent://public/default/shared"
SESSION_SECONDS: Final = 6.0
IDLE_SECONDS: Final = 5.0
RESERVE_SECONDS: Final = SESSION_SECONDS / 3
"""A lease that was confirmed stands for so long at least."""
ANSWER_SECONDS: Final = 4.0
CHROOT: Final = "/nodes"


def settings_of(folder: Path) -> Settings:
    """Return the settings of a node's broker."""
    fixed = {
        "data.dir": str(folder),
        "backend.url": "kafka://127.0.0.1:9092",
        "zookeeper.servers": f"127.0.0.1:2181{CHROOT}",
        "zookeeper.session": f"{SESSION_SECONDS:g}s",
        "consume.idle": f"{IDLE_SECONDS:g}s",
    }
    return load(None, {}, fixed)


class FrontNode:
    """A machine: the broker's process that runs now, and the loop of its workers."""

    def __init__(
        self,
        number: int,
        seed: str,
        scheduler: Scheduler,
        network: Network,
        ensemble: Ensemble,
        history: History,
    ) -> None:
        self.name = f"node-{number}"
        self.folder = Path(self.name)
        self.place, self.kafka_cut_until = Place(), 0.0
        self.chance = Random(f"{seed}:{self.name}")
        self.workers = ProcessLoop(f"{self.name}-workers", scheduler, self.chance)
        self.world = World(seed, self.workers, network, history)
        self.loop: ProcessLoop | None = None
        self.leases: Leases | None = None
        self.wants_to_run = True
        self._seed, self._scheduler, self._network = seed, scheduler, network
        self._ensemble, self._history = ensemble, history
        self._disk = SimulatedDisk(
            Random(f"{seed}:{self.name}:disk"),
            Latency(self.chance),
            lambda event: history.trace(f"{self.name} disk", event),
        )
        self._disk.names[self.folder] = self._disk.synced_names[self.folder] = None
        self._boots = 0
        self._stop: asyncio.Event | None = None
        self._dead: list[Any] = []
        self.folder.mkdir(mode=0o700)

    def _count(self, event: str) -> None:
        self._history.count(f"node: {event}")
        self._history.trace(self.name, event)

    def start(self) -> None:
        """Begin a process of the broker."""
        self._boots += 1
        self._count("start")
        chance = Random(f"{self._seed}:{self.name}:{self._boots}")
        made: Any = ProcessLoop(f"{self.name}-{self._boots}", self._scheduler, chance)
        made.elapsed, made.on_error = self._disk.take_elapsed, self._error
        made.serve = lambda factory, sock: self._network.listen(made, factory, sock)
        made.ensemble, made.place = self._ensemble, self.place
        self.loop = made
        made.call_soon(lambda: made.create_task(self._run(made)))

    def start_later(self) -> None:
        """Begin one as a supervisor does."""
        if self.wants_to_run:
            self._network.loop.call_later(self.chance.uniform(*RESTART_SECONDS), self._start_again)

    def _start_again(self) -> None:
        if self.loop is None:
            self.start()

    async def _run(self, loop: Any) -> None:
        settings = settings_of(self.folder)
        async with AsyncExitStack() as stack:
            listeners = Listeners(LISTENERS, settings)
            broker = await RunningBroker.open(self.folder, settings, listeners, stack, self._disk)
            self.leases = broker._context.leases
            await broker.serve(self.folder)
            self._count("serve")
            stop = self._stop = asyncio.Event()
            await stop.wait()
            self.check_empty()
            await broker.drain()
            await broker.close()
        for _ in range(10):
            await asyncio.sleep(0)
        own = asyncio.current_task(loop)
        if left := [task for task in asyncio.all_tasks(loop) if task is not own]:
            self._history.violation("a task outlives its broker", repr(sorted(map(repr, left))))
        self._ended()
        self.start_later()

    def stop(self) -> None:
        """Have the process end as SIGTERM does."""
        if self._stop is not None:
            self._count("stop")
            self._stop.set()

    def kill(self) -> None:
        """End the process as kill -9 does."""
        if self.loop is None:
            return
        self._count("kill")
        loop: Any = self.loop
        self._dead += asyncio.all_tasks(loop)
        self._ended()
        self.start_later()

    def _ended(self) -> None:
        loop = self.loop
        assert loop is not None
        loop.kill()
        for connection in [one for one in self._ensemble.connections if one.client.loop is loop]:
            self._ensemble.lose(connection, told=False)
        seeded.close_databases(self.folder)
        self._disk = self._disk.reread()
        self._network.machine_went(self.chance, str(self.folder))
        self.loop = self._stop = self.leases = None

    def pause(self, seconds: float, *, broker: bool, workers: bool) -> None:
        """Have the broker, the workers, or both stand still, as SIGSTOP does."""
        for loop in [self.loop if broker else None, self.workers if workers else None]:
            if loop is not None:
                self._count("pause")
                loop.pause()
                self._network.loop.call_later(seconds, loop.resume)

    def is_certain(self, group: str, partition: int) -> bool:
        """Return whether the broker takes a lease for certainly held at this moment."""
        if self.leases is None:
            return False
        found = self.leases._groups.get((TOPIC, group))
        share = found.shares.get(partition) if found else None
        return share is not None and share.held and self.leases._coordinator.is_valid()

    def may_acknowledge(self, group: str, partition: int, generation: int) -> bool:
        """Return whether a worker's grant would be confirmed at this moment."""
        held = self.is_certain(group, partition)
        return (
            held
            and self.leases is not None
            and (self.leases.generation(TOPIC, group, partition) == generation)
        )

    def check_held(self, lease: Lease) -> None:
        """Check that the node is the first of a lease's queue if it is certain to hold it."""
        if self.loop is None or not self.is_certain(lease.subscription, lease.partition):
            return
        first = self._ensemble.first(f"{CHROOT}{lease_path(lease)}")
        found = place(first) if first is not None else None
        if found is None or found.node != self.loop.name:
            text = f"{lease}: {self.loop.name} is certain, and the first of the queue is {found}"
            self._history.violation("two holders of a lease", text)

    def check_empty(self) -> None:
        """Check that nothing is kept for groups that no consumer reads."""
        leases: Any = self.leases
        if self.wants_to_run or leases is None:
            return
        coordinator = leases._coordinator
        kept = {
            "groups": leases._groups,
            "polls": leases._polls,
            "updates": leases._updates,
            "recalls": leases._recalls._ends,
            "queued": leases._recalls._queued,
            "entries": coordinator._entries,
            "leaving": coordinator._leaving,
            "rosters": coordinator._rosters,
            "folders": coordinator._sweep._marked,
        }
        if left := {name: len(found) for name, found in kept.items() if found}:
            self._history.violation("a node keeps what nothing uses", f"{self.name}: {left}")

    def _error(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._history.violation("a callback failed", f"{context.get('message')}: {error!r}")


@dataclass(frozen=True)
class Grant:
    """A grant of a worker of a node, as the laws of holders see it."""

    node: FrontNode
    group: str
    partition: int
    generation: int

    @property
    def is_open(self) -> bool:
        """Return whether it would be confirmed."""
        return self.node.may_acknowledge(self.group, self.partition, self.generation)

    def check(self) -> None:
        """Check that the node holds the lease if it takes it for certainly held."""
        self.node.check_held(Lease(TOPIC, self.group, self.partition))


def kept_in(ensemble: Ensemble) -> list[str]:
    """Return what is left of leases and consumer ids in the tree."""
    roots = (f"{CHROOT}{LEASES}/", f"{CHROOT}/router/ids/")
    return sorted(path for path in ensemble.tree if path.startswith(roots))


class Kafka:
    """Partitions, each a log, and what groups have committed; a request is late, or lost."""

    def __init__(self, seed: str, loop: ProcessLoop, history: History, partitions: int) -> None:
        self.logs: list[list[str]] = [[] for _ in range(partitions)]
        self.committed: dict[tuple[str, int], int] = {}
        self._loop, self._history = loop, history
        self._chance = Random(f"{seed}:kafka")

    async def ask(self, node: FrontNode, work: Callable[[], Any]) -> Any:
        """Return what a request comes to; raise GoneError if there is no answer."""
        workers, answered = node.workers, node.workers.create_future()

        def settle(value: Any) -> None:
            if not answered.done():
                answered.set_result(value)

        def arrive() -> None:
            if node.kafka_cut_until <= CLOCK.now:
                value = work()
                self._loop.call_later(self._delay(), workers.call_soon, settle, value)

        self._loop.call_later(self._delay(), arrive)
        try:
            return await asyncio.wait_for(answered, ANSWER_SECONDS)
        except TimeoutError:
            raise GoneError from None

    def _delay(self) -> float:
        slow = self._chance.random() < 0.02
        return self._chance.uniform(0.0002, 0.25 if slow else 0.01)

    def commit(self, grant: Grant, offset: int, confirmed_at: float) -> bool:
        """Take a commit under a grant that was confirmed at a time.

        One that comes later than a lease is sure to stand, or when the grant does not stand any
        more, is in the gap of `kafka.fencing = deadline` that docs/kafka.md describes: a
        transaction would refuse it, and so it is refused here.
        """
        group, partition = grant.group, grant.partition
        grant.check()
        if CLOCK.now - confirmed_at > RESERVE_SECONDS or not grant.is_open:
            self._history.count("commits behind their lease")
            return False
        before = self.committed.get((group, partition), 0)
        if offset < before:
            text = f"{group} on {partition}: {offset} after {before}"
            self._history.violation("a group went back", text)
        self._history.trace("commit", f"{group} {partition} {offset}")
        self.committed[group, partition] = offset
        return True
