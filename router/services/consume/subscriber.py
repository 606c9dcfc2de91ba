"""The service behind polls: which groups exist, which polls wait, and how they end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from router.backends import Backend, Node, Outcome
from router.errors import PublishRefusedError, ReadFailedError
from router.metrics import Metrics
from router.model import Stored, Subscription, TopicName
from router.services.consume.oversized import DeadLetters
from router.services.consume.session import Session
from router.services.consume.wish import Client, PollMailbox, Wish
from router.services.directory import Directory
from router.services.memory_budget import MemoryBudget
from router.settings import Settings
from router.waiting import Steps, finish

KNOWN_FOR: Final = 30.0
MOST_KNOWN: Final = 20_000


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """The settings that consuming reads."""

    max_bytes: int
    backend_timeout: float
    create_topics: bool
    max_unsent: int = 128 << 20
    dead_letter_topic: TopicName | None = None

    @classmethod
    def of(cls, settings: Settings) -> ConsumeOptions:
        """Read them."""
        dead_letters = settings.text("consume.dead_letter_topic")
        tenant, namespace = settings.text("names.tenant"), settings.text("names.namespace")
        return cls(
            settings.number("consume.max_bytes"),
            settings.seconds("backend.timeout"),
            settings.text("consume.unknown_topic") == "create",
            settings.number("consume.max_unsent"),
            TopicName.parse(dead_letters, tenant, namespace) if dead_letters else None,
        )


class Poll:
    """A poll that has its answer: `messages`, held until `delivered` or `abandon`."""

    __slots__ = ("messages", "session")

    def __init__(self, session: Session, messages: list[Stored]) -> None:
        self.session = session
        self.messages = messages

    def delivered(self) -> None:
        """Acknowledge what was answered and let go. Never raises: the client has its answer."""
        self.session.settle(self.messages)

    def abandon(self) -> None:
        """Let go without acknowledging; after `delivered` it does nothing."""
        self.session.end(Outcome.REFUSED)


class Subscriber:
    """Serves polls; calls wait, and may be made from many threads or greenlets."""

    def __init__(
        self,
        backend: Backend,
        node: Node,
        directory: Directory,
        options: ConsumeOptions,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self.backend = backend
        self.node = node
        self.directory = directory
        self.options = options
        self.metrics = metrics
        self.clock = clock
        self.unsent = MemoryBudget(options.max_unsent, clock)
        self.dead_letters = DeadLetters(
            backend, directory, metrics, options.dead_letter_topic, options.backend_timeout
        )
        self.stopping = False
        self._known: dict[Subscription, float] = {}
        self._waiting: set[PollMailbox] = set()

    def poll(self, wish: Wish, mailbox: PollMailbox, client: Client) -> Poll:
        """Return messages as `polling` does, waiting here."""
        return finish(self.polling(wish, mailbox, client))

    def polling(self, wish: Wish, mailbox: PollMailbox, client: Client) -> Steps[Poll]:
        """Return messages, or none when the time is over; the caller ends the poll it gets.

        Raises TopicNotFoundError, SubscriptionBusyError, TooManyRequestsError,
        MessageOverMaxBytesError, CoordinationUnavailableError, ClientGoneError, and what the
        backend raises; then nothing is held any more.
        """
        session = self.session(wish, mailbox, client)
        self._waiting.add(mailbox)
        self.metrics.gauge("router_polls_waiting", 1)
        began = self.clock()
        try:
            messages = yield from session.run()
        except BaseException:
            session.end(Outcome.REFUSED)
            raise
        finally:
            self._waiting.discard(mailbox)
            self.metrics.gauge("router_polls_waiting", -1)
            self.metrics.observe("router_poll_wait_seconds", session.waited)
            took = self.clock() - began - session.waited
            self.metrics.observe("router_poll_service_seconds", max(0.0, took))
        if not messages:
            session.end(Outcome.REFUSED if self.stopping else Outcome.EMPTY)
        return Poll(session, messages)

    def session(self, wish: Wish, mailbox: PollMailbox, client: Client) -> Session:
        """Return what runs a poll; those of other dialects differ in what they take."""
        return Session(self, wish, mailbox, client)

    def stop(self) -> None:
        """Answer all waiting polls now, and those that still come after one look."""
        self.stopping = True
        self.unsent.stop()
        for mailbox in list(self._waiting):
            mailbox.wake()

    def ensure(self, wish: Wish, *, anew: bool = False) -> int:
        """Make the group exist; return how many partitions its topic has."""
        subscription = wish.subscription
        topic = subscription.topic
        partitions = self.directory.partitions(topic, create=self.options.create_topics)
        now = self.clock()
        if anew or self._known.get(subscription, 0.0) <= now:
            try:
                self.backend.subscribe(subscription, wish.start, self.options.backend_timeout)
            except PublishRefusedError as error:  # a full disk: there is nothing to publish here
                raise ReadFailedError(f"The group cannot be made: {error}.") from error
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[subscription] = now + KNOWN_FOR
        return partitions

    def forget(self, subscription: Subscription) -> None:
        """Take nothing for granted: the topic is not as it was."""
        self._known.pop(subscription, None)
        self.directory.forget(subscription.topic)
