"""Dead letters: what waits, where it came from, requeueing and discarding; stops in the middle."""

from __future__ import annotations

import time
from typing import Any

import pytest

from router.backends import Batch, Positions, Start
from router.backends.memory import MemoryNode
from router.errors import (
    BackendTimeoutError,
    BadReadOptionError,
    PublishRefusedError,
    TopicNotFoundError,
)
from router.metrics import Metrics
from router.model import UNDECODED, Message, Position, Subscription, TopicInfo, TopicName
from router.services.consume import PollMailbox
from router.services.dead_letters import scan, service
from router.services.dead_letters.dead_letter import (
    DeadLetterOrigin,
    origin,
    read_dead_letter_ids,
    read_marks,
    write_dead_letter_id,
    write_marks,
)
from router.services.dead_letters.service import GROUP, DeadLetters, DeadLetterSelection
from router.services.message_history import MessageHistory
from router.services.publish import Publisher, PublishOptions
from router.services.shared_secret import RequestNames
from router.services.topic_metadata import TopicMetadataCache
from tests.unit.web.applications import Troubled

DEAD = TopicName.parse("orders.dlq")
ORDERS = TopicName.parse("orders")
FROM_ORDERS = {"router-topic": "orders", "router-error": "no JSON", "router-partition": "0"}


class KilledError(BaseException):
    """The process ends here."""


class Losing(Troubled):
    """A store that may end before it takes an acknowledgement."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: BaseException | None = None

    def acknowledge(
        self, subscription: Subscription, positions: Positions, cumulative: bool, timeout: float
    ) -> None:
        if (failing := self.failing) is not None:
            self.failing = None
            raise failing
        super().acknowledge(subscription, positions, cumulative, timeout)


class Desk:
    """Dead letters over the memory backend, with a topic that they came from."""

    def __init__(self, partitions: int = 0) -> None:
        self.backend = Losing()
        self.now = 4_000_000_000_000
        for topic, count in ((DEAD, partitions), (ORDERS, 0)):
            self.backend.create_topic(TopicInfo(topic, count), 1)
        directory = TopicMetadataCache(self.backend, 0, 1, time.monotonic)
        names = RequestNames(MemoryNode().registry, 1)
        options = PublishOptions(1 << 20, 5, True)
        publisher = Publisher(self.backend, directory, names, options, Metrics(), time.monotonic)
        self.dead_letters = DeadLetters(
            self.backend, directory, publisher, None, 5, lambda: self.now
        )

    def bury(
        self, *values: bytes, partition: int = -1, notes: dict[str, str] | None = None
    ) -> None:
        """Store letters in one entry."""
        properties = FROM_ORDERS | {"colour": "red"} | (notes or {})
        messages = [Message(value, b"key", properties) for value in values]
        self.backend.publish(Batch(DEAD, partition, messages), 1)

    def waiting(self) -> list[bytes]:
        return [
            one.stored.message.value
            for one in self.dead_letters.page(DEAD, DeadLetterSelection()).dead_letters
        ]

    def ids(self) -> list[str]:
        look = self.dead_letters.page(DEAD, DeadLetterSelection())
        return [write_dead_letter_id(one.stored.position) for one in look.dead_letters]

    def orders(self, topic: TopicName = ORDERS) -> list[Message]:
        reader = self.backend.read(topic, -1, Start.EARLIEST, PollMailbox(), 1)
        found = [stored.message for stored in reader.receive(10_000, 1 << 30, 1)]
        reader.close()
        return found


@pytest.fixture
def desk() -> Desk:
    return Desk()


def anywhere(_: TopicName) -> bool:
    return True


def test_letters_wait_until_they_are_done_with(desk: Desk) -> None:
    desk.bury(b"1", b"2")
    desk.bury(b"3")
    assert desk.waiting() == [b"1", b"2", b"3"]
    assert desk.dead_letters.count(DEAD) == (3, 3)
    chosen = DeadLetterSelection(read_dead_letter_ids("position", desk.ids()[1]))
    assert desk.dead_letters.discard(DEAD, chosen, anywhere).done == 1
    assert desk.waiting() == [b"1", b"3"]
    assert desk.dead_letters.count(DEAD) == (2, 3)
    again = desk.dead_letters.discard(DEAD, chosen, anywhere)
    assert (again.done, list(again.refused.values())) == (0, ["It does not wait any more."])
    assert desk.dead_letters.discard(DEAD, DeadLetterSelection(), anywhere).done == 2
    assert desk.waiting() == []
    assert desk.dead_letters.count(DEAD) == (0, 3)
    assert desk.orders() == []


def test_looking_makes_no_group(desk: Desk) -> None:
    desk.bury(b"1")
    desk.waiting()
    assert desk.backend.describe_topic(DEAD, 1).subscriptions == ()


def test_requeued_letters_are_what_they_were(desk: Desk) -> None:
    desk.bury(b"1", b"2")
    outcome = desk.dead_letters.requeue(DEAD, DeadLetterSelection(), anywhere)
    assert (outcome.done, outcome.refused, outcome.more, outcome.failure) == (2, {}, False, "")
    assert [(m.value, m.key, dict(m.properties)) for m in desk.orders()] == [
        (b"1", b"key", {"colour": "red"}),
        (b"2", b"key", {"colour": "red"}),
    ]
    assert desk.waiting() == []


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_stop_in_the_middle_loses_and_doubles_nothing(desk: Desk, index: int) -> None:
    desk.bury(b"1", b"2")
    desk.bury(b"3")
    real, left = desk.backend.publish, [index]

    def publish(batch: Batch, timeout: float) -> object:
        if batch.topic == ORDERS and not left[0]:
            left[0] = -1
            raise KilledError
        left[0] -= batch.topic == ORDERS
        return real(batch, timeout)

    desk.backend.publish = publish  # type: ignore[method-assign, assignment] # it ends once
    with pytest.raises(KilledError):
        desk.dead_letters.requeue(DEAD, DeadLetterSelection(), anywhere)
    assert desk.dead_letters.requeue(DEAD, DeadLetterSelection(), anywhere).done == 3
    assert [message.value for message in desk.orders()] == [b"1", b"2", b"3"]
    assert desk.waiting() == []


def test_a_stop_before_the_acknowledgement_doubles_nothing(desk: Desk) -> None:
    desk.bury(b"1", b"2")
    desk.backend.failing = KilledError()
    with pytest.raises(KilledError):
        desk.dead_letters.requeue(DEAD, DeadLetterSelection(), anywhere)
    assert desk.waiting() == [b"1", b"2"]
    assert desk.dead_letters.requeue(DEAD, DeadLetterSelection(), anywhere).done == 2
    assert [message.value for message in desk.orders()] == [b"1", b"2"]


def test_letters_of_a_topic_made_again_are_not_taken_for_the_old_ones(desk: Desk) -> None:
    desk.bury(b"1")
    desk.dead_letters.requeue(DEAD, DeadLetterSelection(), anywhere)
    ledger = desk.backend.describe_topic(DEAD, 1).partitions[0].ledger
    desk.backend.delete_topic(DEAD, 1)
    desk.backend._ledgers = ledger - 1  # as where positions begin at the same number, over Kafka
    time.sleep(0.002)
    desk.backend.create_topic(TopicInfo(DEAD), 1)
    desk.bury(b"2")
    desk.dead_letters.requeue(DEAD, DeadLetterSelection(), anywhere)
    assert [message.value for message in desk.orders()] == [b"1", b"2"]


def test_letters_that_cannot_be_requeued_stay_with_the_reason(desk: Desk) -> None:
    desk.bury(b"1", notes={UNDECODED: "oversized"})
    desk.bury(b"2", notes={"router-topic": "orders.dlq"})
    desk.bury(b"3", notes={"router-topic": "absent"})
    desk.bury(b"4", notes={"router-topic": "other/place/orders"})
    desk.bury(b"5", notes={"router-topic": "secret"})
    desk.bury(b"6", notes={"router-topic": "<b>"})
    desk.bury(b"7")
    desk.backend.create_topic(TopicInfo(TopicName.parse("secret")), 1)
    outcome = desk.dead_letters.requeue(
        DEAD, DeadLetterSelection(), lambda topic: topic.local != "secret"
    )
    assert outcome.done == 1
    assert list(outcome.refused.values()) == [
        "Its value is not what was sent, but its stored form.",
        "It came from this topic itself.",
        "There is no topic absent.",
        "It came from another namespace, persistent://other/place/orders.",
        "You may not publish to secret.",
        "Its properties do not name the topic that it came from.",
    ]
    assert desk.waiting() == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert [message.value for message in desk.orders()] == [b"7"]
    assert [str(info.topic.local) for info in desk.backend.list_topics(1)] == [
        "orders",
        "orders.dlq",
        "secret",
    ]


def test_a_letter_that_the_store_refuses_holds_up_no_other(desk: Desk) -> None:
    desk.bury(b"1", b"2")
    desk.backend.publishing = [PublishRefusedError("too large")]
    outcome = desk.dead_letters.requeue(DEAD, DeadLetterSelection(), anywhere)
    assert (outcome.done, list(outcome.refused.values())) == (1, ["too large"])
    assert desk.waiting() == [b"1"]


def test_a_store_that_is_away_ends_the_call_and_what_is_done_counts(desk: Desk) -> None:
    desk.bury(b"1", b"2", b"3")
    desk.backend.publishing = [None, BackendTimeoutError("too slow")]
    outcome = desk.dead_letters.requeue(DEAD, DeadLetterSelection(), anywhere)
    assert (outcome.done, outcome.more) == (1, False)
    assert outcome.failure == "None of the messages is stored. too slow"
    assert desk.waiting() == [b"2", b"3"]


def test_all_are_done_with_in_bounded_calls(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_BATCH", 10)
    for number in range(25):
        desk.bury(b"%d" % number, notes={} if number % 5 else {"router-topic": "absent"})
    chosen, calls, done, refused = DeadLetterSelection(before_ms=desk.now), 0, 0, 0
    while True:
        outcome = desk.dead_letters.requeue(DEAD, chosen, anywhere)
        calls, done, refused = calls + 1, done + outcome.done, refused + len(outcome.refused)
        if not outcome.more:
            break
        after = read_marks("after", write_marks(outcome.after))
        chosen = DeadLetterSelection(None, after, chosen.before_ms)
    assert (calls, done, refused) == (3, 20, 5)
    assert len(desk.waiting()) == 5


def test_a_discard_leaves_no_word_on_messages_of_topics_that_the_user_may_not_see(
    desk: Desk,
) -> None:
    """Whoever may publish to a dead-letter topic may name any topic in a letter."""
    noted: list[str] = []

    class Broker:
        def call(self, name: str, **arguments: Any) -> None:
            noted.append(f"{arguments['topic']} {arguments['action']} {arguments['user']}")

    desk.dead_letters.history = MessageHistory(Broker())
    secret = TopicName.parse("other/place/secret")
    desk.backend.create_topic(TopicInfo(secret), 1)
    for topic in (str(secret), "orders"):
        desk.bury(b"1", notes={"router-topic": topic, "router-position": "1:2"})
    outcome = desk.dead_letters.discard(DEAD, DeadLetterSelection(), lambda to: to == ORDERS, "eve")
    assert (outcome.done, desk.waiting()) == (2, [])
    assert noted == [f"{ORDERS} discarded eve"]


def test_letters_that_come_meanwhile_are_not_meant(desk: Desk) -> None:
    desk.bury(b"1")
    last = desk.dead_letters.page(DEAD, DeadLetterSelection()).dead_letters[-1].stored.publish_time
    time.sleep(0.005)
    desk.bury(b"2")
    assert desk.dead_letters.discard(DEAD, DeadLetterSelection(before_ms=last), anywhere).done == 1
    assert desk.waiting() == [b"2"]


def test_partitions_are_looked_at_one_after_the_other() -> None:
    desk = Desk(partitions=3)
    for partition in range(3):
        desk.bury(b"a%d" % partition, b"b%d" % partition, partition=partition)
    page = desk.dead_letters.page(DEAD, DeadLetterSelection(limit=4))
    assert ([one.stored.message.value for one in page.dead_letters], page.more) == (
        [b"a0", b"b0", b"a1", b"b1"],
        True,
    )
    rest = desk.dead_letters.page(DEAD, DeadLetterSelection(None, page.after))
    assert ([one.stored.message.value for one in rest.dead_letters], rest.more) == (
        [b"a2", b"b2"],
        False,
    )
    named = read_dead_letter_ids("position", ",".join(desk.ids()[1::2]))
    assert desk.dead_letters.discard(DEAD, DeadLetterSelection(named), anywhere).done == 3
    assert desk.waiting() == [b"a0", b"a1", b"a2"]


def test_what_is_done_with_is_passed_over_without_reading_it_all(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "SKIP_ENTRIES", 10)
    monkeypatch.setattr(scan, "TAKE_MESSAGES", 5)
    monkeypatch.setattr(scan, "MAX_READ", 60)
    for number in range(101):
        desk.bury(b"%d" % number)
    group = Subscription(DEAD, GROUP)
    desk.backend.subscribe(group, Start.EARLIEST, 1)
    ledger = desk.backend.describe_topic(DEAD, 1).partitions[0].ledger
    done = [Position(ledger, entry) for entry in range(1, 100)]
    desk.backend.acknowledge(group, done, False, 1)
    assert desk.waiting() == [b"0", b"100"]
    desk.backend.acknowledge(group, [Position(ledger, 100)], False, 1)
    desk.backend.reset(group, Start.EARLIEST, 1)
    page = desk.dead_letters.page(DEAD, DeadLetterSelection())
    assert (len(page.dead_letters), page.more) == (60, True)


def test_topics_of_dead_letters_are_known_by_their_names(desk: Desk) -> None:
    for name in ("orders-billing-DLQ", "x.dlq.y"):
        desk.backend.create_topic(TopicInfo(TopicName.parse(name)), 1)
    listed = desk.backend.list_topics(1)
    names = [name.local for name in desk.dead_letters.among(listed)]
    assert names == ["orders-billing-DLQ", "orders.dlq"]
    with pytest.raises(TopicNotFoundError):
        desk.dead_letters.page(TopicName.parse("absent"), DeadLetterSelection())


NOTES = {
    "oversized": {
        "router-origin-topic": str(ORDERS),
        "router-origin-group": "g",
        "router-origin-position": "1:2:-1",
    },
    "pipeline": FROM_ORDERS | {"router-position": "1:2", "router-pipeline": "p"},
    "client": {
        "REAL_TOPIC": f"{ORDERS}-partition-2",
        "REAL_SUBSCRIPTION": "s",
        "ORIGIN_MESSAGE_ID": "1:2:2",
    },
}


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        (
            NOTES["oversized"],
            DeadLetterOrigin(
                ORDERS,
                "",
                "1:2:-1",
                "Larger than any answer, in group g",
                Position(1, 2, 0),
                group="g",
            ),
        ),
        (
            NOTES["pipeline"],
            DeadLetterOrigin(ORDERS, "0", "1:2", "no JSON", Position(1, 2, 0), pipeline="p"),
        ),
        (
            NOTES["client"],
            DeadLetterOrigin(
                ORDERS,
                "2",
                "1:2:2",
                "Given back too often by subscription s",
                Position(1, 2, 2),
                group="s",
            ),
        ),
        ({"REAL_TOPIC": str(ORDERS)}, DeadLetterOrigin(ORDERS)),
        ({"router-topic": "a/b"}, DeadLetterOrigin(None)),
        ({}, DeadLetterOrigin(None)),
    ],
)
def test_origin_is_what_the_properties_say(
    notes: dict[str, str], expected: DeadLetterOrigin
) -> None:
    assert origin(Message(b"", properties=notes), DEAD) == expected


@pytest.mark.parametrize(
    ("notes", "at"),
    [
        ({"router-topic": "t", "router-partition": "3", "router-position": "1:2:4"}, (1, 2, 3, 4)),
        ({"router-topic": "t", "router-partition": "3", "router-position": "77"}, (0, 77, 3, -1)),
        ({"router-topic": "t", "router-position": "1:2"}, None),
        ({"REAL_TOPIC": "t", "ORIGIN_MESSAGE_ID": "1:2:-1:5"}, (1, 2, 0, 5)),
        ({"REAL_TOPIC": "t", "ORIGIN_MESSAGE_ID": "(1,2,-1,0)"}, (1, 2, 0, 0)),
        ({"REAL_TOPIC": "t-partition-6", "ORIGIN_MESSAGE_ID": "1:2:-1"}, (1, 2, 6, -1)),
        ({"REAL_TOPIC": "t", "ORIGIN_MESSAGE_ID": "nonsense"}, None),
    ],
)
def test_position_is_what_each_dialect_writes(
    notes: dict[str, str], at: tuple[int, ...] | None
) -> None:
    found = origin(Message(b"", properties=notes), DEAD).at
    assert found == (None if at is None else Position(*at))


@pytest.mark.parametrize("text", ["", "5", "5:17", "a:b:c", "5:17:0,", "1:2:3:4:5"])
def test_positions_of_letters_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(BadReadOptionError, match=r"^position: expected"):
        read_dead_letter_ids("position", text)
