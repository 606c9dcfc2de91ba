"""The judge can say no: each lie, and each lost tail of a disk, makes a history illegal."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.histories import lies, pool_lies, transaction_lies
from tests.histories.judging import ILLEGAL, LEGAL, judge
from tests.histories.leases import Lease
from tests.histories.members import ClassicGroup, ConsumerProtocolGroup
from tests.histories.pools import FailoverPool, KeyedPool, Pool, Takeover
from tests.histories.pulsar_transactions import PulsarTransactions
from tests.histories.recording import History, Operation
from tests.histories.running import SCENARIOS, Router, record_in_turn, running
from tests.histories.scenarios import (
    BatchLog,
    Bucket,
    Cursor,
    LimitedStream,
    Queue,
    Scenario,
    StreamLog,
    Topic,
    TopicLog,
)
from tests.histories.transactions import Transactions

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(180)]

STEPS = 60
# A step of a takeover is a whole one, and transactions seldom want the same message.
STEPS_OF: dict[type[Scenario], int] = {Takeover: 1, PulsarTransactions: 180}
LIES = (
    (TopicLog, lies.StaleReads),
    (TopicLog, lies.StaleEnds),
    (TopicLog, lies.LostAppends),
    (TopicLog, lies.RepeatedOffsets),
    (TopicLog, lies.DoubledAppends),
    (TopicLog, lies.EmptyReads),
    (TopicLog, lies.ForgottenNumbers),
    (TopicLog, lies.FalseRepeats),
    (TopicLog, lies.SkippingReaders),
    (TopicLog, lies.EarlierEnds),
    (BatchLog, lies.CutBatches),
    (BatchLog, lies.ReversedBatches),
    (BatchLog, lies.BatchesByEntry),
    (StreamLog, lies.LostPublishes),
    (LimitedStream, lies.KeptMessages),
    (Cursor, lies.LostCommits),
    (Cursor, lies.StaleCommits),
    (Queue, lies.SkippedMessages),
    (Queue, lies.LostAcknowledgements),
    (Queue, lies.RedeliveredMessages),
    (Queue, lies.LostReceipts),
    (Queue, lies.EmptyHands),
    (Queue, lies.SilentAcknowledgements),
    (Pool, pool_lies.UnsentAcknowledgements),
    (Pool, pool_lies.SecondDeliveries),
    (Pool, pool_lies.OwnGroups),
    (Pool, pool_lies.SilentMembers),
    (Pool, pool_lies.KeptHoldings),
    (FailoverPool, pool_lies.OwnGroups),
    (Takeover, pool_lies.KeptTurns),
    (Takeover, pool_lies.SecondTurns),
    (Takeover, pool_lies.DisorderedTurns),
    (Takeover, pool_lies.PassingTurns),
    (KeyedPool, pool_lies.SecondDeliveries),
    (KeyedPool, pool_lies.OwnGroups),
    (KeyedPool, pool_lies.SilentMembers),
    (KeyedPool, pool_lies.DisorderedMembers),
    (Lease, lies.SecondHolders),
    (Lease, lies.ReorderedMessages),
    (Lease, lies.LostAcknowledgements),
    (Lease, lies.RedeliveredMessages),
    (Bucket, lies.IgnoredConditions),
    (Bucket, lies.StaleValues),
    (Bucket, lies.WrongRevisions),
    (Topic, lies.LostDeletions),
    (ClassicGroup, lies.UnfencedCommits),
    (ClassicGroup, lies.ForgottenCommits),
    (ConsumerProtocolGroup, lies.UnfencedCommits),
    (ConsumerProtocolGroup, lies.ForgottenCommits),
    (ConsumerProtocolGroup, lies.TwiceAssigned),
    (Transactions, transaction_lies.DirtyReads),
    (Transactions, transaction_lies.LostTransactions),
    (Transactions, transaction_lies.TornTransactions),
    (Transactions, transaction_lies.EarlyPositions),
    (Transactions, transaction_lies.LostPositions),
    (PulsarTransactions, transaction_lies.DirtyReads),
    (PulsarTransactions, transaction_lies.TornReads),
    (PulsarTransactions, transaction_lies.RepeatedReads),
    (PulsarTransactions, transaction_lies.WritesOfNoTransaction),
    (PulsarTransactions, transaction_lies.DoubledWrites),
    (PulsarTransactions, transaction_lies.UncommittedTransactions),
    (PulsarTransactions, transaction_lies.CommittedAborts),
    (PulsarTransactions, transaction_lies.EarlyAcknowledgements),
    (PulsarTransactions, transaction_lies.ForgottenAcknowledgements),
    (PulsarTransactions, transaction_lies.SharedAcknowledgements),
    (PulsarTransactions, transaction_lies.FalseConflicts),
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a group wait for no member: one of them works at a time."""
    monkeypatch.setattr(ClassicGroup, "rebalance_ms", 20)


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    with running(tmp_path_factory.mktemp("judge")) as router:
        yield router


def steps_of(kind: type[Scenario]) -> int:
    """Return how many operations show each lie."""
    return STEPS_OF.get(kind, STEPS)


def lying(kind: type[Scenario], client: type) -> type[Scenario]:
    """Return a scenario whose clients of one protocol lie."""
    slots = ("Http", "Kafka", "Nats", "Pulsar", "Wire", "Member", "Reader")
    (slot,) = (name for name in slots if issubclass(client, getattr(kind, name, ())))
    return type(
        client.__name__, (kind,), {slot: client, "label": f"{kind.label}-{client.__name__}"}
    )


@pytest.mark.parametrize("kind", [*SCENARIOS, Lease, Takeover])
def test_truth_is_legal_and_every_call_is_answered(router: Router, kind: type[Scenario]) -> None:
    history = record_in_turn(router, "truth", kind, steps=steps_of(kind))
    assert [one for one in history.operations if one.output is None] == []
    assert judge(history) == LEGAL


@pytest.mark.parametrize(("kind", "client"), LIES)
def test_lie_is_illegal_and_drawn(
    router: Router, tmp_path: Path, kind: type[Scenario], client: type
) -> None:
    history = record_in_turn(router, "lie", lying(kind, client), steps=steps_of(kind))
    picture = tmp_path / "picture.html"
    assert judge(history, picture) == ILLEGAL
    assert "<svg" in picture.read_text()


@pytest.mark.parametrize("kind", [TopicLog, Bucket])
def test_tail_that_a_disk_lost_is_illegal(tmp_path: Path, kind: type[Scenario]) -> None:
    verdict = ""
    with running(tmp_path) as router:
        data, copy = tmp_path / "data", tmp_path / "copy"

        def lose() -> None:
            """Set the folder back to what it was when nothing of the history was stored."""
            router.stack.kill()
            for one in data.iterdir():
                shutil.rmtree(one) if one.is_dir() else one.unlink()
            shutil.copytree(copy, data, dirs_exist_ok=True)
            router.stack.start()
            router.stack.wait_ready()

        class Losing(kind):  # type: ignore[misc, valid-type] # a parameter
            def prepare(self) -> None:
                super().prepare()
                router.stack.stop()
                shutil.copytree(data, copy)
                router.stack.start()
                router.stack.wait_ready()

        verdict = judge(record_in_turn(router, "tail", Losing, steps=STEPS, between=lose))
    assert verdict == ILLEGAL


def appended(client: int, value: str, times: tuple[int, int], offset: int | None) -> Operation:
    output = None if offset is None else {"offset": offset}
    return Operation(client, "append", *times, {"value": value}, output)


@pytest.mark.parametrize("first", [[], ["a"]])
def test_append_without_an_answer_may_have_happened_or_not(first: list[str]) -> None:
    history = History("log", "unknown")
    history.add(appended(0, "a", (1, 2), None))
    history.add(Operation(1, "read", 3, 4, {"offset": 0}, {"values": first}))
    assert judge(history) == LEGAL
    history.add(Operation(1, "read", 5, 6, {"offset": 0}, {"values": ["b"]}))
    assert judge(history) == ILLEGAL


def test_order_matters_only_where_one_returned_before_the_other() -> None:
    for first, verdict in (((1, 4), LEGAL), ((1, 2), ILLEGAL)):
        history = History("log", "order")
        history.add(appended(0, "a", first, 1))
        history.add(appended(1, "b", (3, 5), 0))
        assert judge(history) == verdict


def given(client: int, member: str, times: tuple[int, int]) -> Operation:
    return Operation(client, "hold", *times, {"member": member, "value": "a", "offset": 0}, {})


@pytest.mark.parametrize(("answer", "verdict"), [({}, ILLEGAL), (None, LEGAL)])
def test_acknowledged_message_comes_again_only_if_the_broker_did_not_say_so(
    answer: dict[str, str] | None, verdict: str
) -> None:
    history = History("pool", "acknowledged")
    history.add(Operation(0, "append", 1, 2, {"value": "a", "key": "a"}, {"offset": 0}))
    history.add(given(1, "m-1", (3, 4)))
    history.add(Operation(2, "ack", 5, 6, {"value": "a"}, answer))
    history.add(Operation(3, "crash", 7, 8, {}, {}))
    history.add(given(4, "n-1", (9, 10)))
    assert judge(history) == verdict


@pytest.mark.parametrize(("op", "verdict"), [("lose", LEGAL), ("none", ILLEGAL)])
def test_message_goes_to_another_only_where_its_consumer_was_lost(op: str, verdict: str) -> None:
    history = History("pool", "given")
    history.add(Operation(0, "append", 1, 2, {"value": "a", "key": "a"}, {"offset": 0}))
    history.add(given(1, "m-1", (3, 4)))
    history.add(given(2, "n-1", (5, 6)))
    history.add(Operation(3, op, 4, 9, {"member": "m-1"}, {}))
    assert judge(history) == verdict
