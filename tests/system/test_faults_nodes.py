"""Two nodes, and a Kafka and a ZooKeeper between, that stop, die, or cannot hear one another.

In each round of each test one thing breaks while clients publish to and poll both nodes, and is put
right again; what the clients got is judged at the end (see tests/system/nodes.py). The counts that
a test logs are what docs/soak.md tells of. They grow with the variables SOAK_NODE_….
"""

from __future__ import annotations

import logging
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.system.nodes import (
    LIMIT,
    SECONDS,
    SESSION,
    TAKEOVER,
    Cluster,
    Traffic,
    traffic,
    until_true,
)
from tests.system.stack import Stack
from tests.system.traffic import Answer, Wire, ask, create, poll, post, until_accepted, waiting

PAUSES = int(os.environ.get("SOAK_NODE_PAUSES", "1"))
KILLS = int(os.environ.get("SOAK_NODE_KILLS", "1"))
BROKERS = int(os.environ.get("SOAK_NODE_BROKERS", "1"))
KAFKA_KILLS = int(os.environ.get("SOAK_NODE_KAFKA_KILLS", "1"))
ZOOKEEPER_KILLS = int(os.environ.get("SOAK_NODE_ZOOKEEPER_KILLS", "1"))
CUTS = int(os.environ.get("SOAK_NODE_CUTS", "1"))
STALE = int(os.environ.get("SOAK_NODE_STALE_COMMITS", "1"))
BEGIN = 60
PARTITIONS = 4

_log = logging.getLogger(__name__)

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.java]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Everything, started once."""
    cluster = Cluster(tmp_path_factory.mktemp("nodes"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    """All of it in order, whatever the test leaves broken."""
    yield running
    running.mend()


class Rounds:
    """A fault, put right again, as often as asked; and what it cost."""

    def __init__(self, cluster: Cluster, name: str, times: int) -> None:
        self.cluster = cluster
        self.name = name
        self.times = times
        self.chance = random.Random(name)
        self.takeovers: list[float] = []
        self.repeated = 0

    def run(self, one: Callable[[Traffic], None]) -> None:
        """Break and mend under load, round by round; then judge."""
        topic = self.name.replace(" ", "-")
        create(self.cluster.nodes[0], topic, PARTITIONS)
        with traffic(self.cluster.nodes, self.cluster.kafka, topic) as clients:
            for _ in range(self.times):
                time.sleep(self.chance.uniform(0.2, 1.0))
                one(clients)
                # Whatever it was: both nodes work again by themselves.
                clients.flow(time.monotonic(), BEGIN)
            self.repeated = clients.end()
            told = clients.told()
            stored = sum(len(publisher.sent) for publisher in clients.publishers)
        took = " ".join(f"{seconds:.1f}" for seconds in self.takeovers)
        _log.info(
            "%s: %d rounds, %d messages, %d repeated, longest waits %s s; %s",
            *(self.name, self.times, stored, self.repeated, took or "-", told),
        )
        # Whoever polled when it broke may have had its answer and not been noted down for it; and
        # what stood still may answer once more when it goes on.
        assert self.repeated <= self.times * len(clients.pollers) * 2 * LIMIT

    def takeover(self, clients: Traffic) -> None:
        """What is broken stays so past the session: no message waits longer than is documented."""
        began = time.monotonic()
        time.sleep(SESSION + 0.5)
        self.takeovers.append(clients.interruption(began, TAKEOVER))
        assert self.takeovers[-1] < TAKEOVER


@pytest.mark.timeout(240 + 40 * PAUSES)
def test_nothing_is_lost_when_a_node_stands_still_past_its_session(cluster: Cluster) -> None:
    rounds = Rounds(cluster, "node paused", PAUSES)
    victim = cluster.nodes[0]

    def one(clients: Traffic) -> None:
        victim.pause()
        rounds.takeover(clients)
        victim.resume()
        victim.wait_ready()

    rounds.run(one)


@pytest.mark.timeout(240 + 40 * KILLS)
def test_nothing_is_lost_when_a_node_is_killed(cluster: Cluster) -> None:
    rounds = Rounds(cluster, "node killed", KILLS)
    victim = cluster.nodes[0]

    def one(clients: Traffic) -> None:
        victim.kill()
        rounds.takeover(clients)
        victim.start()

    rounds.run(one)


@pytest.mark.parametrize("way", ["killed", "paused"])
@pytest.mark.timeout(240 + 40 * BROKERS)
def test_nothing_is_lost_when_only_the_broker_of_a_node_fails(cluster: Cluster, way: str) -> None:
    rounds = Rounds(cluster, f"broker {way}", BROKERS)
    victim = cluster.nodes[0]

    def one(clients: Traffic) -> None:
        broker = victim.broker()
        os.kill(broker, signal.SIGKILL if way == "killed" else signal.SIGSTOP)
        try:
            rounds.takeover(clients)
        finally:
            if way == "paused":
                os.kill(broker, signal.SIGCONT)

    rounds.run(one)


@pytest.mark.timeout(240 + 60 * KAFKA_KILLS)
def test_nothing_is_lost_when_kafka_is_killed(cluster: Cluster) -> None:
    rounds = Rounds(cluster, "kafka killed", KAFKA_KILLS)

    def one(clients: Traffic) -> None:
        cluster.kafka.kill()
        time.sleep(rounds.chance.uniform(0.0, 2.0))
        cluster.kafka.start()

    rounds.run(one)


@pytest.mark.timeout(240 + 40 * ZOOKEEPER_KILLS)
def test_nothing_is_lost_when_zookeeper_is_killed(cluster: Cluster) -> None:
    rounds = Rounds(cluster, "zookeeper killed", ZOOKEEPER_KILLS)

    def one(clients: Traffic) -> None:
        cluster.zookeeper.kill()
        time.sleep(rounds.chance.uniform(0.0, 2 * SESSION))
        cluster.zookeeper.start()

    rounds.run(one)


@pytest.mark.parametrize("way", ["cut", "stalled"])
@pytest.mark.timeout(240 + 40 * CUTS)
def test_nothing_is_lost_when_a_node_cannot_reach_zookeeper(cluster: Cluster, way: str) -> None:
    rounds = Rounds(cluster, f"zookeeper {way}", CUTS)
    proxy = cluster.to_zookeeper[0]

    def one(clients: Traffic) -> None:
        proxy.reset()
        clients.flow(time.monotonic(), BEGIN)
        (proxy.cut if way == "cut" else proxy.stall)()
        rounds.takeover(clients)
        proxy.heal()

    rounds.run(one)


@pytest.mark.parametrize("way", ["cut", "stalled"])
@pytest.mark.timeout(240 + 40 * CUTS)
def test_nothing_is_lost_when_a_node_cannot_reach_kafka(cluster: Cluster, way: str) -> None:
    rounds = Rounds(cluster, f"kafka {way}", CUTS)
    proxy = cluster.to_kafka[0]

    def one(clients: Traffic) -> None:
        (proxy.cut if way == "cut" else proxy.stall)()
        time.sleep(rounds.chance.uniform(0.2, 3.0))
        proxy.heal()

    rounds.run(one)


@pytest.mark.timeout(240 + 30 * STALE)
def test_what_a_node_delivers_late_is_not_committed_after_another_nodes_turn(
    cluster: Cluster,
) -> None:
    victim, other = cluster.nodes
    for number in range(STALE):
        topic = f"late-{number}"
        create(other, topic, 1)
        first = [f"{n}:{'x' * 200_000}" for n in range(20)]
        for message in first:
            assert post(other, topic, message).status == 200
        with Wire(victim, receive_buffer=4096) as client:
            client.poll(f"{topic}/g/c", 20)
            # It writes and nobody reads: it has the partition, and its commit is to come.
            client.socket.recv(1, socket.MSG_PEEK)
            victim.pause()
            assert until_given(other, f"{topic}/g/c", TAKEOVER) == first
            assert post(other, topic, "behind").status == 200
            assert until_given(other, f"{topic}/g/c", BEGIN) == ["behind"]
            victim.resume()
            assert client.answer().json == first
        victim.wait_ready()
        for node in (victim, other, victim):
            assert until_served(node, f"{topic}/g/c").json == []


@pytest.mark.timeout(240)
def test_polls_are_refused_and_publishing_goes_on_while_zookeeper_is_away(
    cluster: Cluster,
) -> None:
    create(cluster.nodes[0], "away", 2)
    for node in cluster.nodes:
        until_accepted(node, "away", "before", BEGIN)
    assert gather(cluster, "away/g/c", 2) == ["before"] * 2
    with ThreadPoolExecutor() as pool:
        waited = pool.submit(poll, cluster.nodes[0], "away/g/c", 3)
        until_true(lambda: waiting(cluster.nodes[0]) == 1, BEGIN)
        cluster.zookeeper.kill()
        try:
            until_true(lambda: all(map(is_unready, cluster.nodes)), BEGIN)
            # While it goes on, a second poll of this id is refused for another reason.
            answer = waited.result()
            assert (answer.status, answer.json) == (200, []) or expect_refusal(answer)
            for number, node in enumerate(2 * cluster.nodes):
                assert post(node, "away", f"during {number}").status == 200
                expect_refusal(poll(node, "away/g/c", 0.2))
                expect_refusal(poll(node, "away/fresh/c", 0.2))
        finally:
            cluster.zookeeper.start()
    assert gather(cluster, "away/g/c", 4) == [f"during {number}" for number in range(4)]


def is_unready(node: Stack) -> bool:
    """Tell whether a node says that it serves no polls."""
    return ask(node, "GET", "/ready").status == 503


def expect_refusal(answer: Answer) -> bool:
    """Whoever could not be served is told that trying again will help, and why."""
    assert answer.status == 503, (answer.status, answer.body)
    assert int(answer.headers["retry-after"]) >= 1
    assert "ZooKeeper" in answer.json["errorMessage"]
    return True


@pytest.mark.timeout(240)
def test_requests_are_refused_in_time_while_kafka_is_away(cluster: Cluster) -> None:
    create(cluster.nodes[0], "gone", 2)
    for node in cluster.nodes:
        until_accepted(node, "gone", "before", BEGIN)
    cluster.kafka.kill()
    try:
        for node in cluster.nodes:
            began = time.monotonic()
            refused = [post(node, "gone", "during"), poll(node, "gone/g/c", 0.2)]
            assert time.monotonic() - began < 2 * SECONDS + 10
            for answer in refused:
                assert answer.status in {503, 504}, answer.body
                assert answer.status == 504 or int(answer.headers["retry-after"]) >= 1
    finally:
        cluster.kafka.start()
    for node in cluster.nodes:
        until_accepted(node, "gone", "after", BEGIN)
    # Whether "during" was stored nobody knows; that was said.
    got = gather(cluster, "gone/g/c", 4)
    assert [message for message in got if message != "during"] == ["after", "after"] + [
        "before"
    ] * 2


def until_served(node: Stack, path: str) -> Answer:
    """Poll until it is not refused."""
    until = time.monotonic() + BEGIN
    while (answer := poll(node, path, 0.5)).status != 200:
        assert answer.status in {503, 504}, answer.body
        assert time.monotonic() < until, answer.body
    return answer


def until_given(node: Stack, path: str, seconds: float) -> list[str]:
    """Poll until there are messages, at most so long."""
    until = time.monotonic() + seconds
    while not (found := until_served(node, path).json):
        assert time.monotonic() < until, "nothing came"
    return list(found)


def gather(cluster: Cluster, path: str, count: int) -> list[str]:
    """Poll the nodes in turn until nothing comes and so many have; return them, sorted."""
    got: list[str] = []
    while len(got) < count:
        for node in cluster.nodes:
            got += until_given(node, path, BEGIN) if len(got) < count else []
    for node in cluster.nodes:
        got += until_served(node, path).json
    return sorted(got)
