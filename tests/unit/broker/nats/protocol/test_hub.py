"""Who receives what: the hub against a plain list of subscriptions, and the interest it sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.access.permissions import Right
from router.broker.nats.protocol.authorization import NatsCaller, RequestIdentity, SubjectRights
from router.broker.nats.protocol.hub import Hub, ServiceRequest, Subscriber
from router.errors import BadNameError, ForbiddenError, RouterError
from router.model import Principal, TopicName
from router.wire.nats.message import NatsMessage
from router.wire.nats.subjects import matches

TOKENS = st.sampled_from(["a", "b", "_INBOX"])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=3).map(".".join)
PATTERNS = st.tuples(
    st.lists(st.one_of(TOKENS, st.just("*")), max_size=3), st.sampled_from(["a", "*", ">"])
).map(lambda parts: ".".join([*parts[0], parts[1]]))
OWNERS = st.sampled_from(["x", "y"])
QUEUES = st.sampled_from(["", "", "q", "r"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("sub"), PATTERNS, QUEUES, OWNERS),
        st.tuples(st.just("unsub"), st.integers(0, 20), st.just(""), st.just("")),
        st.tuples(st.just("pub"), SUBJECTS, st.just(""), st.one_of(st.none(), OWNERS)),
    ),
    max_size=40,
)
ANYBODY = NatsCaller(RequestIdentity(Principal(), False, None))


class Taker(Subscriber):
    """Keeps what it is given; a test says whether it takes more."""

    def __init__(self) -> None:
        self.taken: list[NatsMessage] = []
        self.ready = True
        self.waiting: list[Callable[[], None]] = []

    def deliver(self, message: NatsMessage) -> None:
        self.taken.append(message)

    @property
    def writable(self) -> bool:
        return self.ready

    def when_writable(self, resume: Callable[[], None]) -> None:
        self.waiting.append(resume)


@given(steps=STEPS)
def test_messages_reach_all_plain_subscriptions_and_one_of_each_group(
    steps: list[tuple[str, str | int, str, str | None]],
) -> None:
    hub = Hub()
    model: list[tuple[str, str, str | None, Taker]] = []
    made = []
    for kind, what, queue, owner in steps:
        if kind == "sub":
            taker = Taker()
            made.append(hub.subscribe(str(what), taker, queue, owner))
            model.append((str(what), queue, owner, taker))
        elif kind == "unsub" and made:
            place = int(what) % len(made)
            made.pop(place).unsubscribe()
            model.pop(place)
        elif kind == "pub":
            before = Counter({id(one[3]): len(one[3].taken) for one in model})
            count = hub.publish(NatsMessage(str(what)), origin=owner)
            found = [
                one
                for one in model
                if matches(one[0], str(what)) and (owner is None or one[2] != owner)
            ]
            plain = [id(one[3]) for one in found if not one[1]]
            groups = {one[1] for one in found if one[1]}
            received = Counter({id(one[3]): len(one[3].taken) for one in model}) - before
            assert count == len(plain) + len(groups)
            assert all(received[one] == 1 for one in plain)
            for group in groups:
                members = [id(one[3]) for one in found if one[1] == group]
                assert sum(received[member] for member in members) == 1
            assert sum(received.values()) == count
        assert hub.subscriptions == len(model)


@given(steps=STEPS, subject=SUBJECTS, queue=QUEUES)
def test_interest_that_comes_and_goes_is_observed(
    steps: list[tuple[str, str | int, str, str | None]], subject: str, queue: str
) -> None:
    hub = Hub()
    seen = [False]
    cancel = hub.watch(subject, seen.append, queue)
    made = []
    for kind, what, group, _ in steps:
        if kind == "sub":
            made.append(hub.subscribe(str(what), Taker(), group))
        elif kind == "unsub" and made:
            made.pop(int(what) % len(made)).unsubscribe()
        interested = any(
            one.queue in {queue, queue or one.queue} and matches(one.subject, subject)
            for one in made
        )
        assert hub.interested(subject, queue) is interested
        assert seen[-1] is interested
    assert all(one is not other for one, other in pairwise(seen))
    cancel()
    count = len(seen)
    hub.subscribe(subject, Taker(), queue)
    assert len(seen) == count


def test_a_group_shares_its_messages_among_those_that_take_them() -> None:
    hub, takers = Hub(), [Taker() for _ in range(4)]
    for taker in takers:
        hub.subscribe("jobs.*", taker, "q")
    takers[0].ready = False
    for number in range(600):
        hub.publish(NatsMessage(f"jobs.{number}"))
    shares = [len(taker.taken) for taker in takers]
    assert shares[0] == 0
    assert sum(shares) == 600
    assert min(shares[1:]) > 140
    for taker in takers:
        taker.ready = False
    assert hub.publish(NatsMessage("jobs.1")) == 1


def test_a_message_to_an_inbox_shows_its_own_subject() -> None:
    hub, taker, other = Hub(), Taker(), Taker()
    hub.subscribe("_INBOX.a.*", taker)
    hub.subscribe("orders", other)
    message = NatsMessage("orders", payload=b"x")
    assert hub.publish(message, to="_INBOX.a.1") == 1
    assert taker.taken == [message]
    assert other.taken == []


def test_services_are_called_for_clients_and_subscribers_see_their_requests_too() -> None:
    hub, taker = Hub(), Taker()
    requests: list[ServiceRequest] = []
    hub.serve("$JS.API.>", requests.append)
    message = NatsMessage("$JS.API.INFO", "r")
    assert hub.publish(message) == 0
    assert hub.publish(message, caller=ANYBODY) == 1
    assert requests == [ServiceRequest(message, ANYBODY)]
    subscription = hub.subscribe("*.API.>", taker)
    assert hub.publish(message, caller=ANYBODY) == 2
    assert taker.taken == [message]
    subscription.unsubscribe()
    assert hub.publish(message, caller=ANYBODY) == 1
    with pytest.raises(ValueError, match="prefix"):
        hub.serve("orders.>", requests.append)


def test_a_sender_waits_for_the_receiver_that_takes_no_more() -> None:
    hub, taker = Hub(), Taker()
    hub.subscribe("_INBOX.a", taker)
    resumed: list[str] = []
    assert hub.writable("_INBOX.a")
    hub.when_writable("_INBOX.a", lambda: resumed.append("at once"))
    taker.ready = False
    assert not hub.writable("_INBOX.a")
    hub.when_writable("_INBOX.a", lambda: resumed.append("later"))
    assert resumed == ["at once"]
    taker.waiting.pop()()
    assert resumed == ["at once", "later"]


@pytest.mark.parametrize("pattern", [">", "*.a", "_INBOX.>"])
def test_a_receiver_that_takes_no_more_holds_up_no_other(pattern: str) -> None:
    hub, taker, stalled = Hub(), Taker(), Taker()
    hub.subscribe(pattern, stalled)
    hub.subscribe("_INBOX.a", taker)
    stalled.ready = False
    assert hub.writable("_INBOX.a")
    taker.ready = False
    resumed: list[str] = []
    hub.when_writable("_INBOX.a", lambda: resumed.append("later"))
    assert not resumed
    taker.waiting.pop()()
    assert resumed == ["later"]


def test_a_member_that_takes_no_more_holds_up_no_other_of_its_group() -> None:
    hub, taker, stalled = Hub(), Taker(), Taker()
    hub.subscribe("in", stalled, "group")
    hub.subscribe("in", taker, "group")
    stalled.ready = False
    assert hub.writable("in")


def test_one_that_receives_everything_does_not_stand_in_for_a_slow_receiver() -> None:
    hub, taker = Hub(), Taker()
    hub.subscribe(">", Taker())
    assert hub.writable("_INBOX.a")
    hub.subscribe("_INBOX.a", taker)
    taker.ready = False
    assert not hub.writable("_INBOX.a")


def test_a_request_without_a_receiver_is_answered_by_the_status_503() -> None:
    hub, taker = Hub(), Taker()
    hub.subscribe("r", taker)
    hub.no_responders(NatsMessage("no.such", "r"))
    hub.no_responders(NatsMessage("no.such"))
    (answer,) = taker.taken
    assert answer.headers == b"NATS/1.0 503\r\nNats-Subject: no.such\r\n\r\n"


OWN = "_INBOX.secret.1"


def test_an_inbox_of_the_broker_has_one_receiver() -> None:
    hub, taker = Hub(), Taker()
    assert hub.publish(NatsMessage(OWN)) == 0
    hub.open_inbox(OWN, taker)
    assert (hub.subscriptions, hub.interested(OWN), hub.writable(OWN)) == (1, True, True)
    assert not hub.interested(OWN, "q")
    assert hub.publish(NatsMessage("orders.new"), to=OWN) == 1
    assert hub.publish(NatsMessage("_INBOX.secret.10")) == 0
    hub.close_inbox(OWN)
    hub.close_inbox(OWN)
    assert (hub.subscriptions, hub.interested(OWN), hub.publish(NatsMessage(OWN))) == (0, False, 0)
    assert [message.subject for message in taker.taken] == ["orders.new"]


@pytest.mark.parametrize("pattern", [">", "*.>", "*.secret.*", "_INBOX.>", "_INBOX.*.1"])
@pytest.mark.parametrize("queue", ["", "q"])
def test_who_subscribes_to_all_inboxes_receives_what_the_broker_s_own_receive(
    pattern: str, queue: str
) -> None:
    hub, taker, other = Hub(), Taker(), Taker()
    hub.open_inbox(OWN, taker)
    subscription = hub.subscribe(pattern, other, queue)
    assert hub.publish(NatsMessage(OWN)) == 2
    subscription.unsubscribe()
    assert hub.publish(NatsMessage(OWN)) == 1
    assert (len(taker.taken), len(other.taken)) == (2, 1)


def test_an_inbox_that_takes_no_more_holds_up_its_sender() -> None:
    hub, taker = Hub(), Taker()
    hub.open_inbox(OWN, taker)
    taker.ready = False
    hub.when_writable(OWN, lambda: None)
    assert (hub.writable(OWN), len(taker.waiting)) == (False, 1)


class Clerk(NatsCaller):
    """May publish to `a` and read `b`."""

    asked = 0

    def __init__(self) -> None:
        super().__init__(RequestIdentity(Principal("clerk"), False, None))
        self.unrestricted = False

    def authorize(self, topic: TopicName, right: Right) -> None:
        self.asked += 1
        if (topic.local, right) not in {("a", Right.PUBLISH), ("b", Right.SUBSCRIBE)}:
            raise ForbiddenError


def topic_of(subject: str) -> TopicName | None:
    if subject == "bad":
        raise BadNameError
    return None if "/" in subject else TopicName.parse(subject)


@pytest.mark.parametrize(
    ("subject", "publish", "receive", "subscribe"),
    [
        ("a", True, False, False),
        ("b", False, True, True),
        ("bad", False, False, False),
        ("x/y", False, False, False),
        ("*", False, False, True),
        (">", False, False, True),
        ("_INBOX.x.1", True, False, True),
        ("_INBOX.x.>", True, False, True),
        ("_INBOX.>", True, False, False),
        ("_INBOX.*.x", True, False, False),
        ("_INBOX", False, False, False),
        ("$JS.API.INFO", True, False, False),
        ("$JS.ACK.>", True, False, True),
    ],
)
def test_rights_of_subjects(subject: str, publish: bool, receive: bool, subscribe: bool) -> None:
    rights = SubjectRights(Clerk(), topic_of, lambda: 0.0)
    assert rights.may(Right.PUBLISH, subject) is publish
    assert rights.may(Right.SUBSCRIBE, subject) is receive
    assert rights.may_subscribe(subject) is subscribe
    assert rights.checks_messages(subject) is (
        ("*" in subject or ">" in subject) and not subject.startswith("_INBOX.")
    )


def test_answers_are_kept_for_a_moment() -> None:
    now = [0.0]
    clerk = Clerk()
    rights = SubjectRights(clerk, topic_of, lambda: now[0])
    for _ in range(3):
        assert rights.may(Right.PUBLISH, "a")
    assert clerk.asked == 1
    now[0] = 2.0
    assert rights.may(Right.PUBLISH, "a")
    assert clerk.asked == 2
    for number in range(5_000):
        rights.may(Right.PUBLISH, f"many.{number}")
    assert len(rights._answers) < 2_100


def test_an_unrestricted_caller_may_all() -> None:
    def nothing(subject: str) -> TopicName | None:
        raise RouterError(subject)

    rights = SubjectRights(ANYBODY, nothing, lambda: 0.0)
    for subject in ("_INBOX.>", "bad", "x/y", "$JS.>"):
        assert rights.may(Right.PUBLISH, subject)
        assert rights.may_subscribe(subject)
        assert not rights.checks_messages(subject)
