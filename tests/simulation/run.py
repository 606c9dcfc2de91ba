"""One run of the simulation: the world of a plan, its faults, the quiet end, and the result."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.simulation import seeded
from tests.simulation.administration import Administrator
from tests.simulation.broker import Node, capture_log, settings_of
from tests.simulation.history import GroupPartition, History, PartitionName
from tests.simulation.kafka_clients import KafkaPublisher, KafkaReader
from tests.simulation.loop import ProcessLoop, Scheduler
from tests.simulation.nats_clients import NatsPublisher, NatsPuller
from tests.simulation.network import Network
from tests.simulation.plan import Plan
from tests.simulation.protocols import Client
from tests.simulation.pulsar_clients import PulsarPublisher, PulsarSubscriber
from tests.simulation.seeded import CLOCK
from tests.simulation.workers import GoneError, Poller, Publisher, PulsarPeer, World

IN_MEMORY: Final = Path("/dev/shm")
QUIET_SECONDS: Final = 3600.0
"""All must have been delivered after so long without a fault."""
STOP_SECONDS: Final = 60.0
EMPTY_POLLS: Final = 3


@dataclass
class Result:
    """What came of a run: what must not have been, the hash of its trace, and what happened."""

    violations: list[str]
    digest: str
    counts: dict[str, int]
    seconds: float
    lines: list[str] | None = None


class Run:
    """A plan under way."""

    def __init__(self, plan: Plan, *, keeps_trace: bool = False) -> None:
        seeded.reseed(plan.seed)
        CLOCK.__init__()  # type: ignore[misc] # the modules of the router keep its methods
        self.plan = plan
        self.history = history = History()
        if keeps_trace:
            history.lines = []
        self.scheduler = Scheduler()
        self.loop = self._process("clients")
        self.network = Network(plan.seed, self._process("network"), history.carried)
        self.node = Node(
            plan.seed, self.scheduler, self.network, history, settings_of(plan.options)
        )
        self.world = World(plan.seed, self.loop, self.network, history)
        self.chance = Random(f"{plan.seed}:faults")
        self.pollers: list[Poller | Client] = []
        self.publishing: list[asyncio.Task[Any]] = []
        self.others: list[asyncio.Task[Any]] = []
        self.is_published = False

    def _process(self, name: str) -> ProcessLoop:
        loop = ProcessLoop(name, self.scheduler, Random(f"{self.plan.seed}:{name}"))

        def failed(context: dict[str, Any]) -> None:
            error = context.get("exception")
            self.history.violation(f"the simulation failed ({name})", repr(error))
            if isinstance(error, BaseException):
                raise error

        loop.on_error = failed
        return loop

    def go(self) -> Result:
        """Run to the end."""
        capture_log(self.history)
        self.node.start()
        self.loop.call_soon(self._begin)
        end = CLOCK.now + self.plan.hours * 3600
        self._run(end, lambda: bool(self.history.violations))
        if not self.history.violations:
            self._heal()
            self._run(CLOCK.now + QUIET_SECONDS, self._has_settled)
        if not self.history.violations:
            if not self._has_settled():
                self.history.violation("not settled after the quiet time", self._unsettled())
            self.history.check_end()
            self.node.wants_to_run = False
            self.node.stop()
            self._run(CLOCK.now + STOP_SECONDS, lambda: self.node.loop is None)
            if self.node.loop is not None:
                self.history.violation("the broker does not stop", "")
        history = self.history
        counts = {**history.counts, **self.node.counts}
        counts["steps"] = self.scheduler.steps
        return Result(
            history.violations, history.digest(), counts, CLOCK.now - 1000.0, history.lines
        )

    def _run(self, until: float, ended: Callable[[], bool]) -> None:
        self.scheduler.run(until, ended)

    def _begin(self) -> None:
        self.loop.create_task(self._set_up()).add_done_callback(self._check_task)

    def _check_task(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            import traceback  # noqa: PLC0415 - for a failure

            text = "".join(traceback.format_exception(error))
            self.history.violation("a client of the simulation failed", text)

    async def _set_up(self) -> None:
        plan, world = self.plan, self.world
        topics = [(f"persistent://public/default/{name}", count) for name, count in plan.topics]
        for topic, partitions in topics:
            await self._create(topic, partitions)
        number = 0
        for topic, partitions in topics:
            for group in range(plan.groups):
                for _ in range(max(1, plan.pollers // plan.groups // len(topics))):
                    poller = Poller(world, number, topic, f"g{group}", plan.mean_pause)
                    self.pollers.append(poller)
                    self._spawn(poller.run(), self.others)
                    number += 1
                for partition in range(partitions) if partitions else [-1]:
                    name = GroupPartition(PartitionName(topic, partition), f"g{group}")
                    self.history.progress(name).starts_at_zero = True
        for number in range(plan.publishers):
            topic, partitions = topics[number % len(topics)]
            publisher = Publisher(world, number, topic, partitions, plan.mean_pause)
            self._spawn(publisher.run(), self.publishing)
        await self._start_protocols()
        if plan.faults:
            self._spawn(self._break_things(), self.others)

    async def _start_protocols(self) -> None:
        """Begin the clients of Pulsar, Kafka and NATS, which have topics of their own."""
        plan, world, mean = self.plan, self.world, self.plan.mean_pause
        if plan.pulsar:
            topic = "persistent://public/default/pulsar"
            await self._create(topic, plan.pulsar)
            for number in range(plan.pulsar):
                publisher = PulsarPublisher(world, f"pp{number}", topic, number, mean)
                self._spawn_pair(
                    publisher, PulsarSubscriber(world, f"pc{number}", topic, number, mean)
                )
        if plan.kafka:
            await self._create("persistent://public/default/kafka", plan.kafka)
            for number in range(plan.kafka):
                self._spawn_pair(
                    KafkaPublisher(world, f"kp{number}", "kafka", number, mean),
                    KafkaReader(world, f"kc{number}", "kafka", number, mean),
                )
        for number in range(plan.nats):
            self._spawn_pair(
                NatsPublisher(world, f"np{number}", mean), NatsPuller(world, f"nc{number}", mean)
            )

        if plan.administrators:
            administrator = Administrator(world, "a0", mean)
            self._spawn(administrator.run(), self.others)
            self.pollers.append(administrator)

    def _spawn_pair(self, publisher: Client, consumer: Client) -> None:
        self._spawn(publisher.run(), self.publishing)
        self._spawn(consumer.run(), self.others)
        self.pollers.append(consumer)

    def _spawn(self, work: Any, tasks: list[asyncio.Task[Any]]) -> None:
        task = self.loop.create_task(work)
        task.add_done_callback(self._check_task)
        tasks.append(task)

    async def _create(self, topic: str, partitions: int) -> None:
        while True:
            try:
                peer = await PulsarPeer.open(self.world, "node")
                await peer.admin(create_topic={"topic": topic, "partitions": partitions})
            except GoneError:
                await asyncio.sleep(1)
            else:
                peer.stream.close()
                return

    def _has_settled(self) -> bool:
        if self.history.violations:
            return True
        if not self.publishing or not all(task.done() for task in self.publishing):
            return False
        if not self.is_published:
            self.is_published = True
            for poller in self.pollers:
                poller.empty_in_quiet = 0
        return all(poller.empty_in_quiet >= EMPTY_POLLS for poller in self.pollers)

    def _unsettled(self) -> str:
        waiting = [poller.name for poller in self.pollers if poller.empty_in_quiet < EMPTY_POLLS]
        return f"{sum(not task.done() for task in self.publishing)} publishers, {waiting}"

    # Faults.

    async def _break_things(self) -> None:
        while True:
            await asyncio.sleep(self.chance.expovariate(1 / self.plan.fault_seconds))
            if self.world.is_quiet:
                return
            fault = self.chance.choice(self.plan.faults)
            self.history.count(f"fault: {fault}")
            self.history.trace("fault", fault)
            self._break(fault)

    def _break(self, fault: str) -> None:  # noqa: C901 - one case for each fault
        node, chance = self.node, self.chance
        links = list(self.network.links.values())
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
            case "full disk":
                node.disk.space = 1000
                self.loop.call_later(chance.uniform(1, 60), self._free_space)
            case "failed write":
                self._fail(errno.EIO, ("sync_data", "write", "sync_folder", "sync_all"))
            case "no space at a write":
                self._fail(errno.ENOSPC, ("write", "sync_data"))

    def _fail(self, error: int, names: tuple[str, ...]) -> None:
        disk = self.node.disk
        disk.fail_at, disk.fail_with = disk.count + self.chance.randint(1, 60), error
        disk.fails_on = names

    def _free_space(self) -> None:
        self.node.disk.space = 1 << 40

    def _heal(self) -> None:
        self.world.is_quiet = True
        self.history.trace("quiet")
        self._free_space()
        node = self.node
        node.latency.factor, node.latency.stall = 1.0, 0.0
        node.disk.fail_at = node.disk.cut_at = 0
        for link in self.network.links.values():
            link.held_until = 0.0


def run(plan: Plan, *, keeps_trace: bool = False) -> Result:
    """Run a plan in a folder of its own."""
    home = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None
    folder, before = tempfile.mkdtemp(prefix="router-simulation-", dir=home), Path.cwd()
    os.chdir(folder)
    try:
        return Run(plan, keeps_trace=keeps_trace).go()
    finally:
        os.chdir(before)
        shutil.rmtree(folder, ignore_errors=True)
