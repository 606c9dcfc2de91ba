"""Laws of the leases of several nodes, in a world of delays, pauses and broken connections."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.broker.simulated import IDLE, PARTITIONS, SESSION, Poller, World

CONSUMERS = ["c1", "c2", "c3"]


def make(seed: int, nodes: int) -> tuple[World, list[Poller]]:
    world = World(seed, nodes)
    return world, [Poller(node, consumer) for node in world.nodes for consumer in CONSUMERS]


def at_most_one_may_acknowledge(pollers: list[Poller]) -> None:
    for partition in range(PARTITIONS):
        able = [p for p in pollers if p.may_acknowledge(partition)]
        assert len(able) <= 1, f"partition {partition}: {able}"


@given(seed=st.integers(0, 1 << 32), nodes=st.integers(2, 4))
@settings(max_examples=12)
def test_never_two_polls_of_any_nodes_may_acknowledge_a_partition(seed: int, nodes: int) -> None:
    world, pollers = make(seed, nodes)
    acknowledged = 0

    def look() -> None:
        nonlocal acknowledged
        at_most_one_may_acknowledge(pollers)
        acknowledged += any(p.may_acknowledge(0) for p in pollers)

    for _ in range(120):
        poller, node = world.chance.choice(pollers), world.chance.choice(world.nodes)
        if poller.polling:
            poller.end()
        else:
            poller.poll()
        fault = world.chance.random()
        if fault < 0.05:
            node.paused_until = world.now + world.chance.uniform(0, 2 * SESSION)
        elif fault < 0.1:
            node.cut_until = world.now + world.chance.uniform(0, 2 * SESSION)
        world.run(world.now + world.chance.expovariate(2), look)
    assert acknowledged, "nobody ever held anything: the world stood still"


@given(seed=st.integers(0, 1 << 32), nodes=st.integers(2, 4))
@settings(max_examples=12)
def test_every_poll_gets_its_partitions_when_others_end_and_faults_are_over(
    seed: int, nodes: int
) -> None:
    world, pollers = make(seed, nodes)
    for poller in pollers:
        if world.chance.random() < 0.7:
            poller.poll()
        world.run(world.now + world.chance.uniform(0, 0.2), lambda: None)
    for node in world.nodes:
        node.cut_until = world.now + world.chance.uniform(0, 2 * SESSION)
        node.paused_until = world.now + world.chance.uniform(0, 2 * SESSION)
    world.run(world.now + 2 * SESSION, lambda: None)
    world.run(world.now + 2 * SESSION, lambda: at_most_one_may_acknowledge(pollers))
    # Each poll ends when it had something; those of ids with no partition end when all have.
    had: set[int] = set()
    for _ in range(40 * len(pollers)):
        for poller in pollers:
            if poller.polling and poller.ever:
                had |= poller.ever
                poller.end()
        world.run(world.now + IDLE / 4, lambda: None)
        if not any(p.polling for p in pollers):
            break
    waiting = [p for p in pollers if p.polling]
    assert not waiting, f"{len(waiting)} polls wait for ever"
    world.run(world.now + 2 * IDLE, lambda: None)
    assert not any(node.entries or node.own for node in world.nodes), "something is kept"
    assert not any(world.queues.values())
