"""Three nodes over a real Kafka and a real ZooKeeper: any of them serves any request."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from router.coordination.zookeeper.inspection import show
from tests.servers.kafka import Kafka
from tests.servers.zookeeper import Zookeeper
from tests.system.nodes import Node, start_all, traffic, until_true
from tests.system.stack import Stack
from tests.system.traffic import Answer, Wire, ask, create, poll, post, waiting

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.java,
    pytest.mark.timeout(240),
]

# What could hand a partition over without being told: an idle id is forgotten after 5 s, a session
# ends after 10 s. Each handover must come before either.
SOON = 4.0


@pytest.fixture(scope="module")
def nodes(
    kafka: Kafka, zookeeper: Zookeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Node]]:
    """Three nodes, each with one worker."""
    folder = tmp_path_factory.mktemp("nodes")
    # Long enough for nothing to be lost by a machine that stands still for a moment.
    made = [
        Node(folder / str(n), kafka.address, zookeeper.address, zookeeper_session="10s")
        for n in range(3)
    ]
    try:
        start_all(made)
        yield made
    finally:
        for node in made:
            node.stop()


def publish(node: Stack, topic: str, *messages: str) -> None:
    assert post(node, topic, "\n".join(messages)).json["count"] == len(messages)


def tell(node: Stack, path: str, body: object) -> Answer:
    return ask(node, "POST", path, json.dumps(body).encode())


def until_waiting(node: Stack) -> None:
    """Wait until one poll waits at a node."""
    until_true(lambda: waiting(node) == 1, 30)


def test_what_was_published_on_one_node_is_polled_on_another(nodes: list[Node]) -> None:
    create(nodes[0], "nodes-one", 1)
    sent = []
    for number in range(9):
        publish(nodes[number % 3], "nodes-one", f"m{number}")
        sent.append(f"m{number}")
    got: list[str] = []
    for number in range(9):
        answer = poll(nodes[(number + 1) % 3], "nodes-one/g/c", 10, "from=earliest&limit=1")
        assert answer.status == 200, answer.body
        got += answer.json
    assert got == sent
    assert [poll(node, "nodes-one/g/c", 0.2).json for node in nodes] == [[]] * 3


def test_token_of_one_node_acknowledges_on_another(nodes: list[Node]) -> None:
    create(nodes[0], "nodes-explicit", 2)
    sent, got, token = [f"m{number}" for number in range(12)], list[str](), "explicit"
    for number, text in enumerate(sent):
        publish(nodes[number % 3], "nodes-explicit", text)
    for number in range(40):
        answer = poll(
            nodes[number % 3], "nodes-explicit/g/c", 10, f"from=earliest&limit=1&ack={token}"
        )
        assert answer.status == 200, answer.body
        got, token = got + answer.json, answer.headers["ack-token"]
        if len(got) == len(sent):
            break
    assert sorted(got) == sorted(sent)
    last = poll(nodes[0], "nodes-explicit/g/c", 10, f"ack={token}&limit=0")
    assert last.status == 200, last.body
    assert [poll(node, "nodes-explicit/g/c", 0.2).json for node in nodes] == [[]] * 3


def test_nothing_comes_twice_while_nodes_hand_over_to_each_other(
    nodes: list[Node], kafka: Kafka
) -> None:
    create(nodes[0], "nodes-many", 6)
    with traffic(nodes, kafka, "nodes-many") as clients:
        for poller in clients.apart:
            poller.failures.clear()
        time.sleep(4)
        assert clients.end() == 0, clients.told()
        assert not any(publisher.failures for publisher in clients.publishers)
        # Ids that poll one node each have partitions of their own.
        assert not any(poller.failures for poller in clients.apart), clients.told()


def test_second_poll_of_an_id_is_refused_with_the_holders_node_when_its_time_is_over(
    nodes: list[Node],
) -> None:
    create(nodes[0], "nodes-held", 1)
    holder, other = nodes[:2]
    with Wire(holder) as client:
        client.poll("nodes-held/g/c", 60)
        held(holder, "nodes-held/g/c")
        began = time.monotonic()
        answer = poll(other, "nodes-held/g/c", 1.5)
        assert 1.4 < time.monotonic() - began < 10
        assert answer.status == 503
        assert answer.json["mrErrorCode"] == 3002
        assert int(answer.headers["retry-after"]) >= 1
        assert f":{holder.port}:" in answer.json["errorMessage"]
        publish(other, "nodes-held", "for the first")
        assert client.answer().json == ["for the first"]


def test_an_id_beyond_the_partitions_is_answered_with_nothing_on_another_node_too(
    nodes: list[Node],
) -> None:
    create(nodes[0], "nodes-beyond", 1)
    publish(nodes[0], "nodes-beyond", "first")
    holder, other = nodes[:2]
    for number in range(3):  # whichever of the ids the partition is dealt to
        path = f"nodes-beyond/g{number}"
        assert poll(holder, f"{path}/c0", 5, "from=earliest").json == ["first"]
        with Wire(holder) as client:
            client.poll(f"{path}/c0", 60)
            held(holder, f"{path}/c0")
            for node in (holder, other):
                answers = [poll(node, f"{path}/c{n}", 1.5) for n in (1, 2)]
                assert [(a.status, a.json) for a in answers] == [(200, [])] * 2


def test_a_waiting_poll_has_the_partition_soon_after_the_other_nodes_poll_ended(
    nodes: list[Node],
) -> None:
    create(nodes[0], "nodes-handed", 1)
    waits = []
    with ThreadPoolExecutor() as pool:
        for number in range(5):
            holder, other = nodes[number % 3], nodes[(number + 1) % 3]
            with Wire(holder) as client:
                client.poll("nodes-handed/g/c", 60)
                held(holder, "nodes-handed/g/c")
                second = pool.submit(poll, other, "nodes-handed/g/c", 60)
                until_waiting(other)
                assert not second.done()
            # The client went away, and with it its poll.
            began = time.monotonic()
            publish(other, "nodes-handed", f"m{number}")
            assert second.result().json == [f"m{number}"]
            waits.append(time.monotonic() - began)
    assert max(waits) < SOON, waits


def test_ids_on_different_nodes_share_the_partitions(
    nodes: list[Node], zookeeper: Zookeeper
) -> None:
    create(nodes[0], "nodes-shared", 6)
    with ExitStack() as polls:
        clients = [polls.enter_context(Wire(node)) for node in nodes]
        for client, node in zip(clients, nodes, strict=True):
            client.poll(f"nodes-shared/g/c{node.port}", 60)
        ports = [str(node.port) for node in nodes]
        until_true(lambda: sorted(holders(zookeeper, "nodes-shared")) == sorted(2 * ports), 30)


def holders(zookeeper: Zookeeper, topic: str) -> list[str]:
    """Return the ports of the nodes that hold partitions of a topic's groups."""
    return [
        partition.holder.split(":")[1]
        for group in show(f"{zookeeper.address}/nodes", "", 10)
        if group.topic.endswith(f"/{topic}")
        for partition in group.partitions
        if partition.holder is not None
    ]


def held(node: Stack, path: str) -> None:
    """Wait until a poll of this id has its place: another one of the same node waits for it."""
    until = time.monotonic() + 20
    while (answer := poll(node, path, 0.1)).status != 503:
        assert time.monotonic() < until, answer.body


def test_single_acknowledgements_on_all_nodes_at_once_are_all_kept(nodes: list[Node]) -> None:
    """Each is a commit that is read, changed and written back: the nodes take turns."""
    create(nodes[0], "nodes-acks", 1)
    at = "/topics/public/default/nodes-acks"
    values = [{"value": str(number)} for number in range(60)]
    produced = tell(nodes[0], at, {"messages": values}).json["messageIds"]
    created = tell(nodes[1], f"{at}/subscription/s", {"start": "earliest"})
    assert created.status == 200, created.body
    # Every fourth stays; neighbours are acknowledged by different nodes and meet in one range.
    wanted = [found["messageId"] for number, found in enumerate(produced) if number % 4]

    def acknowledge(identity: str, number: int) -> int:
        body = {"type": "individual", "messageIds": [identity]}
        return tell(nodes[number % 3], f"{at}/subscription/s/cursor", body).status

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(acknowledge, wanted, range(len(wanted)))) == {204}
    cursors = [ask(node, "GET", f"{at}/subscription/s/cursor").json["cursor"] for node in nodes]
    assert [cursor["backlog"] for cursor in cursors] == [15] * 3
    consumer = f"{at}/subscription/s/consumer/{created.json['id']}"
    kept: list[str] = []
    while len(kept) < 15:
        answer = ask(nodes[2], "GET", f"{consumer}/messages?timeout=10000")
        assert answer.status == 200, answer.body
        assert answer.json["messages"]
        kept += [message["value"] for message in answer.json["messages"]]
    assert kept == [str(number) for number in range(0, 60, 4)]
