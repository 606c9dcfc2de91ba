"""Subjects to subscribers in memory: subscriptions, queue groups, interest, internal services.

Theory of operation. One trie has the subscriptions, another the members of queue groups; both keep
what they found for the subjects that were used last. A member of a queue group is chosen at random,
among those whose client takes what it is sent.

An inbox of the broker's own is an entry of a table: its name is not known to clients, so that only
those that subscribe to all inboxes receive what it receives.

A service is called for the subjects under a prefix, before subscribers, and only for what a caller
publishes: what the broker itself sends to a reply subject never calls one.

Nothing here waits. `writable` is whether a subscriber can take more, and `when_writable` calls back
when it can.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from router.broker.nats.protocol.authorization import NatsCaller
from router.wire.nats.headers import NO_RESPONDERS, status
from router.wire.nats.message import NatsMessage
from router.wire.nats.subjects import SubjectTrie, is_literal, matches

MAX_SUBSCRIPTIONS_BYTES: Final = 256 << 20
"""Of all clients together, about; see `Hub.full`."""
TOKEN_BYTES: Final = 128
"""What a token of a subscription's subject takes in memory, about."""
INBOX: Final = "_INBOX."
"""What the subjects of replies begin with, of which hardly one is used again."""


class ServiceRequest(NamedTuple):
    """A message to a service, and who sent it."""

    message: NatsMessage
    caller: NatsCaller


Service = Callable[[ServiceRequest], None]
InterestObserver = Callable[[bool], None]
PatternObserver = Callable[[str, bool], None]
"""Called with what a subscription is for, after it was added (True) or removed."""


class Subscriber(ABC):
    """Takes messages; `writable`: it can take more now. The default is that it always can."""

    __slots__ = ()

    @abstractmethod
    def deliver(self, message: NatsMessage) -> None:
        """Take a message; never waits."""

    @property
    def writable(self) -> bool:
        """Return whether the client takes what it is sent."""
        return True

    def when_writable(self, resume: Callable[[], None]) -> None:
        """Call `resume` once when more can be taken."""
        resume()

    @property
    def max_run(self) -> int:
        """Return how many messages `deliver_run` takes at once."""
        return 0

    def deliver_run(self, messages: Sequence[NatsMessage]) -> None:
        """Take messages, at most `max_run`; never waits."""
        for message in messages:
            self.deliver(message)


@dataclass(slots=True, eq=False)
class HubSubscription:
    """A subscriber's interest in a subject; `owner` may be left out by what it publishes itself."""

    hub: Hub
    subject: str
    subscriber: Subscriber
    queue: str
    owner: object
    active: bool = True

    @property
    def size(self) -> int:
        """Return how many bytes the subscription takes in memory, about."""
        tokens = self.subject.count(".") + 1
        return len(self.subject) + len(self.queue) + TOKEN_BYTES * tokens

    def unsubscribe(self) -> None:
        """End the subscription; again: nothing happens."""
        if self.active:
            self.active = False
            self.hub.remove(self)


@dataclass(slots=True, eq=False)
class _InterestWatch:
    subject: str
    queue: str
    observer: InterestObserver
    exact: bool
    interested: bool


class Hub:
    """All subscriptions of a broker."""

    def __init__(self) -> None:
        self._plain: SubjectTrie[HubSubscription] = SubjectTrie()
        self._members: SubjectTrie[HubSubscription] = SubjectTrie()
        self._services: list[tuple[str, Service]] = []
        self._inboxes: dict[str, Subscriber] = {}
        self._num_members = self._may_see_inboxes = 0
        # Subscriptions that may receive what services are called for.
        self.may_see_services = 0
        self._size = 0
        self._watches: dict[str, dict[str, list[_InterestWatch]]] = {}
        self.pattern_observer: PatternObserver | None = None

    @property
    def subscriptions(self) -> int:
        """Return how many subscriptions there are."""
        return len(self._plain) + len(self._members) + len(self._inboxes)

    @property
    def full(self) -> bool:
        """Return whether clients may have no more subscriptions."""
        return self._size > MAX_SUBSCRIPTIONS_BYTES

    def subscribe(
        self, subject: str, subscriber: Subscriber, queue: str = "", owner: object = None
    ) -> HubSubscription:
        """Have a subscriber receive a subject, which may have wildcards.

        Of a queue group one member receives each message.
        """
        subscription = HubSubscription(self, subject, subscriber, queue, owner)
        (self._members if queue else self._plain).insert(subject, subscription)
        self._num_members += bool(queue)
        self._size += subscription.size
        self.may_see_services += _may_match_service(subject)
        self._may_see_inboxes += _may_match_inbox(subject)
        self._changed(subject, added=True)
        return subscription

    def remove(self, subscription: HubSubscription) -> None:
        """Forget a subscription; called by it."""
        trie = self._members if subscription.queue else self._plain
        trie.remove(subscription.subject, subscription)
        self._num_members -= bool(subscription.queue)
        self._size -= subscription.size
        self.may_see_services -= _may_match_service(subscription.subject)
        self._may_see_inboxes -= _may_match_inbox(subscription.subject)
        self._changed(subscription.subject, added=False)

    def open_inbox(self, subject: str, subscriber: Subscriber) -> None:
        """Have a subscriber receive a subject below INBOX that no client knows."""
        self._inboxes[subject] = subscriber

    def close_inbox(self, subject: str) -> None:
        """Forget an inbox; again: nothing happens."""
        self._inboxes.pop(subject, None)

    def publish(
        self,
        message: NatsMessage,
        *,
        to: str | None = None,
        origin: object = None,
        caller: NatsCaller | None = None,
    ) -> int:
        """Deliver a message to all that subscribe to `to`, its subject if None; return how many.

        Receivers see its own subject. Subscriptions of the owner `origin` are left out. Services
        are called if `caller` is given.
        """
        subject = message.subject if to is None else to
        count = 0
        if caller is not None and subject.startswith("$"):
            count = self._call_service(subject, ServiceRequest(message, caller))
            if count and not self.may_see_services:
                return count
        plain = self._plain
        fresh = subject.startswith(INBOX)
        if fresh and (inbox := self._inboxes.get(subject)) is not None:
            inbox.deliver(message)
            if not self._may_see_inboxes:
                return 1
            count = 1
        for one in plain.match_fresh(subject) if fresh else plain.match(subject):
            if one.active and (origin is None or one.owner is not origin):
                one.subscriber.deliver(message)
                count += 1
        if self._num_members:
            for group in self._groups(subject):
                member = _chosen(group, origin)
                if member is not None:
                    member.subscriber.deliver(message)
                    count += 1
        return count

    def sole_receiver(self, subject: str) -> Subscriber | None:
        """Return the one subscriber that receives a subject; None: there are several, or none.

        It is None too if a queue group receives the subject, or an inbox of the broker's own.
        """
        plain = self._plain
        fresh = subject.startswith(INBOX)
        receiving = plain.match_fresh(subject) if fresh else plain.match(subject)
        if len(receiving) != 1 or (fresh and subject in self._inboxes):
            return None
        if self._num_members and self._members.match(subject):
            return None
        return receiving[0].subscriber if receiving[0].active else None

    def no_responders(self, message: NatsMessage) -> None:
        """Answer a request that none received, by the status 503."""
        if message.reply:
            headers = status(NO_RESPONDERS, "", [("Nats-Subject", message.subject)])
            self.publish(NatsMessage(message.reply, headers=headers))

    def interested(self, subject: str, queue: str = "", *, exact: bool = False) -> bool:
        """Return whether any subscription, or one of this queue group, receives a subject.

        With `exact` only a subscription to this very subject counts.
        """
        if subject in self._inboxes and not queue:
            return True
        return any(not exact or one.subject == subject for one in self._receiving(subject, queue))

    def writable(self, subject: str) -> bool:
        """Return whether what is sent to a subject is taken now; also if none receives it.

        One of several receivers is enough: those that take nothing do not hold up the others, and
        are cut off. One that would receive nearly everything does not count.
        """
        if (inbox := self._inboxes.get(subject)) is not None:
            return inbox.writable
        receiving = self._addressed(subject)
        return not receiving or any(one.subscriber.writable for one in receiving)

    def when_writable(self, subject: str, resume: Callable[[], None]) -> None:
        """Call `resume` when a subject is `writable` again; it may be called several times."""
        if self.writable(subject):
            resume()
            return
        if (inbox := self._inboxes.get(subject)) is not None:
            inbox.when_writable(resume)
            return
        for one in self._addressed(subject):
            one.subscriber.when_writable(resume)

    def watch(
        self, subject: str, observer: InterestObserver, queue: str = "", *, exact: bool = False
    ) -> Callable[[], None]:
        """Call `observer` whenever interest in a literal subject comes or goes; return the end.

        Interest is what `interested` returns.
        """
        interested = self.interested(subject, queue, exact=exact)
        watch = _InterestWatch(subject, queue, observer, exact, interested)
        prefix = _prefix(subject)
        self._watches.setdefault(prefix, {}).setdefault(subject, []).append(watch)

        def cancel() -> None:
            watched = self._watches.get(prefix, {})
            watches = watched.get(subject, [])
            if watch in watches:
                watches.remove(watch)
                if not watches:
                    del watched[subject]
                if not watched:
                    del self._watches[prefix]

        return cancel

    def serve(self, pattern: str, service: Service) -> None:
        """Call a service for the subjects of a pattern, a literal prefix and `.>`.

        Of several the one with the longest prefix is called.
        """
        if not pattern.startswith("$") or not pattern.endswith(".>"):
            raise ValueError(f"a service has a prefix that begins with $, not {pattern}")
        self._services.append((pattern.removesuffix(">"), service))
        self._services.sort(key=lambda served: -len(served[0]))

    def _call_service(self, subject: str, request: ServiceRequest) -> int:
        for prefix, service in self._services:
            if subject.startswith(prefix):
                service(request)
                return 1
        return 0

    def _groups(self, subject: str) -> Iterable[list[HubSubscription]]:
        """Return the members of each queue group that receives a subject."""
        groups: dict[str, list[HubSubscription]] = {}
        for one in self._members.match(subject):
            groups.setdefault(one.queue, []).append(one)
        return groups.values()

    def _receiving(self, subject: str, queue: str = "") -> Iterator[HubSubscription]:
        """Yield the subscriptions that receive a subject, or those of a queue group."""
        if not queue:
            yield from self._plain.match(subject)
        for one in self._members.match(subject):
            if queue in {"", one.queue}:
                yield one

    def _addressed(self, subject: str) -> list[HubSubscription]:
        """Return who receives a subject; those for nearly everything if there are no others."""
        receiving = list(self._receiving(subject))
        return [one for one in receiving if not one.subject.startswith(("*", ">"))] or receiving

    def _changed(self, subject: str, *, added: bool) -> None:
        """Call the observers of interest that has come or gone."""
        if self.pattern_observer is not None:
            self.pattern_observer(subject, added)
        if not self._watches:
            return
        if is_literal(subject):
            watched = self._watches.get(_prefix(subject), {})
            changed = [*watched.get(subject, ())]
        else:
            changed = [one for one in self._watched(subject) if matches(subject, one.subject)]
        for watch in changed:
            interested = self.interested(watch.subject, watch.queue, exact=watch.exact)
            if interested is not watch.interested:
                watch.interested = interested
                watch.observer(interested)

    def _watched(self, pattern: str) -> Iterator[_InterestWatch]:
        """Yield the watches that a pattern may be about."""
        prefix = _prefix(pattern)
        literal = "*" not in prefix and ">" not in prefix
        found = [self._watches.get(prefix, {})] if literal else list(self._watches.values())
        for watched in found:
            for watches in watched.values():
                yield from watches


def _chosen(group: list[HubSubscription], origin: object) -> HubSubscription | None:
    """Return the member that receives a message: one that can take it, if there is any."""
    if origin is not None:
        group = [one for one in group if one.owner is not origin]
    if not group:
        return None
    member = random.choice(group)  # noqa: S311 - a choice that need not be secret
    if member.active and member.subscriber.writable:
        return member
    present = [one for one in group if one.active]
    ready = [one for one in present if one.subscriber.writable] or present
    return random.choice(ready) if ready else None  # noqa: S311 - as above


def _prefix(subject: str) -> str:
    """Return the first two tokens of a subject."""
    return ".".join(subject.split(".", 2)[:2])


def _may_match_service(pattern: str) -> bool:
    return pattern.startswith(("$", "*", ">"))


def _may_match_inbox(pattern: str) -> bool:
    return pattern.startswith(("*", ">", f"{INBOX}*", f"{INBOX}>"))
