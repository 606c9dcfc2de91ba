"""The node's broker process as a worker sees it: claims, buckets, counters of the whole node."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from router.backends import (
    GroupMembers,
    Mailbox,
    Member,
    Outcome,
    PartitionLease,
    Registry,
)
from router.backends.embedded.registry import BrokerRegistry
from router.backends.pulsar.asking import ask
from router.backends.pulsar.connection import Connection, LostError, Reply
from router.backends.pulsar.link import Link
from router.errors import BackendUnavailableError, from_code
from router.metrics import Sample
from router.model import Position, Subscription
from router.wire.pulsar import encode
from router.wire.pulsar import pulsar_pb2 as pb

PROBE: Final = "probe"
"""The kind and name of a record that is asked for and never written."""
_OUTCOMES = {
    Outcome.REFUSED: pb.CommandRelease.REFUSED,
    Outcome.EMPTY: pb.CommandRelease.EMPTY,
    Outcome.DELIVERED: pb.CommandRelease.DELIVERED,
}


class BrokerClaim:
    """A poll's standing request for partitions; see `Claim`.

    The connection's reader applies updates, the poll reads them: single dictionary operations, so
    that neither waits for the other.
    """

    __slots__ = (
        "_connection",
        "_ended",
        "_first",
        "_granted",
        "_holder",
        "_limited",
        "_lost",
        "_mailbox",
        "_pending",
        "_revoked",
        "_trouble",
        "_waiting",
        "number",
    )

    def __init__(self, connection: Connection, mailbox: Mailbox) -> None:
        self.number = connection.next_id()
        self._connection = connection
        self._mailbox = mailbox
        self._first: Reply | None = Reply()
        self._granted: dict[int, int] = {}
        self._pending: dict[int, Position] = {}
        self._revoked: set[int] = set()
        self._holder: str | None = None
        self._limited: float | None = None
        self._trouble: str | None = None
        self._waiting = False
        self._lost = False
        self._ended = False

    def open(self, command: pb.CommandClaim, deadline: float) -> None:
        """Queue at the broker and take its first answer; raise what it says, LostError."""
        first = self._first
        if first is None:
            raise LostError
        self._connection.add_claim(self.number, self)
        command.claim_id = self.number
        self._connection.send(
            encode(pb.BaseCommand(type=pb.BaseCommand.CLAIM, claim=command)),
        )
        try:
            update = first.take(deadline)
        except BaseException:
            self.release(Outcome.REFUSED)
            raise
        if update.HasField("code"):
            self._end()
            raise from_code(update.code, update.message)

    def granted(self) -> dict[int, int]:
        """Return the partitions held now, each with its generation."""
        return self._granted.copy()

    def pending(self) -> dict[int, Position]:
        """Return what this id's last poll left to be acknowledged."""
        return self._pending.copy()

    def revoked(self) -> set[int]:
        """Return held partitions now dealt to another id."""
        return self._revoked & self._granted.keys()

    def holder(self) -> str | None:
        """Return what this claim waits for, when its poll is refused if it waits in vain."""
        return self._holder

    def waiting(self) -> bool:
        """Return whether partitions are dealt to this claim that may be granted soon."""
        return self._waiting

    def limited(self) -> float | None:
        """Return after how many seconds to come back, if there were too many empty polls."""
        return self._limited

    def lost(self) -> bool:
        """Return whether the node's broker went away: nothing is held any more."""
        return self._lost

    def trouble(self) -> str | None:
        """Return what keeps the node from holding leases at all, while that lasts."""
        return self._trouble

    def give_up(self, partitions: Sequence[int]) -> None:
        """Give these partitions back; their consumers must be closed."""
        if self._ended or self._lost:
            return
        # By generation: what was withdrawn meanwhile may have been granted anew, and that stands.
        given = self._drop(partitions)
        if given:
            self._tell(
                pb.CommandRelease(
                    claim_id=self.number, partitions=given, generations=given.values()
                )
            )

    def release(self, outcome: Outcome, pending: Sequence[Position] = ()) -> None:
        """End the claim; callable twice. The id's next claim is handed `pending` back."""
        if self._ended:
            return
        self._end()
        if not self._lost:
            self._tell(
                pb.CommandRelease(
                    claim_id=self.number,
                    outcome=_OUTCOMES[outcome],
                    pending=[_position_out(position) for position in pending],
                )
            )

    def pushed(self, command: Any, payload: bytes) -> None:
        """Apply an update of the deal."""
        del payload
        self._drop(command.withdrawn)
        for grant in command.granted:
            if grant.HasField("pending"):
                self._pending[grant.partition] = _position_in(grant.pending)
            self._revoked.discard(grant.partition)
            self._granted[grant.partition] = grant.generation
        self._revoked.update(command.revoked)
        self._waiting = command.waiting
        self._holder = command.holder if command.HasField("holder") else None
        self._trouble = command.trouble if command.HasField("trouble") else None
        first, self._first = self._first, None
        if first is None:
            self._mailbox.wake()
            return
        if command.HasField("limited_ms"):
            self._limited = command.limited_ms / 1000
        first.put(command)

    def cut(self, error: BackendUnavailableError) -> None:
        """Learn that the connection went, and all leases with it."""
        self._lost = True
        self._granted.clear()
        self._pending.clear()
        first, self._first = self._first, None
        if first is None:
            self._mailbox.wake()
        else:
            first.fail(error)

    def _drop(self, partitions: Iterable[int]) -> dict[int, int]:
        """Hold these partitions no longer; return those that were held, with their generations."""
        dropped = {}
        for partition in partitions:
            self._pending.pop(partition, None)
            self._revoked.discard(partition)
            if (generation := self._granted.pop(partition, None)) is not None:
                dropped[partition] = generation
        return dropped

    def _end(self) -> None:
        self._ended = True
        self._granted.clear()
        self._connection.drop_claim(self.number)

    def _tell(self, command: pb.CommandRelease) -> None:
        self._connection.send(encode(pb.BaseCommand(type=pb.BaseCommand.RELEASE, release=command)))


class BrokerNode:
    """The node through its broker process; see `Node`."""

    def __init__(self, link: Link, empty_polls_per_minute: int) -> None:
        self.link = link
        self.registry: Registry = BrokerRegistry(link)
        self._limit = empty_polls_per_minute

    def claim(
        self,
        subscription: Subscription,
        consumer: str,
        partitions: int,
        mailbox: Mailbox,
        timeout: float,
    ) -> BrokerClaim:
        """Queue for the partitions; answer at once with what is free; see the protocol."""
        deadline = time.monotonic() + timeout
        command = pb.CommandClaim(
            topic=str(subscription.topic),
            subscription=subscription.name,
            consumer=consumer,
            partitions=partitions,
            empty_polls_per_minute=self._limit,
        )
        while True:
            claim = BrokerClaim(self.link.connection(deadline), mailbox)
            try:
                claim.open(command, deadline)
            except LostError:
                if time.monotonic() >= deadline:
                    raise
            else:
                return claim

    def confirm(
        self, subscription: Subscription, partition: int, generation: int, timeout: float
    ) -> None:
        """Return if this is the newest grant of the partition and its lease certainly stands."""
        command = pb.ConfirmLease(
            topic=str(subscription.topic),
            subscription=subscription.name,
            partition=partition,
            generation=generation,
        )
        ask(self.link, pb.CommandAdmin(confirm=command), time.monotonic() + timeout)

    def members(self, subscription: Subscription, timeout: float) -> GroupMembers:
        """Return who polls a group, and who holds its partitions; see the protocol."""
        of = pb.SubscriptionRef(topic=str(subscription.topic), subscription=subscription.name)
        command = pb.CommandAdmin(describe_group=of)
        found = ask(self.link, command, time.monotonic() + timeout).group
        return GroupMembers(
            tuple(_member(one) for one in found.members),
            tuple(_lease(one) for one in found.leases),
            found.cut,
            found.trouble or None,
        )

    def ready(self, timeout: float) -> None:
        """Return if leases can be had, and the registry answers; see the protocol.

        The nodes' leases and registry are kept over one session: what answers for the one can hold
        the other.
        """
        self.registry.get(PROBE, PROBE, timeout)

    def take_token(
        self, bucket: str, per_minute: float, burst: int, timeout: float, *, look_only: bool = False
    ) -> float | None:
        """Take one token, or only look for one; None when there is one, else the seconds until."""
        command = pb.TakeToken(
            bucket=bucket, per_minute=per_minute, burst=burst, look_only=look_only
        )
        deadline = time.monotonic() + timeout
        token = ask(self.link, pb.CommandAdmin(take_token=command), deadline).token
        return None if token.granted else token.retry_after_ms / 1000

    def push_metrics(
        self, counters: Sequence[Sample], gauges: Sequence[Sample], timeout: float
    ) -> None:
        """Add what this worker counted since its last push; lost or added, never added twice."""
        command = pb.PushMetrics(counters=_samples(counters), gauges=_samples(gauges))
        deadline = time.monotonic() + timeout
        ask(self.link, pb.CommandAdmin(push_metrics=command), deadline, again=False)

    def metrics(self, timeout: float) -> str:
        """Return the node's counters in the Prometheus text format."""
        command = pb.CommandAdmin(get_metrics=pb.Nothing())
        text: str = ask(self.link, command, time.monotonic() + timeout).metrics
        return text

    def close(self) -> None:
        """End this worker's part: the connection goes, and with it claims and gauges."""
        self.link.close()


def _samples(samples: Iterable[Sample]) -> list[pb.Sample]:
    return [
        pb.Sample(
            name=name,
            labels=[pb.KeyValue(key=key, value=text) for key, text in labels],
            value=value,
        )
        for name, labels, value in samples
    ]


def _member(found: pb.GroupMember) -> Member:
    return Member(
        found.consumer,
        found.node,
        found.polls,
        found.polling_ms if found.HasField("polling_ms") else None,
        found.idle_ms if found.HasField("idle_ms") else None,
    )


def _lease(found: pb.GroupLease) -> PartitionLease:
    consumer = found.consumer if found.HasField("consumer") else None
    return PartitionLease(
        found.partition,
        found.node if found.HasField("node") else "",
        consumer,
        tuple(found.waiting),
    )


def _position_out(position: Position) -> pb.MessageIdData:
    return pb.MessageIdData(
        ledgerId=position.ledger,
        entryId=position.entry,
        partition=position.partition,
        batch_index=position.batch_index,
        batch_size=position.batch_size,
        router_epoch=position.epoch,
    )


def _position_in(where: pb.MessageIdData) -> Position:
    return Position(
        where.ledgerId,
        where.entryId,
        where.partition,
        where.batch_index,
        where.batch_size,
        where.router_epoch,
    )
