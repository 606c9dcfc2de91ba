"""Callers of NATS subjects, over NATS or HTTP, and which rights subjects need.

A subject that a stream has needs the rights on the stream's topic, any other subject those on the
topic of the same name. A client needs no rights to publish to an inbox, or to subscribe to one that
it names (`_INBOX.<name>.>`). What is below `$JS.` and `$SYS.REQ.` is checked by what serves it.

A subscription with wildcards is accepted, and each message is checked by its own subject, unless it
is to an inbox. Answers are kept for CACHE_SECONDS, so that a change of rights counts for open
connections too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from router.access.authorizer import Authorizer
from router.access.permissions import Right
from router.broker.transport.identity import ConnectionIdentity
from router.errors import ForbiddenError, RouterError
from router.model import Principal, TopicName
from router.wire.nats.subjects import overlaps

CACHE_SECONDS: Final = 1.0
MAX_CACHED_ANSWERS: Final = 2_000
SERVICES: Final = ("$JS.", "$SYS.REQ.")
_INBOX: Final = "_INBOX"
_WILDCARDS: Final = frozenset("*>")

TopicOf = Callable[[str], "TopicName | None"]
"""Returns the topic whose rights a subject needs, None: no topic can have that name."""


class RequestIdentity(NamedTuple):
    """Who sends a request of HTTP; `authorizer` None: every request is allowed."""

    principal: Principal
    administers: bool
    authorizer: Authorizer | None
    trusted: bool = False
    address: str = ""


class NatsCaller:
    """A client of the listener, or of HTTP; the rights that it has are kept for CACHE_SECONDS.

    `no_responders`: it understands the status 503 where a request has no receiver. `unrestricted`:
    it has all rights, so that none need be checked.
    """

    def __init__(self, identity: ConnectionIdentity | RequestIdentity) -> None:
        authorizer = identity.authorizer
        self.identity = identity
        self.no_responders = isinstance(identity, RequestIdentity)
        self.unrestricted = authorizer is None or identity.trusted or authorizer.open
        self._rights: set[tuple[str, TopicName, Right]] = set()
        self._until = 0.0

    @property
    def name(self) -> str:
        """Return the principal's name, empty: it is not known."""
        return self.identity.principal.name

    @property
    def administers(self) -> bool:
        """Return whether the caller may administer the node."""
        return self.identity.administers

    def authorize(self, topic: TopicName, right: Right) -> None:
        """Raise RouterError unless the caller has the right on the topic."""
        authorizer = self.identity.authorizer
        if authorizer is not None and not self.unrestricted:
            authorizer.authorize(self.identity.principal, topic, right)

    def may(self, topic: TopicName, right: Right) -> bool:
        """Return whether the caller has the right on the topic."""
        if self.unrestricted:
            return True
        now = time.monotonic()
        if now > self._until or len(self._rights) >= MAX_CACHED_ANSWERS:
            self._rights.clear()
            self._until = now + CACHE_SECONDS
        key = (self.name, topic, right)
        if key not in self._rights:
            try:
                self.authorize(topic, right)
            except RouterError:
                return False
            self._rights.add(key)
        return True


def check_stream_subjects(caller: NatsCaller, subjects: Iterable[str]) -> None:
    """Raise ForbiddenError for subjects of a stream that would store the replies to others.

    An inbox's name is the secret of its client, and publishing to it needs no right.
    """
    if caller.unrestricted or caller.administers:
        return
    for subject in subjects:
        if overlaps(subject, f"{_INBOX}.>"):
            raise ForbiddenError(f"Access denied: a stream with {subject} would take all inboxes.")


class SubjectRights:
    """What one caller may do with subjects; answers are kept for a moment. `clock` is monotonic."""

    def __init__(self, caller: NatsCaller, topic_of: TopicOf, clock: Callable[[], float]) -> None:
        self._caller = caller
        self._topic_of = topic_of
        self._clock = clock
        self._answers: dict[tuple[str, Right], bool] = {}
        self._until = 0.0

    def checks_messages(self, pattern: str) -> bool:
        """Return whether what a subscription receives is checked by the subject of each message."""
        wild = not _WILDCARDS.isdisjoint(pattern)
        return wild and not self._caller.unrestricted and not pattern.startswith(f"{_INBOX}.")

    def may_subscribe(self, subject: str) -> bool:
        """Return whether the caller may subscribe to a subject, which may have wildcards."""
        if self._caller.unrestricted:
            return True
        tokens = subject.split(".")
        if tokens[0] == _INBOX:
            # The name of another client's inbox is its secret.
            return len(tokens) > 1 and not _WILDCARDS.intersection(tokens[:2])
        if not _WILDCARDS.intersection(tokens):
            return self.may(Right.SUBSCRIBE, subject)
        return True

    def may(self, right: Right, subject: str) -> bool:
        """Return whether the caller may publish to a literal subject, or receive what comes there.

        `right` is PUBLISH or SUBSCRIBE.
        """
        if self._caller.unrestricted:
            return True
        now = self._clock()
        if now > self._until or len(self._answers) >= MAX_CACHED_ANSWERS:
            self._answers.clear()
            self._until = now + CACHE_SECONDS
        key = (subject, right)
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers[key] = self._decide(subject, right)
        return answer

    def _decide(self, subject: str, right: Right) -> bool:
        first, _, rest = subject.partition(".")
        if first == _INBOX and rest:
            # What `>` would receive besides is not for the caller, see `may_subscribe`.
            return right is Right.PUBLISH
        if subject.startswith(SERVICES):
            return right is Right.PUBLISH or self._caller.administers
        try:
            topic = self._topic_of(subject)
            if topic is None:
                return self._caller.administers
            self._caller.authorize(topic, right)
        except RouterError:
            return False
        return True
