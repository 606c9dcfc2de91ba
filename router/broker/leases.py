"""The node's leases: which poll of which worker may read which partition of which subscription.

Theory of operation. Every claim of a worker is a *poll*; polls of one subscription share a Deal
(router/deal.py), which says who holds what. What the deal changes in one step is gathered and told
in one CLAIM_UPDATE a poll; the first one answers a claim at once, even with nothing. A grant waits
until the node itself holds the partition's lease (router/coordination), which on a single node it
does at once, and carries a new *generation*: later generations are larger, over restarts too,
because the store's boot counter is their upper half. Acknowledgements of older ones are refused.

Everything here is in memory, lives on the event loop's thread and is bounded. A broker that
restarts has lost all connections, and with them all claims; nothing is left to be remembered, and
writing leases to disk, the alternative, would only have delayed the next holder.

Not answered here: how many messages a poll takes, and when it acknowledges them. That is the
front's (services/consume.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from router.broker.counters import Clock, Counters, EmptyPolls
from router.coordination import Coordinator, Lease
from router.deal import Deal, Grant
from router.errors import BadNameError, BadRequestError, RouterError, SubscriptionBusyError
from router.model import NOT_PARTITIONED
from router.wire.pulsar import pulsar_pb2 as pb

MAX_NAME: Final = 1_024
MAX_PARTITIONS: Final = 10_000
MAX_POLLS: Final = 10_000
MAX_DEALT: Final = 250_000
MAX_PENDING: Final = 100_000

Later = Callable[[float, Callable[[], None]], object]
"""Calls something back after some seconds, as an event loop's call_later does."""


class Peer(Protocol):
    """A worker's connection, such as the one named `worker pid 1234`."""

    @property
    def name(self) -> str:
        """Tell people which worker this is."""
        ...

    def send(self, command: pb.BaseCommand) -> None:
        """Send a command soon, never waiting."""
        ...


@dataclass(slots=True, eq=False)
class _Poll:
    peer: Peer
    claim_id: int
    consumer: str
    group: _Group
    empty_limit: int
    since: float


@dataclass(slots=True, eq=False)
class _Group:
    topic: str
    subscription: str
    deal: Deal[_Poll]
    generations: dict[int, int] = field(default_factory=dict)
    # Held or asked for between nodes.
    leased: set[int] = field(default_factory=set)
    timer_armed: bool = False


class Leases:
    """Claims and releases of all workers; one object for the node."""

    def __init__(
        self,
        boot: int,
        idle: float,
        coordinator: Coordinator,
        counters: Counters,
        clock: Clock,
        later: Later,
    ) -> None:
        self._last_generation = boot << 32
        self._idle = idle
        self._coordinator = coordinator
        self._counters = counters
        self._clock = clock
        self._later = later
        self._empty_polls = EmptyPolls(clock)
        self._groups: dict[tuple[str, str], _Group] = {}
        self._polls: dict[Peer, dict[int, _Poll]] = {}
        self._pending: OrderedDict[Lease, tuple[str, pb.MessageIdData]] = OrderedDict()
        self._updates: dict[_Poll, pb.CommandClaimUpdate] = {}
        self._gathering = False
        counters.watch("router_broker_claims", lambda: sum(map(len, self._polls.values())))

    def claim(self, peer: Peer, command: pb.CommandClaim) -> None:
        """Queue a poll and answer at once; later updates follow while the claim stands.

        A claim that is refused is answered with `code` and `message`, and does not stand.
        """
        try:
            poll = self._admit(peer, command)
        except RouterError as error:
            refusal = pb.CommandClaimUpdate(
                claim_id=command.claim_id, code=error.code, message=str(error)
            )
            _send(peer, refusal)
            return
        update = self._update(poll)
        wait = self._empty_polls.wait(_poller(poll), command.empty_polls_per_minute)
        if wait is not None:
            update.limited_ms = max(1, round(wait * 1000))
            self._counters.inc("router_broker_empty_polls_limited_total")
        poll.group.deal.claim(poll.consumer, poll, self._clock())
        self._tell(poll.group)

    def release(self, peer: Peer, command: pb.CommandRelease) -> None:
        """Take partitions back, or end the claim where none are named; unknown claims are none."""
        poll = self._polls.get(peer, {}).get(command.claim_id)
        if poll is None:
            return
        self._keep_pending(poll, command.pending)
        if command.partitions:
            poll.group.deal.give_up(poll, command.partitions, self._clock())
            self._tell(poll.group)
            return
        if command.outcome == pb.CommandRelease.EMPTY:
            self._empty_polls.empty(_poller(poll), poll.empty_limit)
        elif command.outcome == pb.CommandRelease.DELIVERED:
            self._empty_polls.delivered(_poller(poll))
        self._end(poll)

    def gone(self, peer: Peer) -> None:
        """End all claims of a connection that is closed."""
        # The last one first, so that none of them is granted what an earlier one held.
        for poll in reversed(list(self._polls.get(peer, {}).values())):
            self._end(poll)

    def generation(self, topic: str, subscription: str, partition: int) -> int:
        """Return the generation of the newest grant of a partition; 0: nobody claims it."""
        group = self._groups.get((topic, subscription))
        return group.generations.get(partition, 0) if group else 0

    def forget(self, topic: str, subscription: str | None = None) -> None:
        """Drop positions left for a next poll: the subscription was reset, or is no more.

        Without a subscription, those of all of the topic's.
        """
        stale = [
            lease
            for lease in self._pending
            if lease.topic == topic and subscription in {None, lease.subscription}
        ]
        for lease in stale:
            del self._pending[lease]

    def _admit(self, peer: Peer, command: pb.CommandClaim) -> _Poll:
        mine = self._polls.get(peer, {})
        if command.claim_id in mine:
            raise BadRequestError(f"claim {command.claim_id} stands already on this connection")
        if max(map(len, (command.topic, command.subscription, command.consumer))) > MAX_NAME:
            raise BadNameError(f"a claim's names have at most {MAX_NAME} characters")
        if command.partitions > MAX_PARTITIONS:
            raise BadRequestError(f"a claim is for at most {MAX_PARTITIONS} partitions")
        group = self._group(command)
        poll = _Poll(
            peer=peer,
            claim_id=command.claim_id,
            consumer=command.consumer,
            group=group,
            empty_limit=command.empty_polls_per_minute,
            since=self._clock(),
        )
        self._polls.setdefault(peer, {})[command.claim_id] = poll
        return poll

    def _group(self, command: pb.CommandClaim) -> _Group:
        key = (command.topic, command.subscription)
        partitions = tuple(range(command.partitions)) or (NOT_PARTITIONED,)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(*key, Deal(partitions, self._idle))
            return group
        _check_room(group.deal, command.consumer, len(partitions))
        if group.deal.partitions != partitions:
            group.deal.resize(partitions)
        return group

    def _end(self, poll: _Poll) -> None:
        mine = self._polls[poll.peer]
        del mine[poll.claim_id]
        if not mine:
            del self._polls[poll.peer]
        deal = poll.group.deal
        was_first = deal.first(poll.consumer) is poll
        deal.release(poll, self._clock())
        # Whose turn it is now hears so even if it gets nothing: it waits for nobody any more.
        if was_first and (following := deal.first(poll.consumer)):
            self._update(following)
        self._tell(poll.group)

    def _tell(self, group: _Group) -> None:
        """Send what the deal changed: one update a poll."""
        self._gathering = True
        for change in group.deal.changes():
            if isinstance(change, Grant):
                self._acquire(group, change)
            else:
                self._counters.inc("router_broker_revokes_total")
                self._update(change.holder).revoked.append(change.partition)
        self._gathering = False
        self._flush()
        self._watch(group)

    def _acquire(self, group: _Group, grant: Grant[_Poll]) -> None:
        def held() -> None:
            # The lease may come later than the poll had patience.
            if group.deal.holder(grant.partition) is grant.holder:
                self._grant(group, grant)
                if not self._gathering:
                    self._flush()

        group.leased.add(grant.partition)
        self._coordinator.acquire(_lease(group, grant.partition), held)

    def _grant(self, group: _Group, grant: Grant[_Poll]) -> None:
        self._last_generation += 1
        group.generations[grant.partition] = self._last_generation
        self._counters.inc("router_broker_grants_total")
        told = self._update(grant.holder).granted.add(
            partition=grant.partition, generation=self._last_generation
        )
        # Whoever gets the partition, the position is used up: by its id, or by the change of ids.
        consumer, position = self._pending.pop(_lease(group, grant.partition), (None, None))
        if consumer == grant.consumer and position is not None:
            told.pending.CopyFrom(position)

    def _update(self, poll: _Poll) -> pb.CommandClaimUpdate:
        update = self._updates.get(poll)
        if update is None:
            update = self._updates[poll] = pb.CommandClaimUpdate(claim_id=poll.claim_id)
        return update

    def _flush(self) -> None:
        updates, self._updates = self._updates, {}
        for poll, update in updates.items():
            if first := poll.group.deal.waiting_behind(poll):
                seconds = self._clock() - first.since
                update.holder = (
                    f"consumer {first.consumer} ({first.peer.name}), polling for {seconds:.1f} s"
                )
            _send(poll.peer, update)

    def _keep_pending(self, poll: _Poll, positions: Iterable[pb.MessageIdData]) -> None:
        held = poll.group.deal.held(poll)
        for position in positions:
            if position.partition in held:
                lease = _lease(poll.group, position.partition)
                self._pending[lease] = (poll.consumer, position)
                self._pending.move_to_end(lease)
        while len(self._pending) > MAX_PENDING:
            self._pending.popitem(last=False)

    def _watch(self, group: _Group) -> None:
        """Have idle ids forgotten in time, and the group itself after its last one."""
        key = (group.topic, group.subscription)
        if not group.deal.live():
            if self._groups.get(key) is group:
                del self._groups[key]
                for partition in group.leased:
                    self._coordinator.release(_lease(group, partition))
            return
        deadline = group.deal.next_deadline()
        if deadline is None or group.timer_armed:
            return

        def fire() -> None:
            group.timer_armed = False
            group.deal.tick(self._clock())
            self._tell(group)

        group.timer_armed = True
        self._later(max(0.0, deadline - self._clock()), fire)


def _check_room(deal: Deal[_Poll], consumer: str, partitions: int) -> None:
    live = deal.live()
    dealt = (len(live) + (consumer not in live)) * partitions
    if deal.polls() >= MAX_POLLS or dealt > MAX_DEALT:
        raise SubscriptionBusyError(
            f"the subscription has {deal.polls()} polls of {len(live)} consumer ids already"
        )


def _lease(group: _Group, partition: int) -> Lease:
    return Lease(group.topic, group.subscription, partition)


def _poller(poll: _Poll) -> tuple[str, str, str]:
    return (poll.group.topic, poll.group.subscription, poll.consumer)


def _send(peer: Peer, update: pb.CommandClaimUpdate) -> None:
    peer.send(pb.BaseCommand(type=pb.BaseCommand.CLAIM_UPDATE, claim_update=update))
