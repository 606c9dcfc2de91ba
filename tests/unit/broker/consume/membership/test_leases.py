"""Claims and releases as workers see them: what the broker's updates say, and when."""

from __future__ import annotations

import asyncio

import pytest

from router.broker.consume.membership.leases import polls
from router.coordination import Lease, RemoteGroup
from router.wire.node import node_pb2 as pb
from tests.unit.broker.consume.membership.leasing import IDLE, TOPIC, Elsewhere, Node, Worker


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_claim_is_answered_at_once_with_all_partitions_when_alone(
    node: Node, worker: Worker
) -> None:
    update = node.claim(worker, 1, "c1", 3)
    assert [grant.partition for grant in update.granted] == [0, 1, 2]
    assert not update.HasField("holder")
    assert not update.HasField("limited_ms")


def test_partitions_are_handed_over_when_the_holder_gives_up(node: Node) -> None:
    first, second = Worker(), Worker()
    node.claim(first, 1, "c1", 4)
    answer = node.claim(second, 9, "c2", 4)
    assert not answer.granted
    assert not answer.HasField("holder")
    revoked = list(first.told().revoked)
    assert len(revoked) == 2
    node.give_up(first, 1, *revoked)
    assert first.updates == []
    granted = second.told()
    assert granted.claim_id == 9
    assert [grant.partition for grant in granted.granted] == sorted(revoked)


def test_second_poll_of_an_id_is_told_who_holds_it_and_gets_its_turn(node: Node) -> None:
    first, second = Worker("worker pid 11"), Worker("worker pid 12")
    node.claim(first, 1, "c1")
    node.wait(3.2)
    update = node.claim(second, 1, "c1")
    assert update.holder == "consumer c1 (worker pid 11), polling for 3.2 s"
    assert not update.granted
    node.release(first, 1)
    turn = second.told()
    assert [grant.partition for grant in turn.granted] == [-1]
    assert not turn.HasField("holder")


def test_poll_whose_turn_comes_is_told_so_even_when_there_is_nothing_for_its_id(
    node: Node,
) -> None:
    workers = {consumer: Worker(consumer) for consumer in ("c1", "c2")}
    for consumer, worker in workers.items():
        node.claim(worker, 1, consumer)
    for worker in workers.values():
        worker.updates.clear()
    holder = "c1" if node.leases._groups[TOPIC, "g"].assignor.owner(-1) == "c1" else "c2"
    spare = "c2" if holder == "c1" else "c1"
    late = Worker("late")
    assert node.claim(late, 1, spare).HasField("holder")
    node.release(workers[spare], 1)
    turn = late.told()
    assert not turn.granted
    assert not turn.HasField("holder")


def test_everything_of_a_worker_is_free_when_its_connection_goes(node: Node) -> None:
    gone, other = Worker(), Worker()
    node.claim(gone, 1, "c1", 2)
    node.claim(gone, 2, "c1", 2)
    node.claim(other, 1, "c1", 2)
    gone.updates.clear()
    node.gone(gone)
    node.gone(gone)
    assert [grant.partition for grant in other.told().granted] == [0, 1]
    assert gone.updates == []


def test_generations_grow_with_each_grant_and_over_restarts(node: Node, worker: Worker) -> None:
    seen = []
    for boot in (1, 2):
        node = Node(boot=boot)
        assert node.generation() == 0
        for claim in range(3):
            (grant,) = node.claim(worker, claim, "c1").granted
            assert node.generation() == grant.generation
            seen.append(grant.generation)
            node.release(worker, claim)
    assert seen == sorted(set(seen))


def test_generation_is_none_again_when_all_ids_were_forgotten(node: Node, worker: Worker) -> None:
    node.claim(worker, 1, "c1")
    node.release(worker, 1)
    assert node.generation() > 0
    assert node.single.leases == {Lease(TOPIC, "g", -1)}
    node.wait(IDLE)
    assert node.generation() == 0
    assert node.single.leases == set()


def test_partitions_go_to_others_when_an_id_is_idle_too_long(node: Node) -> None:
    first, second = Worker(), Worker()
    node.claim(first, 1, "c1", 4)
    node.claim(second, 1, "c2", 4)
    node.release(first, 1)
    assert len(second.told().granted) == 2
    node.wait(IDLE - 0.1)
    assert second.updates == []
    node.wait(0.1)
    assert len(second.told().granted) == 2


def test_timer_of_a_forgotten_group_leaves_its_successor_alone(node: Node, worker: Worker) -> None:
    node.claim(worker, 1, "c1")
    node.release(worker, 1)
    node.wait(1)
    node.claim(worker, 2, "c1")
    node.wait(IDLE)
    assert node.generation() > 0
    node.release(worker, 2)
    node.wait(IDLE)
    assert node.generation() == 0


def test_empty_polls_are_limited_and_delivery_resets_the_count(node: Node, worker: Worker) -> None:
    def poll(outcome: pb.CommandRelease.Outcome) -> int:
        update = node.claim(worker, 1, "c1", limit=2)
        assert update.granted, "a limited poll looks once all the same"
        node.release(worker, 1, outcome)
        node.now += 1
        return update.limited_ms

    assert [poll(pb.CommandRelease.EMPTY) for _ in range(2)] == [0, 0]
    assert poll(pb.CommandRelease.REFUSED) == 29_000
    assert poll(pb.CommandRelease.REFUSED) == 28_000
    assert poll(pb.CommandRelease.DELIVERED) == 27_000
    assert poll(pb.CommandRelease.EMPTY) == 0


def test_pending_position_comes_back_when_the_same_id_polls_again(
    node: Node, worker: Worker
) -> None:
    node.claim(worker, 1, "c1")
    node.release(worker, 1, pb.CommandRelease.DELIVERED, pending=42)
    node.wait(10 * IDLE)
    (grant,) = node.claim(worker, 2, "c1").granted
    assert (grant.pending.ledgerId, grant.pending.entryId) == (7, 42)
    node.release(worker, 2)
    (grant,) = node.claim(worker, 3, "c1").granted
    assert not grant.HasField("pending")


def test_pending_position_is_dropped_when_another_id_gets_the_partition(
    node: Node, worker: Worker
) -> None:
    node.claim(worker, 1, "c1")
    node.release(worker, 1, pb.CommandRelease.DELIVERED, pending=42)
    for claim, consumer in ((2, "c2"), (3, "c1")):
        node.wait(IDLE)
        (grant,) = node.claim(worker, claim, consumer).granted
        assert not grant.HasField("pending")
        node.release(worker, claim)


def test_pending_position_is_not_taken_when_the_poll_does_not_hold_the_partition(
    node: Node,
) -> None:
    first, second = Worker(), Worker()
    node.claim(first, 1, "c1")
    node.claim(second, 1, "c1")
    node.release(second, 1, pb.CommandRelease.DELIVERED, pending=42)
    node.release(first, 1)
    (grant,) = node.claim(first, 2, "c1").granted
    assert not grant.HasField("pending")


def test_pending_positions_are_forgotten_when_the_subscription_is_reset(
    node: Node, worker: Worker
) -> None:
    for forget in ({"subscription": "g"}, {}):
        node.claim(worker, 1, "c1")
        node.release(worker, 1, pb.CommandRelease.DELIVERED, pending=42)
        node.leases.forget(TOPIC, "other")
        node.leases.forget(TOPIC, **forget)
        (grant,) = node.claim(worker, 1, "c1").granted
        assert not grant.HasField("pending")
        node.release(worker, 1)


def test_oldest_pending_positions_go_when_there_are_too_many(
    node: Node, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polls, "MAX_PENDING", 1)
    node.claim(worker, 1, "c1", 2)
    command = pb.CommandRelease(claim_id=1)
    for partition in (0, 1):
        command.pending.add(ledgerId=7, entryId=1, partition=partition)
    node.send(worker, release=command)
    granted = node.claim(worker, 2, "c1", 2).granted
    assert [grant.HasField("pending") for grant in granted] == [False, True]


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("topic", "t" * 2000, "bad-name"),
        ("subscription", "g" * 2000, "bad-name"),
        ("consumer", "c" * 2000, "bad-name"),
        ("partitions", 10_001, "bad-request"),
    ],
)
def test_claim_is_refused_with_a_code_when_it_is_too_large(
    node: Node, worker: Worker, field: str, value: object, code: str
) -> None:
    command = pb.CommandClaim(claim_id=1, topic=TOPIC, subscription="g", consumer="c", partitions=0)
    setattr(command, field, value)
    node.send(worker, claim=command)
    refusal = worker.told()
    assert (refusal.code, refusal.claim_id) == (code, 1)
    assert refusal.message
    assert node.claim(worker, 1, "c1").granted, "the refused claim does not stand"


def test_claim_is_refused_when_its_number_stands_already(node: Node, worker: Worker) -> None:
    node.claim(worker, 1, "c1")
    assert node.claim(worker, 1, "c2").code == "bad-request"
    node.release(worker, 1)
    assert node.claim(worker, 1, "c1").granted


@pytest.mark.parametrize(
    ("bound", "value"), [("MAX_POLLS_PER_GROUP", 2), ("MAX_MEMBERS_TIMES_PARTITIONS", 2)]
)
def test_claim_is_refused_when_the_subscription_is_full(
    node: Node, worker: Worker, monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    monkeypatch.setattr(polls, bound, value)
    for claim in (1, 2):
        assert not node.claim(worker, claim, f"c{claim}").HasField("code")
    assert node.claim(worker, 3, "c3").code == "subscription-busy"
    assert "2 polls of 2 consumer ids" in node.claim(worker, 3, "c3").message


def test_release_of_an_unknown_claim_changes_nothing(node: Node, worker: Worker) -> None:
    node.claim(worker, 1, "c1")
    node.release(worker, 2)
    node.release(Worker(), 1)
    node.give_up(worker, 3, -1)
    assert worker.updates == []
    assert "router_broker_claims 1.0" in node.counters.render()


def test_new_partitions_are_dealt_when_the_topic_has_grown(node: Node) -> None:
    first, second = Worker(), Worker()
    node.claim(first, 1, "c1", 1)
    node.claim(second, 1, "c1", 3)
    assert [grant.partition for grant in first.updates[-1].granted] == [1, 2]


def test_nothing_is_kept_when_everybody_has_gone(node: Node) -> None:
    workers = [Worker() for _ in range(5)]
    for number, worker in enumerate(workers):
        for claim in range(3):
            node.claim(worker, claim, f"c{number * claim}", 4, limit=10)
            node.release(worker, claim, pb.CommandRelease.EMPTY)
            node.claim(worker, claim, f"c{number * claim}", 4, limit=10)
    for worker in workers:
        node.gone(worker)
    node.wait(IDLE)
    leases = node.leases
    assert (leases._polls, leases._groups) == ({}, {})
    assert (len(leases._updates), len(leases._pending)) == (0, 0)


def test_members_are_told_with_polls_and_partitions(node: Node) -> None:
    first, second = Worker(), Worker()
    node.claim(first, 1, "c1", 2)
    node.wait(1.5)
    node.claim(second, 1, "c1", 2)
    node.claim(second, 2, "c2", 2)
    node.release(second, 2)
    node.wait(0.5)
    found = asyncio.run(node.leases.members(TOPIC, "g"))
    assert [(one.consumer, one.polls, one.polling_ms, one.idle_ms) for one in found.members] == [
        ("c1", 2, 2000, None),
        ("c2", 0, None, 500),
    ]
    assert {lease.partition: lease.consumer for lease in found.leases} == {0: "c1", 1: "c1"}
    assert not found.cut
    assert not asyncio.run(node.leases.members(TOPIC, "other")).members


def test_members_on_other_nodes_are_told_with_them(worker: Worker) -> None:
    coordinator = Elsewhere(slow=False)
    coordinator.remote = RemoteGroup((("c9", "node-b"),), {0: ("", "node-b"), 1: ("node-b",)})
    node = Node(coordinator)
    node.claim(worker, 1, "c1", 1)
    found = asyncio.run(node.leases.members(TOPIC, "g"))
    assert [(one.consumer, one.node) for one in found.members] == [("c1", ""), ("c9", "node-b")]
    assert [(one.partition, one.node, one.consumer) for one in found.leases] == [
        (0, "", "c1"),
        (1, "node-b", None),
    ]
    assert list(found.leases[0].waiting) == ["node-b"]


def test_members_of_a_large_group_are_cut(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polls, "MAX_MEMBERS", 2)
    for number in range(3):
        node.claim(Worker(), 1, f"c{number}")
    found = asyncio.run(node.leases.members(TOPIC, "g"))
    assert ([one.consumer for one in found.members], found.cut) == (["c0", "c1"], True)
