"""Positions of groups as numbers of messages: committed and looked up on one partition at a time.

Theory of operation. A group has one position for all protocols: the cursor of its subscription. A
commit moves the cursor forward by a cumulative acknowledgement and back by a reset; both may lead
into the middle of a batch. What the client gave besides, its metadata, and an offset that the log
does not reach, is journalled beside the cursor and holds as long as the cursor stands there:
whatever is published or removed meanwhile, the position is what was committed. Once the group read
on by another protocol it is what was read.

A group that no consumer ever asked for gets a *passive* subscription by its first commit: it keeps
the position, and neither retention nor backlog count it. A consumer that comes makes it active,
where it is. The alternative, a table of offsets of its own, would need everything again that
subscriptions have: the journal, expiry, administration, and their place in statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from router.broker.consume import Partition, PartitionSubscription
from router.broker.consume.membership.live_members import OWNER
from router.broker.storage import Ack, CommittedPosition, Cursor, Ledger, bits, words
from router.broker.topics.topics import Topics
from router.errors import TopicNotFoundError


@dataclass(frozen=True, slots=True)
class PlacedCommit:
    """A position of a subscription: the entry, its first message that is left, and the others.

    `left` is the `ack_set` of the entry; empty: all of it is left.
    """

    subscription: PartitionSubscription
    entry: int
    index: int
    left: tuple[int, ...]
    commit: CommittedPosition


Forget = Callable[[str, str | None], None]
"""Drops positions that polls of a subscription left for a next poll."""


class GroupOffsets:
    """Commits and looks up positions.

    Calls raise TopicNotFoundError, SubscriptionLimitError, NotAllowedError, StoreError, and
    DamagedError, OSError where the disk cannot be read; commits SubscriptionBusyError besides.
    """

    def __init__(self, topics: Topics, forget: Forget) -> None:
        self._topics = topics
        self._forget = forget

    async def commit(self, partition: Partition, name: str, commit: CommittedPosition) -> None:
        """Set the position of a group; on disk with the next sync."""
        self.apply(await self.place(partition, name, commit))

    def check_free(self, partition: Partition, name: str) -> None:
        """Raise SubscriptionBusyError if another protocol keeps a group for itself."""
        present = partition.subscriptions.get(name)
        known = None if present is None else present.record
        live = partition.context.live_members
        live.check_free(partition.topic_name, known.properties if known else {})

    async def open(self, partition: Partition, name: str) -> PartitionSubscription:
        """Return the cursor of a group, made if it is missing; see `check_free` besides."""
        self.check_free(partition, name)
        return await partition.subscribe(name, 0, passive=True)

    async def place(
        self, partition: Partition, name: str, commit: CommittedPosition
    ) -> PlacedCommit:
        """Return a position that can be set without a wait; the subscription is made for it."""
        ledger, subscription = partition.ledger, await self.open(partition, name)
        number = min(max(commit.number, ledger.first_number), ledger.durable_number)
        entry = await ledger.entry_of_number(number)
        index = max(0, number - await ledger.number_before(entry))
        left = await _left(ledger, entry, index)
        return PlacedCommit(subscription, entry, index, left, commit)

    def apply(self, placed: PlacedCommit) -> None:
        """Set a position at once, on disk with the next sync; raise TopicNotFoundError."""
        subscription, entry, index = placed.subscription, placed.entry, placed.index
        left, commit = placed.left, placed.commit
        partition, name = subscription.partition, subscription.name
        if subscription.record is None or partition.subscriptions.get(name) is not subscription:
            raise TopicNotFoundError
        store = self._topics.store
        if (entry, index) < _first(subscription.cursor):
            subscription.reset(entry, (), lambda: None)
            self._forget(subscription.topic_name, name)
        if left:
            store.acknowledge(subscription.record, Ack(entry, cumulative=True, ack_set=left))
        else:
            store.acknowledge(subscription.record, Ack(entry - 1, cumulative=True))
        commit = commit._replace(cursor=_first(subscription.cursor))
        store.commit(subscription.record, commit)
        subscription.touch()

    async def position(self, partition: Partition, name: str) -> CommittedPosition | None:
        """Return where a group stands; None: nothing is known of it."""
        subscription = partition.subscriptions.get(name)
        if subscription is None or not _is_known(subscription):
            return None
        ledger, cursor = partition.ledger, subscription.cursor
        entry, index = _first(cursor)
        number = await ledger.number_before(entry)
        if entry >= ledger.first_entry:
            number += index
        committed = subscription.record.commit if subscription.record is not None else None
        if committed is not None and (
            committed.number == number or committed.cursor == (entry, index)
        ):
            return committed
        return CommittedPosition(number)

    async def delete(self, partition: Partition, name: str) -> None:
        """Forget the position of a group; on disk on return.

        Raises SubscriptionBusyError if another protocol keeps it for itself.
        """
        if (subscription := partition.subscriptions.get(name)) is not None:
            known = {} if subscription.record is None else subscription.record.properties
            if OWNER in known:
                partition.context.live_members.check_free(partition.topic_name, known)
            await partition.delete(subscription)
            self._forget(partition.topic_name, name)


def _is_known(subscription: PartitionSubscription) -> bool:
    """Return whether a subscription has a position: a passive one gets it by its first commit."""
    record = subscription.record
    return record is not None and not (record.passive and record.commit is None)


def _first(cursor: Cursor) -> tuple[int, int]:
    """Return the entry and the index in it that are acknowledged next."""
    entry = cursor.next_unacked(cursor.mark_delete + 1)
    left = bits(cursor.ack_set(entry))
    return entry, (left & -left).bit_length() - 1 if left else 0


async def _left(ledger: Ledger, entry: int, index: int) -> tuple[int, ...]:
    """Return the messages of an entry from an index on, as the words of an acknowledgement."""
    if not index:
        return ()
    found = await ledger.entry(entry)
    if found is None:
        return ()
    return tuple(words((1 << found.messages) - (1 << min(index, found.messages))))
