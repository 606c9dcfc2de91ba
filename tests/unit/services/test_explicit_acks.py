"""Polls whose answers are acknowledged by a later poll that names them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends import Start
from router.backends.memory import MemoryNode
from router.backends.memory.log import MemoryConsumer
from router.errors import (
    BackendUnavailableError,
    BadReadOptionError,
    ConflictError,
    CoordinationUnavailableError,
    SubscriptionBusyError,
)
from router.model import ConsumerId, Position, Subscription, TopicName
from router.node.memory import MemoryClaim
from router.services.consume import AckMode, AckTokens, AnsweredPoll, session
from router.services.consume.ack_tokens import (
    MAX_TOKEN_CHARACTERS,
    MAX_TOKEN_PARTITIONS,
    AnsweredRange,
)
from tests.unit.services.polling import GROUP, PATIENCE, TOPIC, Bench

CONSUMER = ConsumerId(GROUP, "c1")
MAX_INT = (1 << 63) - 1
positions = st.builds(
    Position,
    st.integers(0, MAX_INT),
    st.integers(0, MAX_INT),
    st.just(0),
    st.integers(-1, (1 << 31) - 1),
    st.integers(0, (1 << 31) - 1),
    st.integers(0, MAX_INT),
)


def values(poll: AnsweredPoll) -> list[bytes]:
    return sorted(stored.message.value for stored in poll.messages)


def explicit(
    bench: Bench, token: str | None = None, consumer: str = "c1", **more: object
) -> tuple[list[bytes], str]:
    """Poll and write the answer; return what it holds, and its token."""
    acknowledged: Mapping[int, AnsweredRange] = {}
    if token is not None:
        acknowledged = bench.subscriber.tokens.read(ConsumerId(GROUP, consumer), token)
    more |= {"ack": AckMode.EXPLICIT, "consumer": consumer, "acknowledged": acknowledged}
    poll = bench.poll(None, **more)
    poll.delivered()
    assert poll.token is not None
    return values(poll), poll.token


def backlog(bench: Bench) -> int:
    return sum(s.backlog for s in bench.backend.describe_topic(TOPIC, 1).subscriptions)


def test_answer_comes_again_until_its_token_is_presented(bench: Bench) -> None:
    bench.publish(b"a", b"b", b"c")
    found, token = explicit(bench, limit=2)
    for _ in range(2):
        assert explicit(bench, limit=2)[0] == found == [b"a", b"b"]
    assert backlog(bench) == 3
    assert explicit(bench, token)[0] == [b"c"]
    assert backlog(bench) == 1
    assert explicit(bench, token)[0] == [b"c"]


def test_token_of_an_empty_answer_acknowledges_nothing(bench: Bench) -> None:
    found, token = explicit(bench)
    bench.publish(b"a")
    assert (found, explicit(bench, token)[0]) == ([], [b"a"])
    assert backlog(bench) == 1


def test_limit_of_zero_only_acknowledges(bench: Bench) -> None:
    bench.publish(b"a", b"b")
    _, token = explicit(bench, limit=1)
    for _ in range(2):
        assert explicit(bench, token, limit=0, limited=False)[0] == []
        assert backlog(bench) == 1


@pytest.mark.parametrize("partitions", [2, MAX_TOKEN_PARTITIONS + 8])
def test_answer_of_several_partitions_is_acknowledged_in_each(
    benches: Callable[..., Bench], partitions: int
) -> None:
    bench = benches(partitions)
    for partition in range(partitions):
        bench.publish(b"%03d" % partition, partition=partition)
    taken, (found, token) = [], explicit(bench)
    while found:
        assert len(found) <= MAX_TOKEN_PARTITIONS
        assert len(token) <= MAX_TOKEN_CHARACTERS
        taken += found
        found, token = explicit(bench, token)
    assert sorted(taken) == [b"%03d" % partition for partition in range(partitions)]


def test_token_from_before_a_reset_has_no_effect(bench: Bench) -> None:
    bench.publish(b"a", b"b")
    _, token = explicit(bench)
    bench.backend.reset(GROUP, Start.EARLIEST, 1)
    assert explicit(bench, token)[0] == [b"a", b"b"]
    with pytest.raises(ConflictError, match="partition 0: the group was reset"):
        explicit(bench, token, limit=0, limited=False)
    assert backlog(bench) == 2


def test_token_skips_no_message_of_a_topic_that_was_made_again(bench: Bench) -> None:
    bench.publish(b"a", b"b")
    _, token = explicit(bench)
    info = bench.backend.describe_topic(TOPIC, 1).info
    bench.backend.delete_topic(TOPIC, 1)
    bench.backend.create_topic(info, 1)
    bench.subscriber.context.forget(GROUP)
    bench.publish(b"c", b"d")
    assert explicit(bench, token)[0] == [b"c", b"d"]


def test_consumer_that_takes_over_gets_what_was_not_acknowledged(bench: Bench) -> None:
    bench.publish(b"a")
    _, token = explicit(bench)
    other = bench.poll(consumer="c2", ack=AckMode.EXPLICIT, timeout=PATIENCE)
    assert values(other) == [b"a"]
    # c2 holds the partition: what c1 presents is not applied, and nothing is skipped.
    with pytest.raises(ConflictError, match="another consumer has the partition"):
        explicit(bench, token, limit=0, limited=False)
    other.abandon()
    assert backlog(bench) == 1


@pytest.mark.parametrize("first_mode", [AckMode.NEXT, AckMode.WRITTEN])
def test_modes_may_change_between_polls(bench: Bench, first_mode: AckMode) -> None:
    bench.publish(b"a", b"b", b"c")
    assert bench.take(ack=first_mode, limit=1) == [b"a"]
    found, token = explicit(bench, limit=1)
    assert found == [b"b"]
    assert explicit(bench, token)[0] == [b"c"]
    assert bench.take() == [b"c"]
    assert bench.take() == []


def test_store_without_epochs_refuses_a_token_that_would_skip_messages(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Apache Pulsar: positions have no epoch, so that the place of the group decides."""
    without_epochs(bench, monkeypatch)
    bench.publish(b"a")
    bench.publish(b"b")
    _, first = explicit(bench, limit=1)
    found, second = explicit(bench, first)
    assert found == [b"b"]
    bench.backend.reset(GROUP, Start.EARLIEST, 1)
    assert explicit(bench, second)[0] == [b"a", b"b"]
    with pytest.raises(ConflictError):
        explicit(bench, second, limit=0, limited=False)
    assert explicit(bench, first)[0] == [b"b"]
    assert explicit(bench, second)[0] == []
    assert explicit(bench, first, limit=0, limited=False)[0] == []
    bench.publish(b"c")
    assert explicit(bench, first)[0] == [b"c"]


def without_epochs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    write = bench.subscriber.tokens.write

    def forgetful(consumer: ConsumerId, ranges: list[AnsweredRange]) -> str:
        known = [AnsweredRange(one.first, replace(one.last, epoch=0)) for one in ranges]
        return write(consumer, known)

    monkeypatch.setattr(bench.subscriber.tokens, "write", forgetful)


def test_failure_to_acknowledge_fails_the_poll_so_that_it_is_repeated(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.publish(b"a", b"b")
    _, token = explicit(bench, limit=1)

    def away(*_: object) -> None:
        raise BackendUnavailableError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryConsumer, "acknowledge", away)
        with pytest.raises(BackendUnavailableError, match="gone"):
            explicit(bench, token)
    assert explicit(bench, token)[0] == [b"b"]


def test_poll_reads_nothing_while_a_partition_of_its_token_is_on_its_way(
    benches: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = benches(2)
    for partition in (0, 1):
        bench.publish(b"a%d" % partition, partition=partition)
    _, token = explicit(bench)
    bench.publish(b"b0", partition=0)
    granted, late = MemoryClaim.granted, [True]

    def without_one(claim: MemoryClaim) -> dict[int, int]:
        return {p: g for p, g in granted(claim).items() if p == 0 or not late[0]}

    monkeypatch.setattr(MemoryClaim, "granted", without_one)
    monkeypatch.setattr(MemoryClaim, "waiting", lambda _: late[0])
    with pytest.raises(SubscriptionBusyError):
        explicit(bench, token, timeout=0.05)
    waiting = bench.later(
        ack=AckMode.EXPLICIT, acknowledged=bench.subscriber.tokens.read(CONSUMER, token)
    )
    assert not waiting.done()
    late[0] = False
    [claim] = bench.node.claims
    claim.mailbox.wake()
    assert values(waiting.result(PATIENCE)) == [b"b0"]


def test_final_acknowledgement_without_leases_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.publish(b"a")
    _, token = explicit(bench)
    bench.node.unavailable_reason = "ZooKeeper is away"
    with monkeypatch.context() as patch:
        patch.setattr(MemoryClaim, "granted", lambda _: {})
        patch.setattr(session, "HANDOVER_SECONDS", 0.05)
        with pytest.raises(CoordinationUnavailableError, match="ZooKeeper is away"):
            explicit(bench, token, limit=0, limited=False)
    bench.node.unavailable_reason = None
    assert explicit(bench, token, limit=0, limited=False)[0] == []
    assert backlog(bench) == 0


others = st.sampled_from(
    [
        ConsumerId(GROUP, "c2"),
        ConsumerId(Subscription(TOPIC, "other"), "c1"),
        ConsumerId(Subscription(TopicName.parse("t2"), "g"), "c1"),
        ConsumerId(Subscription(TopicName.parse("t", "public", "x"), "g"), "c1"),
    ]
)


@given(
    ranges=st.lists(st.builds(AnsweredRange, positions, positions), max_size=MAX_TOKEN_PARTITIONS),
    other=others,
    text=st.text(max_size=60) | st.text("abcdefgh0123456789-_", max_size=200),
)
def test_token_is_read_by_its_consumer_alone(
    ranges: list[AnsweredRange], other: ConsumerId, text: str
) -> None:
    registry = MemoryNode().registry
    ranges = [
        AnsweredRange(
            Position(one.first.ledger, one.first.entry, number), replace(one.last, partition=number)
        )
        for number, one in enumerate(ranges)
    ]
    token = AckTokens(registry, 1).write(CONSUMER, ranges)
    assert len(token) <= MAX_TOKEN_CHARACTERS
    read = AckTokens(registry, 1).read(CONSUMER, token)
    assert [(a.first, a.last, a.last.epoch, a.last.batch_size) for a in read.values()] == [
        (a.first, a.last, a.last.epoch, a.last.batch_size) for a in ranges
    ]
    for consumer, given_token in ((other, token), (CONSUMER, text), (CONSUMER, token[:-2])):
        with pytest.raises(BadReadOptionError, match="the Ack-Token of an answer to consumer c"):
            AckTokens(registry, 1).read(consumer, given_token)
