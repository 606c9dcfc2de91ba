"""Claims, releases and the changes of the node's leases, and what they lead to; see the package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from router.broker.consume.membership.leases.polls import (
    CallLater,
    ClaimGrant,
    ClaimRequest,
    ClaimUpdate,
    LeaseMetrics,
    Pending,
    PollClaim,
    PollGroup,
    PollPeer,
    Share,
    describe,
    members,
)
from router.broker.consume.membership.leases.recalls import Recalls
from router.coordination import Coordinator, Lease
from router.errors import BadRequestError, FencedError
from router.model import NOT_PARTITIONED, GroupMembers, PollOutcome, Position
from router.sharing.assignment import Assign, PartitionAssignor, Revoke
from router.sharing.limits import Clock, EmptyPolls


class Leases:
    """Claims and releases of all workers, and the coordination's Listener; one for the node."""

    def __init__(
        self,
        boot: int,
        idle: float,
        coordinator: Coordinator,
        counters: LeaseMetrics,
        clock: Clock,
        later: CallLater,
    ) -> None:
        self._last_generation = boot << 32
        self._idle = idle
        self._coordinator = coordinator
        self._counters = counters
        self._clock = clock
        self._later = later
        self._empty_polls = EmptyPolls(clock)
        self._groups: dict[tuple[str, str], PollGroup] = {}
        self._polls: dict[PollPeer, dict[int, PollClaim]] = {}
        self._pending = Pending()
        self._recalls = Recalls(coordinator, self._update)
        # What polls have not been told yet: one step of the assignment is one update a poll.
        self._updates: dict[PollClaim, ClaimUpdate] = {}
        self._flush_armed = False
        self._gathering = False
        # Called with topic and subscription when a group has no live id here any more.
        self.forgotten: Callable[[str, str], None] = lambda _topic, _subscription: None
        before = self._last_generation
        counters.watch("router_broker_grants_total", lambda: self._last_generation - before)
        counters.watch("router_broker_claims", self._count_claims)
        counters.watch("router_broker_leases", self._count_held)
        coordinator.listen(self)

    def claim(self, peer: PollPeer, claim_id: int, request: ClaimRequest) -> None:
        """Queue a poll and answer at once; later updates follow while the claim stands.

        Raises BadRequestError, BadNameError, SubscriptionBusyError; then the claim does not stand.
        """
        poll = self._admit(peer, claim_id, request)
        update = self._update(poll)
        wait = self._empty_polls.wait(poll.poller(), request.empty_polls_per_minute)
        if wait is not None:
            update.limited_ms = max(1, round(wait * 1000))
            self._counters.inc("router_broker_empty_polls_limited_total")
        assignor = poll.group.assignor
        for resting in poll.group.resting_beside(poll.consumer):
            self._end(resting)
            self._update(resting).recalled = True
        assignor.claim(poll.consumer, poll, self._clock())
        if (first := assignor.poll_before(poll)) is not None:
            self._recalls.recall(first)
        self._tell(poll.group)

    def retain(self, peer: PollPeer, claim_id: int, *, in_use: bool = False) -> None:
        """Let a claim stand whose poll delivered messages, for the next poll of the id there.

        It is recalled when another poll, another node or an administrator needs what it holds.
        `in_use`: a recalled claim has a poll, and ends with it. An unknown claim is ignored.
        """
        if (poll := self._polls.get(peer, {}).get(claim_id)) is None:
            return
        if in_use:
            self._recalls.ended(poll)
            return
        self._empty_polls.delivered(poll.poller())
        poll.is_retained = True
        if poll.group.is_contended(poll):
            self._recalls.recall(poll)
            self._flush()

    def rest(self, peer: PollPeer, claim_id: int) -> bool:
        """Let a claim stand between polls, as `retain`, unless another waits for what it holds.

        Returns whether it stands so. `resume` ends the rest.
        """
        poll = self._polls.get(peer, {}).get(claim_id)
        if poll is None or poll.group.is_contended(poll):
            return False
        self._empty_polls.delivered(poll.poller())
        poll.is_retained = True
        poll.since = self._clock()
        poll.group.resting[poll] = None
        return True

    def resume(self, peer: PollPeer, claim_id: int) -> bool:
        """Have a claim that rests stand for a poll again; return False if it is recalled."""
        poll = self._polls.get(peer, {}).get(claim_id)
        if poll is None or poll.is_recalled:
            return False
        poll.is_retained = False
        poll.since = self._clock()
        poll.group.resting.pop(poll, None)
        return True

    async def recall(self, topic: str, subscription: str | None = None) -> None:
        """Return when the retained claims of a subscription are released or in use, or too late.

        Without a subscription, those of all of the topic's, on this node alone.
        """
        for polls in self._polls.values():
            for poll in polls.values():
                if poll.group.is_of(topic, subscription):
                    self._recalls.recall(poll)
        self._flush()
        await self._recalls.wait(topic, subscription)
        if subscription is not None:
            known = self._groups.get((topic, subscription))
            await self._recalls.wait_for_nodes(topic, subscription, known)

    def give_up(self, peer: PollPeer, claim_id: int, partitions: Mapping[int, int]) -> None:
        """Take partitions back from a claim, each by the generation that the client knows of.

        A newer grant stands; generation 0 is any. An unknown claim is ignored.
        """
        if (poll := self._polls.get(peer, {}).get(claim_id)) is None:
            return
        given = []
        for partition, generation in partitions.items():
            share = poll.group.shares.get(partition)
            if share and share.poll is poll and generation in {0, share.generation}:
                share.poll = None
                given.append(partition)
        poll.group.assignor.give_up(poll, given, self._clock())
        self._tell(poll.group)

    def release(
        self, peer: PollPeer, claim_id: int, outcome: PollOutcome, pending: Iterable[Position] = ()
    ) -> None:
        """End a claim, and keep `pending` for the next poll of its id; ignore an unknown claim."""
        if (poll := self._polls.get(peer, {}).get(claim_id)) is None:
            return
        for position in pending:
            share = poll.group.shares.get(position.partition)
            if share and share.poll is poll:
                self._pending.leave(poll.group.lease(position.partition), poll.consumer, position)
        if outcome is PollOutcome.EMPTY:
            self._empty_polls.empty(poll.poller(), poll.empty_limit)
        elif outcome is PollOutcome.DELIVERED:
            self._empty_polls.delivered(poll.poller())
        self._end(poll)

    def gone(self, peer: PollPeer) -> None:
        """End all claims of a connection that is closed."""
        # The last one first, so that none of them is granted what an earlier one held.
        for poll in reversed(list(self._polls.get(peer, {}).values())):
            self._end(poll)

    def generation(self, topic: str, subscription: str, partition: int) -> int:
        """Return the generation of the newest grant of a partition; 0: no poll claims it."""
        share = self._share(Lease(topic, subscription, partition))
        return share.generation if share else 0

    def confirm(self, topic: str, subscription: str, partition: int, generation: int) -> None:
        """Return if this is the newest grant, its poll stands, and the lease certainly does.

        Raises FencedError: then nothing of the partition may be acknowledged under this grant.
        """
        share = self._share(Lease(topic, subscription, partition))
        if share is None or share.poll is None or share.generation != generation:
            raise FencedError
        if not share.held or not self._coordinator.is_valid():
            raise FencedError("The node is not certain to hold the partition's lease any more.")

    async def members(self, topic: str, subscription: str) -> GroupMembers:
        """Return who polls a group and who holds its partitions, on all nodes."""
        remote = await self._coordinator.remote_group(topic, subscription)
        group = self._groups.get((topic, subscription))
        return members(group, remote, self._coordinator.unavailable_reason(), self._clock())

    def is_live(self, topic: str, subscription: str) -> bool:
        """Return whether ids of a group are live on this node."""
        return (topic, subscription) in self._groups

    def forget(self, topic: str, subscription: str | None = None) -> None:
        """Drop positions left for a next poll: the subscription was reset, or is no more.

        Without a subscription, those of all of the topic's.
        """
        self._pending.forget(topic, subscription)

    def held(self, lease: Lease, note: bytes = b"") -> None:
        """Grant the partition to the poll that it is assigned to."""
        if self._recalls.held(lease, note):
            return
        group, share = self._requested(lease)
        if group is None or share is None:
            return
        share.held = True
        if note:
            self._pending.take_over(lease, note)
        if (poll := group.assignor.holder(lease.partition)) is not None:
            self._grant(group, lease.partition, poll)
        self._flush_soon()

    def lost(self, lease: Lease) -> None:
        """Withdraw the partition from its poll, which keeps its place in the assignment."""
        group, share = self._requested(lease)
        if group is None or share is None:
            return
        share.held = share.contended = False
        self._counters.inc("router_broker_leases_lost_total")
        self._pending.drop(lease)
        poll, share.poll = share.poll, None
        if poll is not None:
            self._update(poll).withdraw(lease.partition)
            # Nobody waits for it to give back what it has no more.
            if group.assignor.is_revoked(lease.partition):
                group.assignor.give_up(poll, [lease.partition], self._clock())
        self._follow(group)
        self._flush_soon()

    def contended(self, lease: Lease) -> None:
        """Let a lease go that another node queues for, as soon as no poll holds the partition."""
        group, share = self._requested(lease)
        if group is not None and share is not None and share.held:
            share.contended = True
            if share.poll is not None:
                self._recalls.recall(share.poll)
            self._follow(group)
            self._flush_soon()

    def queued(self, lease: Lease) -> None:
        """Tell the poll that waits for the lease who has it."""
        group, share = self._requested(lease)
        if group is None or share is None:
            return
        if (poll := group.assignor.holder(lease.partition)) is not None:
            self._update(poll)
            self._flush_soon()

    def remote_members(self, topic: str, subscription: str, consumers: frozenset[str]) -> None:
        """Assign the partitions again: these ids are live on other nodes."""
        if (group := self._groups.get((topic, subscription))) is not None:
            group.assignor.set_remote_members(consumers)
            for poll in group.waiting():  # one of its id may have begun or ended to poll elsewhere
                self._update(poll)
            self._follow(group)
            self._flush_soon()

    def availability_changed(self) -> None:
        """Tell all polls that the coordination is in trouble, or is no longer."""
        if self._coordinator.unavailable_reason() is not None:
            self._counters.inc("router_broker_coordination_losses_total")
        for polls in self._polls.values():
            for poll in polls.values():
                self._update(poll)
        self._flush_soon()

    def _admit(self, peer: PollPeer, claim_id: int, request: ClaimRequest) -> PollClaim:
        mine = self._polls.get(peer, {})
        if claim_id in mine:
            raise BadRequestError(f"claim {claim_id} stands already on this connection")
        request.check()
        group = self._group(request)
        poll = PollClaim(
            peer=peer,
            claim_id=claim_id,
            consumer=request.consumer,
            group=group,
            empty_limit=request.empty_polls_per_minute,
            since=self._clock(),
        )
        self._polls.setdefault(peer, {})[claim_id] = poll
        return poll

    def _group(self, request: ClaimRequest) -> PollGroup:
        key = (request.topic, request.subscription)
        partitions = tuple(range(request.partitions)) or (NOT_PARTITIONED,)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = PollGroup(*key, PartitionAssignor(partitions, self._idle))
            return group
        group.check_room(request.consumer, len(partitions))
        group.fit(partitions)
        return group

    def _share(self, lease: Lease) -> Share | None:
        group = self._groups.get((lease.topic, lease.subscription))
        return group.shares.get(lease.partition) if group else None

    def _requested(self, lease: Lease) -> tuple[PollGroup | None, Share | None]:
        """Return what is known of a lease that is asked for; others are heard of too late."""
        group = self._groups.get((lease.topic, lease.subscription))
        share = group.shares.get(lease.partition) if group else None
        return (group, share) if share is not None and share.requested else (None, None)

    def _end(self, poll: PollClaim) -> None:
        mine = self._polls[poll.peer]
        del mine[poll.claim_id]
        if not mine:
            del self._polls[poll.peer]
        self._updates.pop(poll, None)
        self._recalls.ended(poll)
        poll.group.resting.pop(poll, None)
        assignor = poll.group.assignor
        was_first = assignor.first(poll.consumer) is poll
        for partition in assignor.held(poll):
            poll.group.share(partition).poll = None
        assignor.release(poll, self._clock())
        # The next poll is told that it is its turn even if it gets nothing: it waits for no other.
        if was_first and (following := assignor.first(poll.consumer)):
            self._update(following)
        self._tell(poll.group)

    def _tell(self, group: PollGroup) -> None:
        """Send what the assignment changed: one update a poll."""
        self._follow(group)
        self._flush()

    def _follow(self, group: PollGroup) -> None:
        """Do what the changes of the assignment ask for."""
        self._gathering = True
        while changes := group.assignor.changes():
            for change in changes:
                if isinstance(change, Assign):
                    self._assigned(group, change)
                else:
                    self._revoke(group, change)
        for partition in group.unused():
            self._give_back(group, partition)
        self._announce(group)
        self._gathering = False
        self._watch(group)

    def _assigned(self, group: PollGroup, change: Assign[PollClaim]) -> None:
        share = group.share(change.partition)
        share.poll = None
        if group.assignor.holder(change.partition) is not change.holder:
            return
        self._update(change.holder)
        if share.contended:
            self._give_back(group, change.partition)
        if not share.requested:
            share.requested = True
            self._recalls.acquire(group.lease(change.partition))
        elif share.held:
            self._grant(group, change.partition, change.holder)

    def _revoke(self, group: PollGroup, change: Revoke[PollClaim]) -> None:
        if group.share(change.partition).poll is change.holder:
            self._counters.inc("router_broker_revokes_total")
            self._update(change.holder).revoked.add(change.partition)
        else:
            # The poll does not know that it has the partition. It waits for fewer.
            group.assignor.give_up(change.holder, [change.partition], self._clock())
            self._update(change.holder)

    def _grant(self, group: PollGroup, partition: int, poll: PollClaim) -> None:
        self._last_generation += 1
        share = group.share(partition)
        share.generation, share.poll = self._last_generation, poll
        pending = self._pending.take(group.lease(partition), poll.consumer)
        self._update(poll).grant(ClaimGrant(partition, self._last_generation, pending))

    def _give_back(self, group: PollGroup, partition: int) -> None:
        """Give a lease back, or ask for it no longer."""
        share, lease, note = group.share(partition), group.lease(partition), b""
        if share.contended:
            self._counters.inc("router_broker_handovers_total")
            note = self._pending.hand_over(lease)
        share.requested = share.held = share.contended = False
        self._coordinator.release(lease, note)

    def _announce(self, group: PollGroup) -> None:
        """Tell the other nodes which ids came to live here, and which were forgotten."""
        live = group.assignor.live()
        for consumer in sorted(live - group.joined):
            self._coordinator.join(group.topic, group.subscription, consumer)
        for consumer in sorted(group.joined - live):
            self._coordinator.leave(group.topic, group.subscription, consumer)
        group.joined = live

    def _flush_soon(self) -> None:
        """Send what was gathered when all that came from the coordination at once is heard."""
        if self._gathering or self._flush_armed or not self._updates:
            return
        self._flush_armed = True
        self._later(0.0, self._flush)

    def _flush(self) -> None:
        """Send what was gathered, with what each poll waits for by now."""
        self._flush_armed = False
        updates, self._updates = self._updates, {}
        for poll, update in updates.items():
            describe(poll, update, self._coordinator, self._clock())
            poll.peer.claim_updated(poll.claim_id, update)

    def _update(self, poll: PollClaim) -> ClaimUpdate:
        """Return what the poll will be told with the next flush, which tells it something."""
        return self._updates.setdefault(poll, ClaimUpdate())

    def _watch(self, group: PollGroup) -> None:
        """Have idle ids forgotten in time, and the group itself after its last one."""
        key = (group.topic, group.subscription)
        if not group.assignor.live():
            if self._groups.get(key) is group:
                del self._groups[key]
                self.forgotten(*key)
                for partition, share in group.shares.items():
                    if share.requested:
                        self._give_back(group, partition)
            return
        deadline = group.assignor.next_deadline()
        if deadline is None or group.timer_armed:
            return

        def fire() -> None:
            group.timer_armed = False
            group.assignor.tick(self._clock())
            self._tell(group)

        group.timer_armed = True
        self._later(max(0.0, deadline - self._clock()), fire)

    def _count_claims(self) -> int:
        resting = sum(len(group.resting) for group in self._groups.values())
        return sum(map(len, self._polls.values())) - resting

    def _count_held(self) -> int:
        return sum(share.held for g in self._groups.values() for share in g.shares.values())
