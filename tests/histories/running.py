"""A round: one history of each scenario from one running router, while faults strike it."""

from __future__ import annotations

import contextlib
import random
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tests.histories.faults import Faults, Progress, plan
from tests.histories.members import ClassicGroup, ConsumerProtocolGroup
from tests.histories.pools import FailoverPool, KeyedPool, Pool
from tests.histories.pulsar_transactions import PulsarTransactions
from tests.histories.recording import History, RefusedError
from tests.histories.scenarios import (
    BatchLog,
    Bucket,
    Cursor,
    LimitedStream,
    Ports,
    Queue,
    Scenario,
    Step,
    StreamLog,
    Topic,
    TopicLog,
)
from tests.histories.transactions import Transactions
from tests.ports import free_port
from tests.servers.proxy import TcpProxy
from tests.system.stack import Stack
from tests.system.traffic import started

SCENARIOS: Final[tuple[type[Scenario], ...]] = (
    TopicLog,
    BatchLog,
    StreamLog,
    LimitedStream,
    Cursor,
    Queue,
    Pool,
    FailoverPool,
    KeyedPool,
    Bucket,
    Topic,
    ClassicGroup,
    ConsumerProtocolGroup,
    Transactions,
    PulsarTransactions,
)
STEPS: Final = 25
"""Operations of a client in one history."""
FAULTS: Final = 2
REFUSED_SECONDS: Final = 0.02
ROUND_SECONDS: Final = 100.0
DISK_BYTES: Final = 128 << 20
SETTINGS: Final = {
    # A disk that is full ends the broker; above a reserve it would refuse and go on.
    "storage_reserve": "0",
    "storage_journal": "1M",
    "storage_segment": "512K",
    "storage_cache": "1M",
    "consume_idle": "1s",
    "broker_kafka_rebalance_delay": "0s",
}


@dataclass
class Router:
    """A router whose clients come through proxies: HTTP, Kafka, NATS and Pulsar."""

    stack: Stack
    proxies: list[TcpProxy]

    @property
    def ports(self) -> Ports:
        """Where its clients connect to."""
        return Ports(*(proxy.port for proxy in self.proxies))


@contextlib.contextmanager
def running(folder: Path, **settings: str) -> Iterator[Router]:
    """Run a router on a small disk while the block lasts."""
    kafka, nats, pulsar = (f"127.0.0.1:{free_port()}" for _ in range(3))
    listeners = {"broker_kafka": kafka, "broker_nats": nats, "broker_pulsar": pulsar}
    with contextlib.ExitStack() as stacks:
        proxies = [stacks.enter_context(TcpProxy(address)) for address in (kafka, nats, pulsar)]
        # The official client goes where a lookup sends it.
        listeners["broker_advertised"] = f"pulsar://{proxies[-1].address}"
        stacks.enter_context(mounted(folder / "data"))
        given = SETTINGS | listeners | settings
        stack = stacks.enter_context(started(folder, "--workers", "2", **given))
        stack.wait_ready()
        http = stacks.enter_context(TcpProxy(f"127.0.0.1:{stack.port}"))
        yield Router(stack, [http, *proxies])


@contextlib.contextmanager
def mounted(folder: Path) -> Iterator[None]:
    """Mount a small disk while the block lasts, which needs root."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"run the tests with sudo, to mount a tmpfs: {done.stderr}"
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def record_round(
    router: Router,
    seed: str,
    scenarios: Sequence[type[Scenario]] = SCENARIOS,
    *,
    faults: int = FAULTS,
    steps: int = STEPS,
) -> tuple[list[History], list[str]]:
    """Return a history of each scenario, and which faults struck; the seed chooses everything."""
    made = [kind(router.ports, name_of(kind, seed)) for kind in scenarios]
    try:
        for scenario in made:
            scenario.prepare()
        struck = _strike_while_working(router, seed, made, faults, steps)
        router.stack.wait_ready()
        for scenario in made:
            insist(scenario.conclude)
    finally:
        for scenario in made:
            scenario.close()
    return [scenario.history for scenario in made], struck


def record_in_turn(
    router: Router,
    seed: str,
    kind: type[Scenario],
    *,
    steps: int,
    between: Callable[[], None] | None = None,
) -> History:
    """Return a history of clients of which one works at a time, without faults.

    `between` is called once, after half of the steps.
    """
    chance = random.Random(seed)
    scenario = kind(router.ports, name_of(kind, seed))
    try:
        scenario.prepare()
        workers = scenario.workers()
        for place in range(steps):
            if between is not None and place == steps // 2:
                between()
            insist(partial(chance.choice(workers), chance))
        scenario.conclude()
    finally:
        scenario.close()
    return scenario.history


def name_of(kind: type[Scenario], seed: str) -> str:
    """Return the name of the topic, stream or bucket of a round."""
    return re.sub(r"\W", "_", f"{kind.label}_{seed}")


def _strike_while_working(
    router: Router, seed: str, scenarios: list[Scenario], faults: int, steps: int
) -> list[str]:
    histories = [scenario.history for scenario in scenarios]
    disk = router.stack.folder / "data"
    striking = Faults(router.stack, router.proxies, histories, disk)

    def strike(operations: int, progress: Progress) -> None:
        planned = plan(random.Random(seed), operations, faults, len(router.proxies))
        striking.run(planned, progress)

    work_while(strike, seed, scenarios, steps)
    return striking.struck


def work_while(
    strike: Callable[[int, Progress], None], seed: str, scenarios: Sequence[Scenario], steps: int
) -> None:
    """Have all clients work; `strike` is called with the number of their operations meanwhile."""
    progress = Progress()
    workers = [
        _Worker(step, random.Random(f"{seed} {scenario.label} {number}"), steps, progress)
        for scenario in scenarios
        for number, step in enumerate(scenario.workers())
    ]
    for worker in workers:
        worker.start()
    try:
        strike(steps * len(workers), progress)
    finally:
        until = time.monotonic() + ROUND_SECONDS
        for worker in workers:
            worker.join(max(0.0, until - time.monotonic()))
    assert not any(worker.is_alive() for worker in workers), "a call was never answered"
    for worker in workers:
        if worker.failure is not None:
            raise worker.failure


class _Worker(threading.Thread):
    """A client: so many operations by chance, one after the other."""

    def __init__(self, step: Step, chance: random.Random, steps: int, progress: Progress) -> None:
        super().__init__(daemon=True)
        self.failure: Exception | None = None
        self._step = step
        self._chance = chance
        self._steps = steps
        self._progress = progress

    def run(self) -> None:
        """Work; a refused operation is tried again, as another one, until the deadline."""
        until = time.monotonic() + ROUND_SECONDS / 2
        try:
            for _ in range(self._steps):
                while not self._done() and time.monotonic() < until:
                    time.sleep(REFUSED_SECONDS)
                self._progress.tick()
        except Exception as error:  # noqa: BLE001 - raised by the thread that waits for this one
            self.failure = error

    def _done(self) -> bool:
        try:
            self._step(self._chance)
        except RefusedError:
            return False
        return True


def insist(conclude: Callable[[], None]) -> None:
    """Call until it is not refused, as a proxy does when its target has just come back."""
    until = time.monotonic() + ROUND_SECONDS / 2
    while True:
        try:
            conclude()
        except RefusedError:
            assert time.monotonic() < until, "refused for good"
            time.sleep(REFUSED_SECONDS)
        else:
            return
