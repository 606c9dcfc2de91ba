"""Leases as the node stands to the other nodes: asked for, held, wanted, lost, confirmed."""

from __future__ import annotations

import pytest

from router.coordination import Lease
from router.errors import FencedError
from router.sharing.assignment import PartitionAssignor
from router.wire.node import node_pb2 as pb
from tests.unit.broker.consume.membership.leasing import IDLE, TOPIC, Elsewhere, Node, Worker


@pytest.fixture
def zoo() -> Elsewhere:
    return Elsewhere()


@pytest.fixture
def node(zoo: Elsewhere) -> Node:
    return Node(zoo)


@pytest.fixture
def worker() -> Worker:
    return Worker()


def soon(node: Node, worker: Worker) -> pb.CommandClaimUpdate:
    node.wait(0)
    return worker.told()


def confirm(node: Node, generation: int, partition: int = -1) -> bool:
    try:
        node.leases.confirm(TOPIC, "g", partition, generation)
    except FencedError:
        return False
    return True


def test_grant_waits_for_the_lease_of_the_node(node: Node, zoo: Elsewhere, worker: Worker) -> None:
    answer = node.claim(worker, 1, "c1", 3)
    assert (list(answer.granted), answer.holder) == ([], "its lease, which is not granted yet")
    zoo.held(0, 2)
    update = soon(node, worker)
    assert [grant.partition for grant in update.granted] == [0, 2]
    assert update.HasField("holder"), "one lease is not had"
    zoo.held(1)
    assert not soon(node, worker).HasField("holder")


def test_lease_is_asked_for_no_longer_when_the_poll_ends_without_it(
    node: Node, zoo: Elsewhere, worker: Worker
) -> None:
    node.claim(worker, 1, "c1")
    node.release(worker, 1)
    assert zoo.took() == [("acquire", -1), ("join", "c1"), ("release", -1)]
    zoo.held(-1)
    node.wait(0)
    assert (worker.updates, node.generation()) == ([], 0)


def test_warm_lease_costs_no_word_to_other_nodes(
    node: Node, zoo: Elsewhere, worker: Worker
) -> None:
    zoo.slow = False
    node.claim(worker, 1, "c1", 2)
    node.release(worker, 1)
    assert zoo.took() == [("acquire", 0), ("acquire", 1), ("join", "c1")]
    for claim in range(2, 5):
        assert len(node.claim(worker, claim, "c1", 2).granted) == 2
        node.release(worker, claim)
        node.wait(IDLE / 2)
    assert zoo.took() == []
    node.wait(IDLE)
    assert sorted(zoo.took()) == [("leave", "c1"), ("release", 0), ("release", 1)]
    assert (zoo.live, zoo.leases) == (set(), set())


def test_warm_lease_goes_at_once_when_another_node_wants_it(
    node: Node, zoo: Elsewhere, worker: Worker
) -> None:
    zoo.slow = False
    node.claim(worker, 1, "c1")
    node.release(worker, 1)
    zoo.took()
    zoo.contended(-1)
    assert zoo.took() == [("release", -1)]
    node.claim(worker, 2, "c1")
    assert zoo.took() == [("acquire", -1)]


def test_wanted_lease_goes_when_the_poll_ends_and_the_next_poll_queues_again(
    node: Node, zoo: Elsewhere
) -> None:
    zoo.slow = False
    first, second = Worker(), Worker()
    node.claim(first, 1, "c1")
    node.claim(second, 1, "c1")
    second.updates.clear()
    zoo.contended(-1)
    zoo.slow = True
    zoo.took()
    node.release(first, 1)
    assert zoo.took() == [("release", -1), ("acquire", -1)]
    assert not second.told().granted
    zoo.held(-1)
    assert len(soon(node, second).granted) == 1


def test_poll_is_asked_back_when_the_deal_gives_its_partition_to_another_node(
    node: Node, zoo: Elsewhere, worker: Worker
) -> None:
    zoo.slow = False
    node.claim(worker, 1, "c1", 2)
    zoo.remote_members("c2")
    (revoked,) = soon(node, worker).revoked
    zoo.contended(0, 1)
    zoo.took()
    node.give_up(worker, 1, revoked)
    assert zoo.took() == [("release", revoked)]


def test_partition_of_an_id_elsewhere_stays_warm_until_it_is_wanted(
    node: Node, zoo: Elsewhere, worker: Worker
) -> None:
    zoo.slow = False
    node.claim(worker, 1, "c1", 2)
    zoo.remote_members("c2")
    (revoked,) = soon(node, worker).revoked
    zoo.took()
    node.give_up(worker, 1, revoked)
    assert zoo.took() == []
    zoo.remote_members()
    assert [grant.partition for grant in soon(node, worker).granted] == [revoked]


def test_lease_not_yet_had_is_given_up_without_asking_the_poll(
    node: Node, zoo: Elsewhere, worker: Worker
) -> None:
    node.claim(worker, 1, "c1", 2)
    zoo.took()
    zoo.remote_members("c2")
    node.wait(0)
    ((asked, partition),) = zoo.took()
    assert asked == "release"
    assert partition in (0, 1)
    assert all(not update.revoked for update in worker.updates)


def test_lost_lease_is_withdrawn_and_granted_anew(
    node: Node, zoo: Elsewhere, worker: Worker
) -> None:
    zoo.slow = False
    (grant,) = node.claim(worker, 1, "c1").granted
    zoo.problem = "ZooKeeper is away"
    zoo.lost(-1)
    zoo.listener.availability_changed()
    update = soon(node, worker)
    assert (list(update.withdrawn), update.unavailable_reason) == ([-1], "ZooKeeper is away")
    zoo.problem = None
    zoo.listener.availability_changed()
    assert not soon(node, worker).HasField("unavailable_reason")
    zoo.held(-1)
    (again,) = soon(node, worker).granted
    assert again.generation > grant.generation


def test_lease_lost_and_held_at_once_is_told_in_one_update(
    node: Node, zoo: Elsewhere, worker: Worker
) -> None:
    zoo.slow = False
    node.claim(worker, 1, "c1")
    zoo.lost(-1)
    zoo.held(-1)
    update = soon(node, worker)
    assert (list(update.withdrawn), len(update.granted)) == ([-1], 1)


def test_lease_held_and_lost_at_once_is_not_granted(
    node: Node, zoo: Elsewhere, worker: Worker
) -> None:
    node.claim(worker, 1, "c1")
    zoo.held(-1)
    zoo.lost(-1)
    update = soon(node, worker)
    assert (list(update.withdrawn), list(update.granted)) == ([-1], [])


def test_lost_lease_without_a_poll_is_not_asked_for_any_more(
    node: Node, zoo: Elsewhere, worker: Worker
) -> None:
    zoo.slow = False
    node.claim(worker, 1, "c1")
    node.release(worker, 1)
    zoo.took()
    zoo.lost(-1)
    assert zoo.took() == [("release", -1)]


def test_lost_partition_that_was_asked_back_needs_no_giving_up(node: Node, zoo: Elsewhere) -> None:
    zoo.slow = False
    workers = {name: Worker(name) for name in ("c1", "c2")}
    for name, worker in workers.items():
        node.claim(worker, 1, name, 2)
    (revoked,) = workers["c1"].told().revoked
    zoo.lost(0, 1)
    zoo.held(0, 1)
    node.wait(0)
    assert [grant.partition for grant in workers["c2"].told().granted] == [revoked]
    last = workers["c1"].told()
    assert list(last.withdrawn) == [0, 1]
    assert [grant.partition for grant in last.granted] == [1 - revoked]


def test_giving_up_an_old_grant_leaves_the_new_one_alone(
    node: Node, zoo: Elsewhere, worker: Worker
) -> None:
    zoo.slow = False
    (old,) = node.claim(worker, 1, "c1").granted
    zoo.lost(-1)
    zoo.held(-1)
    (new,) = soon(node, worker).granted
    late = pb.CommandRelease(claim_id=1, partitions=[-1], generations=[old.generation])
    node.send(worker, release=late)
    assert confirm(node, new.generation)


def test_confirmed_is_only_the_newest_grant_of_a_poll_that_stands(
    node: Node, zoo: Elsewhere, worker: Worker
) -> None:
    zoo.slow = False
    assert not confirm(node, 0)
    (first,) = node.claim(worker, 1, "c1").granted
    assert confirm(node, first.generation)
    assert not confirm(node, first.generation + 1)
    assert not confirm(node, first.generation, partition=0)
    node.release(worker, 1)
    assert not confirm(node, first.generation), "the poll has ended"
    (second,) = node.claim(worker, 2, "c1").granted
    assert confirm(node, second.generation)
    assert not confirm(node, first.generation)


def test_nothing_is_confirmed_when_the_lease_is_lost_or_not_certain(
    node: Node, zoo: Elsewhere, worker: Worker
) -> None:
    zoo.slow = False
    (grant,) = node.claim(worker, 1, "c1").granted
    zoo.certain = False
    assert not confirm(node, grant.generation)
    zoo.certain = True
    assert confirm(node, grant.generation)
    zoo.lost(-1)
    assert not confirm(node, grant.generation)
    zoo.held(-1)
    assert not confirm(node, grant.generation), "another node may have had it meanwhile"


def test_waiting_poll_is_told_which_node_polls_under_its_id(
    node: Node, zoo: Elsewhere, worker: Worker
) -> None:
    node.claim(worker, 1, "c1")
    zoo.queued(-1, "node-b")
    assert soon(node, worker).waiting
    zoo.remote_members("c1")
    update = soon(node, worker)
    assert (update.holder, update.waiting) == ("node node-b", True)


def test_poll_of_an_id_that_polls_nowhere_else_is_not_refused_for_what_other_ids_hold(
    node: Node, zoo: Elsewhere, worker: Worker
) -> None:
    node.claim(worker, 1, "c1")
    zoo.remote_members("c2")
    worker.updates.clear()
    zoo.queued(-1, "node-b")
    zoo.remote_members()
    zoo.remote_members("c2")
    node.wait(0)
    last = worker.updates[-1]
    assert not last.HasField("holder")


def test_poll_that_loses_what_it_never_had_to_another_nodes_id_waits_for_nothing(
    node: Node, zoo: Elsewhere, worker: Worker
) -> None:
    other = owner("c1", "c2")
    spare = "c1" if other == "c2" else "c2"
    first = node.claim(worker, 1, spare)
    assert (first.holder, first.waiting) == ("its lease, which is not granted yet", True)
    zoo.remote_members(other)
    node.wait(0)
    last = worker.updates[-1]
    assert (last.HasField("holder"), last.waiting) == (False, False)


def owner(*consumers: str) -> str:
    """Return the id to which the one partition of a topic is dealt."""
    assignor: PartitionAssignor[str] = PartitionAssignor((-1,), IDLE)
    for consumer in consumers:
        assignor.claim(consumer, consumer, 0)
    found = assignor.owner(-1)
    assert found is not None
    return found


def test_trouble_is_told_to_all_polls_and_to_new_ones(node: Node, zoo: Elsewhere) -> None:
    zoo.problem = "away"
    first, second = Worker(), Worker()
    assert node.claim(first, 1, "c1").unavailable_reason == "away"
    second_answer = node.claim(second, 1, "c1")
    assert (second_answer.unavailable_reason, second_answer.HasField("holder")) == ("away", True)
    zoo.problem = None
    zoo.listener.availability_changed()
    node.wait(0)
    assert not first.told().HasField("unavailable_reason")
    assert not second.told().HasField("unavailable_reason")


def test_positions_left_for_the_next_poll_are_forgotten_when_the_lease_is_lost(
    node: Node, zoo: Elsewhere, worker: Worker
) -> None:
    zoo.slow = False
    node.claim(worker, 1, "c1")
    node.release(worker, 1, pb.CommandRelease.DELIVERED, pending=42)
    zoo.lost(-1)
    (grant,) = node.claim(worker, 2, "c1").granted
    assert not grant.HasField("pending")


@pytest.mark.parametrize(("consumer", "handed"), [("c1", True), ("c2", False)])
def test_positions_left_for_the_next_poll_go_with_the_lease(
    node: Node, zoo: Elsewhere, worker: Worker, consumer: str, handed: bool
) -> None:
    zoo.slow = False
    node.claim(worker, 1, "c1")
    node.release(worker, 1, pb.CommandRelease.DELIVERED, pending=42)
    zoo.contended(-1)
    zoo.slow = True
    for other, expected in ((Node(Elsewhere()), handed), (node, False)):
        there = zoo if other is node else other.leases._coordinator
        assert isinstance(there, Elsewhere)
        other.claim(worker, 9, "c1" if other is node else consumer)
        there.listener.held(Lease(TOPIC, "g", -1), b"" if there is zoo else zoo.notes[-1])
        (grant,) = soon(other, worker).granted
        assert (grant.HasField("pending"), grant.pending.entryId == 42) == (expected, expected)


@pytest.mark.parametrize(
    "note", [b"x", b"\xff\xffabc", b"\x00\x02\xff\xff", b"\x00\x00\xff\xff\xff"]
)
def test_note_that_is_not_understood_is_none(
    node: Node, zoo: Elsewhere, worker: Worker, note: bytes
) -> None:
    node.claim(worker, 1, "c1")
    zoo.listener.held(Lease(TOPIC, "g", -1), note)
    (grant,) = soon(node, worker).granted
    assert not grant.HasField("pending")


def test_leases_of_partitions_that_are_no_more_are_let_go(
    node: Node, zoo: Elsewhere, worker: Worker
) -> None:
    zoo.slow = False
    node.claim(worker, 1, "c1", 3)
    node.release(worker, 1)
    node.claim(worker, 2, "c1", 2)
    assert {lease.partition for lease in zoo.leases} == {0, 1}


def test_what_is_heard_too_late_changes_nothing(node: Node, zoo: Elsewhere, worker: Worker) -> None:
    for partition in (-1, 7):
        zoo.held(partition)
        zoo.lost(partition)
        zoo.contended(partition)
        zoo.queued(partition, "b")
    zoo.remote_members("c2")
    node.claim(worker, 1, "c1")
    zoo.contended(-1)
    zoo.held(7)
    node.wait(0)
    assert worker.updates == []
    assert {lease.partition for lease in zoo.leases} == {-1}


def test_ids_are_told_to_the_other_nodes_as_they_come_and_go(
    node: Node, zoo: Elsewhere, worker: Worker
) -> None:
    for claim, consumer in enumerate(("c1", "c2", "c1")):
        node.claim(worker, claim, consumer)
    assert zoo.live == {"c1", "c2"}
    node.gone(worker)
    node.wait(IDLE)
    assert zoo.live == set()


def test_leases_and_their_changes_are_counted(node: Node, zoo: Elsewhere, worker: Worker) -> None:
    zoo.slow = False
    node.claim(worker, 1, "c1", 2)
    assert "router_broker_leases 2.0" in node.counters.render()
    zoo.lost(0)
    zoo.problem = "away"
    zoo.listener.availability_changed()
    zoo.problem = None
    zoo.listener.availability_changed()
    node.release(worker, 1)
    zoo.contended(1)
    text = node.counters.render()
    assert "router_broker_leases_lost_total 1.0" in text
    assert "router_broker_coordination_losses_total 1.0" in text
    assert "router_broker_handovers_total 1.0" in text


def test_same_ids_on_both_nodes_are_dealt_alike(node: Node, zoo: Elsewhere, worker: Worker) -> None:
    node.claim(worker, 1, "c1", 4)
    zoo.remote_members("c2")
    here = {lease.partition for lease in zoo.leases}
    other: PartitionAssignor[str] = PartitionAssignor(range(4), IDLE)
    other.set_remote_members(frozenset({"c1"}))
    other.claim("c2", "c2", 0)
    assert {p for p in range(4) if other.owner(p) == "c1"} == here
