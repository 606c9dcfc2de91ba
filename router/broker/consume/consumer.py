"""One consumer as delivery sees it: its permits, what it holds, its flow, and its connection.

To count the flow costs a few additions a delivery; rates are worked out when they are asked for.
The alternative, a timer that takes samples of every consumer, costs the same if nothing asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

from router.broker.consume.visible import Visible
from router.broker.storage import Entry

RATE_WINDOW_SECONDS: Final = 10.0
"""Rates are taken over so long at the least."""


class SubscriptionType(Enum):
    """How consumers share a subscription, by Pulsar's names."""

    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"
    FAILOVER = "Failover"
    KEY_SHARED = "Key_Shared"

    @property
    def individual(self) -> bool:
        """Return whether consumers share entries, each acknowledged by itself."""
        return self in {SubscriptionType.SHARED, SubscriptionType.KEY_SHARED}


@dataclass(frozen=True, slots=True)
class KeyPolicy:
    """Which keys a consumer of a Key_Shared subscription asks for: a share, or its own `ranges`.

    Ranges are of slots (`hashing`), ends included. `out_of_order`: keys may change hands while
    their messages are under way.
    """

    sticky: bool = False
    ranges: tuple[tuple[int, int], ...] = ()
    out_of_order: bool = False


ANY_KEYS: Final = KeyPolicy()


class ConsumerLink(Protocol):
    """The connection of a consumer. No call waits.

    `entry_format` is the tag of the entries that it sends as they are.
    """

    entry_format: int

    @property
    def writable(self) -> bool:
        """Return whether it takes more entries now."""
        ...

    def when_writable(self, resume: Callable[[], None]) -> None:
        """Call `resume` once when it is writable again; asking twice calls once."""
        ...

    def deliver(
        self,
        consumer: ClientConsumer,
        entry: Entry,
        redeliveries: int,
        ack_set: Sequence[int],
    ) -> None:
        """Send an entry; `ack_set` holds the messages of its batch that are left, empty: all.

        Raises UnreadableEntryError, with nothing sent, if the protocol has no form for it.
        """
        ...

    def prepare(self, ledger_id: int, entries: Sequence[Entry]) -> asyncio.Future[Any] | None:
        """Begin to make entries of another format into what `deliver` sends.

        None: `deliver` may be called at once. Several may be given the same future.
        """
        ...

    def consumer_closed(self, consumer: ClientConsumer) -> None:
        """Notify the client that the broker closed its consumer."""
        ...

    def activity_changed(self, consumer: ClientConsumer, active: bool) -> None:
        """Notify the client whether its failover consumer is the active one."""
        ...

    def reached_end(self, consumer: ClientConsumer) -> None:
        """Notify the client that it has acknowledged a terminated topic to its end."""
        ...

    def probe(self, *, soon: bool = False) -> None:
        """Check that the client responds, and close the connection if it does not.

        `soon`: with a short deadline, because another consumer holds the lease of the partition.
        """
        ...


class Rates(NamedTuple):
    """What went by in a second."""

    messages: float = 0.0
    bytes: float = 0.0
    redelivered: float = 0.0
    acknowledged: float = 0.0


NO_RATES: Final = Rates()


@dataclass(slots=True)
class ConsumerFlow:
    """What went to a consumer and came back since it came, at `since` by a clock in seconds.

    Messages, bytes and redelivered messages, and acknowledgements: one may name many messages.
    """

    since: float = 0.0
    messages: int = 0
    bytes: int = 0
    redelivered: int = 0
    acknowledged: int = 0
    _before: Rates = field(default=NO_RATES, init=False)
    _rates: Rates | None = field(default=None, init=False)

    def rates(self, now: float) -> Rates:
        """Return the rates since they were last worked out.

        Within RATE_WINDOW_SECONDS they are those of that time.
        """
        passed = now - self.since
        counts = Rates(self.messages, self.bytes, self.redelivered, self.acknowledged)
        if passed <= 0 or (passed < RATE_WINDOW_SECONDS and self._rates is not None):
            return self._rates or NO_RATES
        pairs = zip(counts, self._before, strict=True)
        rates = Rates(*((count - before) / passed for count, before in pairs))
        if passed >= RATE_WINDOW_SECONDS:
            self.since, self._before, self._rates = now, counts, rates
        return rates


@dataclass(slots=True, eq=False)
class ClientConsumer:
    """A client's consumer; `ledger_id` and `partition_index` are set when it is attached."""

    link: ConsumerLink
    consumer_id: int
    name: str
    ledger_id: int = -1
    partition_index: int = -1
    priority: int = 0
    keys: KeyPolicy = ANY_KEYS
    # Milliseconds since 1970.
    since_ms: int = 0
    # What the client says of it, for statistics.
    metadata: Mapping[str, str] = field(default_factory=dict)
    permits: int = 0
    # The client's count of its own redelivery requests, echoed so that it can tell old from new.
    epoch: int | None = None
    # Entries that a shared consumer holds, each with its number of messages.
    held: dict[int, int] = field(default_factory=dict)
    held_messages: int = 0
    # Messages of a topic that is not persistent that it missed.
    dropped: int = 0
    end_sent: bool = False
    # It has no schema of its own, and reads whatever schema the topic has.
    reads_any: bool = False
    # Its router holds the lease of the partition, so a consumer that is attached has lost it.
    leased: bool = False
    # What it asked for of the partition; None: what all get.
    visible: Visible | None = None
    flow: ConsumerFlow = field(default_factory=ConsumerFlow)

    def deliver(self, entry: Entry, redeliveries: int, ack_set: Sequence[int]) -> None:
        """Send an entry for as many permits as it has messages; permits may go below zero.

        Raises UnreadableEntryError if the client's protocol has no form for it.
        """
        messages = entry.messages
        self.permits -= messages
        flow = self.flow
        flow.messages += messages
        flow.bytes += len(entry.payload)
        self.link.deliver(self, entry, redeliveries, ack_set)

    def hold(self, entry: int, messages: int) -> None:
        """Note an entry that this consumer has and has not acknowledged."""
        self.held[entry] = messages
        self.held_messages += messages

    def release(self, entry: int) -> int:
        """Forget a held entry; return how many messages it has, 0: it was not held."""
        messages = self.held.pop(entry, 0)
        self.held_messages -= messages
        return messages
