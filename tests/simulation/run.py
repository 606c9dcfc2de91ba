"""One run of the simulation: the world of a plan, its faults, the quiet end, and the result."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.simulation import seeded
from tests.simulation.administration import Administrator
from tests.simulation.bounds import GONE_SECONDS, WORK_SECONDS
from tests.simulation.broker import Node, capture_log, settings_of
from tests.simulation.deletions import DeletionLaw, NatsDeleter, NatsLooker
from tests.simulation.faults import Faults
from tests.simulation.fetching import ExplicitPoller, Fetcher
from tests.simulation.history import GroupPartition, History, PartitionName
from tests.simulation.kafka_clients import KafkaPublisher, KafkaReader
from tests.simulation.kafka_members import KafkaMember
from tests.simulation.lease_run import AnyPlan, LeasePlan, LeaseRun
from tests.simulation.loop import ProcessLoop, Scheduler
from tests.simulation.nats_clients import NatsPublisher, NatsPuller, NatsPushed
from tests.simulation.network import Network
from tests.simulation.plan import Plan, Result
from tests.simulation.protocols import Client
from tests.simulation.pulsar_clients import (
    FailoverSubscriber,
    KeySharedConsumer,
    PulsarConsumer,
    PulsarPublisher,
    PulsarSubscriber,
    SharedConsumer,
)
from tests.simulation.pulsar_transactions import (
    ORDERED_PARTITION,
    TRANSFORMED,
    TRANSFORMED_NAME,
    PulsarTransactionalWriter,
    SharedTransformer,
    Transformer,
)
from tests.simulation.renewals import (
    GROUP,
    RenewalLaw,
    RenewedPoller,
    RenewedPublisher,
    RenewedScanner,
    Renewer,
)
from tests.simulation.seeded import CLOCK
from tests.simulation.stream_renewals import (
    StreamLaw,
    StreamLooker,
    StreamPublisher,
    StreamPuller,
    StreamRenewer,
)
from tests.simulation.table_clients import (
    TOPIC,
    Follower,
    KeyedProducer,
    KeyedWorker,
    Scanner,
    Viewer,
)
from tests.simulation.tables import Tables
from tests.simulation.transactional_clients import (
    COPY,
    SOURCE,
    CommittedReader,
    Copier,
    CopyReader,
    TransactionalWriter,
)
from tests.simulation.transactions import TransactionLaw
from tests.simulation.workers import EMPTY_POLLS, GoneError, Poller, Publisher, PulsarPeer, World

IN_MEMORY: Final = Path("/dev/shm")
FOLDERS: Final = "router-simulation-"
"""What the names of the folders of runs begin with; the number of their process follows."""
QUIET_SECONDS: Final = 3600.0
"""All must have been delivered after so long without a fault."""
STOP_SECONDS: Final = 60.0
DAMAGED_SECONDS: Final = 120.0
"""What is damaged may keep clients from what they wait for, so that this is a time to look."""
TRANSACTED_PARTITIONS: Final = 2
FIRST_RENEWED: Final = 100
"""The number of the first poller of the topic that is made again, behind those of the others."""
EAGER_RATIO: Final = 0.01
COMPACTION: Final[dict[str, float]] = {
    "min_cleanable_dirty_ratio": EAGER_RATIO,
    "min_compaction_lag_ms": 0,
    "delete_retention_ms": 30_000,
}
"""Of the compacted topic, unless a plan has others."""
PULSAR_CONSUMERS: Final[dict[str, tuple[type[PulsarConsumer], int]]] = {
    "exclusive": (PulsarSubscriber, 1),
    "failover": (FailoverSubscriber, 2),
    "shared": (SharedConsumer, 2),
    "key_shared": (KeySharedConsumer, 3),
}
"""By the type of the subscription: a client, and how many of it there are."""


class Run:
    """A plan under way."""

    def __init__(self, plan: Plan, *, keeps_trace: bool = False) -> None:
        seeded.reseed(plan.seed)
        CLOCK.__init__()  # type: ignore[misc] # the modules of the router keep its methods
        self.plan = plan
        self.history = history = History(has_damage=plan.has_damage)
        if keeps_trace:
            history.lines = []
        self.scheduler = Scheduler()
        self.loop = self._process("clients")
        self.network = Network(plan.seed, self._process("network"), history.carried)
        self.node = Node(
            plan.seed, self.scheduler, self.network, history, settings_of(plan.options)
        )
        self.world = World(plan.seed, self.loop, self.network, history)
        self.faults = Faults(plan, self.world, self.node)
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
            self.world.is_quiet = True
            self.history.trace("quiet")
            self.faults.heal()
            quiet = DAMAGED_SECONDS if self.plan.has_damage else QUIET_SECONDS
            self._run(CLOCK.now + quiet, self._has_settled)
        if not self.history.violations:
            if not self._has_settled():
                self.history.violation("not settled after the quiet time", self._unsettled())
            self.history.check_end()
            self._leave()
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

    def _leave(self) -> None:
        """Have all clients go, and check that the broker keeps nothing of them."""
        for task in (*self.publishing, *self.others):
            task.cancel()
        for link in list(self.network.links.values()):
            link.reset()
        self._run(CLOCK.now + GONE_SECONDS, lambda: False)
        before = self.node.tasks()
        self._run(CLOCK.now + WORK_SECONDS, lambda: False)
        if not self.history.violations:
            self.node.check_kept(before)

    def _begin(self) -> None:
        self.loop.create_task(self._set_up()).add_done_callback(self._check_task)

    def _check_task(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            import traceback  # noqa: PLC0415 - for a failure

            text = "".join(traceback.format_exception(error))
            self.history.violation("a client of the simulation failed", text)

    async def _set_up(self) -> None:
        plan = self.plan
        topics = [(f"persistent://public/default/{name}", count) for name, count in plan.topics]
        for topic, partitions in topics:
            await self._create(topic, partitions)
        self._start_node_clients(topics)
        await self._start_protocols()
        if plan.deleters:
            self._start_deleters()
        if plan.renewers:
            self._start_renewal()
        if plan.stream_renewers:
            self._start_stream_renewal()
        if plan.tables:
            await self._start_table()
        if plan.transactions or plan.pulsar_transactions:
            await self._start_transactions()
        if plan.faults:
            self._spawn(self.faults.run(), self.others)

    def _start_node_clients(self, topics: Sequence[tuple[str, int]]) -> None:
        """Begin the clients of the node protocol, on topics with so many partitions."""
        plan, world = self.plan, self.world
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
            for number in range(plan.fetchers):
                names = [f"f{number}" for number in range(plan.fetchers)]
                self._consume(Fetcher(world, names, number, (topic, partitions), plan.mean_pause))
            for number in range(plan.explicit):
                self._consume(
                    ExplicitPoller(world, f"e{number}", (topic, partitions), plan.mean_pause)
                )
        for number in range(plan.publishers):
            topic, partitions = topics[number % len(topics)]
            publisher = Publisher(world, f"p{number}", topic, partitions, plan.mean_pause)
            self._spawn(publisher.run(), self.publishing)

    async def _start_protocols(self) -> None:
        """Begin the clients of Pulsar, Kafka and NATS, which have topics of their own."""
        plan, world, mean = self.plan, self.world, self.plan.mean_pause
        if plan.pulsar:
            topic = "persistent://public/default/pulsar"
            await self._create(topic, plan.pulsar)
            for number in range(plan.pulsar):
                publisher = PulsarPublisher(world, f"pp{number}", topic, number, mean)
                self._spawn(publisher.run(), self.publishing)
                for subscription in plan.subscriptions:
                    kind, count = PULSAR_CONSUMERS[subscription]
                    group = f"{subscription}-{number}"
                    for place in range(count):
                        name = f"{group}-{place}"
                        self._consume(kind(world, name, group, topic, number, mean))
        if plan.kafka:
            await self._create("persistent://public/default/kafka", plan.kafka)
            for number in range(plan.kafka):
                publishing = KafkaPublisher(world, f"kp{number}", "kafka", number, mean)
                self._spawn(publishing.run(), self.publishing)
                self._consume(KafkaReader(world, f"kc{number}", "kafka", number, mean))
            for number in range(plan.members):
                name = f"km{number}"
                self._consume(KafkaMember(world, name, "members", "kafka", plan.kafka, mean))
        for number in range(plan.nats):
            self._spawn(NatsPublisher(world, f"np{number}", mean).run(), self.publishing)
            self._consume(NatsPuller(world, f"nc{number}", mean))
            self._consume(NatsPushed(world, f"nd{number}", mean))
        if plan.administrators:
            self._consume(Administrator(world, "a0", mean))

    def _start_deleters(self) -> None:
        """Begin what deletes from a stream, and what looks whether that stays so."""
        law, mean = DeletionLaw(self.history), self.plan.mean_pause
        self._consume(NatsDeleter(self.world, law, "nx0", mean))
        self._consume(NatsLooker(self.world, law, "nx1", mean))

    def _start_renewal(self) -> None:
        """Begin what deletes a topic with its messages, and the clients of each under its name."""
        world, law, mean = self.world, RenewalLaw(self.history), self.plan.mean_pause
        self._consume(Renewer(world, law, "rn0", mean))
        for number in range(2):
            publisher = RenewedPublisher(world, law, f"rp{number}", mean)
            self._spawn(publisher.run(), self.publishing)
            poller = RenewedPoller(world, law, FIRST_RENEWED + number, mean)
            self.pollers.append(poller)
            self._spawn(poller.run(), self.others)
        self._consume(RenewedScanner(world, law, "rs0", mean))

    def _start_stream_renewal(self) -> None:
        """Begin what deletes a stream, and the clients of each under its name."""
        world, law, mean = self.world, StreamLaw(self.history), self.plan.mean_pause
        self._consume(StreamRenewer(world, law, "sn0", mean))
        for number in range(2):
            publisher = StreamPublisher(world, law, f"sp{number}", mean)
            self._spawn(publisher.run(), self.publishing)
        self._consume(StreamPuller(world, law, GROUP, mean))
        self._consume(StreamLooker(world, law, "sl0", mean))

    async def _start_transactions(self) -> None:
        """Begin the clients of transactions, which have two topics of their own."""
        world, mean, law = self.world, self.plan.mean_pause, TransactionLaw(self.history)
        for topic in (SOURCE, COPY):
            await self._create(f"persistent://public/default/{topic}", TRANSACTED_PARTITIONS)
        for number in range(self.plan.transactions):
            # The first of a pair has an id of its own, the second shares one with its like.
            for kind, transactional_id in (("t", f"own-{number}"), ("s", "shared")):
                name = f"{kind}{number}"
                writer = TransactionalWriter(
                    world, law, name, transactional_id, TRANSACTED_PARTITIONS, mean
                )
                self._spawn(writer.run(), self.publishing)
        for partition in range(TRANSACTED_PARTITIONS):
            for copier in range(2 if partition else 1):
                self._consume(Copier(world, law, f"cp{partition}-{copier}", partition, mean))
            self._consume(CommittedReader(world, law, f"tr{partition}", partition, mean))
            self._consume(CopyReader(world, law.copied, f"cr{partition}", COPY, partition, mean))
        if self.plan.pulsar_transactions:
            await self._start_pulsar_transactions(law)

    async def _start_pulsar_transactions(self, law: TransactionLaw) -> None:
        """Begin writers to the same source, and what copies it to a topic of its own."""
        world, mean = self.world, self.plan.mean_pause
        await self._create(TRANSFORMED_NAME, TRANSACTED_PARTITIONS)
        for number in range(self.plan.pulsar_transactions):
            name = f"pt{number}"
            writer = PulsarTransactionalWriter(world, law, name, TRANSACTED_PARTITIONS, mean)
            self._spawn(writer.run(), self.publishing)
        for partition in range(TRANSACTED_PARTITIONS):
            kind, check = (
                (Transformer, law.copied)
                if partition == ORDERED_PARTITION
                else (SharedTransformer, law.copied_once)
            )
            for number in range(1 if partition == ORDERED_PARTITION else 2):
                self._consume(kind(world, law, f"px{partition}-{number}", partition, mean))
            name = f"py{partition}"
            self._consume(CopyReader(world, check, name, TRANSFORMED, partition, mean))

    async def _start_table(self) -> None:
        """Begin the clients of a compacted topic."""
        plan, world, mean = self.plan, self.world, self.plan.mean_pause
        policies = COMPACTION | plan.table_policies
        topic = (f"persistent://public/default/{TOPIC}", plan.tables)
        await self._create(*topic, policies={"cleanup_policy": "compact", **policies})
        retention = policies["delete_retention_ms"] / 1000
        segment = settings_of(plan.options).number("storage.segment")
        # A rewrite that failed is tried again after an hour; until then much counts as clean.
        is_eager = policies["min_cleanable_dirty_ratio"] == EAGER_RATIO
        tables = Tables(self.history, retention, 3 * segment if is_eager else inf)
        worker = KeyedWorker(world, tables, "tw", topic, mean)
        self._spawn(worker.run(), self.publishing)
        for partition in range(plan.tables):
            producer = KeyedProducer(world, tables, f"tp{partition}", partition, mean)
            self._spawn(producer.run(), self.publishing)
            self._consume(Scanner(world, tables, f"ts{partition}", partition, mean))
            self._consume(Follower(world, tables, f"tf{partition}", partition, mean))
        self._consume(Viewer(world, tables, "tv", topic, mean))

    def _consume(self, consumer: Client) -> None:
        self._spawn(consumer.run(), self.others)
        self.pollers.append(consumer)

    def _spawn(self, work: Any, tasks: list[asyncio.Task[Any]]) -> None:
        task = self.loop.create_task(work)
        task.add_done_callback(self._check_task)
        tasks.append(task)

    async def _create(
        self, topic: str, partitions: int, policies: Mapping[str, Any] | None = None
    ) -> None:
        request = {"topic": topic, "partitions": partitions, "policies": policies}
        while True:
            try:
                peer = await PulsarPeer.open(self.world, "node")
                await peer.admin(create_topic=request)
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
        if not all(poller.empty_in_quiet >= EMPTY_POLLS for poller in self.pollers):
            return False
        # What is in flight at a connection that is lost comes when the broker has found that out.
        history = self.history
        return not any(history.missing(group) or history.held(group) for group in history.groups)

    def _unsettled(self) -> str:
        waiting = [poller.name for poller in self.pollers if poller.empty_in_quiet < EMPTY_POLLS]
        missing = [group for group in self.history.groups if self.history.missing(group)]
        publishing = sum(not task.done() for task in self.publishing)
        held = [group for group in self.history.groups if self.history.held(group)]
        return f"{publishing} publishers, {waiting}, {missing} miss something, {held} hold it"


def run(plan: AnyPlan, *, keeps_trace: bool = False) -> Result:
    """Run a plan in a folder of its own."""
    prefix = f"{FOLDERS}{os.getpid()}-"
    folder, before = tempfile.mkdtemp(prefix=prefix, dir=_home()), Path.cwd()
    os.chdir(folder)
    try:
        if isinstance(plan, LeasePlan):
            return LeaseRun(plan, keeps_trace=keeps_trace).go()
        return Run(plan, keeps_trace=keeps_trace).go()
    finally:
        os.chdir(before)
        shutil.rmtree(folder, ignore_errors=True)


def remove_left() -> None:
    """Remove the folders of runs whose processes were killed."""
    for folder in _home().glob(f"{FOLDERS}*-*"):
        pid = folder.name.removeprefix(FOLDERS).partition("-")[0]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _home() -> Path:
    return IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
