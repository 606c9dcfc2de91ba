"""What every node promises, asked of each of them: router.backends.Node."""

from __future__ import annotations

import itertools
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from router.errors import CoordinationUnavailableError, FencedError
from router.model import (
    NOT_PARTITIONED,
    ConsumerId,
    Grant,
    GroupMembers,
    PollOutcome,
    Position,
    Subscription,
)
from router.node import Claim, client
from tests.contract.conftest import WAIT, Bell, Opened, settings_for, stop_broker

pytestmark = pytest.mark.contract

_buckets = itertools.count(1)


class Group:
    """Polls of one new group."""

    def __init__(self, opened: Opened, partitions: int = 0) -> None:
        self._node = opened.node
        self._partitions = partitions
        self.subscription = Subscription(opened.new_topic(partitions), "g")

    def claim(self, consumer: str, bell: Bell | None = None) -> Claim:
        return self._node.claim(
            ConsumerId(self.subscription, consumer), self._partitions, bell or Bell(), WAIT
        )


def test_the_only_poll_holds_everything_at_once(with_node: Opened) -> None:
    claim = Group(with_node, 3).claim("a")
    assert set(claim.granted()) == {0, 1, 2}
    assert (claim.holder(), claim.limited(), claim.lost()) == (None, None, False)
    assert (claim.revoked(), claim.pending()) == (set(), {})
    claim.release(PollOutcome.EMPTY)


def test_a_topic_without_partitions_is_one(with_node: Opened) -> None:
    claim = Group(with_node).claim("a")
    assert set(claim.granted()) == {NOT_PARTITIONED}
    claim.release(PollOutcome.EMPTY)


def test_generations_grow_with_every_grant(with_node: Opened) -> None:
    group = Group(with_node)
    generations = []
    for _ in range(3):
        claim = group.claim("a")
        generations.append(claim.granted()[NOT_PARTITIONED])
        claim.release(PollOutcome.DELIVERED)
    assert generations == sorted(set(generations))


def test_a_second_id_gets_its_share_when_it_is_given_up(with_node: Opened, bell: Bell) -> None:
    group = Group(with_node, 4)
    own = Bell()
    first = group.claim("a", own)
    second = group.claim("b", bell)
    own.until(lambda: len(first.revoked()) == 2)
    assert second.granted() == {}
    asked = first.revoked()
    first.give_up(sorted(asked))
    bell.until(lambda: set(second.granted()) == asked)
    assert set(first.granted()) == {0, 1, 2, 3} - asked
    assert first.revoked() == set()
    first.release(PollOutcome.EMPTY)
    second.release(PollOutcome.EMPTY)


def test_a_second_poll_of_the_same_id_waits_and_says_for_whom(
    with_node: Opened, bell: Bell
) -> None:
    group = Group(with_node)
    first = group.claim("a")
    second = group.claim("a", bell)
    assert second.granted() == {}
    assert "a" in (second.holder() or "")
    first.release(PollOutcome.EMPTY)
    bell.until(second.granted)
    assert second.holder() is None
    second.release(PollOutcome.EMPTY)


def test_what_an_id_left_goes_to_others_after_its_idle_time(with_node: Opened, bell: Bell) -> None:
    group = Group(with_node)
    for consumer in "ab":
        group.claim(consumer).release(PollOutcome.DELIVERED)
    claim = group.claim("c", bell)
    bell.until(claim.granted)
    claim.release(PollOutcome.EMPTY)


def test_releasing_twice_is_releasing_once(with_node: Opened) -> None:
    group = Group(with_node)
    claim = group.claim("a")
    claim.release(PollOutcome.EMPTY)
    claim.release(PollOutcome.EMPTY)
    again = group.claim("a")
    assert again.granted()
    again.release(PollOutcome.EMPTY)


def test_the_next_poll_of_an_id_is_handed_what_it_left_pending(with_node: Opened) -> None:
    group = Group(with_node, 2)
    left = Position(7, 8, 1, 2, 5)
    group.claim("a").release(PollOutcome.DELIVERED, [left])
    claim = group.claim("a")
    assert claim.pending() == {1: left}
    assert claim.pending()[1].batch_size == 5
    claim.release(PollOutcome.DELIVERED)
    last = group.claim("a")
    assert last.pending() == {}
    last.release(PollOutcome.DELIVERED)


def test_another_id_is_not_handed_what_was_left_pending(with_node: Opened, bell: Bell) -> None:
    group = Group(with_node)
    group.claim("a").release(PollOutcome.DELIVERED, [Position(7, 8)])
    claim = group.claim("b", bell)
    bell.until(claim.granted)
    assert claim.pending() == {}
    claim.release(PollOutcome.DELIVERED)


def test_too_many_empty_polls_are_limited(with_node: Opened) -> None:
    group = Group(with_node)
    for _ in range(10):
        claim = group.claim("a")
        assert claim.limited() is None
        claim.release(PollOutcome.EMPTY)
    limited = group.claim("a")
    assert 0 < (limited.limited() or 0) <= 6
    assert limited.granted()
    limited.release(PollOutcome.REFUSED)


def test_polls_that_find_messages_are_never_limited(with_node: Opened) -> None:
    group = Group(with_node)
    for _ in range(12):
        claim = group.claim("a")
        assert claim.limited() is None
        claim.release(PollOutcome.DELIVERED)


def test_the_newest_grant_is_confirmed_while_its_claim_stands(with_node: Opened) -> None:
    group, node = Group(with_node, 2), with_node.node
    claim = group.claim("a")
    for partition, generation in claim.granted().items():
        node.confirm(Grant(group.subscription, partition, generation), WAIT)
    claim.release(PollOutcome.DELIVERED)


def test_an_older_grant_is_fenced(with_node: Opened) -> None:
    group, node = Group(with_node), with_node.node
    first = group.claim("a")
    (old,) = first.granted().values()
    first.release(PollOutcome.DELIVERED)
    with pytest.raises(FencedError):
        node.confirm(Grant(group.subscription, NOT_PARTITIONED, old), WAIT)
    second = group.claim("a")
    with pytest.raises(FencedError):
        node.confirm(Grant(group.subscription, NOT_PARTITIONED, old), WAIT)
    node.confirm(
        Grant(group.subscription, NOT_PARTITIONED, second.granted()[NOT_PARTITIONED]), WAIT
    )
    second.release(PollOutcome.DELIVERED)


def test_what_was_never_granted_is_fenced(with_node: Opened) -> None:
    group, node = Group(with_node), with_node.node
    with pytest.raises(FencedError):
        node.confirm(Grant(group.subscription, NOT_PARTITIONED, 1), WAIT)


def test_a_bucket_gives_its_burst_and_then_tells_the_wait(with_node: Opened) -> None:
    bucket = f"bucket-{next(_buckets)}"
    assert [with_node.node.take_token(bucket, 1, 3, WAIT) for _ in range(3)] == [None] * 3
    wait = with_node.node.take_token(bucket, 1, 3, WAIT)
    assert wait is not None
    assert 0 < wait <= 60


def test_looking_for_a_token_takes_none(with_node: Opened) -> None:
    node, bucket = with_node.node, f"bucket-{next(_buckets)}"
    for _ in range(3):
        assert node.take_token(bucket, 1, 1, WAIT, look_only=True) is None
    assert node.take_token(bucket, 1, 1, WAIT) is None
    wait = node.take_token(bucket, 1, 1, WAIT, look_only=True)
    assert wait is not None
    assert 0 < wait <= 60


def test_buckets_are_apart(with_node: Opened) -> None:
    first, second = (f"bucket-{next(_buckets)}" for _ in range(2))
    assert with_node.node.take_token(first, 1, 1, WAIT) is None
    assert with_node.node.take_token(second, 1, 1, WAIT) is None


def test_counters_add_up_and_gauges_replace(with_node: Opened) -> None:
    counter = ("router_publish_refused_total", (("code", "contract"),), 2.0)
    for polls in (3.0, 5.0):
        with_node.node.push_metrics([counter], [("router_polls_waiting", (), polls)], WAIT)
    text = with_node.node.metrics(WAIT)
    assert 'router_publish_refused_total{code="contract"} 4.0\n' in text
    assert "router_polls_waiting 5.0\n" in text


def test_a_node_that_serves_polls_is_ready(with_node: Opened) -> None:
    with_node.node.ready(WAIT)


def test_a_node_whose_zookeeper_is_away_is_not_ready_and_says_why(tmp_path: Path) -> None:
    with socket.socket() as nobody, ExitStack() as stack:
        nobody.bind(("127.0.0.1", 0))  # and never listens
        where = f"127.0.0.1:{nobody.getsockname()[1]}"
        settings = settings_for(
            tmp_path, backend__url="kafka://127.0.0.1:1", zookeeper__servers=f"{where}/router"
        )
        stack.callback(stop_broker, tmp_path)
        node = client.open_node(settings)
        stack.callback(node.close)
        with pytest.raises(CoordinationUnavailableError, match=f"ZooKeeper at {where}"):
            node.ready(WAIT)


def test_members_are_told_with_what_they_hold(with_node: Opened) -> None:
    group = Group(with_node, 2)
    assert with_node.node.members(group.subscription, WAIT) == GroupMembers()
    polling = group.claim("a")
    (member,) = with_node.node.members(group.subscription, WAIT).members
    assert (member.consumer, member.node, member.polls, member.idle_ms) == ("a", "", 1, None)
    assert member.polling_ms is not None
    found = with_node.node.members(group.subscription, WAIT)
    assert [(lease.partition, lease.node, lease.consumer) for lease in found.leases] == [
        (0, "", "a"),
        (1, "", "a"),
    ]
    other = Group(with_node)
    assert with_node.node.members(other.subscription, WAIT) == GroupMembers()
    polling.release(PollOutcome.EMPTY)
    (member,) = with_node.node.members(group.subscription, WAIT).members
    assert (member.consumer, member.polls, member.polling_ms) == ("a", 0, None)
    assert member.idle_ms is not None


def test_a_retained_claim_stands_until_another_poll_of_its_id_comes(
    with_node: Opened, bell: Bell
) -> None:
    group, own = Group(with_node), Bell()
    first = group.claim("a", own)
    first.retain()
    first.retain()
    second = group.claim("a", bell)
    own.until(first.recalled)
    assert first.granted()
    first.release(PollOutcome.DELIVERED)
    bell.until(second.granted)
    assert not second.recalled()
    second.release(PollOutcome.EMPTY)


def test_a_claim_that_is_retained_while_another_poll_waits_is_recalled(with_node: Opened) -> None:
    group, own = Group(with_node), Bell()
    first, second = group.claim("a", own), group.claim("a")
    assert not first.recalled()
    first.retain()
    own.until(first.recalled)
    first.release(PollOutcome.DELIVERED)
    second.release(PollOutcome.EMPTY)


@pytest.mark.parametrize("whole_topic", [False, True])
def test_retained_claims_are_recalled_for_an_administrator_who_waits_for_their_end(
    with_node: Opened, whole_topic: bool
) -> None:
    group, own = Group(with_node), Bell()
    topic, name = group.subscription.topic, group.subscription.name
    claim = group.claim("a", own)
    claim.retain()
    with ThreadPoolExecutor(1) as pool:
        recall = pool.submit(with_node.node.recall, topic, None if whole_topic else name, WAIT)
        own.until(claim.recalled)
        assert not recall.done()
        claim.release(PollOutcome.DELIVERED)
        recall.result(WAIT)


def test_an_administrator_does_not_wait_for_a_retained_claim_that_a_poll_uses(
    with_node: Opened,
) -> None:
    group, own = Group(with_node), Bell()
    claim = group.claim("a", own)
    claim.retain()
    with ThreadPoolExecutor(1) as pool:
        recall = pool.submit(with_node.node.recall, group.subscription.topic, None, WAIT)
        own.until(claim.recalled)
        claim.in_use()
        recall.result(WAIT)
    assert claim.granted()
    claim.release(PollOutcome.DELIVERED)


def test_grants_are_confirmed_together_each_by_itself(with_node: Opened) -> None:
    group = Group(with_node, 2)
    claim = group.claim("a")
    grants = [Grant(group.subscription, *one) for one in claim.granted().items()]
    stale = Grant(group.subscription, 0, 1)
    assert with_node.node.confirm_all([stale, *grants], WAIT) == [False, True, True]
    claim.release(PollOutcome.EMPTY)
    assert with_node.node.confirm_all(grants, WAIT) == [False, False]
