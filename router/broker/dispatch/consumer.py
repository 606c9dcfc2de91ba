"""One consumer as delivery sees it: its permits, what it holds, and the connection behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from router.broker.dispatch.rates import Flow
from router.broker.ledger import Entry

if TYPE_CHECKING:
    from router.broker.dispatch.subscription import Subscription


class Kind(Enum):
    """How consumers share a subscription, in Pulsar's words."""

    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"
    FAILOVER = "Failover"
    KEY_SHARED = "Key_Shared"

    @property
    def individual(self) -> bool:
        """Tell whether its consumers share entries, so that each is acknowledged by itself."""
        return self in {Kind.SHARED, Kind.KEY_SHARED}


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


class Link(Protocol):
    """The connection of a consumer. No call waits."""

    @property
    def writable(self) -> bool:
        """Tell whether it takes more entries now."""
        ...

    def when_writable(self, resume: Callable[[], None]) -> None:
        """Call `resume` once when it is writable again; asking twice calls once."""
        ...

    def deliver(
        self, consumer: Consumer, entry: Entry, redeliveries: int, ack_set: Sequence[int]
    ) -> None:
        """Send an entry; `ack_set` holds the messages of its batch that are left, empty: all."""
        ...

    def consumer_closed(self, consumer: Consumer) -> None:
        """Tell the client that the broker let go of its consumer."""
        ...

    def activity_changed(self, consumer: Consumer, active: bool) -> None:
        """Tell the client whether it is the one that a failover subscription delivers to."""
        ...

    def reached_end(self, consumer: Consumer) -> None:
        """Tell the client that it has acknowledged all that there will ever be."""
        ...

    def probe(self, *, soon: bool = False) -> None:
        """Find out whether the client is still there, and close the connection if not.

        `soon`: within a moment, as another holds the lease of what it reads.
        """
        ...


@dataclass(slots=True, eq=False)
class Consumer:
    """A client's consumer, attached to one subscription."""

    link: Link
    consumer_id: int
    name: str
    subscription: Subscription
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
    told_end: bool = False
    # It brought no schema of its own, and takes the topic's whichever that is.
    reads_any: bool = False
    # Its router holds the lease of the partition: a consumer in its way has lost it.
    leased: bool = False
    flow: Flow = field(default_factory=Flow)

    def deliver(
        self, entry: Entry, messages: int, redeliveries: int, ack_set: Sequence[int]
    ) -> None:
        """Send an entry for as many permits as it has messages; permits may go below zero."""
        self.permits -= messages
        flow = self.flow
        flow.messages += messages
        flow.bytes += len(entry.payload)
        self.link.deliver(self, entry, redeliveries, ack_set)

    def hold(self, entry: int, messages: int) -> None:
        """Note an entry that this consumer has and did not acknowledge yet."""
        self.held[entry] = messages
        self.held_messages += messages

    def let_go(self, entry: int) -> bool:
        """Forget a held entry; tell whether it was held."""
        messages = self.held.pop(entry, 0)
        self.held_messages -= messages
        return messages > 0
