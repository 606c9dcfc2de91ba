"""What must hold of transactions: a committed reader sees each committed one whole, once, in order.

And nothing of others. A message is named by its client, the number of its transaction and its place
in that on its partition, `t0:17:2`. A transaction may be seen once its commit was sent; it must be
seen, on all its partitions, once the commit was answered or any message of it was seen. What is
copied by consume-transform-produce stands in the copy as in the source, or, where consumers share
it, once. What was acknowledged in a committed transaction does not come again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, Protocol

from tests.simulation.history import GroupPartition, History
from tests.simulation.seeded import CLOCK


class Message(NamedTuple):
    """A message as its name says: of a client's transaction, by its place on the partition."""

    client: str
    number: int
    place: int

    @classmethod
    def parse(cls, name: str) -> Message:
        client, number, place = name.split(":")
        return cls(client, int(number), int(place))


@dataclass
class Transacted:
    """A transaction: how many messages it has by partition, and what became of it."""

    counts: dict[int, int]
    may_be_seen: bool = False
    must_be_seen: bool = False


@dataclass
class View:
    """What a reader has of a partition that it reads from its start: the last of each client."""

    position: int = 0
    newest: dict[str, Message] = field(default_factory=dict)
    offsets: set[int] = field(default_factory=set)


class CopyCheck(Protocol):
    """Checks a copy of a partition from its start; returns whether it is complete."""

    def __call__(self, partition: int, names: Sequence[str], *, complete: bool) -> bool:
        """`complete`: it is to have all that was seen of the source."""
        ...


class TransactionLaw:
    """The transactions of a run, and where their messages were seen in each partition."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._clients: dict[str, list[Transacted]] = {}
        self._names: dict[int, dict[int, str]] = {}
        self._offsets: dict[int, dict[str, int]] = {}
        self._acknowledged: dict[tuple[GroupPartition, str], float] = {}

    def begin(self, client: str, counts: dict[int, int]) -> tuple[int, Transacted]:
        """Note a transaction that is about to be written; return its number, from 0 on."""
        begun, made = self._clients.setdefault(client, []), Transacted(counts)
        begun.append(made)
        return len(begun) - 1, made

    def refused(self, found: Transacted) -> None:
        """Note that a commit, which was sent once, was refused."""
        if found.must_be_seen:
            self._history.violation("a refused commit was seen", repr(found))
        found.may_be_seen = False

    def seen(self, partition: int, found: Sequence[tuple[int, str]]) -> None:
        """Check offsets and names that a committed reader got."""
        violation = self._history.violation
        names = self._names.setdefault(partition, {})
        offsets = self._offsets.setdefault(partition, {})
        for offset, name in found:
            if (known := names.setdefault(offset, name)) != name:
                violation("an entry changed", f"{partition}: {name} at {offset}, before {known}")
            if (place := offsets.setdefault(name, offset)) != offset:
                violation("a duplicate", f"{partition}: {name} at {offset} and {place}")
            self._check_committed(partition, name)

    def delivered(self, group: GroupPartition, names: Iterable[str], at: float) -> None:
        """Check names that a subscription got, of an entry that was on its way at a time."""
        for name in names:
            self._check_committed(group.partition.partition, name)
            if self._acknowledged.get((group, name), at) < at:
                violation = self._history.violation
                violation("an acknowledged message came again", f"{group}: {name}")

    def acknowledged(self, group: GroupPartition, names: Iterable[str]) -> None:
        """Note that a transaction was committed in which messages were acknowledged."""
        for name in names:
            self._acknowledged.setdefault((group, name), CLOCK.now)

    def divided(self, group: GroupPartition, names: Iterable[str]) -> None:
        """Note that transactions which are open at once acknowledge messages of an entry.

        With the abort of each the entry is taken from its consumer and goes to any, so that one
        that was on its way may be acknowledged elsewhere meanwhile.
        """
        self._acknowledged.update(dict.fromkeys(((group, name) for name in names), inf))

    def viewed(self, partition: int, view: View, found: Sequence[tuple[int, str]]) -> None:
        """Check what a reader got behind what it has: whole transactions, in their order."""
        self.seen(partition, found)
        violation = self._history.violation
        for offset, name in found:
            if offset < view.position:
                violation("a gap in an answer", f"{name}: {offset} before {view.position}")
            message = Message.parse(name)
            self._check_next(partition, view.newest.get(message.client), message)
            view.newest[message.client] = message
            view.offsets.add(offset)
            view.position = offset + 1
        passed = self._names.get(partition, {})
        if lost := {offset for offset in passed if offset < view.position} - view.offsets:
            text = f"{partition}: {sorted(passed[offset] for offset in lost)[:5]}"
            violation("a committed message is not there any more", text)

    def is_complete(self, partition: int, view: View) -> bool:
        """Return whether a reader has all that must be seen of a partition."""
        for client, begun in self._clients.items():
            last = view.newest.get(client, Message(client, -1, -1))
            for number, transaction in enumerate(begun):
                count = transaction.counts.get(partition, 0)
                if transaction.must_be_seen and count and (number, count - 1) > last[1:]:
                    return False
        return True

    def copied(self, partition: int, names: Sequence[str], *, complete: bool) -> bool:
        """Check a copy of a partition from its start; return whether it is complete.

        `complete`: it is to have all that was seen of the source.
        """
        known = self._names.get(partition, {})
        source = [known[offset] for offset in sorted(known)]
        # What copies Pulsar's deliveries may be ahead of all readers that know offsets.
        both_have = min(len(names), len(source))
        if list(names[:both_have]) != source[:both_have]:
            pairs = zip(names, source, strict=False)
            place = next(at for at, pair in enumerate(pairs) if len({*pair}) > 1)
            both = f"{names[place:][:5]}, in the source {source[place:][:5]}"
            violation = self._history.violation
            violation("a copy is not as its source", f"{partition}, from {place}: {both}")
        return not complete or len(names) == len(source)

    def copied_once(self, partition: int, names: Sequence[str], *, complete: bool) -> bool:
        """As `copied`, of a copy in any order."""
        source, copy = set(self._names.get(partition, {}).values()), set(names)
        if len(copy) < len(names):
            twice = [name for name, count in Counter(names).items() if count > 1]
            self._history.violation("a message was copied twice", f"{partition}: {twice[:5]}")
        return not complete or source <= copy

    def _check_committed(self, partition: int, name: str) -> None:
        transaction = self._of(Message.parse(name))
        if not transaction.may_be_seen:
            text = f"{partition}: {name}: {transaction}"
            self._history.violation("a transaction was seen that was not committed", text)
        transaction.must_be_seen = True

    def _of(self, message: Message) -> Transacted:
        return self._clients[message.client][message.number]

    def _check_next(self, partition: int, last: Message | None, message: Message) -> None:
        violation, begun = self._history.violation, self._clients[message.client]
        if message.place:
            if last is None or message != last._replace(place=last.place + 1):
                text = f"{partition}: {message} after {last}"
                violation("a transaction is not whole", text)
            return
        first = 0
        if last is not None:
            first = last.number + 1
            if message.number < first:
                violation("order of a publisher", f"{partition}: {message} after {last}")
            if last.place != begun[last.number].counts[partition] - 1:
                violation("a transaction is not whole", f"{partition}: {message} after {last}")
        for number in range(first, message.number):
            if begun[number].must_be_seen and begun[number].counts.get(partition):
                text = f"{partition}: {number} of {message.client} before {message}"
                violation("a committed transaction is not there", text)
