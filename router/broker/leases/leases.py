"""Claims, releases and the changes of the node's leases, and what they lead to; see the package."""

from __future__ import annotations

from typing import Final

from router.broker.counters import Clock, Counters, EmptyPolls
from router.broker.leases.members import members
from router.broker.leases.pending import Pending
from router.broker.leases.polls import Group, Later, Peer, Poll, Share
from router.broker.leases.updates import Updates, send
from router.coordination import Coordinator, Lease
from router.deal import Deal, Grant, Revoke
from router.errors import BadNameError, BadRequestError, FencedError, RouterError
from router.model import NOT_PARTITIONED
from router.wire.pulsar import pulsar_pb2 as pb

MAX_NAME: Final = 1_024
MAX_PARTITIONS: Final = 10_000


class Leases:
    """Claims and releases of all workers, and the coordination's Listener; one for the node."""

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
        self._groups: dict[tuple[str, str], Group] = {}
        self._polls: dict[Peer, dict[int, Poll]] = {}
        self._pending = Pending()
        self._updates = Updates(self._describe)
        self._flush_armed = False
        self._gathering = False
        counters.watch("router_broker_claims", lambda: sum(map(len, self._polls.values())))
        counters.watch("router_broker_leases", self._count_held)
        coordinator.listen(self)

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
            send(peer, refusal)
            return
        update = self._updates.of(poll)
        wait = self._empty_polls.wait(poll.poller(), command.empty_polls_per_minute)
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
        self._keep_pending(poll, command)
        if command.partitions:
            self._take_back(poll, command)
            self._tell(poll.group)
            return
        if command.outcome == pb.CommandRelease.EMPTY:
            self._empty_polls.empty(poll.poller(), poll.empty_limit)
        elif command.outcome == pb.CommandRelease.DELIVERED:
            self._empty_polls.delivered(poll.poller())
        self._end(poll)

    def gone(self, peer: Peer) -> None:
        """End all claims of a connection that is closed."""
        # The last one first, so that none of them is granted what an earlier one held.
        for poll in reversed(list(self._polls.get(peer, {}).values())):
            self._end(poll)

    def generation(self, topic: str, subscription: str, partition: int) -> int:
        """Return the generation of the newest grant of a partition; 0: nobody claims it."""
        share = self._share(Lease(topic, subscription, partition))
        return share.generation if share else 0

    def confirm(self, topic: str, subscription: str, partition: int, generation: int) -> None:
        """Return if this is the newest grant, its poll stands, and the lease certainly does.

        Raises FencedError: then nothing of the partition may be acknowledged under this grant.
        """
        share = self._share(Lease(topic, subscription, partition))
        if share is None or share.poll is None or share.generation != generation:
            raise FencedError
        if not share.held or not self._coordinator.sure():
            raise FencedError("The node is not certain to hold the partition's lease any more.")

    async def members(self, topic: str, subscription: str) -> pb.GroupMembers:
        """Return who polls a group and who holds its partitions, on all nodes."""
        remote = await self._coordinator.look(topic, subscription)
        group = self._groups.get((topic, subscription))
        return members(group, remote, self._coordinator.trouble(), self._clock())

    def forget(self, topic: str, subscription: str | None = None) -> None:
        """Drop positions left for a next poll: the subscription was reset, or is no more.

        Without a subscription, those of all of the topic's.
        """
        self._pending.forget(topic, subscription)

    def held(self, lease: Lease, note: bytes = b"") -> None:
        """Grant the partition to the poll that the deal gives it to."""
        group, share = self._asked(lease)
        if group is None or share is None:
            return
        share.held = True
        if note:
            self._pending.take_over(lease, note)
        if (poll := group.deal.holder(lease.partition)) is not None:
            self._grant(group, lease.partition, poll)
        self._flush_soon()

    def lost(self, lease: Lease) -> None:
        """Withdraw the partition from its poll, which keeps its place in the deal."""
        group, share = self._asked(lease)
        if group is None or share is None:
            return
        share.held = share.wanted = False
        self._counters.inc("router_broker_leases_lost_total")
        self._pending.drop(lease)
        poll, share.poll = share.poll, None
        if poll is not None:
            self._updates.of(poll).withdraw(lease.partition)
            # Nobody waits for it to give back what it has no more.
            if group.deal.asked_back(lease.partition):
                group.deal.give_up(poll, [lease.partition], self._clock())
        self._follow(group)
        self._flush_soon()

    def wanted(self, lease: Lease) -> None:
        """Let a lease go that another node queues for, as soon as no poll holds the partition."""
        group, share = self._asked(lease)
        if group is not None and share is not None and share.held:
            share.wanted = True
            self._follow(group)
            self._flush_soon()

    def queued(self, lease: Lease) -> None:
        """Tell the poll that waits for the lease who has it."""
        group, share = self._asked(lease)
        if group is None or share is None:
            return
        if (poll := group.deal.holder(lease.partition)) is not None:
            self._updates.of(poll)
            self._flush_soon()

    def others(self, topic: str, subscription: str, consumers: frozenset[str]) -> None:
        """Deal anew: these ids are live on other nodes."""
        if (group := self._groups.get((topic, subscription))) is not None:
            group.deal.set_elsewhere(consumers)
            for poll in group.waiting():  # one of its id may have begun or ended to poll elsewhere
                self._updates.of(poll)
            self._follow(group)
            self._flush_soon()

    def troubled(self) -> None:
        """Tell all polls that the coordination is in trouble, or is no longer."""
        if self._coordinator.trouble() is not None:
            self._counters.inc("router_broker_coordination_losses_total")
        for polls in self._polls.values():
            for poll in polls.values():
                self._updates.of(poll)
        self._flush_soon()

    def _admit(self, peer: Peer, command: pb.CommandClaim) -> Poll:
        mine = self._polls.get(peer, {})
        if command.claim_id in mine:
            raise BadRequestError(f"claim {command.claim_id} stands already on this connection")
        if max(map(len, (command.topic, command.subscription, command.consumer))) > MAX_NAME:
            raise BadNameError(f"a claim's names have at most {MAX_NAME} characters")
        if command.partitions > MAX_PARTITIONS:
            raise BadRequestError(f"a claim is for at most {MAX_PARTITIONS} partitions")
        group = self._group(command)
        poll = Poll(
            peer=peer,
            claim_id=command.claim_id,
            consumer=command.consumer,
            group=group,
            empty_limit=command.empty_polls_per_minute,
            since=self._clock(),
        )
        self._polls.setdefault(peer, {})[command.claim_id] = poll
        return poll

    def _group(self, command: pb.CommandClaim) -> Group:
        key = (command.topic, command.subscription)
        partitions = tuple(range(command.partitions)) or (NOT_PARTITIONED,)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(*key, Deal(partitions, self._idle))
            return group
        group.check_room(command.consumer, len(partitions))
        group.fit(partitions)
        return group

    def _share(self, lease: Lease) -> Share | None:
        group = self._groups.get((lease.topic, lease.subscription))
        return group.shares.get(lease.partition) if group else None

    def _asked(self, lease: Lease) -> tuple[Group | None, Share | None]:
        """Return what is known of a lease that is asked for; others are heard of too late."""
        group = self._groups.get((lease.topic, lease.subscription))
        share = group.shares.get(lease.partition) if group else None
        return (group, share) if share is not None and share.asked else (None, None)

    def _end(self, poll: Poll) -> None:
        mine = self._polls[poll.peer]
        del mine[poll.claim_id]
        if not mine:
            del self._polls[poll.peer]
        self._updates.drop(poll)
        deal = poll.group.deal
        was_first = deal.first(poll.consumer) is poll
        for partition in deal.held(poll):
            poll.group.share(partition).poll = None
        deal.release(poll, self._clock())
        # Whose turn it is now hears so even if it gets nothing: it waits for nobody any more.
        if was_first and (following := deal.first(poll.consumer)):
            self._updates.of(following)
        self._tell(poll.group)

    def _take_back(self, poll: Poll, command: pb.CommandRelease) -> None:
        """Take back what the poll was granted; a grant that is newer than it knew of stands."""
        named = list(command.generations) or [0] * len(command.partitions)
        given = []
        for partition, generation in zip(command.partitions, named, strict=False):
            share = poll.group.shares.get(partition)
            if share and share.poll is poll and generation in {0, share.generation}:
                share.poll = None
                given.append(partition)
        poll.group.deal.give_up(poll, given, self._clock())

    def _tell(self, group: Group) -> None:
        """Send what the deal changed: one update a poll."""
        self._follow(group)
        self._updates.flush()

    def _follow(self, group: Group) -> None:
        """Do what the deal's changes ask for."""
        self._gathering = True
        while changes := group.deal.changes():
            for change in changes:
                if isinstance(change, Grant):
                    self._dealt(group, change)
                else:
                    self._ask_back(group, change)
        for partition in group.unused():
            self._let_go(group, partition)
        self._announce(group)
        self._gathering = False
        self._watch(group)

    def _dealt(self, group: Group, change: Grant[Poll]) -> None:
        share = group.share(change.partition)
        share.poll = None
        if group.deal.holder(change.partition) is not change.holder:
            return
        self._updates.of(change.holder)
        if share.wanted:
            self._let_go(group, change.partition)
        if not share.asked:
            share.asked = True
            self._coordinator.acquire(group.lease(change.partition))
        elif share.held:
            self._grant(group, change.partition, change.holder)

    def _ask_back(self, group: Group, change: Revoke[Poll]) -> None:
        if group.share(change.partition).poll is change.holder:
            self._counters.inc("router_broker_revokes_total")
            self._updates.of(change.holder).revoked.add(change.partition)
        else:
            # It was never told that it has it, or told that it has not. It waits for less.
            group.deal.give_up(change.holder, [change.partition], self._clock())
            self._updates.of(change.holder)

    def _grant(self, group: Group, partition: int, poll: Poll) -> None:
        self._last_generation += 1
        share = group.share(partition)
        share.generation, share.poll = self._last_generation, poll
        self._counters.inc("router_broker_grants_total")
        grant = pb.Grant(partition=partition, generation=self._last_generation)
        position = self._pending.take(group.lease(partition), poll.consumer)
        if position is not None:
            grant.pending.CopyFrom(position)
        self._updates.of(poll).grant(grant)

    def _let_go(self, group: Group, partition: int) -> None:
        """Give a lease back, or ask for it no longer."""
        share, lease, note = group.share(partition), group.lease(partition), b""
        if share.wanted:
            self._counters.inc("router_broker_handovers_total")
            note = self._pending.hand_over(lease)
        share.asked = share.held = share.wanted = False
        self._coordinator.release(lease, note)

    def _announce(self, group: Group) -> None:
        """Tell the other nodes which ids came to live here, and which were forgotten."""
        live = group.deal.live()
        for consumer in sorted(live - group.joined):
            self._coordinator.join(group.topic, group.subscription, consumer)
        for consumer in sorted(group.joined - live):
            self._coordinator.leave(group.topic, group.subscription, consumer)
        group.joined = live

    def _describe(self, poll: Poll, update: pb.CommandClaimUpdate) -> None:
        """Add to an update what the poll waits for."""
        trouble = self._coordinator.trouble()
        if trouble is not None:
            update.trouble = trouble
        if first := poll.group.deal.waiting_behind(poll):
            update.waiting, seconds = True, self._clock() - first.since
            update.holder = (
                f"consumer {first.consumer} ({first.peer.name}), polling for {seconds:.1f} s"
            )
        elif trouble is None and (missing := poll.group.missing(poll)):
            update.waiting = True
            if (holder := self._holder(poll, missing)) is not None:
                update.holder = holder

    def _holder(self, poll: Poll, missing: list[int]) -> str | None:
        """Say what keeps these leases away; None: other ids, for which a poll is not refused."""
        names = {self._coordinator.holder(poll.group.lease(partition)) for partition in missing}
        known = sorted(name for name in names if name is not None)
        if not known:
            return "a lease that is not had yet"
        return f"node {', '.join(known)}" if poll.group.deal.is_elsewhere(poll.consumer) else None

    def _flush_soon(self) -> None:
        """Send what was gathered when all that came from the coordination at once is heard."""
        if self._gathering or self._flush_armed or not self._updates:
            return
        self._flush_armed = True
        self._later(0.0, self._flush)

    def _flush(self) -> None:
        self._flush_armed = False
        self._updates.flush()

    def _keep_pending(self, poll: Poll, command: pb.CommandRelease) -> None:
        for position in command.pending:
            share = poll.group.shares.get(position.partition)
            if share and share.poll is poll:
                self._pending.leave(poll.group.lease(position.partition), poll.consumer, position)

    def _watch(self, group: Group) -> None:
        """Have idle ids forgotten in time, and the group itself after its last one."""
        key = (group.topic, group.subscription)
        if not group.deal.live():
            if self._groups.get(key) is group:
                del self._groups[key]
                for partition, share in group.shares.items():
                    if share.asked:
                        self._let_go(group, partition)
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

    def _count_held(self) -> int:
        return sum(share.held for g in self._groups.values() for share in g.shares.values())
