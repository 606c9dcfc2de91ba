"""Runs of several nodes that share leases: their plan, their faults, the quiet end, the result."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, TypeAlias

from router.coordination import Lease
from router.coordination.zookeeper.names import LEASES, unescape
from tests.simulation import seeded
from tests.simulation.broker import capture_log
from tests.simulation.fronts import CHROOT, TOPIC, FrontNode, Kafka, kept_in
from tests.simulation.history import GroupPartition, History, PartitionName
from tests.simulation.lease_clients import LeaseWorker
from tests.simulation.loop import ProcessLoop, Scheduler
from tests.simulation.network import Network
from tests.simulation.plan import Plan, Result
from tests.simulation.seeded import CLOCK
from tests.simulation.workers import GoneError, PulsarPeer
from tests.simulation.zookeeper import Ensemble

FAULTS: Final = (
    "kill",
    "stop",
    "pause of a broker",
    "pause of workers",
    "pause of a machine",
    "cut from ZooKeeper",
    "cut from Kafka",
    "reset",
    "silence",
    "ZooKeeper away",
    "slow ZooKeeper",
    "reset of a worker",
    "recall",
)
SECONDS: Final = (0.1, 1.0, 3.0, 8.0, 20.0)
"""Around the time of a session, and of what is certain of it."""
TAKEOVER_SECONDS: Final = 60.0
"""Without faults all that was published must have been delivered in this time."""
IDLE_SECONDS: Final = 120.0
"""After so long without a poll nothing is kept: idle ids are forgotten, and folders are swept."""
STOP_SECONDS: Final = 60.0


@dataclass(frozen=True)
class LeasePlan:
    """A run of several nodes; `workers` are those of each node, and of each group."""

    seed: str
    hours: float = 0.25
    nodes: int = 3
    partitions: int = 4
    groups: int = 2
    workers: int = 2
    shared_ids: bool = True
    """The consumer ids of one node's workers are those of the others', too."""
    mean_pause: float = 3.0
    fault_seconds: float = 20.0
    faults: tuple[str, ...] = FAULTS

    @classmethod
    def from_seed(cls, seed: str, hours: float) -> LeasePlan:
        """Return the plan that a seed stands for."""
        chance = Random(f"{seed}:nodes")
        return cls(
            seed,
            hours,
            nodes=chance.choice((2, 2, 3)),
            partitions=chance.choice((1, 3, 6)),
            groups=chance.choice((1, 2)),
            workers=chance.choice((1, 2, 3)),
            shared_ids=chance.random() < 0.5,
            mean_pause=chance.choice((0.3, 2.0, 8.0)),
            fault_seconds=chance.choice((5.0, 20.0, 60.0)),
            faults=tuple(fault for fault in FAULTS if chance.random() < 0.6),
        )

    def smaller(self) -> list[LeasePlan]:
        """Return plans that do less, each in one respect; those that save most come first."""
        found = [replace(self, hours=self.hours * share) for share in (0.1, 0.5, 0.8)]
        found += [
            replace(self, faults=tuple(one for one in self.faults if one != fault))
            for fault in self.faults
        ]
        for name, least in (("nodes", 1), ("partitions", 1), ("groups", 1), ("workers", 1)):
            if (count := getattr(self, name)) > least:
                changed: dict[str, Any] = {name: count - 1}
                found.append(replace(self, **changed))
        return found


AnyPlan: TypeAlias = Plan | LeasePlan


class LeaseRun:
    """A plan under way."""

    def __init__(self, plan: LeasePlan, *, keeps_trace: bool = False) -> None:
        seeded.reseed(plan.seed)
        CLOCK.__init__()  # type: ignore[misc] # the modules of the router keep its methods
        self.plan = plan
        self.history = history = History()
        if keeps_trace:
            history.lines = []
        self.scheduler = Scheduler()
        network_loop = self._process("network")
        self.loop = self._process("clients")
        self.network = Network(plan.seed, network_loop, history.carried)
        self.ensemble = Ensemble(plan.seed, network_loop, history)
        self.kafka = Kafka(plan.seed, network_loop, history, plan.partitions)
        self.nodes = [
            FrontNode(number, plan.seed, self.scheduler, self.network, self.ensemble, history)
            for number in range(plan.nodes)
        ]
        self.ensemble.changed = self._check_queue
        self.chance = Random(f"{plan.seed}:faults")
        self.workers: list[LeaseWorker] = []
        self.is_quiet = False
        self._tasks: list[asyncio.Task[Any]] = []

    def _process(self, name: str) -> ProcessLoop:
        loop = ProcessLoop(name, self.scheduler, Random(f"{self.plan.seed}:{name}"))
        loop.on_error = self._failed
        return loop

    def _failed(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.history.violation("the simulation failed", repr(error))
        if isinstance(error, BaseException):
            raise error

    def _check_queue(self, folder: str) -> None:
        parts = folder.removeprefix(f"{CHROOT}{LEASES}/").split("/")
        if folder.startswith(f"{CHROOT}{LEASES}/") and len(parts) == 3:
            topic, group, partition = map(unescape, parts)
            lease = Lease(topic, group, int(partition))
            for node in self.nodes:
                node.check_held(lease)

    def go(self) -> Result:
        """Run to the end."""
        history = self.history
        capture_log(history)
        for node in self.nodes:
            node.workers.on_error = self._failed
            node.start()
        self.loop.call_soon(self._begin)
        self._run(CLOCK.now + self.plan.hours * 3600, until_settled=False)
        self._be_quiet()
        if not history.violations:
            self._run(CLOCK.now + TAKEOVER_SECONDS, until_settled=True)
            if not self._has_settled() and not history.violations:
                missing = [group for group in history.groups if history.missing(group)]
                history.violation("not settled after the quiet time", repr(missing))
            history.check_end()
        if not history.violations:
            self._end()
        return Result(
            history.violations,
            history.digest(),
            history.counts | {"steps": self.scheduler.steps},
            CLOCK.now - 1000.0,
            history.lines,
        )

    def _run(self, until: float, *, until_settled: bool) -> None:
        violations = self.history.violations
        self.scheduler.run(
            until, lambda: bool(violations) or (until_settled and self._has_settled())
        )

    def _has_settled(self) -> bool:
        return not any(self.history.missing(group) for group in self.history.groups)

    def _begin(self) -> None:
        plan = self.plan
        for group in range(plan.groups):
            for partition in range(plan.partitions):
                at = GroupPartition(PartitionName(TOPIC, partition), f"g{group}")
                self.history.progress(at).starts_at_zero = True
        for place, node in enumerate(self.nodes):
            for number in range(plan.groups * plan.workers):
                own = number // plan.groups
                consumer = f"c{own}" if plan.shared_ids else f"c{place}-{own}"
                name = f"g{number % plan.groups}"
                worker = LeaseWorker(node, self.kafka, number, name, consumer, plan.mean_pause)
                self.workers.append(worker)
                self._spawn(node.workers, worker.run())
        self._spawn(self.loop, self._publish())
        if plan.faults:
            self._spawn(self.loop, self._strike_often())

    def _spawn(self, loop: ProcessLoop, work: Any) -> None:
        task = loop.create_task(work)
        task.add_done_callback(self._check_task)
        self._tasks.append(task)

    def _check_task(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            import traceback  # noqa: PLC0415 - for a failure

            text = "".join(traceback.format_exception(error))
            self.history.violation("a client of the simulation failed", text)

    async def _publish(self) -> None:
        """Append to Kafka's partitions, which take all that they are given."""
        chance, number = Random(f"{self.plan.seed}:publisher"), 0
        while not self.is_quiet:
            await asyncio.sleep(chance.expovariate(1 / self.plan.mean_pause))
            partition = chance.randrange(self.plan.partitions)
            names = [f"p0:{number + more}" for more in range(1, chance.choice((1, 1, 3, 10)) + 1)]
            number += len(names)
            self.kafka.logs[partition] += names
            self.history.published(PartitionName(TOPIC, partition), names, CLOCK.now)

    async def _strike_often(self) -> None:
        while True:
            await asyncio.sleep(self.chance.expovariate(1 / self.plan.fault_seconds))
            if self.is_quiet:
                return
            fault, node = self.chance.choice(self.plan.faults), self.chance.choice(self.nodes)
            self.history.count(f"fault: {fault}")
            self.history.trace("fault", f"{fault} {node.name}")
            self._strike(fault, node, self.chance.choice(SECONDS))

    def _strike(  # noqa: C901 - one case for each fault
        self, fault: str, node: FrontNode, seconds: float
    ) -> None:
        ensemble = self.ensemble
        own = [one for one in ensemble.connections if one.client.loop is node.loop]
        match fault:
            case "kill":
                node.kill()
            case "stop":
                node.stop()
            case "pause of a broker":
                node.pause(seconds, broker=True, workers=False)
            case "pause of workers":
                node.pause(seconds, broker=False, workers=True)
            case "pause of a machine":
                node.pause(seconds, broker=True, workers=True)
            case "cut from ZooKeeper":
                node.place.cut_until = CLOCK.now + seconds
            case "cut from Kafka":
                node.kafka_cut_until = CLOCK.now + seconds
            case "reset" | "silence":
                for connection in own:
                    ensemble.lose(connection, told=fault == "reset")
            case "ZooKeeper away":
                ensemble.lose_all(seconds)
            case "slow ZooKeeper":
                ensemble.slow_seconds = self.chance.choice((0.0, 0.0, 0.5, 2.0))
            case "reset of a worker":
                links = [one for one in self.network.links.values() if one.socket.name == node.name]
                if links:
                    self.chance.choice(links).reset()
            case "recall":
                self._spawn(node.workers, self._recall(node))

    async def _recall(self, node: FrontNode) -> None:
        """Have retained claims released, as before a group is reset."""
        group = f"g{self.chance.randrange(self.plan.groups)}"
        try:
            peer = await PulsarPeer.open(node.world, node.name)
            await peer.admin(recall={"topic": TOPIC, "subscription": group})
        except GoneError:
            return
        peer.stream.close()

    def _be_quiet(self) -> None:
        """End all faults."""
        self.history.trace("quiet")
        self.is_quiet = True
        self.ensemble.away_until = self.ensemble.slow_seconds = 0.0
        for node in self.nodes:
            node.world.is_quiet = True
            node.place.cut_until = node.kafka_cut_until = 0.0
            for loop in (node.loop, node.workers):
                if loop is not None:
                    loop.resume()

    def _end(self) -> None:
        """Check that nothing is kept once no consumer polls, and stop."""
        for worker in self.workers:
            worker.is_stopped = True
        self._run(CLOCK.now + IDLE_SECONDS, until_settled=False)
        if left := kept_in(self.ensemble):
            self.history.violation("ZooKeeper keeps what nothing uses", repr(left))
        for node in self.nodes:
            node.wants_to_run = False
            node.stop()
        self._run(CLOCK.now + STOP_SECONDS, until_settled=False)
        for node in self.nodes:
            if node.loop is not None:
                self.history.violation("a broker does not stop", node.name)
        if self.ensemble.sessions:
            self.history.violation("a session is not ended", repr(list(self.ensemble.sessions)))
