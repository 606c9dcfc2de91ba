"""A group of two consumer ids on one partition, which all nodes serve: who has it, and what next.

The nodes share a backend and leases in ZooKeeper; appends go past them. One node is enough for the
scenario. What a fault may cost is said by the operation `fault`, which FAULT_SECONDS after its end
allows no more: an acknowledgement that was under way has failed by then. A node that warns, as when
a machine that is too busy lets its session end, is a fault as well.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import product
from typing import Final

from tests.histories.faults import Progress
from tests.histories.http_client import HttpConnection
from tests.histories.recording import History, Operation, Output
from tests.histories.running import insist, work_while
from tests.histories.scenarios import (
    LOST,
    MAX_POLLS,
    Ports,
    Scenario,
    Step,
    read_all,
    required,
)
from tests.servers.proxy import TcpProxy
from tests.system.nodes import SECONDS, SESSION, Cluster

CONSUMERS: Final = ("a", "b")
FAULT_SECONDS: Final = SECONDS + 1
KINDS: Final = ("kill", "broker", "pause", "zookeeper", "kafka", "reset")
SHORT, LONG = 0.2, SESSION + 1.5


class Lease(Scenario):
    """Two ids of a group poll every node, each with a connection to each, while Kafka appends."""

    model, label = "lease", "lease"
    LIMIT = 4

    def __init__(self, ports: Ports, name: str, nodes: Sequence[int] = ()) -> None:
        super().__init__(ports, name)
        self._nodes = tuple(nodes) or (ports.http,)

    def prepare(self) -> None:
        self.create_topic()

    def workers(self) -> list[Step]:
        polled = product(CONSUMERS, range(len(self._nodes)))
        return [self._producer(), *(self._consumer(*one) for one in polled)]

    def conclude(self) -> None:
        """Take all that is left, over all nodes, up to a message that is appended now."""
        clients = [
            (self._http(node), f"n{node}", consumer)
            for node, consumer in product(range(len(self._nodes)), CONSUMERS)
        ]
        kafka, end = self.kafka(), self.value("last")
        required(
            self.history.record("last", "append", lambda: kafka.append(self.name, end), value=end)
        )
        values = read_all(self.history, kafka, self.name)
        for _ in range(MAX_POLLS):
            found = [self._poll("last", *client, "", "") for client in clients]
            if any(end in one["values"] for one in found if one):
                break
        self.history.record("last", "drained", dict)
        offsets = {value: offset for offset, value in enumerate(values)}
        operations = self.history.operations
        for place, one in enumerate(operations):
            if last := one.input.get("last"):
                given = {**one.input, "through": offsets.get(last, LOST - 1) + 1}
                operations[place] = replace(one, input=given)

    def _http(self, node: int) -> HttpConnection:
        return self._owned.enter_context(closing(self.Http(self._nodes[node])))

    def _producer(self) -> Step:
        kafka = self.kafka()

        def step(_chance: random.Random) -> None:
            for value in (self.value("kafka"), self.value("kafka")):
                append = partial(kafka.append, self.name, value)
                self.history.record("kafka", "append", append, value=value)

        return step

    def _consumer(self, consumer: str, number: int) -> Step:
        http, node = self._http(number), f"n{number}"
        label = f"{consumer}-{node}"
        token, last = [""], [""]

        def step(chance: random.Random) -> None:
            kind = chance.random()
            if kind < 0.5:
                self._poll(label, http, node, consumer, "", "")
                return
            if kind < 0.75 and token[0]:
                confirm = partial(http.acknowledge, self.name, token[0], consumer)
                self.history.record(label, "ack", confirm, ack="token", node=node, last=last[0])
                token[0] = last[0] = ""
                return
            found = self._poll(label, http, node, consumer, token[0] or "explicit", last[0])
            token[0] = last[0] = ""
            if found and found["values"]:
                token[0], last[0] = found["token"], found["values"][-1]

        return step

    def _poll(
        self, label: str, http: HttpConnection, node: str, consumer: str, ack: str, last: str
    ) -> Output | None:
        """Poll; a token is that of an answer whose last value was `last`."""
        return self.history.record(
            label,
            "poll",
            lambda: http.poll(self.name, ack, self.LIMIT, consumer),
            ack="token" if ack not in ("", "explicit") else ack,
            node=node,
            last=last,
            limit=self.LIMIT,
        )


@dataclass
class ClusterFaults:
    """Strikes one node of several at a time, and notes it in a history."""

    cluster: Cluster
    clients: list[TcpProxy]
    history: History
    chance: random.Random
    struck: list[str] = field(default_factory=list)

    def run(self, count: int, operations: int, progress: Progress) -> None:
        """Strike so often within a number of operations."""
        places = sorted(self.chance.randint(5, operations * 8 // 10) for _ in range(count))
        for place in places:
            kind, number = self.chance.choice(KINDS), self.chance.randrange(2)
            seconds = self.chance.choice((SHORT, LONG))
            if not progress.reaches(place):
                return
            began = time.monotonic_ns()
            self._strike(kind, number, seconds)
            self.struck.append(f"{kind} of node {number} for {seconds} s after {place}")
            if kind == "reset":
                continue  # a node is not struck: what it answered stands
            ended = time.monotonic_ns() + round(FAULT_SECONDS * 1e9)
            # Once when its grants end, and once more by what was under way.
            for _ in range(2):
                self.history.add(Operation(-1 - len(self.struck), "fault", began, ended, {}, {}))

    def _strike(self, kind: str, number: int, seconds: float) -> None:
        node = self.cluster.nodes[number]
        if kind == "kill":
            node.kill()
            time.sleep(seconds)
            node.start()
            node.wait_ready()
        elif kind == "broker":
            os.kill(node.broker(), signal.SIGKILL)
            node.wait_ready()
        elif kind == "pause":
            node.pause()
            time.sleep(seconds)
            node.resume()
        elif kind == "reset":
            self.clients[number].reset()
        else:
            cluster = self.cluster
            way = cluster.to_kafka if kind == "kafka" else cluster.to_zookeeper
            self._break(way[number], seconds)

    def _break(self, way: TcpProxy, seconds: float) -> None:
        self.chance.choice((way.cut, way.stall))()
        time.sleep(seconds)
        way.heal()


def record_leases(
    cluster: Cluster, clients: list[TcpProxy], seed: str, *, faults: int, steps: int
) -> tuple[History, list[str]]:
    """Return a history of both nodes, and which faults struck; the seed chooses everything.

    `clients` are the proxies by which clients reach the nodes.
    """
    ports = [proxy.port for proxy in clients]
    name = f"lease_{seed}".replace("-", "_")
    scenario = Lease(Ports(ports[0], cluster.kafka.port, 0, 0), name, ports)
    striking = ClusterFaults(cluster, clients, scenario.history, random.Random(seed))
    try:
        scenario.prepare()
        work_while(partial(striking.run, faults), seed, [scenario], steps)
        cluster.mend()
        insist(scenario.conclude)
    finally:
        scenario.close()
    _note_lapses(cluster, scenario.history)
    return scenario.history, striking.struck


def _note_lapses(cluster: Cluster, history: History) -> None:
    """Note as faults when nodes warned, by their logs, once for each second and node."""
    since_1970 = time.time_ns() - time.monotonic_ns()
    first = min(one.call for one in history.operations)
    spared = round(FAULT_SECONDS * 1e9)
    for number, node in enumerate(cluster.nodes):
        seconds = set()
        for line in (node.folder / "serve.log").read_text(errors="replace").splitlines():
            if line.startswith("{") and ('"warning"' in line or '"error"' in line):
                warned_at = datetime.fromisoformat(json.loads(line)["timestamp"])
                seconds.add(int(warned_at.timestamp()))
        for second in seconds:
            at = second * 10**9 - since_1970
            if at + spared > first:
                history.add(Operation(-100 - number, "fault", at - spared, at + spared, {}, {}))
