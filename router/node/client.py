"""The node's broker process as a worker sees it: claims, registry, buckets and counters."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from threading import BoundedSemaphore
from typing import Any, Final

from router.clocks import seconds_left
from router.errors import BackendTimeoutError, BackendUnavailableError, from_code
from router.metrics import Sample
from router.model import (
    ConsumerId,
    Grant,
    GroupMembers,
    PollOutcome,
    Position,
    Subscription,
    TopicName,
)
from router.node import Mailbox
from router.node.requests import ask
from router.node.spawn import open_link
from router.pulsar_client.connection import (
    PendingReply,
    PulsarConnection,
    PulsarConnectionLostError,
)
from router.pulsar_client.link import PulsarLink
from router.settings import Settings
from router.sharing.registry import Registry, RegistryRecord
from router.wire import node
from router.wire.node import node_pb2 as npb
from router.wire.node.conversions import (
    MEMBERS,
    OUTCOMES,
    RECORD,
    from_message_id,
    to_message_id,
    to_samples,
)

PROBE: Final = "probe"
"""The kind and name of a record that is asked for and never written."""
MAX_REGISTRY_CALLS: Final = 64
"""Calls of one worker that the broker has before it; it ends a connection that has too many."""


class BrokerRegistry:
    """The Registry of the node's broker; a call that its connection loses is made again.

    All but a write that expects a version: it may have been done, and would conflict with itself.
    """

    def __init__(self, link: PulsarLink) -> None:
        self._link = link
        self._room = BoundedSemaphore(MAX_REGISTRY_CALLS)

    def get(self, kind: str, name: str, timeout: float) -> RegistryRecord | None:
        """Return a record, None: there is none."""
        command = npb.CommandAdmin(registry_get=npb.RegistryRef(kind=kind, name=name))
        records = self._ask(command, time.monotonic() + timeout).records
        return RECORD.decode(records[0]) if records else None

    def put(
        self, kind: str, name: str, value: bytes, expected: int | None, timeout: float
    ) -> RegistryRecord:
        """Write a record durably, if it has the expected version; 0: only if there is none yet."""
        put = npb.RegistryPut(kind=kind, name=name, value=value, expected=expected)
        command, deadline = npb.CommandAdmin(registry_put=put), time.monotonic() + timeout
        return RECORD.decode(self._ask(command, deadline, again=expected is None).records[0])

    def delete(self, kind: str, name: str, timeout: float) -> bool:
        """Delete a record; return whether there was one."""
        command = npb.CommandAdmin(registry_delete=npb.RegistryRef(kind=kind, name=name))
        deleted: bool = self._ask(command, time.monotonic() + timeout).deleted
        return deleted

    def list(self, kind: str, timeout: float) -> list[RegistryRecord]:
        """Return all records of a kind, by name: those that were there all the time, at least."""
        deadline = time.monotonic() + timeout
        records: list[RegistryRecord] = []
        while True:
            after = records[-1].name if records else ""
            command = npb.CommandAdmin(registry_list=kind, registry_after=after)
            page = [RECORD.decode(record) for record in self._ask(command, deadline).records]
            if not page:
                return records
            records += page

    def _ask(self, command: npb.CommandAdmin, deadline: float, *, again: bool = True) -> Any:
        if not self._room.acquire(timeout=seconds_left(deadline)):
            raise BackendTimeoutError("the registry has too much to do")
        try:
            return ask(self._link, command, deadline, again=again)
        finally:
            self._room.release()


@dataclass(eq=False, slots=True)
class BrokerClaim:
    """A poll's standing request for partitions; see `Claim`.

    The connection's reader applies updates, the poll reads them: single dictionary operations, so
    that neither waits for the other.
    """

    _connection: PulsarConnection
    _mailbox: Mailbox
    number: int = field(init=False)
    _first: PendingReply | None = field(default_factory=PendingReply, init=False)
    _granted: dict[int, int] = field(default_factory=dict, init=False)
    _pending: dict[int, Position] = field(default_factory=dict, init=False)
    _revoked: set[int] = field(default_factory=set, init=False)
    _holder: str | None = field(default=None, init=False)
    _limited: float | None = field(default=None, init=False)
    _unavailable_reason: str | None = field(default=None, init=False)
    _waiting: bool = field(default=False, init=False)
    _retained: bool = field(default=False, init=False)
    _recalled: bool = field(default=False, init=False)
    _lost: bool = field(default=False, init=False)
    _ended: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.number = self._connection.next_id()

    def open(self, command: npb.CommandClaim, deadline: float) -> None:
        """Queue at the broker and take its first answer; raise what it says, LostError."""
        first = self._first
        if first is None:
            raise PulsarConnectionLostError
        self._connection.add_claim(self.number, self)
        command.claim_id = self.number
        self._connection.send(node.frame(claim=command))
        try:
            update = first.take(deadline)
        except BaseException:
            self.release(PollOutcome.REFUSED)
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
        """Return held partitions that are assigned to another id now."""
        return self._revoked & self._granted.keys()

    def holder(self) -> str | None:
        """Return what this claim waits for, when its poll is refused if it waits in vain."""
        return self._holder

    def waiting(self) -> bool:
        """Return whether partitions are assigned to this claim that may be granted soon."""
        return self._waiting

    def limited(self) -> float | None:
        """Return after how many seconds to come back, if there were too many empty polls."""
        return self._limited

    def lost(self) -> bool:
        """Return whether the node's broker went away: nothing is held any more."""
        return self._lost

    def unavailable_reason(self) -> str | None:
        """Return what keeps the node from holding leases at all, while that lasts."""
        return self._unavailable_reason

    def recalled(self) -> bool:
        """Return whether another needs what this retained claim holds."""
        return self._recalled

    def retain(self) -> None:
        """Tell the node that the poll has ended with messages, and that the claim stands."""
        if not (self._retained or self._ended or self._lost):
            self._retained = True
            self._connection.send(node.frame(retain=npb.CommandRetain(claim_id=self.number)))

    def in_use(self) -> None:
        """Answer a recall: a poll uses the claim, and ends it."""
        if self._retained and not self._ended and not self._lost:
            self._retained = False
            retain = npb.CommandRetain(claim_id=self.number, in_use=True)
            self._connection.send(node.frame(retain=retain))

    def give_up(self, partitions: Sequence[int]) -> None:
        """Give these partitions back; their consumers must be closed."""
        if self._ended or self._lost:
            return
        # By generation: what was withdrawn meanwhile may have been granted again, and that stands.
        given = self._drop(partitions)
        if given:
            self._tell(
                npb.CommandRelease(
                    claim_id=self.number, partitions=given, generations=given.values()
                )
            )

    def release(self, outcome: PollOutcome, pending: Sequence[Position] = ()) -> None:
        """End the claim; callable twice. The id's next claim is handed `pending` back."""
        if self._ended:
            return
        self._end()
        if not self._lost:
            self._tell(
                npb.CommandRelease(
                    claim_id=self.number,
                    outcome=OUTCOMES[outcome],
                    pending=[to_message_id(position) for position in pending],
                )
            )

    def pushed(self, command: Any, payload: bytes) -> None:
        """Apply an update of the assignment."""
        del payload
        self._drop(command.withdrawn)
        for grant in command.granted:
            if grant.HasField("pending"):
                self._pending[grant.partition] = from_message_id(grant.pending)
            self._revoked.discard(grant.partition)
            self._granted[grant.partition] = grant.generation
        self._revoked.update(command.revoked)
        self._waiting = command.waiting
        self._recalled |= command.recalled
        self._holder = command.holder if command.HasField("holder") else None
        self._unavailable_reason = (
            command.unavailable_reason if command.HasField("unavailable_reason") else None
        )
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

    def _tell(self, command: npb.CommandRelease) -> None:
        self._connection.send(node.frame(release=command))


class BrokerNode:
    """The node through its broker process; see `Node`."""

    def __init__(self, link: PulsarLink, empty_polls_per_minute: int) -> None:
        self.link = link
        self.registry: Registry = BrokerRegistry(link)
        self._limit = empty_polls_per_minute

    def claim(
        self, consumer: ConsumerId, partitions: int, mailbox: Mailbox, timeout: float
    ) -> BrokerClaim:
        """Queue for the partitions; answer at once with what is free; see the protocol."""
        deadline = time.monotonic() + timeout
        command = npb.CommandClaim(
            topic=str(consumer.subscription.topic),
            subscription=consumer.subscription.name,
            consumer=consumer.name,
            partitions=partitions,
            empty_polls_per_minute=self._limit,
        )
        while True:
            claim = BrokerClaim(self.link.connection(deadline), mailbox)
            try:
                claim.open(command, deadline)
            except PulsarConnectionLostError:
                if time.monotonic() >= deadline:
                    raise
            else:
                return claim

    def confirm(self, grant: Grant, timeout: float) -> None:
        """Return if this is the newest grant of the partition and its lease certainly stands."""
        ask(self.link, npb.CommandAdmin(confirm=_lease(grant)), time.monotonic() + timeout)

    def confirm_all(self, grants: Sequence[Grant], timeout: float) -> list[bool]:
        """Return for each grant whether it is confirmed."""
        leases = npb.ConfirmLeases(grants=map(_lease, grants))
        command, deadline = npb.CommandAdmin(confirm_all=leases), time.monotonic() + timeout
        fenced = set(ask(self.link, command, deadline).fenced)
        return [place not in fenced for place in range(len(grants))]

    def recall(self, topic: TopicName, subscription: str | None, timeout: float) -> None:
        """Return when retained claims are released; see the protocol."""
        claims = npb.RecallClaims(topic=str(topic), subscription=subscription)
        ask(self.link, npb.CommandAdmin(recall=claims), time.monotonic() + timeout)

    def members(self, subscription: Subscription, timeout: float) -> GroupMembers:
        """Return who polls a group, and who holds its partitions; see the protocol."""
        of = npb.SubscriptionRef(topic=str(subscription.topic), subscription=subscription.name)
        command = npb.CommandAdmin(describe_group=of)
        answer = ask(self.link, command, time.monotonic() + timeout)
        return MEMBERS.decode(answer.group)

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
        command = npb.TakeToken(
            bucket=bucket, per_minute=per_minute, burst=burst, look_only=look_only
        )
        deadline = time.monotonic() + timeout
        token = ask(self.link, npb.CommandAdmin(take_token=command), deadline).token
        return None if token.granted else token.retry_after_ms / 1000

    def push_metrics(
        self, counters: Sequence[Sample], gauges: Sequence[Sample], timeout: float
    ) -> None:
        """Add what this worker counted since its last push; lost or added, never added twice."""
        command = npb.PushMetrics(counters=to_samples(counters), gauges=to_samples(gauges))
        deadline = time.monotonic() + timeout
        ask(self.link, npb.CommandAdmin(push_metrics=command), deadline, again=False)

    def metrics(self, timeout: float) -> str:
        """Return the node's counters in the Prometheus text format."""
        command = npb.CommandAdmin(get_metrics=npb.Nothing())
        text: str = ask(self.link, command, time.monotonic() + timeout).metrics
        return text

    def close(self) -> None:
        """End this worker's part: the connection goes, and with it claims and gauges."""
        self.link.close()


def _lease(grant: Grant) -> npb.ConfirmLease:
    return npb.ConfirmLease(
        topic=str(grant.subscription.topic),
        subscription=grant.subscription.name,
        partition=grant.partition,
        generation=grant.generation,
    )


def open_node(settings: Settings) -> BrokerNode:
    """Return the node of the data folder: its broker is dialled, or else started, when needed."""
    return BrokerNode(open_link(settings), settings.number("consume.empty_polls_per_minute"))
