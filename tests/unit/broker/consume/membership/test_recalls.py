"""Claims that workers retain between polls: when the broker recalls them, and who waits."""

from __future__ import annotations

import asyncio

import pytest

from router.broker.consume.membership.leases import recalls
from router.coordination import Lease, RemoteGroup
from router.wire import node as node_wire
from router.wire.node import node_pb2 as pb
from tests.unit.broker.consume.membership.leasing import TOPIC, Elsewhere, Node, Worker

DELIVERED = pb.CommandRelease.DELIVERED
EMPTY = pb.CommandRelease.EMPTY
DEADLINE = 20.0


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nothing end for its time alone, unless a test says so."""
    monkeypatch.setattr(recalls, "MAX_RECALL_SECONDS", 3 * DEADLINE)
    monkeypatch.setattr(recalls, "MAX_QUEUE_SECONDS", 3 * DEADLINE)


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def worker() -> Worker:
    return Worker()


def retain(node: Node, worker: Worker, claim: int = 1, *, in_use: bool = False) -> None:
    node.send(worker, retain=pb.CommandRetain(claim_id=claim, in_use=in_use))


def recalled(worker: Worker) -> bool:
    return any(update.recalled for update in worker.updates)


def test_retained_claim_is_recalled_for_another_poll_of_its_id(node: Node, worker: Worker) -> None:
    other = Worker()
    node.claim(worker, 1, "c1")
    retain(node, worker)
    assert not worker.updates
    assert not node.claim(other, 1, "c1").granted
    assert worker.told().recalled
    node.release(worker, 1, DELIVERED)
    assert [grant.partition for grant in other.told().granted] == [-1]


def test_claim_that_is_retained_while_another_poll_of_its_id_waits_is_recalled_at_once(
    node: Node, worker: Worker
) -> None:
    node.claim(worker, 1, "c1")
    node.claim(Worker(), 1, "c1")
    assert not worker.updates
    retain(node, worker)
    assert worker.told().recalled


def test_claim_that_is_not_retained_is_never_recalled(node: Node, worker: Worker) -> None:
    node.claim(worker, 1, "c1")
    node.claim(Worker(), 1, "c1")
    asyncio.run(node.leases.recall(TOPIC))
    assert not worker.updates


def test_retained_claim_is_recalled_for_another_node_which_then_has_the_lease(
    worker: Worker,
) -> None:
    zoo = Elsewhere(slow=False)
    node = Node(zoo)
    node.claim(worker, 1, "c1")
    retain(node, worker)
    zoo.contended(-1)
    node.wait(0)
    assert worker.told().recalled
    assert zoo.leases == {Lease(TOPIC, "g", -1)}
    node.release(worker, 1, DELIVERED)
    assert not zoo.leases


def test_claim_that_is_retained_while_another_node_queues_is_recalled_at_once(
    worker: Worker,
) -> None:
    zoo = Elsewhere(slow=False)
    node = Node(zoo)
    node.claim(worker, 1, "c1")
    zoo.contended(-1)
    node.wait(0)
    worker.updates.clear()
    retain(node, worker)
    assert worker.told().recalled


def test_retained_claim_keeps_its_confirmation_until_it_is_released(
    node: Node, worker: Worker
) -> None:
    (grant,) = node.claim(worker, 1, "c1").granted
    retain(node, worker)
    node.leases.confirm(TOPIC, "g", -1, grant.generation)


def test_retaining_counts_as_a_delivery_for_the_limit_on_empty_polls(
    node: Node, worker: Worker
) -> None:
    for claim in (1, 2):
        node.claim(worker, claim, "c1", limit=2)
        node.release(worker, claim, EMPTY)
    assert node.claim(worker, 3, "c1", limit=2).HasField("limited_ms")
    retain(node, worker, 3)
    node.release(worker, 3, EMPTY)
    assert not node.claim(worker, 4, "c1", limit=2).HasField("limited_ms")


@pytest.mark.parametrize("ending", ["release", "in use", "gone"])
async def test_administrator_waits_until_retained_claims_end_or_are_in_use(
    node: Node, worker: Worker, ending: str
) -> None:
    node.claim(worker, 1, "c1")
    retain(node, worker)
    task = asyncio.create_task(node.leases.recall(TOPIC, "g"))
    await asyncio.sleep(0.01)
    assert recalled(worker)
    assert not task.done()
    if ending == "release":
        node.release(worker, 1, DELIVERED)
    elif ending == "in use":
        retain(node, worker, in_use=True)
    else:
        node.gone(worker)
    await asyncio.wait_for(task, DEADLINE)


def test_administrator_does_not_wait_for_claims_of_other_groups(node: Node, worker: Worker) -> None:
    node.claim(worker, 1, "c1")
    retain(node, worker)
    asyncio.run(asyncio.wait_for(node.leases.recall(TOPIC, "other"), DEADLINE))
    asyncio.run(asyncio.wait_for(node.leases.recall("persistent://public/default/u"), DEADLINE))
    assert not worker.updates


def test_administrator_does_not_wait_for_ever_for_a_worker_that_stands_still(
    node: Node, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recalls, "MAX_RECALL_SECONDS", 0.01)
    node.claim(worker, 1, "c1")
    retain(node, worker)
    asyncio.run(asyncio.wait_for(node.leases.recall(TOPIC), DEADLINE))


def test_leases_are_confirmed_together_each_by_itself(node: Node, worker: Worker) -> None:
    granted = node.claim(worker, 1, "c1", 2).granted
    leases = [
        pb.ConfirmLease(topic=TOPIC, subscription="g", partition=p, generation=generation)
        for p, generation in [(g.partition, g.generation) for g in granted] + [(0, 1), (7, 1)]
    ]
    answers: list[pb.CommandAdminResponse] = []
    asking = Worker()
    asking.send = lambda command: answers.append(node_wire.read(command.extension).admin_response)  # type: ignore[method-assign] # reads another command
    admin = pb.CommandAdmin(request_id=1, confirm_all=pb.ConfirmLeases(grants=leases))
    node.send(asking, admin=admin)
    assert list(answers[0].fenced) == [2, 3]


class Nodes:
    """A node beside another one that holds the lease of a group's partition 0."""

    def __init__(self) -> None:
        self.zoo = Elsewhere()
        self.zoo.remote = RemoteGroup(queues={0: ("node2",), 1: ("",)})
        self.node = Node(self.zoo)

    def recall(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.node.leases.recall(TOPIC, "g"))


async def test_leases_of_other_nodes_are_queued_for_and_let_go_at_once_with_what_was_left() -> None:
    nodes = Nodes()
    task = nodes.recall()
    await asyncio.sleep(0.01)
    assert nodes.zoo.took() == [("acquire", 0)]
    assert not task.done()
    nodes.zoo.listener.held(Lease(TOPIC, "g", 0), b"note")
    await asyncio.wait_for(task, DEADLINE)
    assert nodes.zoo.took() == [("release", 0)]
    assert nodes.zoo.notes == {0: b"note"}


async def test_lease_that_another_nodes_poll_uses_is_not_queued_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recalls, "MAX_QUEUE_SECONDS", 0.01)
    nodes = Nodes()
    await asyncio.wait_for(nodes.recall(), DEADLINE)
    assert nodes.zoo.took() == [("acquire", 0), ("release", 0)]


async def test_lease_that_is_queued_for_goes_to_a_poll_that_comes_meanwhile(worker: Worker) -> None:
    nodes = Nodes()
    task = nodes.recall()
    await asyncio.sleep(0.01)
    assert not nodes.node.claim(worker, 1, "c1", 1).granted
    await asyncio.wait_for(task, DEADLINE)
    assert nodes.zoo.took() == [("acquire", 0), ("join", "c1")]
    nodes.zoo.held(0)
    nodes.node.wait(0)
    assert [grant.partition for grant in worker.told().granted] == [0]
